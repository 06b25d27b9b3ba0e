"""`ARCHIVE`: jobs leave the database only after they were handed over, and `delayq archive --verify` finds every damage."""

from __future__ import annotations

import gzip
import json
import os
import signal
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from django.db import connection

import django_delayq as delayq
from django_delayq import clock, conf, ids
from django_delayq.console import archive
from django_delayq.mirror.prune import PAUSE, ArchiveFailed, PruneLoop
from django_delayq.mirror.service import LoopRunner
from django_delayq.models import Attempt, Event, Job
from django_delayq.producer.stores import stores

TAKEN: list[tuple[str, list[dict[str, Any]]]] = []
TROUBLE: list[Any] = []  # what the next hand-over does after it has taken the batch


def keep(batch: str, documents: list[dict[str, Any]]) -> None:
    """The archive of a project."""
    assert not connection.in_atomic_block, "the mirror would wait for the archive"
    TAKEN.append((batch, documents))
    if TROUBLE:
        TROUBLE.pop(0)()


def failing(error: BaseException) -> Any:
    def fail() -> None:
        raise error

    return fail


@pytest.fixture(autouse=True)
def _empty() -> None:
    TAKEN.clear()
    TROUBLE.clear()


@pytest.fixture
def archived(settings, orders):
    """Sets `ARCHIVE`, and returns the prune loop of the queue."""

    def made(path: str | Path = f"{__name__}.keep", **others: Any) -> PruneLoop:
        settings.DELAYQ = {**settings.DELAYQ, "ARCHIVE": path, **others}
        return PruneLoop(stores.places, conf.get().queue("orders"), archive.taker(conf.get().archive))

    return made


def age(days: float = 8) -> None:
    Job.objects.exclude(finished_at=None).update(finished_at=clock.now() - timedelta(days=days))


def test_a_job_goes_with_its_attempts_and_events_and_is_then_deleted(orders, archived):
    [job] = orders.scheduled()
    job.cancel(actor="clerk", reason="it was paid")
    orders.fold()
    again = delayq.requeue(job.id, actor="manager")
    assert again
    orders.fold()
    orders.settle(orders.claim()[0], "ack")
    orders.fold()
    age()
    assert archived().prune() == 1
    [(batch, [document])] = TAKEN
    assert batch == archive.batch_id([job.id])
    assert json.loads(json.dumps(document)) == document, "it has plain JSON values"
    assert (document["job"]["uuid"], document["job"]["state"]) == (str(job.id), "succeeded")
    assert [run["outcome"] for run in document["attempts"]] == ["succeeded"]
    assert [(event["kind"], event["actor"], event["reason"]) for event in document["events"] if event["actor"]] == [
        ("cancelled", "clerk", "it was paid"),
        ("requeued", "manager", ""),
    ]
    assert (Job.objects.count(), Attempt.objects.count(), Event.objects.filter(job_id=job.id).count()) == (0, 0, 0)


def test_a_job_that_is_requeued_between_the_hand_over_and_the_deletion_stays(orders, archived):
    requeued, other = orders.ended("fail"), orders.ended("fail")
    age()

    def requeue() -> None:
        assert delayq.requeue(requeued.id)
        orders.fold()

    TROUBLE.append(requeue)
    assert archived(RETENTION={"failed": "1d"}).prune() == 1
    assert {document["job"]["id"] for document in TAKEN[0][1]} == {ids.short(other.id), ids.short(requeued.id)}
    assert list(Job.objects.values_list("pk", "state")) == [(requeued.id, "scheduled")]


def test_a_job_that_ran_again_between_the_hand_over_and_the_deletion_stays(orders, archived):
    job = orders.ended("ack")
    age()

    def run_again() -> None:
        """As if a person had requeued it, and it had ended in the same way and at the same time."""
        Job.objects.filter(pk=job.id).update(last_event="9999999999999-0")

    TROUBLE.append(run_again)
    loop = archived()
    assert loop.prune() == 0
    assert Job.objects.count() == 1
    assert loop.prune() == 1
    assert [batch for batch, _ in TAKEN] == [archive.batch_id([job.id])] * 2


