"""The web process of a case: schedules jobs, changes some, and writes down what it was told."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any
from uuid import UUID

import django_delayq as delayq
from django_delayq import failpoints
from tests.crashpoints.actors import Answers
from tests.crashpoints.app import tasks
from tests.crashpoints.cases import Case

FAR = 600.0  # seconds; nothing comes due by itself while a case lasts
SOON = 0.2
SOON_KNOWN = 4.0  # so that the mirror has seen the job before it runs
BULK = 25
MANY = 20  # calls of `mend` until it must have worked


class Web:
    """Does the operations of a case; the one that the case is about with its failpoint armed."""

    def __init__(self, case: Case, folder: Path, seconds: float) -> None:
        self.case = case
        self.seconds = seconds
        self.soon = SOON_KNOWN if case.point.stage == "wiped" else SOON
        self.say = Answers(folder / "answers")

    def work(self) -> None:
        """All operations, in order."""
        victim = delayq.schedule(tasks.plain, self.seconds, delay=FAR)
        self.say(say="victim", job=victim.id.hex)
        self._do("schedule", self._schedule)
        self._do("cancel", victim.cancel, victim.id)
        for operation in self.case.operations_besides:
            job = self._task().using(delay=FAR).schedule(self.seconds)
            self.say(say="later", job=job.id.hex)
            if operation == "requeue":
                job.cancel()
            self._do(operation, getattr(self, f"_{operation}")(job), job.id)
        if self.case.point.stage == "deaf":
            self._do("deaf", lambda: [tasks.deaf.schedule()])

    def mend(self, jobs: Iterable[tuple[str, str]]) -> None:
        """What somebody does who was not answered: asks again. `jobs`: operation and id."""
        for operation, id in jobs:
            call: Callable[..., Any] = delayq.cancel if operation == "cancel" else delayq.run_now
            if operation == "requeue":
                call = delayq.requeue
            for _ in range(MANY):
                try:
                    self.say(say="told", op=operation, job=id, reply=str(call(UUID(id), queue="default")))
                    break
                except delayq.StoreUnavailable as error:
                    self.say(say="unknown", op=operation, job=id, error=repr(error))

    def move(self, id: str) -> None:
        """Gives a job other dates, a few times a second, for longer than the relay waits before it publishes."""
        import time

        for number in range(12):
            self._do("reschedule", lambda number=number: delayq.reschedule(UUID(id), delay=3 - number / 10), UUID(id))
            time.sleep(0.2)

    def _task(self) -> Any:
        return getattr(tasks, self.case.kind if self.case.kind not in ("keyed", "bulk") else "plain")

    def _schedule(self) -> list[Any]:
        if self.case.kind == "bulk":
            work = tasks.plain.using(delay=self.soon)
            seconds = (self.seconds, self.seconds, *[0.02] * (BULK - 2))
            return delayq.schedule_many([work.bind(each) for each in seconds])
        if self.case.kind == "keyed":
            work = tasks.plain.using(delay=self.soon, key="order")
            return [work.schedule(self.seconds), work.schedule(self.seconds)]
        return [self._task().using(delay=self.soon).schedule(self.seconds)]

    def _reschedule(self, job: Any) -> Callable[[], Any]:
        return lambda: job.reschedule(delay=SOON)

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
                made = [
                    (job.id.hex, job.created, int(job.run_at.timestamp() * 1000) if job.run_at else 0) for job in reply
                ]
                self.say(say="told", **known, jobs=made)
            else:
                self.say(say="told", **known, reply=str(reply))
        finally:
            failpoints.arm("")
