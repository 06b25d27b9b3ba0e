"""The web process of a case: schedules jobs, changes some, and writes down what it was told."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from uuid import UUID

from django.db import transaction

import django_delayq as delayq
from django_delayq import conf, failpoints, ids
from django_delayq.mirror.mirror_loop import MirrorLoop
from django_delayq.models import Attempt, Event, Operation, SetAside, Step, Tick
from django_delayq.models import Job as Row
from django_delayq.periodic import schedules
from django_delayq.producer import edit, put
from django_delayq.producer.stores import stores
from django_delayq.store.connection.link import Link
from django_delayq.store.connection.places import Places
from tests.app import tasks
from tests.app.record import own
from tests.crashpoints.cases import NEW_RATE, ONCE, RATED, Case

FAR = 600.0  # seconds; nothing comes due by itself while a case lasts
SOON = 0.2
SOON_KNOWN = 4.0  # so that the mirror has seen the job before it runs
BEHIND = 10.0  # seconds; it waits still when the job of the case has ended
BULK = 25
MANY = 20  # calls of `mend` until it must have worked
OLD = datetime(2019, 1, 1, tzinfo=UTC)  # long past every retention
SCHEDULE = "yearly"
OPERATED = 3  # jobs of an operation
# As which calls the operations of a case are judged.
WHAT = {"withdraw": "cancel", "postpone": "reschedule", "revive": "reschedule", "uproot": "cancel", "bring": "reschedule"}
WHAT |= dict.fromkeys(("besides", "deaf", "redate", "merge"), "schedule")
MENDED = {"cancel": "cancel", "requeue": "requeue", "edit": "edit"}
KEYED: dict[str, dict[str, Any]] = {"keyed": {"key": "order", "queue": "default"}}
KEYED |= {kind: {"key": "order", "queue": "default", "once_for": 3_600} for kind in ONCE}
DURABILITY = {"once": "outbox", "redis": "redis", "once-redis": "redis"}


def all_keys(places: Places, prefix: str) -> dict[Link, list[bytes]]:
    """The keys of a case on all servers, by what leads to them: of a Cluster, to their slot."""
    found: dict[Link, list[bytes]] = {}
    roads = {places.shared: places.nodes(), places.of("default", 0): places.nodes("default")}
    nodes = {node: road for road, those in roads.items() for node in those}
    for node, road in nodes.items():
        for key in node.execute("KEYS", f"{prefix}:*"):
            found.setdefault(road.beside(key.decode()), []).append(key)
    return found


def forget_all(places: Places, prefix: str) -> None:
    """All that Redis has of a case; what is in one slot, at once."""
    for link, keys in all_keys(places, prefix).items():
        link.execute("DEL", *keys)


class Web:
    """Does the operations of a case; the one that the case is about with its failpoint armed.

    Besides those of the API: `withdraw` and `postpone` are a cancel and another date of a committed row that Redis does not have,
    `undo` and `redate` the same in the transaction that schedules it; `revive` is another date for a job that Redis has lost;
    `uproot` and `bring` are a cancel and another date of a far row;
    `merge` is two jobs of a key in one transaction; `set_rate` changes the rate of a name.
    """

    def __init__(self, case: Case, folder: Path, seconds: float) -> None:
        self.case = case
        self.seconds = seconds
        self.soon = SOON_KNOWN if case.point.stage in ("wiped", "rolled") else SOON
        self.folder = folder
        self.number = 0

    def work(self) -> None:
        """All operations, in order."""
        victim = self._besides("victim", tasks.long)
        with self._far_rows(self.case.point.stage == "far"):
            self._do("schedule", self._schedule, delay=self.soon, **KEYED.get(self.case.kind, {}))
        before = self._all_that_is_there() if self.case.point.stage == "replaced" else []
        self._do("cancel", victim.cancel, victim.id)
        for operation in self.case.operations_besides:
            job = self._besides("victim" if operation == "uproot" else "later", kept=operation in ("postpone", "uproot", "bring"))
            if operation in ("uproot", "bring"):
                Row.objects.filter(pk=job.id).update(far=True)
            if operation in ("requeue", "edit"):
                job.cancel()
            elif operation == "revive":
                self._lose_all()
            self._do(operation, getattr(self, f"_{operation}")(job), job.id)
        if self.case.operation in ("withdraw", "undo", "redate", "merge", "set_rate"):
            getattr(self, f"_{self.case.operation}")()
        prepare = getattr(self, f"_{self.case.point.stage}", None)
        if prepare is not None:
            prepare()
        if before:
            self._replace_server(before)

    # what a stage needs besides

    def _wiped(self) -> None:
        if self.case.point.name in (
            "restore.send",
            "restore.sent",
        ):  # where the job of the case has ended by then, it is not sent
            self._do("besides", lambda: [tasks.long.using(delay=BEHIND).schedule(self.op, 0.1)], delay=BEHIND)

    def _deaf(self) -> None:
        self._do("deaf", lambda: [tasks.deaf.schedule(self.op)])

    def _untold(self) -> None:
        job = self._besides("victim")
        failpoints.arm("outbox.tell=raise:purpose")
        self._do("cancel", job.cancel, job.id)

    def _broken(self) -> None:
        job = self._besides("broken", kept=True)
        Row.objects.filter(pk=job.id).update(task="?")

    def _old(self) -> None:
        """A job that has ended long ago, with all that belongs to it, and whatever else has had its time."""
        job = Row.objects.create(
            queue="default", task="old", state="succeeded", run_at=OLD, created_at=OLD, finished_at=OLD, published=OLD
        )
        Attempt.objects.create(job=job, number=1, fence="old", started_at=OLD, finished_at=OLD, outcome="succeeded")
        Event.objects.create(job=job, queue="default", at=OLD, kind="rescheduled", stream_id="old")
        for id in (job.id, ids.new()):
            Step.objects.create(job_id=id, name="old", fence="old", at=OLD)
        Operation.objects.create(verb="cancel", actor="clerk", stage=Operation.Stage.FINISHED, finished_at=OLD)
        SetAside.objects.create(
            queue="default",
            stream_id="1-0",
            item=0,
            kind="old",
            at=OLD,
            raw=b"",
            length=0,
            code="unknown kind",
            noticed_at=OLD,
        )

    def _periodic(self) -> None:
        """Declares a schedule with one tick far ahead. No caller asks for its job."""
        self._asked("schedule", operation="schedule")
        schedules.create(SCHEDULE, tasks.long.name, cron="0 0 29 2 *", args=(self.op, self.seconds), actor="clerk")

    def turn_off(self) -> None:
        """Makes the changes of a user to that schedule once its tick exists: the job is cancelled, and everything ends."""
        for _ in range(MANY):
            if tick := Tick.objects.filter(schedule__name=SCHEDULE).first():
                break
            time.sleep(0.5)
        self._part("victim", Row(id=tick.job_id))
        schedules.turn_off(SCHEDULE, "clerk")

    def _operation(self) -> None:
        jobs = [self._besides("later") for _ in range(OPERATED)]
        for job in jobs:
            self._asked("run_now", job=job.id.hex)  # the operation does, and nobody is answered
        Operation.objects.create(verb="run_now", selection={"view": "scheduled"}, actor="clerk")

    def _all_that_is_there(self) -> list[tuple[Link, bytes, bytes]]:
        found = all_keys(stores.places, conf.get().prefix)
        return [(link, key, link.execute("DUMP", key)) for link, keys in found.items() for key in keys]

    def _replace_server(self, before: list[tuple[Link, bytes, bytes]]) -> None:
        """As if another had taken over with what was there before the cancel."""
        for link, key, value in before:
            link.execute("RESTORE", key, 0, value, "REPLACE")
        for store in stores.parts("default"):
            store.link.execute("HSET", store.keys["meta"], "server", "another")

    @contextmanager
    def _kept_from_redis(self, kept: bool = True) -> Iterator[None]:
        """Jobs scheduled here are committed and not published."""
        publish = put._send_rows
        if kept:
            put._send_rows = lambda publisher, puts: []
        try:
            yield
        finally:
            put._send_rows = publish

    @contextmanager
    def _far_rows(self, far: bool) -> Iterator[None]:
        """Jobs scheduled here are far, as in a queue with a horizon."""
        before = list(Row.objects.values_list("pk", flat=True))
        with self._kept_from_redis(far):
            yield
        if far:
            Row.objects.exclude(pk__in=before).update(far=True)

    def _withdraw(self) -> None:
        job = self._besides("victim", kept=True)
        self._do("withdraw", job.cancel, job.id)

    def _undo(self) -> None:
        def work() -> Any:
            with transaction.atomic():
                job = self._work(FAR)
                reply = job.cancel()
            self._part("victim", job)  # else there is no row, or a later commit
            return reply

        self._do("undo", work)

    def _redate(self) -> None:
        def work() -> list[Any]:
            with transaction.atomic():
                job = self._work(FAR)
                job.reschedule(delay=SOON)
            return [job]

        self._do("redate", work, delay=SOON)

    def _merge(self) -> None:
        def work() -> list[Any]:
            with transaction.atomic():
                return [tasks.long.using(delay=SOON, key="merge").schedule(self.op, self.seconds) for _ in range(2)]

        self._do("merge", work, delay=SOON, key="merge", queue="default")

    def _set_rate(self) -> None:
        """A person sets the rate of a name. It is no change of a job, so it is not judged as a call."""
        failpoints.arm(f"{self.case.point.name}={self.case.action}")
        try:
            delayq.set_rate(RATED, NEW_RATE, actor="clerk")
        except failpoints.FailpointError:
            return
        finally:
            failpoints.arm("")
        own(self.folder, "parts").write(part="rate", job="")

    def _lose_all(self) -> None:
        """All that the queue has, when the database knows it."""
        queue, prefix = conf.get().queue("default"), conf.get().prefix
        for partition in queue.served:
            MirrorLoop(stores.places, queue, prefix=prefix, partition=partition).drain()
        forget_all(stores.places, prefix)

    def mend(self, jobs: Iterable[tuple[str, str]]) -> None:
        """Repeats a call without an answer. `jobs`: operation and ID."""
        for operation, id in jobs:
            call: Callable[..., Any] = {"cancel": delayq.cancel, "requeue": delayq.requeue}.get(operation, delayq.run_now)
            if operation == "edit":
                call = self._edit_by_id
            for _ in range(MANY):
                if self._do(operation, lambda: call(UUID(id), queue="default"), UUID(id), what=MENDED.get(operation, "run_now")):  # noqa: B023  # called at once
                    break

    def resume(self) -> None:
        """Resumes an operation as soon as it is paused by a problem, as a user would."""
        for _ in range(100):
            if Operation.objects.filter(stage="paused").update(stage="running", problem=None, paced_from=None):
                return
            if not Operation.objects.exclude(stage="finished").exists():
                return
            time.sleep(0.1)

    def move(self, id: str) -> None:
        """Gives a job other dates, a few times a second, for longer than the relay waits before it publishes."""
        for number in range(12):
            delay = 3 - number / 10
            self._do("reschedule", lambda: delayq.reschedule(UUID(id), delay=delay), UUID(id), delay=delay)  # noqa: B023  # likewise
            time.sleep(0.2)

    def _arguments(self) -> tuple[Any, tuple[Any, ...]]:
        """The task of this kind of job, and what it is called with."""
        seconds = self.seconds
        return {
            "retrying": (tasks.flaky, (1, seconds / 2)),
            "snoozing": (tasks.snoozer_once, (seconds / 2,)),
            "asking": (tasks.asker, (seconds / 2,)),
            "atomic": (tasks.atomic, (seconds,)),
            "stepwise": (tasks.stepwise, (0, seconds / 2)),
            "offering": (tasks.offering, (seconds,)),
            "asynchronous": (tasks.asynchronous, (seconds,)),
        }.get(self.case.kind, (tasks.long, (seconds,)))

    def _work(self, delay: float) -> Any:
        """A job of this kind."""
        task, arguments = self._arguments()
        return task.using(delay=delay, durability=DURABILITY.get(self.case.kind)).schedule(self.op, *arguments)

    def _besides(self, part: str, task: Any = None, *, kept: bool = False) -> Any:
        """A job besides the one that the case is about, which waits for long; `kept`: from Redis."""
        self._asked("schedule", delay=FAR)
        with self._kept_from_redis(kept):
            job = task.using(delay=FAR).schedule(self.op, self.seconds) if task else self._work(FAR)
        self._told([job])
        self._part(part, job)
        return job

    def _schedule(self) -> list[Any]:
        if self.case.kind == "bulk":
            work = tasks.long.using(delay=self.soon)
            seconds = (self.seconds, self.seconds, *[0.02] * (BULK - 2))
            return delayq.schedule_many([work.bind(self.op, each) for each in seconds])
        if self.case.kind == "keyed":
            work = tasks.long.using(delay=self.soon, key="order")
            return [work.schedule(self.op, self.seconds), work.schedule(self.op, self.seconds)]
        if self.case.kind in ONCE:
            work = tasks.long.using(delay=self.soon, durability=DURABILITY[self.case.kind], **KEYED[self.case.kind])
            return [work.schedule(self.op, self.seconds), work.schedule(self.op, self.seconds)]
        return [self._work(self.soon)]

    def _reschedule(self, job: Any) -> Callable[[], Any]:
        return lambda: job.reschedule(delay=SOON)

    _postpone = _revive = _bring = _reschedule

    def _uproot(self, job: Any) -> Callable[[], Any]:
        return lambda: job.cancel()

    def _edit(self, job: Any) -> Callable[[], Any]:
        return lambda: self._edit_by_id(job.id)

    def _edit_by_id(self, id: UUID, queue: str = "") -> Any:
        return edit.edit_and_requeue(id, [Row.objects.get(pk=id).args[0], self.seconds], {})

    def _run_now(self, job: Any) -> Callable[[], Any]:
        return job.run_now

    def _requeue(self, job: Any) -> Callable[[], Any]:
        return job.requeue

    def _do(self, operation: str, work: Callable[[], Any], job: UUID | None = None, *, what: str = "", **given: Any) -> bool:
        """Makes one call and records it before and after. Returns whether it was answered."""
        self._asked(what or WHAT.get(operation, operation), operation=operation, **given, **({"job": job.hex} if job else {}))
        if operation == self.case.operation and self.case.point.stage == "web" and not what:
            failpoints.arm(f"{self.case.point.name}={self.case.action}")
        elif operation == "schedule" and self.case.point.stage in ("unpublished", "moved"):
            failpoints.arm("producer.committed=kill")
        try:
            self._told(work())
        except (delayq.DelayqError, failpoints.FailpointError) as error:
            self._say("unknown", error=repr(error))
            return False
        finally:
            failpoints.arm("")
        return True

    def _asked(self, what: str, **given: Any) -> None:
        self.number += 1
        self.op = f"{os.getpid()}:{self.number}"
        self._say("invoked", what=what, **given)

    def _say(self, say: str, **fields: Any) -> None:
        own(self.folder, "web").write(op=self.op, say=say, **fields)

    def _part(self, part: str, job: Any) -> None:
        own(self.folder, "parts").write(part=part, job=job.id.hex)

    def _told(self, reply: Any) -> None:
        if isinstance(reply, list):
            made = [(job.id.hex, job.created, int(job.run_at.timestamp() * 1000) if job.run_at else None) for job in reply]
            self._say("ok", jobs=made)
        else:
            self._say("ok", reply=str(reply))
