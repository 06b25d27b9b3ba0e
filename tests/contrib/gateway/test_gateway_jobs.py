"""Jobs over HTTP: an accepted request takes effect, and a refused request does not."""

from __future__ import annotations

from datetime import datetime, timedelta

import pytest

import django_delayq as delayq
from django_delayq import clock, ids
from django_delayq.models import Event, Job
from django_delayq.producer.stores import stores
from tests.contrib.gateway.conftest import PING, TASK, refused
from tests.depths import queue_depth
from tests.management.conftest import lose_redis
from tests.producer.test_outage import fall_behind
from tests.tasks_for_tests import close_order


def row(answer) -> Job:
    return Job.objects.get(pk=ids.parse(answer.json()["id"]))


def test_a_scheduled_job_is_in_its_row_and_in_redis(caller):
    answer = caller.post(
        "jobs", {"task": TASK, "args": [7], "kwargs": {"note": "gift"}, "delay": "30m", "key": "o:7", "meta": {"by": "x"}}
    )
    assert answer.status_code == 201, answer.content
    told = answer.json()
    job = row(answer)
    assert told == {"id": job.short_id, "queue": "orders", "key": "o:7", "created": True, "run_at": told["run_at"]}
    assert datetime.fromisoformat(told["run_at"]) - clock.now() > timedelta(minutes=29)
    assert told["run_at"].endswith("+00:00")
    assert (job.args, job.kwargs, job.key) == ([7], {"note": "gift"}, "o:7")
    assert job.meta == {"by": "x", "scheduled_by": "token:partner"}
    assert stores.inspector().job("orders", job.pk) is not None


def test_every_option_reaches_the_job(caller):
    moment = clock.now() + timedelta(hours=2)
    options = {
        "run_at": moment.isoformat(),
        "priority": 5,
        "max_attempts": 3,
        "expires": "3h",
        "queue": "default",
        "on_conflict": "keep",
        "key": "k",
    }
    answer = caller.post("jobs", {"task": TASK, "args": [7], **options})
    assert answer.status_code == 201, answer.content
    job = row(answer)
    assert (job.priority, job.max_attempts, job.queue, job.on_conflict) == (5, 3, "default", "keep")
    assert abs(job.run_at - moment) < timedelta(seconds=1)
    assert job.expires_at is not None
    assert job.expires_at > moment


def test_a_job_of_redis_durability_can_be_read_before_it_has_a_row(caller):
    answer = caller.post("jobs", {"task": PING, "delay": "1h"})
    assert answer.status_code == 201, answer.content
    told = caller.get(f"jobs/{answer.json()['id']}").json()
    assert (told["job"], told["redis"]["state"], told["state"], told["queue"]) == (None, "scheduled", "scheduled", "redis")


def test_a_job_is_told_as_the_command_tells_it(caller, run):
    id = caller.schedule().json()["id"]
    told = caller.get(f"jobs/{id}").json()
    inspected = run("inspect", id, "--json").json
    assert told["job"] == inspected["job"]
    inspected["redis"].pop("cancel_by")
    assert told["redis"] == {**inspected["redis"], "cancel_requested": False}
    assert (told["id"], told["state"], told["redis_answers"]) == (id, "scheduled", True)


def test_who_has_asked_to_cancel_a_run_is_not_told(caller):
    id = caller.post("jobs", {"task": PING}).json()["id"]
    stores.queue("redis", 0).claim("w", "n1", want=1, lease_ms=30_000, max_crashes=3)
    assert delayq.cancel(ids.full(id), actor="anna", reason="private") == "running"
    answer = caller.get(f"jobs/{id}")
    assert answer.json()["redis"]["cancel_requested"] is True
    assert b"anna" not in answer.content


def test_an_id_may_be_the_uuid(caller):
    id = caller.schedule().json()["id"]
    assert caller.get(f"jobs/{ids.full(id)}").json()["id"] == id


def deep(levels: int) -> list:
    found: list = []
    for _ in range(levels):
        found = [found]
    return found


@pytest.mark.parametrize("id", ["x", "0" * 22, "z" * 22, "%00", "a%20b", "é" * 22, "01890000-0000-7000-8000-000000000000"])
def test_an_id_that_nobody_knows_is_404(caller, id):
    refused(caller.get(f"jobs/{id}"), 404, "job_unknown")
    refused(caller.post(f"jobs/{id}/cancel"), 404, "job_unknown")


def test_a_cancelled_job_does_not_run_and_says_by_whom(caller):
    job = row(caller.schedule())
    answer = caller.post(f"jobs/{job.short_id}/cancel", {"reason": "paid"})
    assert (answer.status_code, answer.json()) == (200, {"id": job.short_id, "change": "done"})
    job.refresh_from_db()
    assert job.state == "cancelled"
    event = Event.objects.get(job=job, kind="cancelled")
    assert (event.actor, event.reason) == ("token:partner", "paid")
    assert caller.post(f"jobs/{job.short_id}/cancel").json()["change"] == "done"


