"""Logs contain no text of an exception that may quote an argument, and no line that an outsider wrote."""

from __future__ import annotations

import ast
import json
import logging
import re
from pathlib import Path
from types import SimpleNamespace

import pytest
from django.db import DataError, OperationalError, ProgrammingError, transaction

import django_delayq as delayq
from django_delayq import ids
from django_delayq.logger import Logger, debug_traceback
from django_delayq.mirror.atomic_runs import run_atomic
from django_delayq.mirror.service import LoopRunner
from django_delayq.models import Job
from django_delayq.store.scripts.worker_registry import WorkerRegistry
from tests.mirror.conftest import unpublished
from tests.tasks_for_tests import close_order
from tests.worker.bench import Bench, task
from tests.worker.conftest import Shop, eventually

__all__ = ["unpublished"]
SECRET = "DE89370400440532013000"
LINE = "2026-01-01 00:00:00.000+00:00 INFO [1] shop.tasks.pay FORGED"
FORGED = "\n".join((SECRET, LINE, f"a\r{LINE}\u2028{LINE}\x85{LINE}\x0b{LINE}\u202e\x1b[2J\x9b2J"))
OURS = re.compile(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d\.\d{3}[+-]\d\d:\d\d [A-Z]+ \[\d+\] (?!shop)")
STEERING = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069]")
PACKAGE = Path(delayq.__file__).parent


# an error's text


@pytest.fixture
def logged(caplog):
    """Returns all log output of the package, in every form that a handler may give it."""
    caplog.set_level(logging.DEBUG, logger="django_delayq")
    return caplog


def text_of(caplog) -> str:
    plain = logging.Formatter("%(message)s")
    return "\n".join(f"{plain.format(record)} {vars(record)}" for record in caplog.records)


class Talkative(Exception):
    def __repr__(self) -> str:
        return SECRET


def plainly(secret):
    raise ValueError(secret)


def by_int(secret):
    int(secret)


def caused(secret):
    try:
        by_int(secret)
    except ValueError as error:
        raise Talkative(secret) from error


def in_context(secret):
    try:
        by_int(secret)
    except ValueError:
        {}[secret]


def with_notes(secret):
    error = ValueError("no")
    error.add_note(secret)
    raise error


def in_a_group(secret):
    raise ExceptionGroup(secret, [ValueError(secret), ExceptionGroup("inner", [KeyError(secret)])])


def no_python(secret):
    compile(f"{secret} is no python", "<argument>", "exec")


def leaves(secret):
    raise SystemExit(secret)


def asks_for_another(secret):
    try:
        by_int(secret)
    except ValueError as error:
        raise delayq.Retry("1s", reason=secret) from error


def gives_up(secret):
    raise delayq.Fail(secret)


def snoozes(secret):
    raise delayq.Snooze("1m", reason=secret)


def refuses_itself(secret):
    raise delayq.PayloadError(secret)


def names_a_queue(secret):
    raise delayq.QueueUnknown(secret)


def returns_what_is_no_json(secret):
    return {"order": {secret: object()}}


ALL = (
    plainly,
    by_int,
    caused,
    in_context,
    with_notes,
    in_a_group,
    no_python,
    leaves,
    asks_for_another,
    gives_up,
    snoozes,
    refuses_itself,
    names_a_queue,
    returns_what_is_no_json,
)


@pytest.mark.parametrize("fn", ALL, ids=lambda fn: fn.__name__)
def test_no_argument_comes_into_a_log_by_way_of_an_error(redis_server, logged, fn):
    bench = Bench(redis_server.link, threads=1)
    bench.tasks[fn.__name__] = task(fn)
    bench.put(fn.__name__, SECRET)
    bench.run()
    bench.close()
    [record] = logged.records
    assert (record.task, record.attempt) == (fn.__name__, 1)
    assert SECRET not in text_of(logged)
    assert all(each.exc_info is None for each in logged.records)


