"""Lists of jobs as files."""

from __future__ import annotations

import csv
import io
import json
from datetime import timedelta

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext

from django_delayq import clock
from django_delayq.console import export, keyset
from django_delayq.console.export import job_document, plain
from django_delayq.console.selection import Selection
from django_delayq.models import Job
from tests.admin.test_columns import ended


def read(lines) -> list[list[str]]:
    text = b"".join(lines).decode("utf-8-sig")
    return list(csv.reader(io.StringIO(text, newline="")))


def ending(walk: export.Walk) -> str:
    return " ".join(filter(None, ("more" if walk.cut else "", "part" if walk.partly else "")))


def csv_of(selection: Selection, **options) -> list[list[str]]:
    return read(export.csv_lines(export.Walk(selection=selection, jobs=Job.objects.all(), **options), sensitive=False, ending=ending))


def json_of(selection: Selection, **options) -> list[dict]:
    walk = export.Walk(selection=selection, jobs=Job.objects.all(), **options)
    return [json.loads(line) for line in b"".join(export.json_lines(walk, sensitive=False, ending=ending)).splitlines()]


def test_both_forms_tell_all_that_a_document_tells(db):
    job = ended(args=[7], kwargs={"note": 'a, b\n"c" 中'}, error="ValueError: no\nline two", key="order:7", result={"paid": True})
    Job.objects.filter(pk=job.pk).update(options={"meta": {"by": "desk"}})
    whole = json.loads(json.dumps(job_document(Job.objects.get()), default=plain))
    assert json_of(Selection()) == [whole]
    [head, row] = csv_of(Selection())
    assert head == list(whole)
    found = dict(zip(head, row, strict=True))
    assert json.loads(found["kwargs"]) == whole["kwargs"]
    assert found["error"] == "ValueError: no\nline two"
    assert (found["id"], found["attempts"], found["worker"]) == (job.short_id, "1", "")
    assert found["run_at"].endswith("+00:00")


def test_a_file_without_jobs_has_its_head(db):
    assert csv_of(Selection(view="failed")) == [list(job_document(Job()))]
    assert json_of(Selection(view="failed")) == []


@pytest.mark.parametrize("text", ["=1+1", "+1", "-1", "@SUM(A1)", " =1", "\t=1", "\rx", "\nx", "\uff1d1"])
def test_no_text_is_a_formula(db, text):
    ended(key=text, error=text, worker=text)
    head, row = csv_of(Selection())
    found = dict(zip(head, row, strict=True))
    assert {found[name] for name in ("key", "error", "worker")} == {f"'{text}"}
    [document] = json_of(Selection())
    assert document["key"] == text  # programs get it unchanged


def test_numbers_and_what_is_harmless_stay_as_they_are(db):
    ended(priority=-5, key="a=b", result=-1)
    head, row = csv_of(Selection())
    found = dict(zip(head, row, strict=True))
    assert (found["priority"], found["key"], found["result"]) == ("-5", "a=b", "-1")


def test_half_a_surrogate_pair_breaks_no_file(db):
    ended(args=["\ud800x"])
    [document] = json_of(Selection())
    assert document["args"] == ["\ud800x"]
    assert "\\ud800x" in csv_of(Selection())[1][csv_of(Selection())[0].index("args")]


@pytest.mark.parametrize(
    "selection", [Selection(), Selection(view="failed", by="finished_at"), Selection(text="error:no"), Selection(text="key:k*")]
)
def test_all_jobs_are_there_once_in_the_order_of_the_list_over_many_pages(db, monkeypatch, selection):
    monkeypatch.setattr(export, "STEP", 3)
    now = clock.now()
    for number in range(10):
        ended(error="no", key=f"k{number}", attempts=number, finished_at=now - timedelta(seconds=number % 3))
    page = keyset.page(selection, Job.objects.all(), 100)
    assert [document["uuid"] for document in json_of(selection)] == [str(job.pk) for job in page.jobs]
    assert len(page.jobs) == 10


def test_a_file_that_is_cut_says_so(db):
    for _ in range(4):
        ended()
    assert [len(json_of(Selection(), most=most)) for most in (3, 4, 5)] == [4, 4, 4]
    assert json_of(Selection(), most=3)[-1] == {"cut": "more"}
    assert "cut" not in json_of(Selection(), most=4)[-1]
    assert csv_of(Selection(), most=3)[-1] == ["more"]
    assert len(csv_of(Selection(), most=4)) == 5


def test_what_no_index_finds_is_read_through_so_far_and_no_farther(db, monkeypatch):
    monkeypatch.setattr(keyset, "WINDOW", 2)
    for number in range(11):
        ended(error="far" if number == 0 else "near")
    assert [document.get("error") for document in json_of(Selection(text="error:far"))] == ["far"]
    monkeypatch.setattr(export, "STRETCHES", 3)
    assert json_of(Selection(text="error:far")) == [{"cut": "more"}]


def test_more_keys_than_are_put_in_order_are_a_cut(db, monkeypatch):
    monkeypatch.setattr(keyset, "WINDOW", 2)
    for number in range(4):
        ended(key=f"k{number}")
    assert json_of(Selection(text="key:k*"))[-1] == {"cut": "more"}


def test_who_may_not_see_a_job_gets_none_of_it(db):
    one, _ = ended(key="mine"), ended(key="theirs")
    found = json_of(Selection(), seen=lambda job: job.key == "mine")
    assert [document["uuid"] for document in found] == [str(one.pk)]


def test_queries_grow_with_the_pages_not_with_the_jobs(db):
    for number in range(20):
        ended(args=[number % 2])
    for text in ("", "arg:order_id=1"):  # the second also reads arguments, for the search
        with CaptureQueriesContext(connection) as queries:
            assert len(json_of(Selection(text=text))) == (10 if text else 20)
        assert len(queries) <= 4


def test_lines_are_sent_many_at_a_time(db, monkeypatch):
    monkeypatch.setattr(export, "LINES", 3)
    assert list(export.together(iter([b"a", b"b", b"c", b"d"]))) == [b"abc", b"d"]


def test_a_text_that_was_looked_for_in_a_part_of_the_rows_only_is_said_in_the_last_line(db, monkeypatch):
    monkeypatch.setattr(keyset, "WINDOW", 3)
    for number in range(5):
        ended(error="ValueError: deep" if number in (0, 4) else "")
    assert json_of(Selection(text="deep"))[-1]["cut"].endswith("part")
    assert csv_of(Selection(text="deep"))[-1][0].endswith("part")
    assert "cut" not in json_of(Selection(text="error:deep"))[-1]