def test_after_a_crash_behind_the_hand_over_the_batch_comes_again_with_its_id(orders, archived):
    jobs = [orders.ended("ack") for _ in range(3)]
    age()
    TROUBLE.append(failing(SystemExit(1)))
    with pytest.raises(SystemExit):
        archived().prune()
    assert Job.objects.count() == 3
    orders.ended("ack")  # its retention has not passed in the same hour
    assert archived().prune() == 3
    assert TAKEN[0] == TAKEN[1]
    assert TAKEN[0][0] == archive.batch_id(reversed([job.id for job in jobs]))


def test_an_archive_that_fails_keeps_the_jobs_and_is_not_called_at_once_again(orders, archived, caplog):
    orders.ended("ack")
    age()
    TROUBLE.append(failing(OSError("the disk is full")))
    runner = LoopRunner("prune of orders", archived(), longest=PAUSE)
    began = clock.monotonic()
    runner.run_once()
    assert Job.objects.count() == 1
    assert (runner.failures, runner.next > began) == (1, True)
    [record] = [record for record in caplog.records if record.name == "django_delayq.mirror"]
    told = record.getMessage()
    assert "did not take the batch" in told
    assert "OSError: the disk is full" in told
    assert "manage.py delayq prune" in told
    runner.run_once()
    assert Job.objects.count() == 0
    assert "prune of orders continues" in caplog.text


def test_the_command_prune_hands_over_too_and_ends_with_1_if_the_archive_fails(run, orders, archived):
    orders.ended("ack")
    age()
    archived()
    TROUBLE.append(failing(OSError("the disk is full")))
    answer = run("prune", "--yes")
    assert (answer.code, Job.objects.count()) == (1, 1)
    assert "OSError: the disk is full" in answer.error
    assert run("prune", "--yes").out == "Deleted rows: 1.\n"
    assert len(TAKEN) == 2


def test_what_is_not_full_hours_behind_its_retention_waits(orders, archived):
    orders.ended("ack")
    Job.objects.update(finished_at=clock.now().replace(minute=0, second=0, microsecond=0) - timedelta(days=7))
    assert archived().prune() == 0
    assert TAKEN == []


def test_values_are_masked_as_in_an_export(settings, orders, archived):
    orders.ended("ack")
    age()
    settings.DELAYQ = {**settings.DELAYQ, "SENSITIVE": ["order_id"]}
    archived().prune()
    assert TAKEN[0][1][0]["job"]["args"] == ["***"]


# the directory


def test_a_file_that_a_killed_process_has_left_goes_after_an_hour(orders, archived, tmp_path):
    def write_and_die() -> Path:
        if not (child := os.fork()):
            with archive.replacing(tmp_path / f"2026-01-01-{'0' * 32}.jsonl.gz") as unnamed:
                unnamed.write(b"half")
                os.kill(os.getpid(), signal.SIGKILL)
        os.waitpid(child, 0)
        return max(tmp_path.glob(".*"), key=lambda path: path.stat().st_mtime_ns)

    (old, young), others = (write_and_die(), write_and_die()), [tmp_path / ".keep", tmp_path / f"2020-01-01-{'0' * 32}.jsonl.gz"]
    for path in (old, *others):
        path.touch()
        os.utime(path, (0, 0))
    orders.ended("ack")
    age()
    assert archived(tmp_path).prune() == 1
    assert not old.exists()
    assert all(path.exists() for path in (young, *others)), "another process may be writing it, or it is none of ours"


@pytest.fixture
def file(orders, archived, tmp_path) -> Path:
    """The file of two archived jobs."""
    for _ in range(2):
        orders.ended("ack")
    age()
    assert archived(tmp_path).prune() == 2
    [path] = tmp_path.iterdir()
    return path


