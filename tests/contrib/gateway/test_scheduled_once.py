"""An Idempotency-Key schedules one job within 24 hours, whatever is lost: the answer, the row, the tombstone, or the reply of Redis."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from datetime import timedelta
from typing import Any
from uuid import UUID

import pytest
from django.db import transaction

from django_delayq import clock, ids
from django_delayq.contrib.gateway import enqueue, idempotency, tokens
from django_delayq.contrib.gateway.models import KeptAnswer, Token
from django_delayq.exceptions import StoreUnavailable
from django_delayq.mirror.prune import PruneLoop
from django_delayq.models import Job, PeriodKey, database
from django_delayq.producer import put
from django_delayq.producer.outbox import jobs, period_keys
from django_delayq.producer.outbox.agreed_clock import ClocksDiffer
from django_delayq.producer.outbox.shapes import Once, WantedKey
from django_delayq.producer.stores import stores
from tests.contrib.gateway.conftest import PING, TASK, Caller, refused
from tests.contrib.gateway.test_idempotency import Killed
from tests.depths import queue_depth
from tests.management.conftest import lose_redis
from tests.mirror.conftest import Orders

BODIES = {"outbox": {"task": TASK, "args": [7]}, "redis": {"task": PING}}
QUEUES = {"outbox": "orders", "redis": "redis"}


@pytest.fixture(autouse=True)
def audit(delayq_redis: Any, settings: Any) -> None:
    """The queues keep no row of a succeeded job."""
    queues = {"default": {}, "orders": {"AUDIT": "failures"}, "redis": {"DURABILITY": "redis", "AUDIT": "failures"}}
    settings.DELAYQ = {**settings.DELAYQ, "QUEUES": queues}


def kill_before_the_answer_is_kept(caller: Caller, body: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    def die(*_: Any, **__: Any) -> None:
        raise Killed

    with monkeypatch.context() as patch, pytest.raises(Killed):
        patch.setattr(idempotency, "_update", die)
        caller.post("jobs", body, key="one")


def pass_time(**passed: float) -> None:
    """Moves the dates in the tables into the past, so that the request has that age by the database's clock."""
    gone = timedelta(**passed)
    for row in PeriodKey.objects.all():
        PeriodKey.objects.filter(pk=row.pk).update(until=row.until - gone, at=row.at - gone)
    for row in KeptAnswer.objects.all():
        KeptAnswer.objects.filter(pk=row.pk).update(created_at=row.created_at - gone, held_until=row.held_until - gone)


def run_and_forget(queue: str) -> list[str]:
    """Runs the job. Then its row is deleted and Redis forgets it, as an hour after its end. Returns the ids of the jobs that ran."""
    orders = Orders(queue)
    found = orders.claim()
    for job in found:
        orders.settle(job, "ack")
    orders.fold()
    orders.store.tidy(tombstones_ms=0, now_ms=clock.wall_ms() + 60_000)
    assert not Job.objects.exists()
    return [job.id for job in found]


@pytest.mark.parametrize("durability", BODIES)
@pytest.mark.parametrize("passed", [{"hours": 2}, {"hours": 23, "minutes": 59}], ids=str)
def test_no_second_job_when_row_and_tombstone_are_gone(caller, monkeypatch, durability, passed):
    kill_before_the_answer_is_kept(caller, BODIES[durability], monkeypatch)
    (ran,) = run_and_forget(QUEUES[durability])
    pass_time(**passed)
    answer = caller.post("jobs", BODIES[durability], key="one")
    # Without a row, it is unknown whether Redis ever received the job.
    assert (answer.status_code, answer.json()["created"]) == ((201, True) if durability == "outbox" else (202, None))
    assert answer.json()["id"] == ran
    assert Orders(QUEUES[durability]).claim() == []
    assert caller.post("jobs", BODIES[durability], key="one").content == answer.content


@pytest.mark.parametrize("durability", BODIES)
def test_no_second_job_when_the_answer_itself_is_gone(caller, durability):
    first = caller.post("jobs", BODIES[durability], key="one")
    run_and_forget(QUEUES[durability])
    KeptAnswer.objects.all().delete()
    pass_time(hours=2)
    assert caller.post("jobs", BODIES[durability], key="one").json()["id"] == first.json()["id"]
    assert Orders(QUEUES[durability]).claim() == []


