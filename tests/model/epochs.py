"""The epoch of a queue, and how jobs come back that Redis has lost: restore, sweep, confirm, trim, and when claim waits."""

from __future__ import annotations

from collections.abc import Sequence

from django_delayq.states import State
from django_delayq.store.scripts.decode import position
from django_delayq.store.scripts.record import JobRecord
from django_delayq.store.scripts.recovery import Confirmed, Restored, RestoreItem
from tests.model.contents import Contents, full
from tests.model.job import Job

PATIENCE = 60_000  # ms without a sign of somebody who confirms
BUSY = 5000  # ms for which a restore that has shown itself is at work


class Epochs(Contents):
    """With the signatures of `EpochStore`."""

    def _stand(self, offer: str) -> None:
        self.generation = self.generation or offer

    @property
    def known(self) -> str:
        """The epoch as rows name it."""
        return f"{self.generation}:{self.confirmed}"

    def _waits_to_be_confirmed(self, wary: bool) -> bool:
        """Whether a claim takes nothing, since the data may be older than the rows, or lacks what they know."""
        confirmed = self.confirmed or ("" if wary else self.server)
        if self.rolled in ("", "rest") and confirmed == self.server:
            return False
        if not self.moved or self.moved[0] != self.server:
            self.moved = self.server, self.now
        worked = int(self.restoring.split(" ")[0]) if self.restoring else 0
        return min(abs(self.now - self.moved[1]), abs(self.now - worked)) <= PATIENCE

    def confirm(
        self,
        generation: str,
        *,
        server: str = "",
        phase: str = "",
        renew: str = "",
        behind: str = "",
        mirrored: str = "",
        progress: str = "",
        actor: str = "",
        now_ms: int,
    ) -> Confirmed:
        self._begin(now_ms)
        if generation != self.generation or server not in ("", self.server):
            return "changed"
        at, who, *_ = [*self.restoring.split(" "), ""]
        if who and progress and who != progress.split(" ")[0] and abs(now_ms - int(at)) < BUSY:
            return "busy"
        if renew:
            self.generation = renew
            if phase == "sweep":
                self.finished = {}
        if phase == "found":
            self.rolled = phase
            return "ok"
        self.confirmed, self.rolled = self.server, phase
        if phase:
            self.restoring = f"{now_ms} {progress}"
        else:
            self._note_mirrored(mirrored)
            self.restoring, self.moved = "", None
        return "ok"

    def sweep(self, generation: str, cursor: str = "0", *, progress: str = "", actor: str = "", now_ms: int) -> tuple[str, int]:
        """All of a small queue in one call."""
        self._begin(now_ms)
        if (generation, self.rolled) != (self.generation, "sweep"):
            return "", 0
        self.restoring = f"{now_ms} {progress}"
        gone = [id for id, job in self.jobs.items() if job.record.durable]
        for id in gone:
            self._leave(id)
        self._call_waiters()
        return "0", len(gone)

    def drop(self, jobs: Sequence[str], *, actor: str = "", now_ms: int) -> int:
        self._begin(now_ms)
        gone = [id for id in jobs if id in self.jobs]
        for id in gone:
            self._leave(id)
            self._event("dropped", id)
        self._call_waiters()
        return len(gone)

    def _leave(self, id: str) -> None:
        job = self.jobs.pop(id)
        self._free(job)
        self._withdraw(job)
        self.requests.pop(id, None)

    def trim(self, upto: str, *, server: str = "") -> None:
        self.events = []
        if server in ("", self.server):
            self._note_mirrored(upto)

    def _note_mirrored(self, upto: str) -> None:
        self.mirrored = max(self.mirrored, upto, key=position)

    def adopt(self, items: Sequence[RestoreItem], *, worker: str, epoch: str, now_ms: int) -> tuple[str, list[Restored]]:
        self._begin(now_ms)
        self._stand(self.new_generation)
        if self.rolled == "sweep":
            return self.epoch, ["wait" for _ in items]
        answers = [self._adopt(item, epoch) for item in items]
        self._call_waiters()
        return self.epoch, answers

    def _adopt(self, item: RestoreItem, epoch: str) -> Restored:
        job = self.jobs.get(item.id)
        if self._has_ended(item.id):
            return "finished"
        if job and job.fence == item.fence:
            job.date = self._date(item)
            return "adopted"
        if epoch == self.epoch or (job and self._has_gone_on(job, item)):
            return "lost"
        body = b""
        if job is None:
            record = JobRecord.decode(full(item.id), item.record)
            self.jobs[item.id] = job = Job(item.id, record, 0)
            body = job.body
        else:
            self._withdraw(job)
        holder = self.holder(job.record.key)
        job.keyless = job.small = holder is not None and holder is not job
        job.state, job.date = State.RUNNING, self._date(item)
        if job.name:
            self.came_back.add(job.name.text)
        job.attempt, job.crashes, job.fence = item.attempt, item.crashes, item.fence
        job.evictions = job.unknown = 0
        job.asks = item.asks or job.asks
        self._event("restored", item.id, job.date, item.attempt, item.crashes, item.fence, body=body)
        return "adopted"

    def _has_gone_on(self, job: Job, item: RestoreItem) -> bool:
        """Whether the job is not where this run began: another run is as far, or this one has ended in some way."""
        if job.crashes > item.crashes or job.attempt > item.attempt:
            return True
        later_crash = job.state is State.RUNNING and job.crashes < item.crashes
        return job.attempt == item.attempt and not later_crash

    def restore(self, items: Sequence[RestoreItem], *, epoch: str, progress: str = "", actor: str = "", now_ms: int) -> list[Restored]:
        self._begin(now_ms)
        if not items:
            return []
        if epoch != self.known:
            return ["epoch" for _ in items]
        self._stand(self.new_generation)
        if progress:
            self.restoring = f"{now_ms} {progress}"
        answers = [self._restore(item, actor) for item in items]
        back = zip(items, answers, strict=True)
        overdue = [item for item, said in back if said == "restored" and item.unsure_ms and item.due_ms <= self.now]
        if overdue:
            self.brought_back = max(map(self._date, overdue)), self.now + max(item.unsure_ms for item in overdue)
        return answers

    def _restore(self, item: RestoreItem, actor: str) -> Restored:
        if self._has_ended(item.id):
            return "finished"
        if item.id in self.jobs:
            return "there"
        record = JobRecord.decode(full(item.id), item.record)
        if holder := self.holder(record.key):
            self.finished[item.id] = self.now + 0.75
            self._event("merged", item.id, holder.id, "restore", body=b"")
            return "merged"
        job = Job(item.id, record, self._date(item), attempt=item.attempt, crashes=item.crashes, asks=item.asks)
        job.state = State.RUNNING if item.begun else State.SCHEDULED
        if not item.begun:
            self._put(job)
        if item.first_ms != "":
            self.firsts.setdefault(item.id, item.first_ms)
        self.jobs[item.id] = job
        if item.begun and job.name:
            self.came_back.add(job.name.text)
        if item.begun == "cancel":
            self.requests.setdefault(item.id, actor)
        runs = ("running",) if item.begun else ()
        self._event("restored", item.id, job.date, job.attempt, job.crashes, "-", *runs, body=job.body)
        return "restored"

    def _has_ended(self, id: str) -> bool:
        return id in self.finished or (id in self.jobs and self.jobs[id].state is State.FAILED)

    def _date(self, item: RestoreItem) -> int:
        return max(item.due_ms, self.now + item.delay_ms)
