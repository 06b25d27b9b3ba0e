"""`delayq inspect`."""

from __future__ import annotations

import json
import uuid

import pytest

import django_delayq as delayq
from django_delayq import ids
from django_delayq.models import Job
from tests.management.conftest import lose_redis
from tests.tasks_for_tests import ask_bank, close_order, ping

FAILED = json.dumps({"c": "shop.Refused", "m": "no", "t": "Traceback (most recent call last):\n  \x1b[1mpay\x1b[0m"})


def test_inspect_shows_the_row_what_redis_knows_the_attempts_and_the_events(run, orders):
    [job] = orders.scheduled(key="o:7")
    job.run_now(actor="clerk", reason="customer waits")
    orders.settle(orders.claim()[0], "fail", detail=FAILED.encode())
    orders.fold()
    answer = run("inspect", job.id)
    assert answer.code == 0
    parts = ("job", "redis", "attempts", "events", "last traceback")
    assert tuple(line for line in answer.lines if line in parts) == parts
    assert f"  id               {ids.short(job.id)}" in answer.lines
    assert "  key              o:7" in answer.lines
    assert answer.lines.count("  state            failed") == 2
    assert "customer waits" in answer.out


def test_inspect_prints_the_last_traceback_whole_but_harmless(run, orders):
    job = orders.ended("fail", FAILED.encode())
    assert "last traceback\nTraceback (most recent call last):\n  \\u001b[1mpay\\u001b[0m\n" in run("inspect", job.id).out


def test_a_job_has_one_name_wherever_people_read_it_and_either_form_finds_it(run, orders):
    [job] = orders.scheduled(key="o:7")
    row = Job.objects.get()
    for told in (str(job), str(row), run("list").out, run("list", "--json").out, run("cancel", job.id, "--dry-run").out):
        assert job.short_id in told
        assert str(job.id) not in told.replace(f'"uuid": "{job.id}"', "")
    for form in (job.short_id, str(job.id), job.id.hex):
        assert run("inspect", form, "--json").json["job"]["uuid"] == str(job.id)
        assert run("list", "--search", form, "--json").json[0]["id"] == job.short_id


def test_inspect_as_json(run, orders):
    job = orders.ended("fail", FAILED.encode())
    answer = run("inspect", ids.short(job.id), "--json")
    assert answer.code == 0
    assert (answer.json["job"]["id"], answer.json["job"]["state"]) == (ids.short(job.id), "failed")
    assert (answer.json["redis"]["queue"], answer.json["redis"]["state"]) == ("orders", "failed")
    [attempt] = answer.json["attempts"]
    assert (attempt["number"], attempt["outcome"], attempt["error_class"]) == (1, "failed", "shop.Refused")
    assert attempt["traceback"].startswith("Traceback")
    assert (answer.json["events"], answer.json["trouble"]) == ([], "")


def test_inspect_tells_of_a_requested_cancel_and_the_progress(run, orders):
    job = orders.running()
    job.cancel(actor="clerk")
    short = ids.short(job.id)
    orders.store.extend([(short, "n1")], worker="host:1:w", lease_ms=30_000, progress={short: "3/9"})
    redis = run("inspect", job.id, "--json").json["redis"]
    assert (redis["state"], redis["attempt"], redis["cancel_by"], redis["progress"]) == ("running", 1, "clerk", "3/9")
    assert redis["aborts"] is False
    job.cancel(abort=True, actor="clerk")
    redis = run("inspect", job.id, "--json").json["redis"]
    assert (redis["cancel_by"], redis["aborts"]) == ("clerk", True)


def test_inspect_masks_sensitive_arguments(run, orders, settings):
    settings.DELAYQ = {**settings.DELAYQ, "SENSITIVE": ["note"]}
    job = delayq.schedule(close_order, 7, note="4111 1111")
    assert "4111 1111" not in run("inspect", job.id).out
    assert "4111 1111" not in run("inspect", job.id, "--json").out


def test_inspect_of_a_job_that_has_no_row_yet_shows_what_redis_knows(run, orders):
    job = delayq.schedule(ping, delay="1h")
    answer = run("inspect", job.id, "--json")
    assert answer.code == 0
    assert answer.json["job"] is None
    assert (answer.json["redis"]["queue"], answer.json["redis"]["state"]) == ("redis", "scheduled")
    assert run("inspect", job.id).lines[0] == "redis"


def test_inspect_of_a_job_that_redis_has_forgotten_shows_the_row(run, orders):
    job = orders.ended("ack")
    orders.store.tidy(tombstones_ms=-1)
    answer = run("inspect", job.id, "--json")
    assert answer.code == 0
    assert (answer.json["redis"], answer.json["job"]["state"]) == (None, "succeeded")


def test_inspect_of_an_unknown_job_says_that_nobody_knows_it(run, orders):
    nobody = uuid.uuid4()
    answer = run("inspect", nobody)
    assert (answer.code, answer.out) == (1, f"There is no job {ids.short(nobody)} in Redis or in the database.\n")


