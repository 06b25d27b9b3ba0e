"""The log of a worker: gathered where jobs run, in order, whole lines, and JSON from the first one."""

from __future__ import annotations

import json
import logging
import os
import signal
from pathlib import Path
from typing import Any

import pytest

from django_delayq.worker import logs
from django_delayq.worker.logs import MOST, WHOLE, LogHandler
from tests.worker.conftest import Shop, eventually


class Stream:
    """Keeps what is written, call by call."""

    def __init__(self) -> None:
        self.written: list[str] = []

    def write(self, text: str) -> None:
        self.written.append(text)

    def flush(self) -> None:
        pass

    def lines(self) -> list[str]:
        return "".join(self.written).splitlines()


@pytest.fixture
def stream() -> Stream:
    return Stream()


@pytest.fixture
def handler(stream: Stream) -> LogHandler:
    """Collects records, except those of the thread that writes from time to time."""
    handler = LogHandler()
    handler._stream = stream
    handler._gathers = True
    return handler


def record(text: str, level: int = logging.INFO) -> logging.LogRecord:
    return logging.LogRecord("django_delayq.worker.job", level, "", 0, "%s", (text,), None)


def test_what_is_below_a_warning_is_written_in_one_call(handler: LogHandler, stream: Stream) -> None:
    for number in range(10):
        handler.handle(record(str(number)))
    assert stream.written == []
    handler.flush()
    assert stream.lines() == [str(number) for number in range(10)]
    assert len(stream.written) == 1


def test_a_warning_is_written_at_once_behind_what_came_before_it(handler: LogHandler, stream: Stream) -> None:
    handler.handle(record("first"))
    handler.handle(record("second", logging.WARNING))
    assert stream.lines() == ["first", "second"]
    handler.handle(record("third"))
    assert stream.lines() == ["first", "second"]


def test_no_call_is_longer_than_a_pipe_keeps_whole_unless_a_line_is(handler: LogHandler, stream: Stream) -> None:
    texts = ["ü" * 700, *(f"{number} {'x' * 300}" for number in range(60)), "y" * 2 * WHOLE, "end"]
    for text in texts:
        handler.handle(record(text))
    handler.flush()
    assert stream.lines() == texts
    assert all(text.endswith("\n") for text in stream.written)
    assert sum(len(text.encode()) > WHOLE for text in stream.written) == 1
    assert len(stream.written) < 10


def test_who_logs_more_than_is_read_writes_it(handler: LogHandler, stream: Stream) -> None:
    for number in range(MOST + 1):
        handler.handle(record(str(number)))
    assert len(stream.lines()) == MOST + 1


def test_a_line_that_cannot_be_written_out_holds_up_no_other(handler: LogHandler, stream: Stream, monkeypatch) -> None:
    monkeypatch.setattr(logging, "raiseExceptions", False)
    handler.handle(logging.LogRecord("x", logging.INFO, "", 0, "%d", ("no number",), None))
    handler.handle(record("next"))
    handler.flush()
    assert stream.lines() == ["next"]


def test_a_line_during_which_another_is_logged_loses_none(handler: LogHandler, stream: Stream) -> None:
    class Talks:
        def __str__(self) -> str:
            handler.handle(logging.makeLogRecord({"msg": "inner", "levelno": logging.WARNING}))
            return "outer"

    for words in ("one", Talks(), "two"):
        handler.handle(logging.makeLogRecord({"msg": words, "levelno": logging.INFO}))
    handler.flush()
    assert sorted(stream.lines()) == ["inner", "one", "outer", "two"]


def test_a_stream_that_is_gone_ends_nothing(handler: LogHandler, monkeypatch) -> None:
    def write(text: str) -> None:
        raise BrokenPipeError

    monkeypatch.setattr(handler._stream, "write", write)
    handler.handle(record("lost", logging.ERROR))
    handler.flush()


