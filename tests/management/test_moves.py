"""`delayq reschedule`, `run-now` and `requeue`."""

from __future__ import annotations

import uuid
from datetime import UTC, datetime

import pytest

from django_delayq import clock, ids
from django_delayq.models import Event, Job
from django_delayq.producer.stores import stores
from tests.management.conftest import lose_redis

DATE = "2040-01-31T18:00:00+01:00"


def due(job) -> datetime:
    view = stores.inspector().job("orders", job.id)
    assert view is not None
    return clock.from_ms(view.date_ms)


def seconds_ahead(job) -> float:
    return (due(job) - clock.now()).total_seconds()


def test_reschedule_to_a_date(run, orders):
    [job] = orders.scheduled()
    answer = run("reschedule", job.id, "--run-at", DATE, "--reason", "customer asked")
    assert (answer.code, answer.out) == (0, "reschedule: 1 done.\n")
    assert due(job) == datetime(2040, 1, 31, 17, tzinfo=UTC)
    orders.fold()
    assert Job.objects.get().run_at == due(job)
    assert Event.objects.get(kind="rescheduled").reason == "customer asked"


@pytest.mark.parametrize(("delay", "seconds"), [("3h", 10_800), ("90", 90), ("1.5", 1.5), ("1h30m", 5400), ("0", 0)])
def test_reschedule_by_a_delay_from_now(run, orders, delay, seconds):
    [job] = orders.scheduled()
    assert run("reschedule", job.id, "--delay", delay).code == 0
    assert seconds_ahead(job) == pytest.approx(seconds, abs=30)


def test_reschedule_as_json_by_key(run, orders):
    [job] = orders.scheduled(key="o:7")
    answer = run("reschedule", "--key", "o:7", "--queue", "orders", "--run-at", DATE, "--json")
    assert answer.json == {"verb": "reschedule", "jobs": [{"key": "o:7", "change": "done"}], "counts": {"done": 1}}
    assert due(job).year == 2040


def test_reschedule_by_a_filter_takes_scheduled_jobs_only(run, orders):
    orders.running()
    jobs = orders.scheduled(2)
    assert run("reschedule", "--queue", "orders", "--run-at", DATE).out == "reschedule: 2 done.\n"
    assert {due(job).year for job in jobs} == {2040}


def test_reschedule_by_id_says_what_runs_and_what_has_ended(run, orders):
    running, ended = orders.running(), orders.ended("ack")
    answer = run("reschedule", running.id, ended.id, "--delay", "1h")
    assert answer.code == 1
    assert answer.lines == [
        "reschedule: 1 running, 1 already finished.",
        f"  {ids.short(running.id)}: running.",
        f"  {ids.short(ended.id)}: already finished.",
    ]


def test_reschedule_moves_a_row_that_redis_does_not_have_yet(run, orders, monkeypatch):
    job = orders.unpublished(monkeypatch)
    assert run("reschedule", job.id, "--run-at", DATE).code == 0
    assert Job.objects.get().run_at.year == 2040


def test_a_dry_run_of_reschedule_moves_nothing(run, orders):
    [job] = orders.scheduled()
    assert run("reschedule", job.id, "--run-at", DATE, "--dry-run").out.startswith("Would reschedule 1 job: ")
    assert seconds_ahead(job) < 7200


@pytest.mark.parametrize("date", [(), ("--delay", "1h", "--run-at", DATE)])
def test_neither_or_both_of_delay_and_run_at_are_refused(run, orders, date):
    [job] = orders.scheduled()
    answer = run("reschedule", job.id, *date)
    assert (answer.code, answer.error) == (2, "Specify either --delay or --run-at.")


@pytest.mark.parametrize("date", ["2040-01-31T18:00:00", "2040-01-31 18:00"])
def test_a_date_without_an_offset_is_in_the_time_zone_of_the_project(run, orders, date, settings):
    settings.TIME_ZONE = "Europe/Berlin"
    [job] = orders.scheduled()
    assert run("reschedule", job.id, "--run-at", date).code == 0
    assert due(job) == datetime(2040, 1, 31, 17, tzinfo=UTC)


def test_a_time_of_today_that_has_passed_is_refused(run, orders):
    [job] = orders.scheduled()
    answer = run("reschedule", job.id, "--run-at", "00:00")
    assert (answer.code, answer.error) == (2, "--run-at 00:00: this time of today has passed. Use a date as well.")
    assert seconds_ahead(job) < 7200


@pytest.mark.parametrize("day", ["today", "yesterday"])
def test_a_day_without_a_time_is_refused(run, orders, day):
    [job] = orders.scheduled()
    answer = run("reschedule", job.id, "--run-at", day)
    assert (answer.code, answer.error.partition(";")[0]) == (2, f"--run-at {day}: {day} has no time")
    assert seconds_ahead(job) > 3000


@pytest.mark.parametrize("date", ["monday", "2040-13-01T00:00:00Z", "25:00", ""])
def test_an_unreadable_date_is_refused_with_examples(run, orders, date):
    [job] = orders.scheduled()
    answer = run("reschedule", job.id, "--run-at", date)
    assert answer.code == 2
    assert 'use a date such as 2030-01-31T18:00:00+01:00, "2030-01-31 18:00" (time zone ' in answer.error
    assert seconds_ahead(job) < 7200


def test_a_date_that_no_row_can_hold_is_refused(run, orders):
    """In UTC it is in the year 10000; the mirror would stop at it."""
    [job] = orders.scheduled()
    answer = run("reschedule", job.id, "--run-at", "9999-12-31T23:59:59-12:00")
    assert answer.code == 2
    assert "use a date such as" in answer.error
    assert seconds_ahead(job) < 7200