def test_inspect_of_an_unknown_job_is_a_document_too(run, orders):
    nobody = uuid.uuid4()
    answer = run("inspect", nobody, "--json")
    assert answer.code == 1
    assert (answer.json["job"], answer.json["redis"]) == (None, None)
    assert answer.json["trouble"] == f"There is no job {ids.short(nobody)} in Redis or in the database."


@pytest.mark.parametrize("id", ["7", "!" * 22, "0191-not-a-uuid"])
def test_a_malformed_id_is_a_usage_error(run, orders, id):
    answer = run("inspect", id)
    assert answer.code == 2
    assert answer.error.startswith(f"{id!r} is not a job id")


def test_inspect_without_redis_shows_the_row_and_says_so(run, orders, settings):
    job = orders.ended("fail")
    lose_redis(settings)
    answer = run("inspect", job.id)
    assert answer.code == 1
    assert "  state            failed" in answer.lines
    assert "is not available" in answer.out
    as_json = run("inspect", job.id, "--json")
    assert (as_json.code, as_json.json["redis"]) == (1, None)
    assert "is not available" in as_json.json["trouble"]


def test_inspect_without_redis_does_not_call_a_job_unknown(run, orders, settings):
    lose_redis(settings)
    answer = run("inspect", uuid.uuid4())
    assert answer.code == 1
    assert "is not available" in answer.out
    assert "Neither" not in answer.out


def test_inspect_says_until_when_calls_can_move_a_job(run, orders):
    job = delayq.schedule(ask_bank, 7, delay="4m", key="o:7", on_conflict="latest", at_most="10m")
    orders.fold()
    assert run("inspect", job.id, "--json").json["job"]["at_most"] == 600.0
    assert run("list", "--json").json[0]["at_most"] == 600.0


def test_inspect_says_how_often_a_job_has_asked_and_when_it_does_again(run, orders):
    job = delayq.schedule(ask_bank, 7, delay=0)
    assert "  asked            never" in run("inspect", job.id).lines
    for delay in (0, 600_400):
        orders.settle(orders.claim()[0], "ask", delay=delay)
    orders.fold()
    assert "  asked            polled 2 of 3, next in 10m" in run("inspect", job.id).lines
    document = run("inspect", job.id, "--json").json
    assert (document["job"]["asked"], document["job"]["asked_of"], document["redis"]["asked"]) == (2, 3, 2)
    assert run("list", "--json").json[0]["asked"] == 2
    Job.objects.update(task="shop.gone")
    assert any(line.startswith("  asked            polled 2 times, next in ") for line in run("inspect", job.id).lines)


def test_of_a_job_without_a_limit_no_number_of_attempts_is_told(run, orders):
    job = delayq.schedule(close_order, 7, max_attempts=0, expires="1h")
    assert run("inspect", job.id, "--json").json["job"]["max_attempts"] == 0
    assert "999999" not in run("list").out.replace(job.short_id, "")


def test_inspect_shows_each_argument_under_its_name(run, orders):
    [job] = orders.scheduled()
    answer = run("inspect", job.id)
    assert "    order_id       0" in answer.lines
    assert not any(line.split()[:1] in (["args"], ["kwargs"]) for line in answer.lines)
    assert run("inspect", job.id, "--json").json["job"]["args"] == [0]


def test_inspect_finds_a_job_by_its_key_also_when_it_has_ended(run, orders):
    ended = orders.ended("ack", key="o:7")
    assert f"  id               {ended.short_id}" in run("inspect", "--key", "o:7", "--queue", "orders").lines
    [job] = orders.scheduled(key="o:7")
    assert f"  id               {job.short_id}" in run("inspect", "--key", "o:7", "--queue", "orders").lines


def test_inspect_by_key_without_redis_shows_the_newest_row(run, orders, settings):
    [job] = orders.scheduled(key="o:7")
    lose_redis(settings)
    assert f"  id               {job.short_id}" in run("inspect", "--key", "o:7", "--queue", "orders").lines


@pytest.mark.parametrize(
    ("words", "code", "error"),
    [
        ([], 2, "Name the job by its id, or by --key with --queue."),
        (["0352SRmNKaQiRFFsusf64N", "--key", "o:7"], 2, "Name the job by its id, or by --key with --queue."),
        (["0352SRmNKaQiRFFsusf64N", "--queue", "orders"], 2, "Name the job by its id, or by --key with --queue."),
        (["--key", "o:7"], 2, "--key o:7: keys are unique only within a queue. Add --queue."),
        (["--key", "", "--queue", "orders"], 2, "--key is empty."),
        (["--key", "o:7", "--queue", "ordesr"], 2, "ordesr: no such queue (did you mean 'orders'?)."),
        (["--key", "o:7", "--queue", "orders"], 1, "There is no job with the key 'o:7' in the queue 'orders'."),
    ],
)
def test_inspect_needs_one_job(run, orders, words, code, error):
    answer = run("inspect", *words)
    assert answer.code == code
    assert error in answer.error