@pytest.mark.parametrize("durability", BODIES)
def test_no_second_job_behind_a_503_whose_request_was_carried_out(caller, monkeypatch, durability):
    real = enqueue.put_in

    def lost(*given: Any, **named: Any) -> None:
        real(*given, **named)
        raise StoreUnavailable("the reply is lost")

    with monkeypatch.context() as patch:
        patch.setattr(enqueue, "put_in", lost)
        refused(caller.post("jobs", BODIES[durability], key="one"), 503, "store_away")
    run_and_forget(QUEUES[durability])
    pass_time(hours=3)
    assert caller.post("jobs", BODIES[durability], key="one").status_code in (201, 202)
    assert Orders(QUEUES[durability]).claim() == []


@pytest.mark.parametrize("durability", BODIES)
def test_after_24_hours_the_key_schedules_again(caller, durability):
    first = caller.post("jobs", BODIES[durability], key="one").json()["id"]
    pass_time(hours=24, seconds=1)
    second = caller.post("jobs", BODIES[durability], key="one").json()["id"]
    assert second != first
    assert queue_depth(QUEUES[durability]).scheduled == 2
    assert PeriodKey.objects.count() == 1


@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("durability", BODIES)
def test_a_process_that_dies_around_its_commit_leaves_the_job_and_its_key_or_neither(caller, monkeypatch, durability, when):
    real_take, real_insert = period_keys.take, jobs.insert

    def take(*given: Any) -> Any:
        found = real_take(*given)
        if when == "after" and durability == "redis":
            raise Killed
        return found

    def insert(*given: Any, **named: Any) -> None:
        real_insert(*given, **named)
        if when == "before":
            raise Killed

    def killed(*_: Any, **__: Any) -> None:
        raise Killed

    body = BODIES[durability]
    with monkeypatch.context() as patch, contextlib.suppress(Killed):
        patch.setattr(period_keys, "take", take)
        patch.setattr(jobs, "insert", insert)
        if when == "after":
            patch.setattr(put, "_publish_rows", killed)
        caller.post("jobs", body, key="one")
    assert Job.objects.count() == PeriodKey.objects.filter(job__in=Job.objects.values("pk")).count()
    KeptAnswer.objects.update(held_until=clock.now() - timedelta(seconds=1))
    answer = caller.post("jobs", body, key="one")
    assert answer.status_code in (201, 202)
    assert [row.job for row in PeriodKey.objects.all()] == [ids.full(answer.json()["id"])]
    assert Job.objects.count() == (durability == "outbox")


def test_a_job_of_redis_durability_that_was_never_sent_is_sent_by_the_next_request(caller, monkeypatch):
    with monkeypatch.context() as patch, pytest.raises(Killed):
        patch.setattr(put, "_send_safely", lambda *_: (_ for _ in ()).throw(Killed()))
        caller.post("jobs", BODIES["redis"], key="one")
    assert queue_depth("redis").scheduled == 0
    pass_time(minutes=2)
    assert caller.post("jobs", BODIES["redis"], key="one").status_code == 201
    assert queue_depth("redis").scheduled == 1


def test_a_job_that_redis_refuses_for_certain_gives_its_key_back(caller, redis_server):
    redis_server.link.execute("CONFIG", "SET", "maxmemory", "1")
    try:
        refused(caller.post("jobs", BODIES["redis"], key="one"), 503, "store_refused")
    finally:
        redis_server.link.execute("CONFIG", "SET", "maxmemory", "0")
    assert not PeriodKey.objects.exists()
    pass_time(hours=3)  # later than Redis would know it: that it was refused is certain
    stores.reset()
    assert caller.post("jobs", BODIES["redis"], key="one").status_code == 201
    assert queue_depth("redis").scheduled == 1