def test_a_job_is_rescheduled_made_due_and_put_back(caller):
    id = caller.schedule().json()["id"]
    assert caller.post(f"jobs/{id}/reschedule", {"delay": "3h"}).json()["change"] == "done"
    assert caller.post(f"jobs/{id}/run-now", {"reason": "hurry"}).json()["change"] == "done"
    assert caller.get(f"jobs/{id}").json()["redis"]["state"] == "scheduled"
    assert caller.post(f"jobs/{id}/cancel").json()["change"] == "done"
    assert caller.post(f"jobs/{id}/requeue").json()["change"] == "done"
    assert caller.get(f"jobs/{id}").json()["state"] == "scheduled"


def test_what_cannot_be_done_is_409_with_the_answer(caller):
    id = caller.schedule().json()["id"]
    told = refused(caller.post(f"jobs/{id}/requeue"), 409, "not_changed")
    assert (told["id"], told["change"]) == (id, "conflict")
    caller.post(f"jobs/{id}/cancel")
    told = refused(caller.post(f"jobs/{id}/run-now"), 409, "not_changed")
    assert told["change"] == "finished"


def test_a_program_does_not_put_back_a_job_of_which_nobody_knows_the_end(caller, redis_server):
    job = row(caller.schedule(key="o:7"))
    redis_server.link.execute("FLUSHALL")
    Job.objects.filter(pk=job.pk).update(published=None, ending="unknown")
    for told in (
        refused(caller.post(f"jobs/{job.short_id}/requeue"), 409, "not_changed"),
        refused(caller.post("keys/requeue", {"queue": "orders", "key": "o:7"}), 409, "not_changed"),
    ):
        assert told["change"] == "conflict"
    assert Job.objects.get(pk=job.pk).derived == "unresolved"


def test_the_holder_of_a_key_is_409_with_its_id(caller):
    first = caller.schedule(key="o:7").json()["id"]
    told = refused(caller.schedule(key="o:7"), 409, "key_held", "/key")
    assert told["holder"] == first
    assert Job.objects.count() == 1


def test_by_policy_the_holder_stands_for_the_job(caller):
    first = caller.schedule(key="o:7").json()["id"]
    answer = caller.schedule(key="o:7", on_conflict="keep")
    assert (answer.status_code, answer.json()) == (
        200,
        {"id": first, "queue": "orders", "key": "o:7", "created": False, "run_at": None},
    )
    again = caller.schedule(key="o:7", on_conflict="replace")
    assert again.status_code == 201
    assert again.json()["id"] != first


def test_requests_move_a_job_until_at_most_after_the_first_one(caller):
    options = {"key": "o:7", "on_conflict": "latest", "at_most": "2h", "delay": "90m"}
    first = caller.schedule(**options | {"delay": "30m"}).json()["id"]
    store = stores.queue("orders", 0)
    store.link.execute("HSET", store.keys["firsts"], first, clock.wall_ms() - 3_600_000)
    answer = caller.schedule(**options)
    assert (answer.status_code, answer.json()["id"]) == (200, first)
    assert round((stores.inspector().job("orders", ids.full(first)).date_ms - clock.wall_ms()) / 60_000) == 60


