"""One queue in plain Python: what the scripts are meant to do, a method per script, with the signatures of `QueueStore`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any
from uuid import UUID

from django_delayq.job import ClaimedJob, JobRecord
from django_delayq.states import Change, State
from django_delayq.store.queue import HOUR_MS, MOST, Claim, ScheduleItem, ScheduleReply, SettleItem, Tidied
from tests.model.contents import full, short
from tests.model.dump import LANES
from tests.model.grounds import Grounds
from tests.model.job import Job, LastClaim


class Model(Grounds):
    """A method per script. After each call `events` holds what that call appends to the stream."""

    def schedule(self, items: Sequence[ScheduleItem], *, actor: str = "", now_ms: int) -> list[ScheduleReply]:
        self._begin(now_ms)
        self._stand(self.offer)
        return [self._schedule(item) for item in items]

    def _schedule(self, item: ScheduleItem) -> ScheduleReply:
        record, id = item.record, short(item.record.id)
        due = item.due_ms if item.due_ms is not None else self.now + (item.delay_ms or 0)
        job, holder = self.jobs.get(id), self.holder(record.key)
        if job:
            status = "finished" if job.state is State.FAILED else "again"
            fresh = job.state is State.SCHEDULED and not (job.attempt or job.crashes or job.small)
            return ScheduleReply(status, record.id, job.date if fresh else 0)
        if id in self.finished:
            return ScheduleReply("cancelled" if self.finished[id] % 1 == 0.5 else "finished", record.id, 0)
        status = self._contest(id, holder, item.on_conflict, due) if holder else "created"
        if holder and status != "replaced":
            self.finished[id] = self.now
            self._event("merged", id, holder.id, item.on_conflict)
            return ScheduleReply(status, full(holder.id), due)
        self.jobs[id] = job = Job(id, record, due)
        self._event("scheduled", id, due, job.letter, body=job.body)
        return ScheduleReply(status, record.id, due)

    def _contest(self, id: str, holder: Job, policy: str, due: int) -> Any:
        if policy == "error":
            return "taken"
        if holder.state is State.RUNNING:
            return "running" if policy == "replace" else "kept"
        if policy == "replace":
            self._cancel_waiting(holder)
            return "replaced"
        if (policy == "earliest" and due < holder.date) or (policy == "latest" and due > holder.date):
            holder.date = due
            self._event("rescheduled", holder.id, due)
            return "moved"
        return "kept"

    def claim(
        self, worker: str, nonce: str, *, want: int, lease_ms: int, max_crashes: int, ground: str = "", now_ms: int
    ) -> Claim:
        self._begin(now_ms)
        self._stand(self.offer)
        takeover = self._takeover(lease_ms)
        last = self.claims.get(worker)
        if ground not in ("", self.ground):
            return self._answer([], paused=bool(self.paused))
        if last and last.nonce == nonce:
            held = [(self.jobs[id], due) for id, due in last.jobs if id in self.jobs]
            return self._answer([(job, due) for job, due in held if job.fence == nonce], paused=bool(self.paused))
        if self.paused:
            return self._answer([], paused=True)
        if self._waits_to_be_confirmed():
            return self._answer([], more=True)
        taken: list[tuple[Job, int]] = []
        ended = [job for job in self.those(State.RUNNING) if job.date < takeover][:want]
        for job in ended:
            if self._crash(job, max_crashes) == "again":
                self._event("crashed", job.id, job.attempt, job.crashes, job.fence, self.now)
                taken += self._take(job, job.attempt, nonce, lease_ms)
        for job in self._due()[: want - len(ended)]:
            job.small = False
            taken += self._take(job, job.attempt + 1, nonce, lease_ms)
        if taken:
            self.claims[worker] = LastClaim(nonce, self.now, tuple((job.id, due) for job, due in taken))
        return self._answer(taken, more=bool(self._due()))

    def _due(self) -> list[Job]:
        due = [job for job in self.those(State.SCHEDULED) if job.date <= self.now]
        return sorted(due, key=lambda job: LANES.index(job.record.lane))

    def _take(self, job: Job, attempt: int, nonce: str, lease_ms: int) -> list[tuple[Job, int]]:
        """The job and the date that stood beside it; nothing if it has expired."""
        if 0 < job.record.expires_ms <= self.now:
            self._finish(job, cancelled=True)
            self._event("expired", job.id)
            return []
        date, job.date = job.date, self.now + lease_ms
        job.state, job.attempt, job.fence, job.progress = State.RUNNING, attempt, nonce, ""
        self._event("claimed", job.id, attempt, job.crashes, nonce)
        return [(job, date)]

    def _answer(self, taken: Sequence[tuple[Job, int]], *, more: bool = False, paused: bool = False) -> Claim:
        jobs = [
            ClaimedJob(
                id=job.id, attempt=job.attempt, crashes=job.crashes, due_ms=due, record=job.record.encode(),
                fence=job.fence, queue="q", ground=self.ground,
            )
            for job, due in taken
        ]  # fmt: skip
        return Claim(
            jobs=jobs,
            wait_ms=0,
            now_ms=self.now,
            generation=self.generation,
            server=self.server,
            more=more,
            paused=paused,
        )

    def _takeover(self, lease_ms: int) -> int:
        """Notes that a worker is here; the moment before which a lease must have ended to be taken over now."""
        last = self.alive
        self.alive = self.now
        if last is not None and self.now - last > lease_ms / 2:
            good_at = min(last, self.guard[0]) if self.guard and last < self.guard[1] else last
            self.guard = good_at, self.now + lease_ms
        return min(self.guard[0], self.now) if self.guard and self.now < self.guard[1] else self.now

    def extend(
        self,
        items: Sequence[tuple[str, str]],
        *,
        worker: str,
        lease_ms: int,
        progress: Mapping[str, str] | None = None,
        now_ms: int,
    ) -> dict[str, str]:
        self._begin(now_ms)
        self._takeover(lease_ms)
        answers = {}
        for id, fence in items:
            job = self.jobs.get(id)
            if job is None or not fence or job.fence != fence:
                answers[id] = "lost" if job and job.state is State.RUNNING else "gone"
                continue
            job.date = self.now + lease_ms
            job.progress = (progress or {}).get(id) or job.progress
            answers[id] = "ok" if job.asked is None else "cancel"
        return answers

    def settle(self, items: Sequence[SettleItem], *, worker: str, max_crashes: int, now_ms: int) -> list[str]:
        self._begin(now_ms)
        settled: set[str] = set()
        answers = []
        for item in items:
            job = self.jobs.get(item.id)
            if item.id in settled:
                answers.append("already")
            elif job is None or job.state is not State.RUNNING:
                answers.append(self._unheld(item, job))
            elif (job.fence, job.attempt) != (item.fence, item.attempt):
                answers.append("lost")
            else:
                self._settle(job, item, max_crashes)
                settled.add(item.id)
                answers.append("done")
        return answers

    def _unheld(self, item: SettleItem, job: Job | None) -> str:
        if job is None:
            return "already" if item.id in self.finished else "gone"
        back = item.outcome in ("snooze", "crash") or job.state is State.FAILED
        return "already" if back or job.attempt >= item.attempt else "gone"

    def _settle(self, job: Job, item: SettleItem, max_crashes: int) -> None:
        fields = (job.id, job.attempt, job.crashes, job.fence)
        outcome, due = item.outcome, self.now + item.delay_ms
        if job.asked is not None and outcome in ("retry", "snooze"):
            outcome = "cancel"
        if outcome == "crash":
            if self._crash(job, max_crashes) == "again":
                self._event("crashed", job.id, job.attempt, job.crashes, job.fence, self.now)
                self._back(job, self.now, attempt=job.attempt - 1)
        elif outcome == "fail":
            self._fail(job)
            self._event("failed", *fields, body=item.detail)
        elif outcome == "retry":
            self._back(job, due, attempt=job.attempt)
            self._event("retried", *fields, due, body=item.detail)
        elif outcome == "snooze":
            self._back(job, due, attempt=job.attempt - 1)
            self._event("snoozed", *fields, due, body=item.detail)
        else:
            self._finish(job, cancelled=outcome == "cancel")
            self._event("cancelled" if outcome == "cancel" else "succeeded", *fields, body=item.detail)

    def cancel(
        self, jobs: Sequence[UUID], *, actor: str = "", reason: str = "", tombstone: bool = False, now_ms: int
    ) -> list[Change]:
        self._begin(now_ms)
        return [self._cancel(short(id), actor, tombstone) for id in jobs]

    def cancel_one(
        self, key: str, *, actor: str = "", reason: str = "", unless: str = "", now_ms: int
    ) -> tuple[Change, UUID | None, str]:
        self._begin(now_ms)
        job = None if unless == self.ground else self.holder(key)
        return (
            (self._cancel(job.id, actor, False), full(job.id), self.ground)
            if job
            else (Change.UNKNOWN, None, self.ground)
        )

    def _cancel(self, id: str, actor: str, tombstone: bool) -> Change:
        job = self.jobs.get(id)
        if job is None:
            if id in self.finished:
                return Change.FINISHED
            if tombstone:
                self.finished[id] = self.now + 0.5
            return Change.UNKNOWN
        if job.state is State.FAILED:
            return Change.FINISHED
        if job.state is State.RUNNING:
            if job.asked is None:
                job.asked = actor
                self._event("cancel_requested", id)
            return Change.RUNNING
        self._cancel_waiting(job)
        return Change.DONE

    def reschedule(
        self, job: UUID | str, *, due_ms: int | None = None, delay_ms: int | None = None, actor: str = "", now_ms: int
    ) -> tuple[Change, UUID | None, int]:
        self._begin(now_ms)
        due = due_ms if due_ms is not None else self.now + (delay_ms or 0)
        held = self.holder(job) if isinstance(job, str) else None
        id = short(job) if isinstance(job, UUID) else held.id if held else ""
        found = self.jobs.get(id)
        change = Change.FINISHED if found or id in self.finished else Change.UNKNOWN
        if found and found.state is State.RUNNING:
            change = Change.RUNNING
        elif found and found.state is State.SCHEDULED:
            change, found.date = Change.DONE, due
            self._event("rescheduled", id, due)
        return change, full(id) if id else None, due

    def requeue(
        self,
        job: UUID,
        record: JobRecord | None = None,
        *,
        vouched: bool = True,
        due_ms: int | None = None,
        delay_ms: int = 0,
        actor: str = "",
        now_ms: int,
    ) -> tuple[Change, UUID]:
        self._begin(now_ms)
        id, due = short(job), due_ms if due_ms is not None else self.now + delay_ms
        kept = self.jobs.get(id)
        if kept and kept.state is not State.FAILED:
            return (Change.RUNNING if kept.state is State.RUNNING else Change.CONFLICT), job
        if self.finished.get(id, 0) % 1 == 0.25:
            return Change.CONFLICT, job
        cancelled = self.finished.get(id, 0) % 1 == 0.5
        use = record if record and (vouched or cancelled) else kept.record if kept else None
        if use is None:
            return Change.UNKNOWN, job
        if holder := self.holder(use.key):
            return Change.CONFLICT, full(holder.id)
        self.finished.pop(id, None)
        self.jobs[id] = fresh = Job(id, use, due)
        self._event("requeued", id, due, body=fresh.body)
        return Change.DONE, job

    def pause(self, *, actor: str = "", reason: str = "", now_ms: int) -> bool:
        self._begin(now_ms)
        if self.paused:
            return False
        self.paused = {"paused": str(now_ms), "paused_by": actor, "paused_why": reason}
        self._event("paused")
        return True

    def resume(self, *, actor: str = "", reason: str = "", now_ms: int) -> bool:
        self._begin(now_ms)
        if not self.paused:
            return False
        self.paused = {}
        self._event("resumed")
        return True

    def purge(self, *, limit: int = MOST, actor: str = "", now_ms: int) -> tuple[int, int]:
        self._begin(now_ms)
        waiting = sorted(self.those(State.SCHEDULED), key=lambda job: LANES.index(job.record.lane))
        for job in waiting[:limit]:
            self._cancel_waiting(job)
        gone = len(waiting[:limit])
        if gone:
            self._event("purged", gone)
        return gone, len(waiting) - gone

    def tidy(
        self,
        *,
        tombstones_ms: int = HOUR_MS,
        failed_before_ms: int | None = None,
        claims_ms: int = 24 * HOUR_MS,
        now_ms: int,
    ) -> Tidied:
        self._begin(now_ms)
        old = [id for id, at in self.finished.items() if at <= now_ms - tombstones_ms]
        for id in old:
            del self.finished[id]
        failed = [job.id for job in self.those(State.FAILED) if job.date < (failed_before_ms or 0)]
        for id in failed:
            del self.jobs[id]
            self.finished[id] = now_ms
        self.claims = {worker: claim for worker, claim in self.claims.items() if claim.at >= now_ms - claims_ms}
        return Tidied(len(old), len(failed), "0")
