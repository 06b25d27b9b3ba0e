"""The output of commands and pages contains no masked value, no terminal control sequence, and no code location that an error only
mentions.
"""

from __future__ import annotations

import json
import re
import time
from uuid import UUID

import pytest

import django_delayq as delayq
from django_delayq import clock, ids
from django_delayq.admin import tracebacks
from django_delayq.console import masking
from django_delayq.console.wording import error_text
from django_delayq.models import Event, Job, SetAside
from django_delayq.producer import edit
from django_delayq.states import Change
from tests.admin.conftest import page, staff
from tests.tasks_for_tests import close_order
from tests.worker.bench import Bench, task

__all__ = ["staff"]
SECRET = "DE89370400440532013000"
NASTY = "\x1b[2J\x9b2J\u202e\u2066\u2028\x85\x07"
STEERING = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069]")


# masked values


@pytest.fixture
def edited(orders, settings) -> delayq.Job:
    """A job whose first arguments contained a secret, and whose second arguments contain one too."""
    settings.DELAYQ = {**settings.DELAYQ, "SENSITIVE": ["note"]}
    job = delayq.schedule(close_order, 1, note=SECRET, max_attempts=1)
    orders.settle(orders.claim()[0], "fail", detail=b'{"c":"ValueError","m":"no"}')
    orders.fold()
    assert edit.edit_and_requeue(job.id, [2], {"note": SECRET}, actor="clerk") is Change.DONE
    orders.fold()
    assert Event.objects.get(kind="edited").detail == {"args": [1], "kwargs": {"note": SECRET}}
    return job


@pytest.mark.parametrize("words", [(), ("--json",)])
def test_inspect_masks_the_arguments_that_a_job_had_before_it_was_edited(run, edited, words):
    assert SECRET not in run("inspect", edited.id, *words).out


def test_inspect_shows_of_an_edit_what_the_page_shows(run, edited, staff):
    found = run("inspect", edited.id, "--json").json["events"]
    assert [each["detail"] for each in found if each["kind"] == "edited"] == [{"args": [1], "kwargs": {"note": "***"}}]
    shown = staff("view_job").get(page(edited)).content.decode()
    assert "[[1], {&quot;note&quot;: &quot;***&quot;}]" in shown
    assert SECRET not in shown


@pytest.mark.parametrize("words", [(), ("--json",)])
def test_an_edit_of_a_job_whose_task_or_row_is_gone_is_masked_whole(run, edited, words):
    Job.objects.filter(pk=edited.id).update(task="shop.gone")
    Event.objects.filter(kind="edited").update(detail={"args": [SECRET], "kwargs": {"iban": SECRET}})
    assert SECRET not in run("inspect", edited.id, *words).out
    Job.objects.filter(pk=edited.id).delete()
    Event.objects.create(
        job_id=edited.id,
        queue="orders",
        at=clock.now(),
        kind="edited",
        stream_id="x",
        detail={"args": [SECRET], "kwargs": {}},
    )
    assert SECRET not in run("inspect", edited.id, *words).out


@pytest.mark.parametrize("words", [(), ("--json",)])
def test_set_aside_masks_what_a_database_said_of_a_value(run, orders, settings, words):
    set_aside(text=f"value too long: DETAIL: Failing row contains ({SECRET})")
    assert SECRET in run("set-aside", *words).out
    settings.DELAYQ = {**settings.DELAYQ, "SENSITIVE": ["note"]}
    assert SECRET not in run("set-aside", *words).out
    assert "22001" in run("set-aside", *words).out


def set_aside(**fields) -> None:
    usual = {
        "queue": "orders",
        "partition": 0,
        "stream_id": "1-1",
        "item": 0,
        "kind": "failed",
        "job_id": ids.new(),
        "at": clock.now(),
        "raw": b"",
        "length": 0,
        "code": "22001",
        "noticed_at": clock.now(),
    }
    SetAside.objects.create(**usual, **fields)


# terminals


@pytest.fixture
def hostile(orders) -> UUID:
    """Text that would control a terminal, in every place that an outsider can write to."""
    job = delayq.schedule(close_order, NASTY, note=NASTY, key="a\u202eb", meta={"note": NASTY}, max_attempts=1)
    orders.settle(orders.claim()[0], "fail", detail=json.dumps({"c": f"E{NASTY}", "m": NASTY, "t": f"Traceback{NASTY}"}).encode())
    orders.fold()
    delayq.requeue(job.id, actor=f"clerk{NASTY}", reason=f"why{NASTY}\nline")
    orders.fold()
    Job.objects.filter(pk=job.id).update(worker=NASTY, error=NASTY)
    set_aside(text=f"{NASTY}\nline", actor=NASTY)
    delayq.pause("orders", actor=f"clerk{NASTY}", reason=f"{NASTY}\nqueue orders is well")
    return job.id


@pytest.mark.parametrize("form", [(), ("--json",)])
@pytest.mark.parametrize("words", [("status",), ("list",), ("inspect",), ("set-aside",), ("doctor",)], ids=lambda words: words[0])
def test_no_command_steers_a_terminal(run, hostile, words, form):
    said = run(*words, *([hostile] if words == ("inspect",) else []), *form).out
    assert not STEERING.search(said), STEERING.findall(said)
    assert "\\u009b2J" in said or words == ("list",) or form == ("--json",)


def test_json_says_the_same_as_before(run, hostile):
    [listed] = run("list", "--json").json
    assert (listed["args"], listed["kwargs"], listed["key"]) == ([NASTY], {"note": NASTY}, "a\u202eb")
    assert listed["error"] == NASTY
    document = run("inspect", hostile, "--json").json
    assert document["attempts"][0]["traceback"] == f"Traceback{NASTY}"
    assert document["events"][0]["reason"] == f"why{NASTY}\nline"