def test_a_handler_that_is_closed_writes_at_once(handler: LogHandler, stream: Stream) -> None:
    handler.handle(record("first"))
    handler.close()
    handler.handle(record("second"))
    assert stream.lines() == ["first", "second"]


def test_what_was_gathered_is_not_written_by_a_forked_copy_too(handler: LogHandler, stream: Stream) -> None:
    handler.handle(record("the original's"))
    handler._become_a_fork()
    handler.handle(record("the copy's"))
    assert stream.lines() == ["the copy's"]


def test_a_line_begins_with_the_date_and_its_offset(settings) -> None:
    settings.TIME_ZONE = "Europe/Berlin"
    formatter = logs.ConsoleFormatter("%(asctime)s")
    for created, text in ((1_700_000_000.25, "20.250"), (1_700_000_000.75, "20.750"), (1_700_000_001.0, "21.000")):
        one = record("x")
        one.created, one.msecs = created, created % 1 * 1000
        assert formatter.format(one) == f"2023-11-14 23:13:{text}+01:00"


def test_every_line_of_a_worker_that_logs_in_json_is_json(shop: Shop) -> None:
    shop.put_many("count", [(number,) for number in range(300)])
    worker = shop.work("--burst", "--log-format", "json")
    worker.wait()
    said = [json.loads(line) for line in worker.log.read_text().splitlines()]
    assert said[0]["message"].startswith("delayq.W011: ")
    assert said[1]["message"].startswith("django-delayq ")
    assert "queues default, slow" in [each["message"] for each in said]
    assert sum(each["logger"] == "django_delayq.worker.job" for each in said) == 300


def test_a_worker_that_refuses_to_start_says_so_in_json(shop: Shop) -> None:
    worker = shop.work("--queues", "nowhere", "--log-format", "json")
    assert worker.process.wait(30) == 2
    [said] = [json.loads(line) for line in worker.log.read_text().splitlines()]
    assert said["level"] == "error"
    assert "Unknown queue 'nowhere'" in said["message"]


def test_a_project_that_has_handlers_keeps_them(monkeypatch: pytest.MonkeyPatch) -> None:
    own = logging.NullHandler()
    monkeypatch.setattr(logs.root, "handlers", [own])  # a worker of another test may have left its own
    assert not logs.set_up("json", logging.INFO)
    logs.gather()
    assert logs.root.handlers == [own]


@pytest.mark.parametrize(
    ("places", "in_file"),
    [
        ({"root": {"handlers": ["file"], "level": "WARNING"}}, True),
        ({"root": {"handlers": ["file"]}, "disable_existing_loggers": True}, True),
        ({"loggers": {"django_delayq": {"handlers": ["file"], "level": "INFO"}}}, True),
        ({"root": {"handlers": ["file"]}, "loggers": {"django_delayq": {"level": "ERROR"}}}, False),
        ({}, False),
    ],
    ids=["root", "disabled", "own", "own level", "none"],
)
def test_lines_go_where_the_project_wants_them(shop: Shop, tmp_path: Path, places: dict[str, Any], in_file: bool) -> None:
    file = tmp_path / "site.log"
    file.touch()
    handlers = {"file": {"class": "logging.FileHandler", "filename": str(file)}}
    shop.environment["APP_LOGGING"] = json.dumps({"version": 1, "disable_existing_loggers": False, "handlers": handlers, **places})
    shop.put("count", 1)
    worker = shop.work("--burst")
    assert worker.process.wait(60) == 0
    assert ("count succeeded after" in file.read_text()) is in_file
    assert ("count succeeded after" in worker.log.read_text()) is (not places)


def test_what_was_gathered_is_written_when_a_worker_leaves(shop: Shop) -> None:
    worker = shop.work("--threads", "1")
    id = shop.put("count", 1)
    eventually(lambda: shop.happened(id)[-1:] == ["succeeded"])
    os.kill(worker.pid, signal.SIGTERM)
    worker.wait()
    assert "count succeeded after" in worker.log.read_text()
