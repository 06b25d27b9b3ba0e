"""What a queue stands on, and how jobs come back that Redis has lost: the scripts restore, confirm and trim, and when claim waits."""

from __future__ import annotations

from collections.abc import Sequence

from django_delayq.job import JobRecord
from django_delayq.states import State
from django_delayq.store.events import position
from django_delayq.store.ground import Restored, RestoreItem
from tests.model.contents import Contents, full
from tests.model.job import Job

PATIENCE = 60_000  # ms without a sign of somebody who confirms
BUSY = 5000  # ms for which a restore that has shown itself is at work
WORDS = {b"failed": 0.0, b"succeeded": 0.25, b"cancelled": 0.5}  # how a row has ended, and how its tombstone tells it


class Grounds(Contents):
    """With the signatures of `GroundStore`."""

    def _stand(self, offer: str) -> None:
        self.generation = self.generation or offer

    def _waits_to_be_confirmed(self) -> bool:
        """Whether a claim takes nothing, since the data may be older than the rows."""
        if not self.rolled and self.confirmed in ("", self.server):
            return False
        if not self.moved or self.moved[0] != self.server:
            self.moved = self.server, self.now
        worked = int(self.restoring.split(" ")[0]) if self.restoring else 0
        return min(abs(self.now - self.moved[1]), abs(self.now - worked)) <= PATIENCE

    def confirm(
        self, generation: str, *, server: str = "", renew: str = "", behind: str = "", mirrored: str = "",
        actor: str = "", now_ms: int,
    ) -> bool:  # fmt: skip
        self._begin(now_ms)
        if generation != self.generation or server not in ("", self.server):
            return False
        if renew:
            self.generation, self.rolled, self.restoring = renew, True, f"{now_ms} {actor} 0 0"
        else:
            self._note_mirrored(mirrored)
            self.confirmed, self.rolled, self.restoring, self.moved = self.server, False, "", None
        return True

    def trim(self, upto: str, *, server: str = "") -> None:
        self.events = []
        if server in ("", self.server):
            self._note_mirrored(upto)

    def _note_mirrored(self, upto: str) -> None:
        self.mirrored = max(self.mirrored, upto, key=position)

    def adopt(
        self, items: Sequence[RestoreItem], *, worker: str, ground: str, now_ms: int
    ) -> tuple[str, list[Restored]]:
        self._begin(now_ms)
        self._stand(self.offer)
        return self.ground, [self._adopt(item, ground) for item in items]

    def _adopt(self, item: RestoreItem, ground: str) -> Restored:
        job = self.jobs.get(item.id)
        if self._has_ended(item.id):
            return "finished"
        if job and job.fence == item.fence:
            job.date = self._date(item)
            return "adopted"
        if ground == self.ground or (job and self._has_gone_on(job, item)):
            return "lost"
        body = b""
        if job is None:
            record = JobRecord.decode(full(item.id), item.record)
            self.jobs[item.id] = job = Job(item.id, record, 0)
            body = job.body
        holder = self.holder(job.record.key)
        job.keyless = job.small = holder is not None and holder is not job
        job.state, job.date = State.RUNNING, self._date(item)
        job.attempt, job.crashes, job.fence = item.attempt, item.crashes, item.fence
        self._event("restored", item.id, job.date, item.attempt, item.crashes, item.fence, body=body)
        return "adopted"

    def _has_gone_on(self, job: Job, item: RestoreItem) -> bool:
        """Whether the job is not where this run began: another run is as far, or this one has ended in some way."""
        if job.crashes > item.crashes or job.attempt > item.attempt:
            return True
        later_crash = job.state is State.RUNNING and job.crashes < item.crashes
        return job.attempt == item.attempt and not later_crash

    def restore(
        self,
        items: Sequence[RestoreItem],
        *,
        rolled: bool | str = False,
        progress: str = "",
        actor: str = "",
        now_ms: int,
    ) -> tuple[str, list[Restored]]:
        self._begin(now_ms)
        self._stand(self.offer)
        if progress:
            at, who, *_ = [*self.restoring.split(" "), ""]
            another = who not in ("", "restore", progress.split(" ")[0])
            if not items and another and abs(now_ms - int(at)) < BUSY:
                return "", []
            self.restoring = f"{now_ms} {progress}"
        older = self.rolled if rolled == "noted" else bool(rolled)
        return self.ground, [self._restore(item, older) for item in items]

    def _restore(self, item: RestoreItem, rolled: bool) -> Restored:
        if self._has_ended(item.id):
            succeeded = self.finished.get(item.id, 0) % 1 == 0.25
            if not rolled or item.record in WORDS or not item.requeued or succeeded:
                return "finished"
            self.finished.pop(item.id, None)
            self.jobs.pop(item.id, None)
        job = self.jobs.get(item.id)
        if item.record in WORDS:
            if not job or not rolled:
                return "there"
            del self.jobs[item.id]
            self.finished[item.id] = self.now + WORDS[item.record]
            self._event("dropped", item.id)
            return "dropped"
        if job:
            return self._correct(job, item) if rolled else "there"
        record = JobRecord.decode(full(item.id), item.record)
        if holder := self.holder(record.key):
            self.finished[item.id] = self.now + 0.5
            self._event("merged", item.id, holder.id, "restore")
            return "merged"
        job = Job(item.id, record, self._date(item), attempt=item.attempt, crashes=item.crashes)
        self.jobs[item.id] = job
        self._event("restored", item.id, job.date, job.attempt, job.crashes, "-", body=job.body)
        return "restored"

    def _correct(self, job: Job, item: RestoreItem) -> Restored:
        """The row counts, unless the job is further than it, or just there."""
        date, crashes = self._date(item), max(job.crashes, item.crashes)
        same = job.state is State.SCHEDULED and (job.attempt, job.crashes, job.date) == (item.attempt, crashes, date)
        if job.attempt > item.attempt or same:
            return "there"
        job.state, job.date, job.attempt, job.crashes = State.SCHEDULED, date, item.attempt, crashes
        job.fence, job.asked, job.progress = "", None, ""
        job.small = job.small and bool(job.attempt or job.crashes)
        self._event("restored", item.id, date, job.attempt, crashes, "-", body=b"")
        return "restored"

    def _has_ended(self, id: str) -> bool:
        return id in self.finished or (id in self.jobs and self.jobs[id].state is State.FAILED)

    def _date(self, item: RestoreItem) -> int:
        return max(item.due_ms, self.now + item.delay_ms)