def test_the_log_says_class_place_and_frames(redis_server, logged):
    bench = Bench(redis_server.link, threads=1)
    bench.tasks["caused"] = task(caused)
    bench.put("caused", SECRET, max_attempts=1)
    bench.run()
    bench.close()
    [record] = logged.records
    here, place = __file__, caused.__code__.co_firstlineno + 4
    assert record.getMessage().endswith(f"; see the job's row; {__name__}.Talkative at {here}:{place} caused")
    assert SECRET in bench.body("failed")["t"]
    frames = record.traceback.split("\n")
    assert f"{__name__}.Talkative" in frames
    assert f'  File "{here}", line {place}, in caused' in frames
    assert frames.index("caused by ValueError") > frames.index(f'  File "{here}", line {place}, in caused')
    assert frames[-1] == f'  File "{here}", line {by_int.__code__.co_firstlineno + 1}, in by_int'


def test_with_debug_each_attempt_shows_the_message_and_the_lines_of_the_project(redis_server, logged, settings):
    settings.DEBUG = True
    bench = Bench(redis_server.link, threads=1)
    bench.tasks["caused"] = task(caused)
    bench.put("caused", SECRET)
    bench.run()
    bench.close()
    [record] = logged.records
    lines = record.traceback.split("\n")
    assert lines[-1].startswith(f"{__name__}.Talkative: ")
    assert SECRET in lines[-1]
    assert f'  File "{__file__}", line {caused.__code__.co_firstlineno + 4}, in caused' in lines
    assert "/django_delayq/worker/" not in record.traceback


def test_with_debug_the_errors_of_a_group_show_only_the_lines_of_the_project():
    def fails():
        raise ExceptionGroup("two", [_error_of(json.loads, "{"), _error_of(caused, SECRET)])

    text = debug_traceback(_error_of(fails))
    assert "JSONDecodeError: Expecting property name" in text
    assert set(re.findall(r'File "(.+?)"', text)) == {__file__}


def _error_of(function, *args) -> Exception:
    try:
        function(*args)
    except Exception as error:
        return error
    raise AssertionError


def test_an_id_is_logged_as_people_read_it(caplog):
    id = ids.new()
    Logger("django_delayq.test").warning("job %s", id, extra={"job_id": id})
    [record] = caplog.records
    assert (record.getMessage(), record.job_id) == (f"job {ids.short(id)}", ids.short(id))


def test_a_backoff_that_errs_does_not_quote_the_error(redis_server, logged):
    def backoff(attempt, error):
        raise KeyError(str(error))

    bench = Bench(redis_server.link, threads=1)
    bench.tasks["plainly"] = task(plainly, backoff=backoff)
    bench.put("plainly", SECRET)
    bench.run()
    bench.close()
    assert "KeyError" in text_of(logged)
    assert SECRET not in text_of(logged)


def test_a_record_that_cannot_be_read_is_not_quoted(redis_server, logged):
    bench = Bench(redis_server.link, threads=1)
    bench.tasks["plainly"] = task(plainly)
    bench.put("plainly", payload=b'[["x"],{},{"%s":1}]' % SECRET.encode())
    bench.run()
    bench.close()
    assert "failed as poison" in text_of(logged)
    assert SECRET in bench.body("failed")["m"]
    assert SECRET not in text_of(logged)


def test_a_row_that_cannot_be_published_is_not_quoted(unpublished, orders, logged):
    job = unpublished(7)
    Job.objects.filter(pk=job.id).update(key=f"{SECRET}\n")
    orders.relay.poll()
    assert "cannot be published" in text_of(logged)
    assert SECRET not in text_of(logged)


