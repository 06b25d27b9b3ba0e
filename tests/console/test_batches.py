"""Verbs change many jobs by a few calls, and each job has its own answer."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from typing import Any

import pytest
from django.db import connection, transaction
from django.test.utils import CaptureQueriesContext

import django_delayq as delayq
from django_delayq import clock, ids
from django_delayq.console import operation_loop, verbs
from django_delayq.console.operation_loop import OperationLoop
from django_delayq.console.verbs import NamedJob
from django_delayq.exceptions import DelayqError, QueueUnknown, StoreUnavailable
from django_delayq.mirror.mirror_loop import MirrorLoop
from django_delayq.models import Event, Job, Operation
from django_delayq.producer import outbox, put_back
from django_delayq.producer.stores import stores
from django_delayq.states import Change, EndingKind, EventKind
from tests.mirror.conftest import horizon, loop, lost_reply, sent
from tests.tasks_for_tests import close_order

__all__ = ["horizon", "loop", "lost_reply", "sent"]

MOST = 200
AN_HOUR = {"delay": 7200.0}
# By verb: the calls of Redis and, at most, of the database, BEGIN and COMMIT included.
ROUND_TRIPS = {
    "cancel": (2, 12),
    "reschedule": (2, 12),
    "run_now": (2, 12),
    "requeue": (1, 1),
    "mark_succeeded": (0, 8),
    "mark_failed": (0, 8),
}


def act(verb: str, jobs: Iterable[delayq.Job | NamedJob], **how: Any) -> list[Change | DelayqError]:
    named = [NamedJob(job.id, job.queue) for job in jobs]
    found = list(verbs.apply(verbs.VERBS[verb].each, named, actor="ann", reason="stock", **how))
    assert [job for job, _ in found] == named
    return [answer for _, answer in found]


def scheduled(count: int, **options: Any) -> list[delayq.Job]:
    return delayq.schedule_many(close_order.using(**{"delay": "1h", **options}).bind(number) for number in range(count))


def failed(orders: Any, count: int, **options: Any) -> list[delayq.Job]:
    jobs = scheduled(count, delay="0s", max_attempts=1, **options)
    while claimed := orders.claim():
        for job in claimed:
            orders.settle(job, "fail")
    orders.fold()
    return jobs


def waiting(orders: Any, count: int, **options: Any) -> list[delayq.Job]:
    jobs = scheduled(count, **options)
    orders.fold()
    return jobs


def unresolved(orders: Any, count: int, **options: Any) -> list[delayq.Job]:
    jobs = waiting(orders, count, **options)
    Job.objects.update(published=None, ending=EndingKind.UNKNOWN.value)
    return jobs


STARTS: dict[str, Callable[..., list[delayq.Job]]] = {
    "cancel": waiting,
    "reschedule": waiting,
    "run_now": waiting,
    "requeue": failed,
    "mark_succeeded": unresolved,
    "mark_failed": unresolved,
}
ENDS = {
    "cancel": "cancelled",
    "reschedule": "scheduled",
    "run_now": "scheduled",
    "requeue": "scheduled",
    "mark_succeeded": "succeeded",
    "mark_failed": "failed",
}


@pytest.mark.parametrize(("verb", "redis", "database"), [(verb, *most) for verb, most in ROUND_TRIPS.items()])
def test_the_number_of_jobs_does_not_change_the_number_of_round_trips(orders, loop, sent, verb, redis, database):
    how = AN_HOUR if verb == "reschedule" else {}
    assert act(verb, STARTS[verb](orders, 1), **how) == ["done"]  # Redis has the script
    orders.fold()
    jobs = STARTS[verb](orders, MOST)
    sent.clear()
    with CaptureQueriesContext(connection) as queries:
        answers = act(verb, jobs, **how)
    texts = [query["sql"][:140] for query in queries]
    assert answers == ["done"] * MOST
    assert len(sent) == redis
    assert len(texts) <= database, "\n".join(texts)
    orders.fold()
    assert set(Job.objects.filter(pk__in=[job.id for job in jobs]).values_list("state", flat=True)) == {ENDS[verb]}


@pytest.mark.parametrize(("verb", "redis", "database"), [("cancel", 2, 12), ("requeue", 3, 8)])
def test_nor_does_a_key_of_each_job(orders, loop, sent, verb, redis, database):
    act(verb, STARTS[verb](orders, 1, key="first"))
    orders.fold()
    jobs = []
    for number in range(20):
        jobs += STARTS[verb](orders, 1, key=f"k:{number}")
    sent.clear()
    with CaptureQueriesContext(connection) as queries:
        answers = act(verb, jobs)
    assert answers == ["done"] * 20
    assert len(sent) <= redis
    assert len(queries) <= database, "\n".join(query["sql"][:140] for query in queries)


@pytest.mark.parametrize("verb", ["cancel", "reschedule", "run_now", "mark_failed"])
def test_a_change_that_needs_no_payloads_does_not_load_them(orders, verb):
    jobs = STARTS[verb](orders, 3)
    with CaptureQueriesContext(connection) as queries:
        assert act(verb, jobs, **(AN_HOUR if verb == "reschedule" else {})) == ["done"] * 3
    assert [query["sql"][:400] for query in queries if '"kwargs"' in query["sql"]] == []


def test_large_payloads_of_a_requeue_go_in_several_writes(orders, sent, monkeypatch):
    jobs = failed(orders, 7)
    size = len(outbox.jobs.read([jobs[0].id])[jobs[0].id].record.payload)
    monkeypatch.setattr(put_back, "MOST_BYTES", 3 * size)
    act("requeue", [NamedJob(ids.new(), "orders")])  # Redis has the script
    sent.clear()
    assert act("requeue", jobs) == ["done"] * 7
    assert [len(call) for call in sent] == [3, 3, 1]


def test_each_job_has_its_own_answer(orders, settings):
    settings.DELAYQ = {**settings.DELAYQ, "QUEUES": {**settings.DELAYQ["QUEUES"], "other": {}}}
    foreign = delayq.schedule(close_order, 1, queue="other", delay="1h")
    stores.queue("other", 0).link.execute("HSET", stores.queue("other", 0).keys["meta"], "site", "another")
    [over] = failed(orders, 1)
    running = orders.running()
    odd = {
        NamedJob(running.id, "orders"): "running",
        NamedJob(over.id, "orders"): "finished",
        NamedJob(ids.new(), "orders"): "unknown",
        NamedJob(running.id, "default"): "unknown",
        NamedJob(ids.new(), "gone"): QueueUnknown,
        NamedJob(foreign.id, "other"): "site_other",
    }
    jobs = [NamedJob(job.id, job.queue) for job in waiting(orders, MOST)]
    among = dict(zip(range(3, MOST, MOST // len(odd)), odd, strict=False))
    every = [job for number, job in enumerate(jobs) for job in ([among[number], job] if number in among else [job])]
    answers = dict(zip(every, act("cancel", every), strict=True))
    assert Counter(answers[job] for job in jobs) == {"done": MOST}
    for job, wanted in odd.items():
        answer = answers[job]
        if isinstance(wanted, str):
            assert wanted == (answer.code if isinstance(answer, DelayqError) else answer)
        else:
            assert isinstance(answer, wanted)
    orders.fold()
    assert Job.objects.filter(state="cancelled").count() == MOST
    assert orders.in_redis(running.id) == "running"


def test_a_requeue_answers_for_each_job_and_two_jobs_of_one_key_do_not_both_come_back(orders):
    jobs = [*failed(orders, 1, key="k"), *failed(orders, 1, key="k"), *failed(orders, 1), *waiting(orders, 1)]
    lost = NamedJob(ids.new(), "orders")
    assert act("requeue", [*jobs, lost]) == ["done", "conflict", "done", "conflict", "unknown"]
    orders.fold()
    assert list(Job.objects.order_by("pk").values_list("state", flat=True)) == ["scheduled", "failed", "scheduled", "scheduled"]


def test_with_signing_a_note_of_each_requeue_is_kept_unless_it_is_refused(orders, settings):
    settings.DELAYQ = {**settings.DELAYQ, "SIGNING": True}
    signed = type(orders)()
    jobs = [*failed(signed, 2), *waiting(signed, 1)]
    assert act("requeue", jobs) == ["done", "done", "conflict"]
    assert set(Event.objects.filter(kind="requeue_asked").values_list("job", flat=True)) == {job.id for job in jobs[:2]}
    signed.fold()
    assert set(Job.objects.values_list("state", flat=True)) == {"scheduled"}


def test_the_rows_have_the_answers_before_the_mirror_has_seen_the_events(orders):
    running = orders.running()
    jobs = [*waiting(orders, 3), running]
    assert act("cancel", jobs) == ["done", "done", "done", "running"]
    rows = Job.objects.in_bulk([job.id for job in jobs])
    assert [rows[job.id].state for job in jobs] == ["cancelled", "cancelled", "cancelled", "running"]
    assert rows[running.id].cancel_requested

    def told() -> list[tuple[str, str, str]]:
        kinds = (EventKind.CANCELLED, EventKind.CANCEL_REQUESTED)
        return sorted(Event.objects.filter(kind__in=kinds).values_list("kind", "actor", "reason"))

    assert told() == [("cancel_requested", "ann", "stock"), *[("cancelled", "ann", "stock")] * 3]
    orders.fold()
    assert len(told()) == 4, "the mirror has added nothing"


@pytest.fixture
def before_the_rows(monkeypatch) -> Callable[[Callable[[], object]], None]:
    """Calls a function once, when Redis has answered and before the rows are updated."""

    def arm(happens: Callable[[], object]) -> None:
        real = outbox.jobs.apply_all

        def apply_all(changes: Any) -> Any:
            monkeypatch.setattr(outbox.jobs, "apply_all", real)
            happens()
            return real(changes)

        monkeypatch.setattr(outbox.jobs, "apply_all", apply_all)

    return arm


def test_a_row_that_another_transaction_has_changed_is_updated_as_well(orders, before_the_rows):
    jobs = waiting(orders, 3)
    before_the_rows(lambda: Job.objects.filter(pk=jobs[1].id).update(last_event="0-1"))
    assert act("reschedule", jobs, **AN_HOUR) == ["done"] * 3
    dates = [(row.run_at - clock.now()).total_seconds() for row in Job.objects.all()]
    assert all(7000 < date <= 7200 for date in dates)


def test_what_is_known_of_a_batch_stays_known_if_redis_fails_before_its_end(orders, lost_reply, before_the_rows):
    job, unknown = waiting(orders, 1)[0], NamedJob(ids.new(), "orders")
    before_the_rows(lost_reply)
    first, second = act("cancel", [job, unknown])
    assert (type(first), second) == (StoreUnavailable, "unknown")
    assert Job.objects.get().state == "cancelled"


def test_a_job_that_is_named_twice_is_changed_once(orders):
    [one, two] = waiting(orders, 2)
    assert act("cancel", [one, two, one]) == ["done", "done", "done"]
    assert Event.objects.filter(kind="cancelled").count() == 2


def test_redis_need_not_have_the_script(orders, redis_server):
    jobs = waiting(orders, 5)
    redis_server.link.execute("SCRIPT", "FLUSH")
    assert act("cancel", jobs) == ["done"] * 5
    orders.fold()
    assert Event.objects.filter(kind="cancelled").count() == 5


def test_redis_need_not_have_the_queue(orders, redis_server):
    jobs = waiting(orders, 5)
    redis_server.link.execute("FLUSHALL")
    assert act("cancel", jobs) == ["done"] * 5
    assert set(Job.objects.values_list("state", flat=True)) == {"cancelled"}


@pytest.mark.parametrize(("verb", "again"), [("cancel", "done"), ("reschedule", "done"), ("requeue", "conflict")])
@pytest.mark.parametrize("folded", [True, False], ids=["the mirror was faster", "the mirror is behind"])
def test_after_a_lost_reply_nothing_is_known_and_a_repeat_changes_nothing_more(orders, lost_reply, verb, again, folded):
    how = AN_HOUR if verb == "reschedule" else {}
    act(verb, STARTS[verb](orders, 1), **how)
    orders.fold()
    jobs = STARTS[verb](orders, 5)
    lost_reply()
    assert [type(answer) for answer in act(verb, jobs, **how)] == [StoreUnavailable] * 5
    if folded:
        orders.fold()
    assert act(verb, jobs, **how) == [again] * 5
    orders.fold()
    assert set(Job.objects.filter(pk__in=[job.id for job in jobs]).values_list("state", flat=True)) == {ENDS[verb]}
    assert len(orders.claim(ahead_ms=24 * 3_600_000)) == {"cancel": 0, "reschedule": 6, "requeue": 5}[verb]


@pytest.mark.parametrize(
    ("verb", "counts"),
    [("cancel", {"done": 5}), ("run_now", {"done": 5}), ("requeue", {"again": 5})],
)
def test_an_operation_counts_each_job_once_when_a_reply_is_lost(orders, lost_reply, verb, counts):
    jobs = STARTS[verb](orders, 5)
    operation = Operation.objects.create(verb=verb, selection={"text": f"state:{jobs[0].state}"}, actor="admin:ann")
    assert act(verb, [NamedJob(ids.new(), "orders")]) == ["unknown"]  # Redis has the script
    loop = OperationLoop()
    lost_reply(after=int(verb == "requeue"))  # it reads how the jobs have ended
    with pytest.raises(StoreUnavailable):
        while loop.poll() == 0:
            pass
    operation.refresh_from_db()
    assert sorted(operation.chunk) == sorted(str(job.id) for job in jobs)
    assert (operation.counts, operation.seen) == ({}, 0)
    while loop.poll() == 0:
        pass
    operation.refresh_from_db()
    assert (operation.stage, operation.counts, operation.seen, operation.chunk) == ("finished", counts, 5, {})


@pytest.mark.parametrize("folded", [True, False], ids=["the mirror was faster", "the mirror is behind"])
def test_an_operation_does_not_requeue_a_job_twice_that_has_failed_again_when_a_reply_is_lost(orders, lost_reply, folded):
    failed(orders, 5)
    operation = Operation.objects.create(verb="requeue", selection={"view": "failed"}, actor="admin:ann")
    assert act("requeue", [NamedJob(ids.new(), "orders")]) == ["unknown"]  # Redis has the script
    loop = OperationLoop()
    lost_reply(after=1)  # it reads how the jobs have ended
    with pytest.raises(StoreUnavailable):
        while loop.poll() == 0:
            pass
    for job in orders.claim():
        orders.settle(job, "fail")
    if folded:
        orders.fold()
    while loop.poll() == 0:
        pass
    orders.fold()
    operation.refresh_from_db()
    assert (operation.stage, operation.counts) == ("finished", {"again": 5})
    assert set(Job.objects.values_list("state", flat=True)) == {"failed"}
    assert Event.objects.filter(kind="requeued").count() == 5


def test_an_operation_goes_on_with_another_server_and_then_repeats_what_is_not_known(
    orders, own_redis, settings, lost_reply, monkeypatch
):
    monkeypatch.setattr(operation_loop, "CHUNK", 2)
    settings.DELAYQ = {**settings.DELAYQ, "QUEUES": {**settings.DELAYQ["QUEUES"], "own": {"REDIS": own_redis().url}}}
    shops = [orders, type(orders)("own")]
    shops[1].store = stores.queue("own", 0)
    shops[1].mirror = MirrorLoop(stores.places, shops[1].config, prefix="delayq")
    for _ in range(3):
        for shop in shops:
            failed(shop, 1, queue=shop.config.name)
    for shop in shops:
        assert act("requeue", [NamedJob(ids.new(), shop.config.name)]) == ["unknown"]  # Redis has the script
    operation = Operation.objects.create(verb="requeue", selection={"view": "failed"}, actor="admin:ann")
    lost_reply(after=2)
    loop = OperationLoop()
    assert loop.poll() == 0
    operation.refresh_from_db()
    assert (operation.counts, operation.seen, len(operation.chunk)) == ({"done": 1}, 1, 1)
    while loop.poll() == 0:
        pass
    operation.refresh_from_db()
    assert (operation.stage, operation.counts, operation.seen, operation.chunk) == ("finished", {"done": 5, "again": 1}, 6, {})


@pytest.mark.parametrize("rolled_back", [True, False])
def test_a_batch_in_a_transaction_takes_effect_at_once_and_its_rows_are_updated_by_the_commit(orders, rolled_back):
    jobs = waiting(orders, 3)
    with transaction.atomic():
        assert act("cancel", jobs) == ["done"] * 3
        assert [orders.in_redis(job.id) for job in jobs] == ["finished"] * 3
        assert set(Job.objects.values_list("state", flat=True)) == {"scheduled"}
        transaction.set_rollback(rolled_back)
    assert set(Job.objects.values_list("state", flat=True)) == {"scheduled" if rolled_back else "cancelled"}
    orders.fold()
    assert set(Job.objects.values_list("state", flat=True)) == {"cancelled"}


def test_jobs_of_the_open_transaction_are_part_of_it(orders):
    there = waiting(orders, 2)
    with transaction.atomic():
        mine = scheduled(2)
        assert act("cancel", [*there, *mine]) == ["done"] * 4
        transaction.set_rollback(True)
    orders.fold()
    assert list(Job.objects.values_list("state", flat=True)) == ["cancelled"] * 2


@pytest.mark.parametrize("verb", ["cancel", "reschedule"])
def test_far_jobs_are_changed_by_one_transaction(orders, horizon, sent, verb):
    how = {"delay": 60.0} if verb == "reschedule" else {}
    jobs = scheduled(50, delay="3h")
    assert Job.objects.filter(far=True).count() == 50
    sent.clear()
    with CaptureQueriesContext(connection) as queries:
        assert act(verb, jobs, **how) == ["done"] * 50
    assert len(queries) <= 14, "\n".join(query["sql"][:140] for query in queries)
    assert len(sent) <= 4
    assert Job.objects.filter(far=True).count() == 0
    assert Event.objects.filter(actor="ann").count() == 50
    orders.fold()
    assert set(Job.objects.values_list("state", flat=True)) == {ENDS[verb]}


def test_a_marked_job_is_only_one_that_is_unresolved(orders):
    [waits] = waiting(orders, 1)
    [over] = failed(orders, 1)
    [lost] = scheduled(1)
    orders.fold()
    Job.objects.filter(pk=lost.id).update(published=None, ending=EndingKind.UNKNOWN.value)
    assert act("mark_succeeded", [waits, over, lost, NamedJob(ids.new(), "orders")]) == ["conflict", "finished", "done", "unknown"]
    assert Event.objects.filter(kind="resolved").count() == 1