def test_a_job_that_another_took_in_at_once_leaves_no_key(caller):
    holder = caller.post("jobs", {**BODIES["outbox"], "key": "o:7", "delay": "1h"}).json()["id"]
    refused(caller.post("jobs", {**BODIES["outbox"], "key": "o:7"}, key="one"), 409, "key_held", "/key")
    assert caller.post("jobs", {**BODIES["outbox"], "key": "o:7", "on_conflict": "keep"}, key="two").json()["id"] == holder
    job = caller.post("jobs", {**BODIES["redis"], "key": "p", "delay": "1h"}).json()["id"]
    refused(caller.post("jobs", {**BODIES["redis"], "key": "p"}, key="three"), 409, "key_held", "/key")
    assert caller.post("jobs", {**BODIES["redis"], "key": "p", "on_conflict": "keep"}, key="four").json()["id"] == job
    assert not PeriodKey.objects.exists()


def test_a_pushed_message_and_a_far_job_are_scheduled_once_too(caller, settings):

    settings.DELAYQ = {**settings.DELAYQ, "QUEUES": {"orders": {"HORIZON": "1h"}, "mail": {"CONSUMER": "pull"}, "default": {}}}
    for path, body in (("jobs", {**BODIES["outbox"], "delay": "5h"}), ("queues/mail/messages", {"body": 1})):
        first = caller.post(path, body, key=path)
        KeptAnswer.objects.all().delete()
        again = caller.post(path, body, key=path)
        assert (again.status_code, again.json()["id"]) == (201, first.json()["id"])
    assert Job.objects.count() == PeriodKey.objects.count() == 2


# --- whose answers they are ---


def test_a_new_token_with_the_name_of_an_ended_one_gets_none_of_its_answers(caller, make):
    body = {**BODIES["outbox"], "delay": "1h"}
    first = caller.post("jobs", body, key="one")
    tokens.revoke(tokens.live("partner"))
    refused(make(queues=["default"], tasks=[PING]).post("jobs", body, key="one"), 403, "task_denied", "/task")
    tokens.revoke(tokens.live("partner"))
    third = make().post("jobs", body, key="one")
    assert (third.status_code, third.json()["id"] == first.json()["id"]) == (201, False)


def test_the_answers_stay_behind_a_rotation_and_while_one_of_two_is_revoked(caller):
    body = {**BODIES["outbox"], "delay": "1h"}
    first = caller.post("jobs", body, key="one")
    fresh, text = tokens.rotate("partner")
    assert Caller(text).post("jobs", body, key="one").content == first.content
    tokens.revoke(Token.objects.exclude(pk=fresh.pk))
    assert Caller(text).post("jobs", body, key="one").content == first.content


@pytest.mark.parametrize(
    ("field", "listed", "code", "place"),
    [
        ("verbs", ["get"], "verb_denied", None),
        ("queues", ["default"], "task_denied", "/task"),
        ("tasks", [PING], "task_denied", "/task"),
    ],
)
def test_verb_queue_and_task_are_looked_at_before_an_answer_is_repeated(caller, field, listed, code, place):
    body = {**BODIES["outbox"], "queue": "orders", "delay": "1h"}
    caller.post("jobs", body, key="one")
    Token.objects.update(**{field: listed})
    refused(caller.post("jobs", body, key="one"), 403, code, place)


def test_the_same_holds_for_changes_by_id_and_by_key(caller):
    id = caller.post("jobs", {**BODIES["outbox"], "key": "o:7", "delay": "1h"}).json()["id"]
    named = {"queue": "orders", "key": "o:7"}
    assert caller.post(f"jobs/{id}/reschedule", {"delay": "2h"}, key="a").status_code == 200
    assert caller.post("keys/reschedule", {**named, "delay": "2h"}, key="b").status_code == 200
    Token.objects.update(tasks=[PING], queues=["default"])
    refused(caller.post(f"jobs/{id}/reschedule", {"delay": "2h"}, key="a"), 404, "job_unknown")
    refused(caller.post("keys/reschedule", {**named, "delay": "2h"}, key="b"), 403, "queue_denied", "/queue")


