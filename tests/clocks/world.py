"""A project with jobs in every state, which hosts with right clocks have made; and all that is kept of it as text, each date by its
distance from now. So two worlds can be compared that differ in the clock of one host.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

from django.apps import apps
from django.db import connection, transaction

import django_delayq as delayq
from django_delayq import conf, ids
from django_delayq.mirror.mirror_loop import MirrorLoop
from django_delayq.models import Job, Operation, SetAside, Step
from django_delayq.periodic.dates import Dates
from django_delayq.periodic.declarations import Declaration, Declarations
from django_delayq.periodic.due_ticks import TickLoop
from django_delayq.producer.stores import stores
from django_delayq.producer.task import registry
from tests.tasks_for_tests import close_order, ping
from tests.worker.bench import Bench

PREFIX = "t"  # that of a Bench
DATES = re.compile(r"\b(?:(1\d{12}|2\d{7}(?=:))(?:\.\d+)?|\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d(?:\.\d+)?(?:\+00:00|Z))(?!\w)")
ROWS = re.compile(r'("(?:id|schedule_id)": ?)\d+')  # numbers that the database gives
UUIDS = re.compile(r"\b[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}\b")
NAMES = re.compile(r"\b(?:(?=\w*\d)(?=\w*[A-Za-z])\w{8,40}|[0-9a-f]{9,})\b")  # ids, nonces, runs of servers
NUMBERED = re.compile(r"<>-\d+\b")  # entries of a stream: how many of them share a millisecond is chance
# Durations, and what a process shows people about itself.
SHOWN = re.compile(
    r'("(?:ms|wait_ms|w|started|pid|memory|boot|host|version)": ?)[^,}]*'
    r"|\b(?:\d+[hms])*[\d.]+ ?s\b|\b\d+ ms\b|\('open', [\d.]+\)|\w+:\d+:[0-9a-f]{6}\b|host:\d+|127\.0\.0\.1:\d+"
)
MEASURED = ("spread", "stats", "wake")  # keys that count by time, or by chance
ELECTED = re.compile(r"\S+:meta (?:timer|backup|others|surplus|armed|alive)")  # the worker that waits for the next date
YEARS = 10 * 365.25 * 86_400.0  # what lies further off is no date

Line = tuple[str, tuple[float, ...]]  # a text whose dates are left out, and how many seconds each of them is from now


class World:
    """A project that a test acts on. `now`: the right time."""

    def __init__(self, now: Callable[[], datetime], link: Any) -> None:
        self.now = now
        self.link = link
        link.execute("FLUSHALL")
        for model in MODELS():
            model.objects.all().delete()
        stores.reset()
        self.began = now()
        self.bench = Bench(link, queues=("default", "orders", "redis"))
        self.bench.tasks = {task.name: task for task in registry}
        self.declared = Declarations()
        self.jobs: dict[str, Any] = {}
        self._fill()

    # acts

    def run(self) -> None:
        """A worker runs what is due."""
        self.bench.run()

    def fold(self) -> None:
        """The mirror folds what has happened."""
        for queue in conf.get().queues.values():
            MirrorLoop(stores.places, queue, prefix=PREFIX, signer=conf.get().signer).drain()

    def declare(self) -> None:
        """Schedules of the code, and a pass of their loop."""
        dates = Dates(cron="0 3 1 1 *", timezone="UTC")  # so rarely that none is due while a test runs
        self.declared.add(Declaration(name="yearly", task=close_order.name, dates=dates, args=(90,)), registry.get(close_order.name))
        self.tick()

    def tick(self) -> None:
        """A few passes of the loop of schedules."""
        loop = TickLoop(declared=self.declared)
        for _ in range(5):
            loop.poll()

    def unpublished(self, number: int, **options: Any) -> Any:
        """A job whose web process dies between its commit and Redis."""
        with transaction.atomic():
            job = delayq.schedule(close_order.using(**options), number)
            connection.run_on_commit.clear()
        return job

    # what is there

    def _fill(self) -> None:
        put, using = delayq.schedule, close_order.using
        ends = {"succeeded": "ack", "failed": "fail", "retried": "retry"}
        for number, name in enumerate(ends, 1):
            self.jobs[name] = put(using(expires="2h"), number)
        self.jobs["lost"] = put(close_order, 4)
        self.jobs["redis failed"] = put(ping, 5)
        self._end(ends)
        self.jobs["cancelled"] = put(using(delay="1h"), 6)
        delayq.cancel(self.jobs["cancelled"])
        self.jobs["waiting"] = put(using(delay="2h", key="waiting"), 7)
        self.jobs["due"] = put(close_order, 8)
        self.jobs["redis waiting"] = put(ping.using(delay="1h"), 9)
        self.jobs["far"] = put(using(queue="far", delay="5h"), 10)
        self.jobs["far soon"] = put(using(queue="far", delay="3h", key="far"), 11)
        self.jobs["unpublished"] = self.unpublished(12, delay="1h")
        for number in range(3):
            delayq.push("mail", {"n": number})
        self.declare()
        self.fold()
        old = self.began - timedelta(days=40)
        self.jobs["old"] = old_job = put(using(delay="1h"), 13)
        delayq.cancel(old_job)
        self.fold()
        Job.objects.filter(pk=old_job.id).update(finished_at=old)
        Step.objects.create(job_id=ids.new(), fence="old", at=old)
        Step.objects.create(job_id=ids.new(), fence="new", at=self.began)
        operation: dict[str, Any] = {
            "verb": "cancel",
            "actor": "clerk",
            "selection": {"task": "none.there"},
            "upto": UUID(int=2**128 - 1),
        }
        Operation.objects.create(**operation, stage="finished", created_at=old, finished_at=old, reason="old")
        Operation.objects.create(**operation, stage="finished", created_at=self.began, finished_at=self.began, reason="new")
        Operation.objects.create(**operation, stage="waiting", created_at=self.began, reason="open")
        Operation.objects.create(
            **operation,
            stage="running",
            created_at=self.began,
            reason="held",
            holder="other",
            held_until=self.began + timedelta(hours=1),
        )
        for number, moment in enumerate((old, self.began)):
            SetAside.objects.create(
                queue="orders", stream_id=f"{number}-0", item=0, kind="x", at=moment, raw=b"", length=0, code="x", noticed_at=moment
            )

    def _end(self, ends: dict[str, str]) -> None:
        orders = self.bench.stores[1]
        jobs = {ids.full(job.id): job for job in orders.claim("w/9", "n1", want=9, lease_ms=30_000, max_crashes=3).jobs}
        from django_delayq.store.scripts.queue import Outcome

        def end(job: Any, kind: str) -> Outcome:
            return Outcome(job.id, job.attempt, job.fence, kind, 3_600_000 if kind == "retry" else 0, b"{}")

        orders.settle([end(jobs[self.jobs[name].id], kind) for name, kind in ends.items()], worker="w/9", max_crashes=3)
        redis = self.bench.stores[2]
        [job] = redis.claim("w/9", "n2", want=9, lease_ms=30_000, max_crashes=3).jobs
        redis.settle([end(job, "fail")], worker="w/9", max_crashes=3)

    # as text

    def dump(self) -> list[Line]:
        """All rows, and all of Redis."""
        return sorted([*self._rows(), *self._redis()])

    def _rows(self) -> Iterator[Line]:
        for model in MODELS():
            for row in model.objects.values():
                yield self._line(f"{model.__name__} {json.dumps(row, default=_text, sort_keys=True)}")

    def _redis(self) -> Iterator[Line]:
        readers: dict[bytes, tuple[str, tuple[Any, ...], Callable[[Any], Any]]] = {
            b"string": ("GET", (), lambda found: [found]),
            b"hash": ("HGETALL", (), _pairs),
            b"zset": ("ZRANGE", (0, -1, "WITHSCORES"), _pairs),
            b"set": ("SMEMBERS", (), list),
            b"list": ("LRANGE", (0, -1), list),
            b"stream": ("XRANGE", ("-", "+"), list),
        }
        for key in self.link.execute("KEYS", "*"):
            name = key.decode()
            if not name.endswith(MEASURED):
                command, arguments, parts = readers[self.link.execute("TYPE", key)]
                texts = [f"{name} {_flat(part)}" for part in parts(self.link.execute(command, key, *arguments))]
                yield from (self._line(text) for text in texts if not ELECTED.match(text))

    def _line(self, text: str) -> Line:
        dates: list[float] = []

        def note(moment: float) -> str:
            if abs(moment) > YEARS:
                return "…"
            dates.append(moment)
            return "<>"

        def read(found: re.Match[str]) -> str:
            if len(found[0]) > 16 or "-" in found[0]:
                return note((datetime.fromisoformat(found[0].replace("Z", "+00:00")) - self.began).total_seconds())
            scale = {8: 60.0, 13: 1e-3}[len(found[1])]
            return note(int(found[1]) * scale - self.began.timestamp())

        text = SHOWN.sub(lambda found: f"{found[1] or ''}…", UUIDS.sub("…", ROWS.sub(r"\1…", text)))
        return NAMES.sub("…", NUMBERED.sub("<>", DATES.sub(read, text))), tuple(dates)


def MODELS() -> list[Any]:
    return [model for label in ("delayq", "delayq_gateway") for model in apps.get_app_config(label).get_models() if model._meta.managed]


def _text(value: Any) -> str:
    if isinstance(value, datetime):
        return value.astimezone(UTC).isoformat()
    return value.hex() if isinstance(value, bytes) else str(value)


def _pairs(flat: list[Any]) -> list[Any]:
    return list(zip(flat[::2], flat[1::2], strict=True))


def _flat(part: Any) -> str:
    if isinstance(part, list | tuple):
        return " ".join(map(_flat, part))
    return part.decode("utf-8", "backslashreplace") if isinstance(part, bytes) else str(part)