def test_a_reason_writes_no_line_of_its_own(run, hostile):
    for words in (("status",), ("doctor",), ("set-aside",)):
        assert not [line for line in run(*words).lines if line.startswith(("queue orders is well", "line"))], words


@pytest.mark.parametrize("words", [("list", "--queue", NASTY), ("inspect", NASTY), ("cancel", "--key", "k", "--queue", NASTY)])
def test_no_mistake_steers_a_terminal(run, orders, words):
    answer = run(*words)
    assert answer.code == 2
    assert not STEERING.search(answer.error)


def test_the_list_of_jobs_shows_no_name_that_only_pretends(orders, staff):
    [job] = [delayq.schedule(close_order, 1)]
    Job.objects.filter(pk=job.id).update(queue="a\u202eb", task="c\u202ed")
    for address in ("", "?queue=x%E2%80%AEy", "?task=x%E2%80%AEy"):
        sent = staff("view_job").get(f"/admin/delayq/job/{address}").content.decode()
        shown = re.sub(r'="[^"]*"', "", sent)  # values that go back to the server are unchanged
        assert not STEERING.search(shown), address
        assert ("x\\u202ey" if address else "a\\u202eb") in shown


# masked whole


def test_result_and_meta_of_a_task_that_is_gone_are_masked_whole(orders, settings, run, staff):
    job = delayq.schedule(close_order, 1, meta={"pin": SECRET})
    orders.settle(orders.claim()[0], "ack", detail=b'{"r":{"pin":"%s"}}' % SECRET.encode())
    orders.fold()
    Job.objects.filter(pk=job.id).update(task="shop.gone")
    row = Job.objects.get(pk=job.id)
    assert (masking.result(row.task, row.result), masking.attached(row.task, row.meta)) == (
        {"pin": SECRET},
        {"pin": SECRET},
    ), "the project hides nothing"
    settings.DELAYQ = {**settings.DELAYQ, "SENSITIVE": ["note"]}
    assert (masking.result(row.task, row.result), masking.attached(row.task, row.meta)) == ("***", {"pin": "***"})
    for words in (("inspect", job.id), ("inspect", job.id, "--json"), ("list", "--json")):
        assert SECRET not in run(*words).out, words
    assert SECRET not in staff("view_job").get(page(job)).content.decode()
    Job.objects.filter(pk=job.id).update(result=None)
    row = Job.objects.get(pk=job.id)
    assert masking.result(row.task, row.result) is None


# tracebacks

FAKE = """no such card
  File "/srv/shop/refunds.py", line 1, in faked
    refund()

The above exception was the direct cause of the following exception:

Traceback (most recent call last):
  File "/srv/shop/refunds.py", line 2, in faked
    refund()
"""


def test_frames_that_a_message_imitates_are_no_frames_of_the_project():
    first = FAKE.split("\n\n")[0]
    text = f'Traceback (most recent call last):\n  File "/srv/shop/tasks.py", line 12, in pay\n    charge(card)\nValueError: {first}\n'
    assert tracebacks.read_traceback(text).frames == [tracebacks.Frame("/srv/shop/tasks.py:12 pay", "charge(card)")]


def talks(fake):
    raise ValueError(fake)


def notes(fake):
    error = ValueError("no")
    error.add_note(f"{fake}\n{fake}")
    raise error


def causes(fake):
    try:
        talks(fake)
    except ValueError as error:
        raise RuntimeError(fake) from error


def talks_long(fake):
    raise ValueError(f"{'x' * 50_000}\n{fake}" * 3)


@pytest.mark.parametrize("fn", [talks, notes, causes, talks_long], ids=lambda fn: fn.__name__)
def test_what_an_error_says_puts_no_frame_before_a_reader(redis_server, fn):
    bench = Bench(redis_server.link, threads=1)
    bench.tasks[fn.__name__] = task(fn)
    bench.put(fn.__name__, FAKE, max_attempts=1)
    bench.run()
    bench.close()
    trace = tracebacks.read_traceback(bench.body("failed")["t"])
    assert [frame.place.partition(":")[0] for frame in trace.frames] == [__file__]
    assert trace.frames[0].place.endswith(f" {fn.__name__}")
    assert trace.frames[0].code.startswith("raise ")
    assert "no such card" in trace.text or fn is talks_long


def test_a_traceback_is_else_written_as_python_does(redis_server):
    bench = Bench(redis_server.link, threads=1)
    bench.tasks["causes"] = task(causes)
    bench.put("causes", "no", max_attempts=1)
    bench.run()
    bench.close()
    text = bench.body("failed")["t"]
    assert text.count("Traceback (most recent call last):\n") == 2
    assert "\nValueError: no\n\nThe above exception was the direct cause of the following exception:\n\nTraceback" in text
    assert text.endswith("\nRuntimeError: no\n")


# errors in the language of the page

PARTS = (
    "Redis at x is not available: y",
    " is not available: ",
    "Redis at x answered: ",
    ". Check ",
    "f cannot be called with these arguments: missing a required argument: 'x",
    "'. ",
    "'.",
    "f cannot be called with these arguments: got an unexpected keyword argument 'x",
    " no longer has the permission x.",
    "x: the arguments are 1,1 bytes of JSON, and the limit is 1",
    "these bytes are not strict JSON: x: line 1 column 1 ",
)


@pytest.mark.parametrize("part", PARTS)
def test_an_error_of_any_length_is_worded_at_once(part):
    """The limit is a tenth of a second of CPU time. With quadratic cost it would take half a minute."""
    began = time.thread_time()
    for first in PARTS:
        text = first + part * (100_000 // len(part)) + "\x00"
        assert error_text(text)
    assert time.thread_time() - began < 10