@pytest.mark.parametrize(
    ("field", "listed", "code", "place"),
    [("verbs", ["operate"], "verb_denied", "/verb"), ("queues", ["default"], "queue_denied", "/queue")],
)
def test_the_same_holds_for_operations(caller, field, listed, code, place):
    body = {"verb": "cancel", "queue": "orders", "search": "state:scheduled", "reason": "test"}
    assert caller.post("operations", body, key="one").status_code == 202
    Token.objects.update(**{field: listed})
    refused(caller.post("operations", body, key="one"), 403, code, place)


def test_an_answer_about_a_job_that_is_gone_is_repeated(caller, redis_server):
    id = caller.post("jobs", {**BODIES["outbox"], "delay": "1h"}).json()["id"]
    first = caller.post(f"jobs/{id}/cancel", key="a")
    Orders().fold()
    redis_server.link.execute("FLUSHALL")
    assert not Job.objects.exists()
    assert caller.post(f"jobs/{id}/cancel", key="a").content == first.content


# --- the clock, and the rows ---


@pytest.mark.parametrize("hours", [-2, 25, 744])
def test_a_wrong_clock_of_the_host_ends_no_period(caller, monkeypatch, hours):
    body = {**BODIES["outbox"], "delay": "1h"}
    shown = database.now()
    monkeypatch.setattr(database, "now", lambda: shown)
    first = caller.post("jobs", body, key="one")
    monkeypatch.setattr(clock, "now", lambda: shown + timedelta(hours=hours))
    Token.objects.update(expires_at=None)
    assert caller.post("jobs", body, key="one").content == first.content
    KeptAnswer.objects.all().delete()
    assert caller.post("jobs", body, key="one").json()["id"] == first.json()["id"]


def test_no_answer_is_deleted_while_the_clocks_of_database_and_redis_differ(caller, monkeypatch):
    caller.post("jobs", {**BODIES["outbox"], "delay": "1h"}, key="one")
    shown = database.now() + timedelta(days=31)
    monkeypatch.setattr(database, "now", lambda: shown)
    with pytest.raises(ClocksDiffer):
        idempotency.prune()
    with pytest.raises(ClocksDiffer):
        PruneLoop(stores.places, Orders().config).prune()
    assert (KeptAnswer.objects.count(), PeriodKey.objects.count()) == (1, 1)


@pytest.fixture
def ahead(monkeypatch) -> Callable[[], None]:
    """The database's clock is a month ahead from the call on."""

    def begin() -> None:
        shown = database.now() + timedelta(days=31)
        monkeypatch.setattr(database, "now", lambda: shown)

    return begin


def test_a_key_keeps_its_answer_and_its_job_while_the_clocks_of_database_and_redis_differ(caller, ahead):
    body = {**BODIES["outbox"], "delay": "1h"}
    first = caller.post("jobs", body, key="one")
    Token.objects.update(expires_at=None)
    ahead()
    again = caller.post("jobs", body, key="one")
    assert (again.content, again["Idempotency-Replayed"]) == (first.content, "true")
    KeptAnswer.objects.all().delete()
    assert caller.post("jobs", body, key="one").json()["id"] == first.json()["id"]
    assert Job.objects.count() == 1


def test_a_key_keeps_its_answer_and_its_job_while_redis_cannot_say_whether_it_is_old(caller, settings):
    body = {**BODIES["outbox"], "delay": "1h"}
    first = caller.post("jobs", body, key="one")
    KeptAnswer.objects.update(created_at=clock.now() - timedelta(days=2))
    PeriodKey.objects.update(until=clock.now() - timedelta(days=1))
    lose_redis(settings)
    assert caller.post("jobs", body, key="one").content == first.content
    KeptAnswer.objects.all().delete()
    assert caller.post("jobs", body, key="one").json()["id"] == first.json()["id"]
    assert Job.objects.count() == 1