@pytest.mark.parametrize(("state", "kind"), [("22P02", DataError), ("23505", DataError), ("54000", OperationalError)])
def test_what_a_database_says_of_a_value_is_not_logged(logged, state, kind):
    error = kind(f"DETAIL: Failing row contains ({SECRET})")
    error.__cause__ = type("Cause", (Exception,), {"sqlstate": state})(SECRET)
    waiting(error)
    assert state in text_of(logged)
    assert SECRET not in text_of(logged)


@pytest.mark.parametrize(("kind", "state"), [(OperationalError, None), (OperationalError, "57P01"), (ProgrammingError, "42P01")])
def test_what_a_database_says_of_itself_is_logged(logged, kind, state):
    error = kind("connection refused\nIs the server running?")
    error.__cause__ = type("Cause", (Exception,), {"sqlstate": state})()
    waiting(error)
    assert "connection refused\\nIs the server running?" in logged.records[0].getMessage()


def waiting(error: Exception) -> None:
    def poll() -> float:
        raise error

    LoopRunner("the mirror of orders", SimpleNamespace(poll=poll)).run_once()


def test_a_hook_behind_a_commit_does_not_quote_its_error(orders, logged):
    def work() -> None:
        transaction.on_commit(lambda: plainly(SECRET))

    run = SimpleNamespace(id=delayq.schedule(close_order, 7).id, task="shop.pay", queue="orders", nonce="f", check_lease=bool)
    run_atomic(run, work)
    assert "an on_commit hook failed" in text_of(logged)
    assert SECRET not in text_of(logged)


# forged lines


@pytest.mark.parametrize("form", ["console", "json"])
def test_each_line_of_a_workers_log_is_its_own(shop: Shop, form):
    id = shop.put("quote", FORGED, max_attempts=1)
    worker = shop.work("--burst", "--log-format", form)
    worker.wait()
    assert shop.happened(id)[-1] == "failed"
    text = worker.log.read_bytes().decode()
    assert SECRET not in text
    assert "FORGED" not in text
    assert not STEERING.search(text)
    lines = text[text.index('{"at"' if form == "json" else re.search(OURS, text)[0]) :].rstrip("\n").split("\n")
    if form == "json":
        [said] = [found for line in lines if "quote" in (found := json.loads(line))["message"]]
        frames = said["traceback"].split("\n")
    else:
        assert all(OURS.match(line) or line.startswith("    ") for line in lines)
        frames = [line.removeprefix("    ") for line in lines if line.startswith("    ")]
    assert frames[0] == "ExceptionGroup"
    assert any(line.endswith(" in quote") and "shop/tasks.py" in line for line in frames)
    assert "in this group: KeyError" in frames


@pytest.mark.parametrize("form", ["console", "json"])
def test_who_asks_a_worker_writes_no_line_of_its_log(shop: Shop, form):
    worker = shop.work("--log-format", form)
    registry = WorkerRegistry(shop.link, prefix="delayq")
    eventually(lambda: registry.all() and registry.all()[0]["state"] == "working")
    assert registry.ask(registry.all()[0]["id"], "stop", by=f"admin:clerk\n{LINE}\u2028\u202e\x9b2J")
    worker.wait()
    text = worker.log.read_bytes().decode()
    [said] = [line for line in text.split("\n") if "requested by" in line]
    assert f"admin:clerk\\\\n{LINE}" in said if form == "json" else f"admin:clerk\\n{LINE}" in said
    assert not STEERING.search(text)
    assert not any(line.startswith(LINE) for line in text.splitlines())


def test_only_one_module_makes_loggers():
    """A module that logs in another way could quote an error, or write two lines."""
    ways = {"logging.getLogger", "logging.warning", "logging.error", "logging.exception", "logging.info"}
    found = set()
    for path in PACKAGE.rglob("*.py"):
        written = {ast.unparse(node) for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.Attribute)}
        if written & ways:
            found.add(path.relative_to(PACKAGE).as_posix())
    # The second gives handlers to the package's own, the third a filter to that of urllib3.
    assert found == {"logger.py", "worker/logs.py", "targets/client.py"}
