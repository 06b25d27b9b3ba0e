"""The web process of a case: schedules jobs, changes some, and writes down what it was told."""

from __future__ import annotations

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
from django_delayq.models import Attempt, Event, Operation, SetAside, Step
from django_delayq.models import Job as Row
from django_delayq.producer import edit, put
from django_delayq.producer.stores import stores
from tests.crashpoints.actors import Answers
from tests.crashpoints.app import tasks
from tests.crashpoints.cases import Case

FAR = 600.0  # seconds; nothing comes due by itself while a case lasts
SOON = 0.2
SOON_KNOWN = 4.0  # so that the mirror has seen the job before it runs
BEHIND = 10.0  # seconds; it waits still when the job of the case has ended
BULK = 25
MANY = 20  # calls of `mend` until it must have worked
OLD = datetime(2019, 1, 1, tzinfo=UTC)  # long past every retention
OPERATED = 3  # jobs of an operation


class Web:
    """Does the operations of a case; the one that the case is about with its failpoint armed.

    Besides those of the API: `withdraw` and `postpone` are a cancel and another date of a committed row that Redis does not have,
    `undo` and `redate` the same in the transaction that schedules it; `revive` is another date for a job that Redis has lost;
    `merge` is two jobs of a key in one transaction.
    """

    def __init__(self, case: Case, folder: Path, seconds: float) -> None:
        self.case = case
        self.seconds = seconds
        self.soon = SOON_KNOWN if case.point.stage in ("wiped", "rolled") else SOON
        self.say = Answers(folder / "answers")

    def work(self) -> None:
        """All operations, in order."""
        victim = delayq.schedule(tasks.plain, self.seconds, delay=FAR)
        self.say(say="victim", job=victim.id.hex)
        self._do("schedule", self._schedule)
        before = self._all_keys() if self.case.point.stage == "replaced" else {}
        self._do("cancel", victim.cancel, victim.id)
        for operation in self.case.operations_besides:
            with self._kept_from_redis(operation == "postpone"):
                job = self._work(FAR).schedule(self.seconds)
            self.say(say="later", job=job.id.hex)
            if operation in ("requeue", "edit"):
                job.cancel()
            elif operation == "revive":
                self._lose_all()
            self._do(operation, getattr(self, f"_{operation}")(job), job.id)
        if self.case.operation in ("withdraw", "undo", "redate", "merge"):
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
            self._do("besides", lambda: [tasks.plain.using(delay=BEHIND).schedule(0.1)])

    def _deaf(self) -> None:
        self._do("deaf", lambda: [tasks.deaf.schedule()])

    def _untold(self) -> None:
        job = self._work(FAR).schedule(self.seconds)
        self.say(say="victim", job=job.id.hex)
        failpoints.arm("outbox.tell=raise:purpose")
        self._do("cancel", job.cancel, job.id)

    def _broken(self) -> None:
        with self._kept_from_redis():
            job = self._work(FAR).schedule(self.seconds)
        self.say(say="broken", job=job.id.hex)
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

    def _operation(self) -> None:
        for _ in range(OPERATED):
            self.say(say="later", job=self._work(FAR).schedule(self.seconds).id.hex)
        Operation.objects.create(verb="run_now", selection={"view": "scheduled"}, actor="clerk")

    def _all_keys(self) -> dict[bytes, bytes]:
        link = stores.queue("default").link
        return {key: link.execute("DUMP", key) for key in link.execute("KEYS", f"{conf.get().prefix}:*")}

    def _replace_server(self, before: dict[bytes, bytes]) -> None:
        """As if another had taken over with what was there before the cancel."""
        store = stores.queue("default")
        for key, value in before.items():
            store.link.execute("RESTORE", key, 0, value, "REPLACE")
        store.link.execute("HSET", store.keys["meta"], "server", "another")

    @contextmanager
    def _kept_from_redis(self, kept: bool = True) -> Iterator[None]:
        """What is scheduled here is committed, and not published."""
        publish = put._send_rows
        if kept:
            put._send_rows = lambda publisher, puts: []
        try:
            yield
        finally:
            put._send_rows = publish

    def _withdraw(self) -> None:
        with self._kept_from_redis():
            job = self._work(FAR).schedule(self.seconds)
        self.say(say="victim", job=job.id.hex)
        self._do("withdraw", job.cancel, job.id)

    def _undo(self) -> None:
        def work() -> Any:
            with transaction.atomic():
                job = self._work(FAR).schedule(self.seconds)
                reply = job.cancel()
            self.say(say="victim", job=job.id.hex)  # else there is no row, or a later commit
            return reply

        self._do("undo", work)

    def _redate(self) -> None:
        def work() -> list[Any]:
            with transaction.atomic():
                job = self._work(FAR).schedule(self.seconds)
                job.reschedule(delay=SOON)
            return [job]

        self._do("redate", work)

    def _merge(self) -> None:
        def work() -> list[Any]:
            with transaction.atomic():
                return [tasks.plain.using(delay=SOON, key="merge").schedule(self.seconds) for _ in range(2)]

        self._do("merge", work)

    def _lose_all(self) -> None:
        """All that the queue has, when the database knows it."""
        store = stores.queue("default")
        prefix = conf.get().prefix
        MirrorLoop(store.link, conf.get().queue("default"), prefix=prefix, using="default").drain()
        store.link.execute("DEL", *store.link.execute("KEYS", f"{prefix}:*"))

    def mend(self, jobs: Iterable[tuple[str, str]]) -> None:
        """What somebody does who was not answered: asks again. `jobs`: operation and id."""
        for operation, id in jobs:
            call: Callable[..., Any] = {"cancel": delayq.cancel, "requeue": delayq.requeue}.get(operation, delayq.run_now)
            if operation == "edit":
                call = self._edit_by_id
            for _ in range(MANY):
                try:
                    self.say(say="told", op=operation, job=id, reply=str(call(UUID(id), queue="default")))
                    break
                except delayq.StoreUnavailable as error:
                    self.say(say="unknown", op=operation, job=id, error=repr(error))

    def resume(self) -> None:
        """What a person does who finds an operation paused by trouble, as soon as it is."""
        import time

        for _ in range(100):
            if Operation.objects.filter(stage="paused").update(stage="running", trouble="", paced_from=None):
                return
            if not Operation.objects.exclude(stage="finished").exists():
                return
            time.sleep(0.1)

    def move(self, id: str) -> None:
        """Gives a job other dates, a few times a second, for longer than the relay waits before it publishes."""
        import time

        for number in range(12):
            delay, asked = 3 - number / 10, time.time()
            try:
                reply = delayq.reschedule(UUID(id), delay=delay)
            except delayq.StoreUnavailable as error:
                self.say(say="unknown", op="reschedule", job=id, error=repr(error))
            else:
                due = int((asked + delay) * 1000) if reply is delayq.Change.DONE else 0
                self.say(say="told", op="reschedule", job=UUID(id).hex, reply=str(reply), due=due)
            time.sleep(0.2)

    def _work(self, delay: float) -> Any:
        if self.case.kind == "redis":
            return tasks.plain.using(delay=delay, durability="redis")
        return getattr(tasks, self.case.kind if self.case.kind not in ("keyed", "bulk") else "plain").using(delay=delay)

    def _schedule(self) -> list[Any]:
        if self.case.kind == "bulk":
            work = tasks.plain.using(delay=self.soon)
            seconds = (self.seconds, self.seconds, *[0.02] * (BULK - 2))
            return delayq.schedule_many([work.bind(each) for each in seconds])
        if self.case.kind == "keyed":
            work = tasks.plain.using(delay=self.soon, key="order")
            return [work.schedule(self.seconds), work.schedule(self.seconds)]
        return [self._work(self.soon).schedule(self.seconds)]

    def _reschedule(self, job: Any) -> Callable[[], Any]:
        return lambda: job.reschedule(delay=SOON)

    _postpone = _revive = _reschedule

    def _edit(self, job: Any) -> Callable[[], Any]:
        return lambda: self._edit_by_id(job.id)

    def _edit_by_id(self, id: UUID, queue: str = "") -> Any:
        return edit.edit_and_requeue(id, [self.seconds], {})

    def _run_now(self, job: Any) -> Callable[[], Any]:
        return job.run_now  # type: ignore[no-any-return]

    def _requeue(self, job: Any) -> Callable[[], Any]:
        return job.requeue  # type: ignore[no-any-return]

    def _do(self, operation: str, work: Callable[[], Any], job: UUID | None = None) -> None:
        known = {"op": operation} if job is None else {"op": operation, "job": job.hex}
        self.say(say="asked", **known)
        if operation == self.case.operation and self.case.point.stage == "web":
            failpoints.arm(f"{self.case.point.name}={self.case.action}")
        elif operation == "schedule" and self.case.point.stage in ("unpublished", "moved"):
            failpoints.arm("producer.committed=kill")
        try:
            reply = work()
        except (delayq.DelayqError, failpoints.FailpointError) as error:
            self.say(say="unknown", **known, error=repr(error))
        else:
            if isinstance(reply, list):
                made = [(job.id.hex, job.created, int(job.run_at.timestamp() * 1000) if job.run_at else 0) for job in reply]
                self.say(say="told", **known, jobs=made)
            else:
                self.say(say="told", **known, reply=str(reply))
        finally:
            failpoints.arm("")