@pytest.mark.parametrize(
    ("given", "code", "place"),
    [
        ({"task": 5}, "field_type", "/task"),
        ({"task": "nobody.knows"}, "task_unknown", "/task"),
        ({"queue": "nowhere"}, "queue_unlisted", "/queue"),
        ({"id": "x"}, "field_unknown", "/id"),
        ({"a/b~c": 1}, "field_unknown", "/a~1b~0c"),
        ({"args": {}}, "field_type", "/args"),
        ({"args": []}, "arguments", "/args"),
        ({"kwargs": {"order_id": 1}}, "arguments", "/kwargs/order_id"),
        ({"kwargs": {"nobody": 1}}, "arguments", "/kwargs/nobody"),
        ({"delay": -1}, "field_value", "/delay"),
        ({"delay": "soon"}, "field_value", "/delay"),
        ({"delay": True}, "field_type", "/delay"),
        ({"delay": 1e300}, "field_value", "/delay"),
        ({"delay": 1, "run_at": "2030-01-01T00:00:00Z"}, "field_value", "/run_at"),
        ({"delay": None}, "field_type", "/delay"),
        ({"key": ""}, "field_value", "/key"),
        ({"key": "a\u0000b"}, "field_value", "/key"),
        ({"key": "k" * 201}, "field_value", "/key"),
        ({"on_conflict": "keep"}, "field_missing", "/key"),
        ({"key": "k", "on_conflict": "steal"}, "field_value", "/on_conflict"),
        ({"key": "k", "on_conflict": "latest", "at_most": "soon"}, "field_value", "/at_most"),
        ({"key": "k", "on_conflict": "latest", "at_most": "367d"}, "options", ""),
        ({"key": "k", "at_most": "10m"}, "options", ""),
        ({"priority": 2**31}, "field_value", "/priority"),
        ({"priority": 1.5}, "field_type", "/priority"),
        ({"max_attempts": -1}, "field_value", "/max_attempts"),
        ({"expires": "1s"}, "options", ""),
        ({"expires": "2020-01-01T00:00"}, "field_value", "/expires"),
        ({"args": [[]] * 2 + [deep(100)]}, "arguments", "/args"),
        ({"kwargs": {"note": deep(101)}}, "arguments", "/kwargs"),
        ({"meta": {"a": deep(101)}}, "arguments", "/meta"),
        ({"meta": []}, "field_type", "/meta"),
        ({"meta": {"scheduled_by": "me"}}, "field_value", "/meta/scheduled_by"),
        ({"meta": {"delayq.carried": {}}}, "field_value", "/meta/delayq.carried"),
    ],
    ids=lambda value: str(value)[:30],
)
def test_a_wrong_field_is_422_with_its_place_and_schedules_nothing(caller, given, code, place):
    refused(caller.schedule(**given), 422, code, place)
    assert not Job.objects.exists()
    assert queue_depth("orders").scheduled == 0


def test_a_date_without_a_zone_is_refused(caller):
    body = {"task": TASK, "args": [1], "run_at": "2030-01-01T00:00:00"}
    refused(caller.post("jobs", body), 422, "field_value", "/run_at")
    refused(caller.post(f"jobs/{caller.schedule().json()['id']}/reschedule", {}), 422, "field_value", "/delay")


def test_a_missing_task_is_named(caller):
    refused(caller.post("jobs", {}), 422, "field_missing", "/task")


def test_arguments_above_the_limit_of_the_queue_are_413(caller):
    refused(caller.schedule(7, kwargs={"note": "x" * 70_000}), 413, "payload_size", "/args")


def test_while_redis_is_away_a_durable_job_is_accepted_and_others_are_503_with_their_id(caller, settings):
    id = caller.schedule().json()["id"]
    lose_redis(settings)
    answer = caller.schedule()
    assert (answer.status_code, answer.json()["created"]) == (202, None)
    assert row(answer).published is None
    told = refused(caller.post("jobs", {"task": PING}), 503, "store_away")
    assert ids.full(told["job"])
    away = caller.post(f"jobs/{id}/cancel")
    refused(away, 503, "store_away")
    assert away["Retry-After"] == "5"
    assert "nowhere" not in away.content.decode()
    seen = caller.get(f"jobs/{id}").json()
    assert (seen["redis"], seen["redis_answers"], seen["job"]["state"]) == (None, False, "scheduled")


def test_it_works_where_requests_run_in_transactions(caller, settings):
    from django.db import connections

    connections.settings["default"]["ATOMIC_REQUESTS"] = True
    try:
        assert caller.schedule(key="o:1").json()["created"] is True
    finally:
        connections.settings["default"]["ATOMIC_REQUESTS"] = False


def test_it_works_where_every_view_asks_for_a_login(caller, settings):
    settings.MIDDLEWARE = [*settings.MIDDLEWARE, "django.contrib.auth.middleware.LoginRequiredMiddleware"]
    assert caller.schedule().status_code == 201
    assert caller.client.get("/queue/v1/openapi.json").status_code == 200


def test_a_job_of_a_queue_that_the_project_has_given_up_is_told_and_not_changed(caller, settings):
    id = caller.schedule().json()["id"]
    settings.DELAYQ = {**settings.DELAYQ, "QUEUES": {"default": {}}}
    assert caller.get(f"jobs/{id}").json()["job"]["queue"] == "orders"
    for verb in ("cancel", "run-now", "requeue"):
        refused(caller.post(f"jobs/{id}/{verb}"), 422, "queue_unlisted")


def test_what_the_gateway_has_scheduled_the_project_cancels_by_key(caller):
    caller.schedule(key="o:9")
    assert delayq.cancel(key="o:9", queue=close_order.queue) == "done"


def test_a_refusal_of_redis_is_said_as_that_and_names_no_job(caller, settings):
    settings.DELAYQ = {**settings.DELAYQ, "MIRROR_MAX_EVENTS": 1000}
    fall_behind("redis")
    told = refused(caller.post("jobs", {"task": PING}), 503, "store_refused")
    assert "job" not in told
