"""`delayq report`: what ran, how often and with which end."""

from __future__ import annotations

import csv
import io
import json
from datetime import UTC, timedelta

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext
from django.utils import timezone

import django_delayq as delayq
from django_delayq import clock, ids
from django_delayq.console import report
from django_delayq.models import Attempt, Event, Job
from tests.tasks_for_tests import close_order


def rows(text: str) -> list[dict[str, str]]:
    return list(csv.DictReader(io.StringIO(text, newline="")))


@pytest.fixture
def paid(orders) -> delayq.Job:
    """A job that failed, was requeued by a person, and succeeded."""
    job = orders.ended("fail", detail=b'{"m":"no money","c":"shop.Refused"}', key="pay:7")
    delayq.requeue(job.id, actor="admin:anna")
    orders.fold()
    orders.settle(orders.claim()[0], "ack")
    orders.fold()
    return job


def test_a_line_tells_how_often_a_job_ran_and_who_changed_it(run, orders, paid, capsys):
    orders.ended("fail", detail=b'{"m":"no","c":"shop.Refused"}', key="pay:8")
    answer = run("report", "--key", "pay:*")
    first, second = rows(answer.out)
    assert (first["key"], first["id"], first["queue"], first["task"]) == ("pay:7", ids.short(paid.id), "orders", close_order.name)
    assert (first["runs"], first["requeues"], first["state"], first["ending"], first["error_class"]) == ("2", "1", "succeeded", "", "")
    begun = Attempt.objects.filter(job_id=paid.id).order_by("started_at")[0].started_at
    assert first["first_started_at"] == begun.astimezone(UTC).isoformat()
    assert first["first_started_at"] < first["finished_at"]
    [event] = Event.objects.filter(job_id=paid.id, kind="requeued")
    assert first["acts"] == f"{event.at.astimezone(UTC).isoformat()} requeued by admin:anna"
    assert (second["runs"], second["state"], second["error_class"]) == ("1", "failed", "shop.Refused")
    assert answer.code == 0
    told = capsys.readouterr().err
    assert told.startswith("Jobs: 2. failed: 1. succeeded: 1. Jobs that ran more than once: 1.\n")


def test_both_formats_tell_the_same(run, orders, paid):
    [document] = map(json.loads, run("report", "--format", "json").lines)
    [row] = rows(run("report").out)
    assert {name: str(value or ("0" if value == 0 else "")) for name, value in document.items()} == row
    assert run("report", "--json").json == document


def test_the_end_of_a_job_that_was_replaced_is_told(run, orders, capsys):
    delayq.schedule(close_order, 7, key="pay:1", delay="1h")
    delayq.schedule(close_order, 8, key="pay:1", delay="1h", on_conflict="replace")
    orders.fold()
    assert {row["ending"] or row["state"] for row in rows(run("report").out)} == {"replaced", "scheduled"}
    assert "replaced: 1. scheduled: 1." in capsys.readouterr().err


def test_dates_choose_by_the_due_date(run, orders):
    orders.scheduled(delay="1h", key="pay:1")
    orders.scheduled(delay="3d", key="pay:2")

    def keys(*words: object) -> list[str]:
        return [row["key"] for row in rows(run("report", *words).out)]

    assert keys("--since", "+1d") == ["pay:2"]
    assert keys("--until", "+1d") == ["pay:1"]
    assert keys("--since", "2020-01-01", "--until", f"{clock.now() + timedelta(days=9):%Y-%m-%d}") == ["pay:1", "pay:2"]
    assert keys("--queue", "default") == []
    assert keys("--task", close_order.name, "--key", "pay:2") == ["pay:2"]


def test_dates_are_in_utc_whatever_the_time_zone(run, orders, settings):
    orders.ended("ack")
    with timezone.override("Asia/Shanghai"):
        [row] = rows(run("report").out)
    assert all(row[name].endswith("+00:00") for name in ("created_at", "run_at", "first_started_at", "finished_at"))


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--since", "soon"), "--since soon: after:soon – use 2026-05-01"),
        (("--until", "2026-13-01"), "--until 2026-13-01: before:2026-13-01 – use"),
        (("--key", ""), "--key : key: needs a value"),
        (("--key", 'a"b'), "it contains a quotation mark"),
        (("--queue", "oders"), "did you mean 'orders'?"),
        (("--task", "tests.close_oder"), f"did you mean '{close_order.name}'?"),
        (("--format", "xml"), "invalid choice: 'xml'"),
    ],
)
def test_a_wrong_option_is_named(run, orders, words, said):
    answer = run("report", *words)
    assert said in answer.error
    assert answer.code in (1, 2)  # argparse has its own


def test_no_cell_is_a_formula(run, orders):
    orders.scheduled(key="=1+1")
    [row] = rows(run("report").out)
    assert row["key"] == "'=1+1"


def test_a_file_appears_when_it_is_complete(run, orders, tmp_path, monkeypatch):
    orders.scheduled(key="中")
    path = tmp_path / "report.csv"
    path.write_text("the one of yesterday")

    def stops(*_given):
        raise RuntimeError

    with monkeypatch.context() as patch, pytest.raises(RuntimeError):
        patch.setattr(report, "document", stops)
        run("report", "--output", path)
    assert (path.read_text(), list(tmp_path.iterdir())) == ("the one of yesterday", [path])
    answer = run("report", "--output", path)
    assert (answer.code, answer.out) == (0, "")
    assert [row["key"] for row in rows(path.read_text("utf-8-sig"))] == ["中"]
    lacking = run("report", "--output", tmp_path / "none" / "report.csv")
    assert (lacking.code, "No such file or directory" in lacking.error) == (1, True)
    special = run("report", "--output", "/dev/null")
    assert (special.code, "not a regular file" in special.error) == (2, True)


def test_it_tells_what_the_database_does_not_have(run, orders, settings, capsys):
    run("report", "--queue", "orders")
    told = capsys.readouterr().err
    assert "orders: RETENTION has deleted the jobs that succeeded before " in told
    assert "orders: RETENTION has deleted the jobs that were cancelled before " in told
    assert "failed before" not in told
    run("report", "--queue", "orders", "--since=-8d")
    told = capsys.readouterr().err
    assert "jobs that succeeded before" in told
    assert "were cancelled before" not in told
    settings.DELAYQ = {**settings.DELAYQ, "AUDIT": "failures"}
    run("report", "--since=-1h")
    told = capsys.readouterr().err
    assert "orders: AUDIT is 'failures', so jobs that succeeded or were cancelled are missing." in told
    assert "`runs` can be too low" in told
    assert "RETENTION" not in told


def test_it_reads_pages_by_key_and_holds_few_jobs(run, orders, monkeypatch):
    """No server-side cursor, and a number of queries that grows with the pages only."""
    orders.scheduled(25)
    monkeypatch.setattr(report, "STEP", 10)
    monkeypatch.setattr("django_delayq.management.job_filters.STEP", 10)
    read: list[int] = []
    document = report.document
    monkeypatch.setattr(report, "document", lambda job, *more: read.append(len(captured)) or document(job, *more))
    with CaptureQueriesContext(connection) as captured:
        assert len(rows(run("report").out)) == 25
    texts = [query["sql"] for query in captured.captured_queries if "delayq_job" in query["sql"] and "LIMIT 10" in query["sql"]]
    assert len(texts) == 3
    assert not any("OFFSET" in text for text in texts)
    assert read[0] < read[10] < read[20], "the first lines are written before the last rows are read"
    assert Job.objects.count() == 25