def test_a_batch_is_a_file_that_a_repeat_replaces(orders, archived, tmp_path, run):
    for _ in range(2):
        orders.ended("ack")
    age()
    loop = archived(str(tmp_path))
    rows = list(Job.objects.order_by("pk"))
    archive.hand_over(str(tmp_path), rows)
    [before] = tmp_path.iterdir()
    content = before.read_bytes()
    assert loop.prune() == 2
    [after] = tmp_path.iterdir()
    assert (after, after.read_bytes()) == (before, content)
    assert after.name == f"{rows[0].finished_at:%Y-%m-%d}-{archive.batch_id(row.pk for row in rows)}.jsonl.gz"
    lines = gzip.decompress(content).decode().splitlines()
    assert [json.loads(line)["job"]["uuid"] for line in lines] == [str(row.pk) for row in rows]
    assert run("archive", "--verify").out == "Files: 1. Jobs in them: 2. Damaged files: 0.\n"
    assert run("archive", "--verify", "--json").json == {"files": 1, "jobs": 2, "damaged": {}}


def test_a_file_that_cannot_be_written_leaves_nothing_behind_and_deletes_nothing(orders, archived, tmp_path, monkeypatch):
    orders.ended("ack")
    age()
    monkeypatch.setattr(archive.os, "fsync", lambda _: failing(OSError("no space left"))())
    with pytest.raises(ArchiveFailed, match="no space left"):
        archived(tmp_path).prune()
    assert (list(tmp_path.iterdir()), Job.objects.count()) == ([], 1)


@pytest.mark.parametrize(
    ("damage", "said"),
    [
        (lambda raw, text: raw[:-9], "line 3 cannot be read: EOFError"),
        (lambda raw, text: raw[:30] + b"\0\0\0\0" + raw[34:], "cannot be read"),
        (lambda raw, text: gzip.compress(text.replace(b'"job"', b'"j"', 1)), "line 1 cannot be read: KeyError"),
        (lambda raw, text: gzip.compress(b"[]\n"), "line 1 cannot be read: TypeError"),
        (lambda raw, text: gzip.compress(b"".join(text.splitlines(keepends=True)[:1])), "jobs in it (1) are not those of the batch"),
        (lambda raw, text: gzip.compress(text + text), "jobs in it (4) are not those"),
        (lambda raw, text: gzip.compress(b""), "jobs in it (0) are not those"),
        (lambda raw, text: b"", "jobs in it (0) are not those"),
    ],
    ids=["cut", "bits", "no job", "no document", "a line less", "twice", "no lines", "empty"],
)
def test_verify_names_a_damaged_file_and_ends_with_1(run, file, damage, said):
    raw = file.read_bytes()
    file.write_bytes(damage(raw, gzip.decompress(raw)))
    answer = run("archive", "--verify")
    assert answer.code == 1
    assert answer.lines[0].startswith(f"{file.name}: ")
    assert said in answer.lines[0]
    assert "Damaged files: 1." in answer.out
    assert list(run("archive", "--verify", "--json").json["damaged"]) == [file.name]


def test_verify_names_a_file_with_another_name(run, file):
    file.rename(file.with_name("old.jsonl.gz"))
    assert run("archive", "--verify").lines[0].startswith("old.jsonl.gz: the jobs in it (2)")


def test_verify_reads_a_directory_that_is_named(run, file, tmp_path_factory, settings):
    settings.DELAYQ = {**settings.DELAYQ, "ARCHIVE": None}
    assert run("archive", "--verify", file.parent).code == 0
    answer = run("archive", "--verify", file.parent / "none")
    assert answer.code == 1
    assert "No such file or directory" in answer.error
    without = run("archive", "--verify")
    assert without.code == 2
    assert "Name the directory" in without.error


def test_archive_without_verify_is_wrong_usage(run, orders):
    assert "--verify" in run("archive").error