@pytest.mark.parametrize("delay", ["soon", "-5", "1x", "200000d", ""])
def test_an_unreadable_delay_is_refused(run, orders, delay):
    [job] = orders.scheduled()
    answer = run("reschedule", job.id, f"--delay={delay}")
    assert answer.code == 2
    assert answer.error.startswith(f"--delay {delay}: ")


def test_run_now_makes_a_job_due(run, orders):
    [job] = orders.scheduled()
    answer = run("run-now", job.id)
    assert (answer.code, answer.out) == (0, "run-now: 1 done.\n")
    assert [ids.full(claimed.id) for claimed in orders.claim()] == [job.id]


def test_run_now_by_key_as_json(run, orders):
    [job] = orders.scheduled(key="o:7")
    answer = run("run-now", "--key", "o:7", "--queue", "orders", "--json")
    assert answer.json == {"verb": "run-now", "jobs": [{"key": "o:7", "change": "done"}], "counts": {"done": 1}}
    assert seconds_ahead(job) <= 0


def test_run_now_by_state(run, orders):
    orders.settle(orders.claim_one(), "retry", delay=3_600_000)
    orders.scheduled()
    assert run("run-now", "--state", "retrying", "--json").json["counts"] == {"done": 1}
    assert len(orders.claim()) == 1


def test_a_dry_run_of_run_now_leaves_the_date(run, orders):
    [job] = orders.scheduled()
    assert run("run-now", "--queue", "orders", "--dry-run", "--json").json == {"would": "run-now", "jobs": 1}
    assert seconds_ahead(job) > 3000


def test_requeue_puts_a_failed_job_back(run, orders):
    job = orders.ended("fail")
    answer = run("requeue", job.id, "--reason", "bank is back")
    assert (answer.code, answer.out) == (0, "requeue: 1 done.\n")
    orders.fold()
    assert Job.objects.get().state == "scheduled"
    assert Event.objects.get(kind="requeued").reason == "bank is back"


def test_requeue_by_a_filter_takes_failed_jobs_and_no_others(run, orders):
    failed = [orders.ended("fail") for _ in range(2)]
    orders.ended("ack")
    [cancelled] = orders.scheduled()
    cancelled.cancel()
    orders.fold()
    answer = run("requeue", "--queue", "orders", "--json")
    assert answer.code == 0
    assert answer.json["jobs"] == [{"id": ids.short(job.id), "change": "done"} for job in failed]


def test_requeue_takes_cancelled_jobs_when_told_to(run, orders):
    [job] = orders.scheduled()
    job.cancel()
    orders.fold()
    assert run("requeue", "--state", "cancelled").out == "requeue: 1 done.\n"
    assert orders.in_redis(job) == "scheduled"


def test_requeue_answers_for_what_cannot_be_put_back(run, orders):
    failed, succeeded, running = orders.ended("fail"), orders.ended("ack"), orders.running()
    [scheduled] = orders.scheduled()
    answer = run("requeue", failed.id, succeeded.id, running.id, scheduled.id, uuid.uuid4(), "--json")
    assert answer.code == 1
    assert answer.json["counts"] == {"done": 1, "conflict": 2, "running": 1, "unknown": 1}


def test_requeue_says_that_the_key_is_held(run, orders):
    job = orders.ended("fail", key="o:7")
    orders.scheduled(key="o:7")
    answer = run("requeue", job.id)
    assert answer.code == 1
    assert "1 in conflict (another job has its key" in answer.lines[0]


def test_requeue_by_key_takes_the_latest_job_of_that_key(run, orders):
    older, job = orders.ended("fail", key="o:7"), orders.ended("fail", key="o:7")
    assert run("requeue", "--key", "o:7", "--queue", "orders", "--dry-run").code == 0
    assert orders.in_redis(job) == "failed"
    answer = run("requeue", "--key", "o:7", "--queue", "orders", "--json")
    assert answer.json == {"verb": "requeue", "jobs": [{"key": "o:7", "change": "done"}], "counts": {"done": 1}}
    assert [orders.in_redis(one) for one in (older, job)] == ["failed", "scheduled"]


def test_requeue_by_a_key_that_no_row_has_is_said_and_gives_exit_code_1(run, orders):
    orders.ended("fail", key="o:7")
    answer = run("requeue", "--key", "o:8", "--queue", "orders")
    assert (answer.code, answer.lines) == (1, ["requeue: 1 unknown.", "  o:8: unknown."])


def test_a_dry_run_of_requeue_leaves_the_job_failed(run, orders):
    job = orders.ended("fail")
    assert run("requeue", "--queue", "orders", "--dry-run").out == f"Would requeue 1 job: {ids.short(job.id)}.\n"
    assert orders.in_redis(job) == "failed"


@pytest.mark.parametrize("words", [("reschedule", "--delay", "1h"), ("run-now",), ("requeue",)])
def test_redis_down_is_one_sentence(run, orders, settings, words):
    job = orders.ended("fail")
    lose_redis(settings)
    answer = run(*words, job.id)
    assert (answer.code, answer.out) == (1, "")
    assert "is not available" in answer.error


@pytest.mark.parametrize("verb", ["reschedule", "run-now", "requeue"])
def test_a_malformed_id_is_a_usage_error(run, orders, verb):
    answer = run(verb, "7", *(["--delay", "1h"] if verb == "reschedule" else []))
    assert answer.code == 2
    assert "'7' is not a job id" in answer.error