def test_an_old_answer_that_waits_behind_others_to_be_deleted_is_not_repeated(caller, monkeypatch):
    monkeypatch.setattr(idempotency, "PRUNED", 1)
    body = {**BODIES["outbox"], "delay": "1h"}
    first, _ = caller.post("jobs", body, key="one"), caller.post("jobs", body, key="two")
    KeptAnswer.objects.update(created_at=clock.now() - timedelta(days=2))
    KeptAnswer.objects.filter(job=ids.parse(first.json()["id"])).update(created_at=clock.now() - timedelta(hours=25))
    PeriodKey.objects.update(until=clock.now() - timedelta(days=1))
    assert caller.post("jobs", body, key="one").json()["id"] != first.json()["id"]


ONCE = Once.of("scope", "orders", "key", 1000)


def take(job: UUID) -> UUID | None:
    """Takes the key. Returns the job that has it, unless this job got it."""
    held = period_keys.take([WantedKey(ONCE, job, "orders", TASK)], stores.places.shared)
    return held[ONCE.digest].job if held else None


def test_a_key_is_taken_once_and_again_when_its_period_has_ended(transactional_db, delayq_redis):
    one, two = ids.new(), ids.new()
    assert take(one) is None
    assert take(two) == one
    assert take(one) == one, "the same job once more is no exception"
    PeriodKey.objects.update(until=clock.now() - timedelta(seconds=1))
    assert period_keys.find(ONCE, stores.places.shared) is None
    assert take(two) is None
    found = period_keys.find(ONCE, stores.places.shared)
    assert found is not None
    assert found.job == two
    assert 0 <= found.age_ms < 1000
    PeriodKey.objects.update(until=None)
    assert take(one) == two, "an unfinished job has it without an end"


def test_a_key_that_is_taken_leaves_the_callers_transaction_as_it_was(transactional_db):
    first = ids.new()
    take(first)
    with transaction.atomic():
        assert take(ids.new()) == first
        PeriodKey.objects.create(digest="other", job=first, at=clock.now())
    assert PeriodKey.objects.count() == 2


def test_keys_of_two_scopes_queues_or_names_never_meet():
    parts = [("a", "bc", "d"), ("ab", "c", "d"), ("a", "b", "cd"), ("a", "bc", "")]
    assert len({Once.of(*part, 1).digest for part in parts}) == len(parts)


def test_rows_whose_period_has_ended_are_pruned_and_no_others(transactional_db, delayq_redis):
    now = clock.now()
    for number, until in enumerate((now - timedelta(seconds=1), now + timedelta(hours=1), None)):
        PeriodKey.objects.create(digest=str(number), job=ids.new(), until=until, at=now)
    assert PruneLoop(stores.places, Orders().config).prune() == 1
    assert sorted(PeriodKey.objects.values_list("digest", flat=True)) == ["1", "2"]


# --- the option once_for ---


def test_a_request_with_once_for_schedules_one_job_until_a_period_after_its_end(caller):
    body = {**BODIES["outbox"], "key": "payment:7", "once_for": "24h"}
    first = caller.post("jobs", body)
    assert (first.status_code, first.json()["created"]) == (201, True)
    run_and_forget("orders")
    again = caller.post("jobs", body)
    assert (again.status_code, again.json()["created"], again.json()["id"]) == (200, False, first.json()["id"])
    pass_time(hours=25)
    assert caller.post("jobs", body).status_code == 201


def test_once_for_and_an_idempotency_key_are_refused_together(caller):
    body = {**BODIES["outbox"], "key": "payment:7", "once_for": "24h"}
    refused(caller.post("jobs", body, key="one"), 422, "options", "/once_for")
    refused(caller.post("jobs", {**BODIES["outbox"], "once_for": "24h"}), 422, "options", "")
    refused(caller.post("jobs", {**body, "on_conflict": "replace"}), 422, "options", "")


def test_a_token_learns_no_id_of_a_job_of_another_task_that_has_the_key(caller, make):
    body = {**BODIES["outbox"], "key": "payment:7", "once_for": "24h"}
    first = caller.post("jobs", body).json()["id"]
    run_and_forget("orders")
    other = make(name="other", tasks=[PING])
    answer = other.post("jobs", {"task": PING, "queue": "orders", "key": "payment:7", "once_for": "24h"})
    refused(answer, 403, "key_denied", "/key")
    assert first not in answer.content.decode()
