"""One queue in plain Python: what the scripts are meant to do, a method per script, with the signatures of `QueueStore`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set
from dataclasses import replace
from math import ceil, floor
from typing import Final
from uuid import UUID

from django_delayq.setting_readers import OfferTarget
from django_delayq.states import Change, State
from django_delayq.store.scripts.limits import LimitChange
from django_delayq.store.scripts.queue import HOUR_MS, MOST, Claim, OfferReply, Outcome, Tidied
from django_delayq.store.scripts.record import (
    Changed,
    ClaimedJob,
    DebouncePolicy,
    JobRecord,
    ScheduleItem,
    ScheduleMode,
    ScheduleReply,
    ScheduleStatus,
    policy_word,
)
from tests.laws.dump import BANDS
from tests.model.contents import full, short
from tests.model.epochs import Epochs
from tests.model.job import Bucket, Job, LastClaim, OutageGuard

ABORT: Final = "\1"  # with which a request begins that ends the run
ENDS: Final[dict[float, ScheduleStatus]] = {0.25: "succeeded", 0.5: "cancelled", 0.75: "displaced"}
UNDECIDED: Final = ("contested", "behind")  # of these nothing is written


class Restoring(Exception):
    """A script refuses a call while rows bring back what an older copy of Redis lacks."""


class Model(Epochs):
    """A method per script. After each call `events` holds what that call appends to the stream."""

    def start_schedule(
        self,
        items: Sequence[ScheduleItem],
        *,
        actor: str = "",
        epoch: str = "",
        mode: ScheduleMode = "told",
        now_ms: int,
    ) -> tuple[str, list[ScheduleReply]]:
        self._begin(now_ms)
        if not items or epoch not in ("", self.known):
            return self.known, []
        asks, self.told = mode.startswith("ask"), mode.endswith("told")
        if self.rolled == "sweep" and self.told and not asks and any(item.key for item in items):
            raise Restoring  # the holder may have left after the sender asked the rows
        if not asks:
            self._stand(self.new_generation)
        replies = [self._schedule(item, asks) for item in items]
        self._call_waiters()
        return self.known, replies

    def schedule(self, items: Sequence[ScheduleItem], *, actor: str = "", now_ms: int) -> list[ScheduleReply]:
        return self.start_schedule(items, actor=actor, now_ms=now_ms)[1]

    def _schedule(self, item: ScheduleItem, asks: bool) -> ScheduleReply:
        id = short(item.id)
        due = item.due_ms if item.due_ms is not None else self.now + (item.delay_ms or 0)
        debounce = DebouncePolicy.read(item.on_conflict) if item.key else None
        if job := self.jobs.get(id):
            return ScheduleReply("failed" if job.state is State.FAILED else "again", item.id, self._fresh_date(job))
        if id in self.finished:
            return ScheduleReply(ENDS.get(self.finished[id] % 1, "finished"), item.id, 0)
        if item.on_conflict.startswith("replaced@"):
            self._displace(id, item.on_conflict.partition("@")[2])
            return ScheduleReply("displaced", item.id, 0)
        status: ScheduleStatus = "created"
        holder = self.holder(item.key)
        if item.key and self._must_ask(holder):
            return ScheduleReply("asked", full(holder.id) if holder else item.id, due)
        if holder:
            status, date = self._contest(id, holder, item.on_conflict, due, asks)
            if status != "free":
                if status not in UNDECIDED and not asks:
                    self.finished[id] = self.now + 0.75
                    self._event("merged", id, holder.id, policy_word(item.on_conflict), body=b"")
                return ScheduleReply(status, full(holder.id), due)
            status, due = "replaced", date
        if asks:
            return ScheduleReply("free", item.id, due)
        if debounce:
            self.firsts[id] = self._first(id, debounce)
            due = min(due, self.firsts[id] + debounce.most_ms)
        self.jobs[id] = job = Job(id, item, due)
        self._put(job)
        self._event("scheduled", id, due, job.letter, body=job.body)
        return ScheduleReply(status, item.id, due)

    def _first(self, id: str, debounce: DebouncePolicy) -> int:
        """The first date from which `at_most` counts."""
        return min(self.firsts.get(id) or debounce.first_ms or self.now, self.now)

    def _fresh_date(self, job: Job) -> int:
        """The date of a job that waits and has not started; 0 for any other."""
        return job.date if job.state is State.SCHEDULED and not job.begun else 0

    def _must_ask(self, holder: Job | None) -> bool:
        if self.told or (holder and not self.confirmed):
            return False
        return bool(self.rolled) or self.confirmed != self.server

    def _displace(self, id: str, by: str) -> None:
        self.finished[id] = self.now + 0.75
        self._event("cancelled", id, 0, 0, "-", body=f'{{"m":"replaced by {by}","r":"{by}"}}'.encode())

    def _contest(self, id: str, holder: Job, given: str, due: int, asks: bool) -> tuple[ScheduleStatus, int]:
        """ "free", and the date, if the holder makes room; else what becomes of the proposal."""
        policy, (_, late, named), debounce, first = policy_word(given), given.partition("@"), DebouncePolicy.read(given), 0
        waits = holder.state is State.SCHEDULED
        if waits and 0 < holder.record.expires_ms <= self.now:
            if not asks:
                self._withdraw(holder)
                self._expire(holder)
            return "free", due
        waits = waits and not self._may_run(str(holder.date), here=True)
        if late and named != holder.id:
            return "contested", due
        if debounce:
            first = self._first(holder.id, debounce)
            due = min(due, first + debounce.most_ms)
        if policy in ("keep", "error"):
            return ("taken" if policy == "error" else "kept"), due
        if policy == "after" and (not waits or holder.begun):
            return "behind", due
        if not waits:
            return ("running" if policy == "replace" else "kept"), due
        moves = (policy == "earliest" and due < holder.date) or (policy == "latest" and due > holder.date)
        if policy in ("replace", "after") or (moves and 0 < holder.record.expires_ms <= due):
            if not asks:
                self._withdraw(holder)
                self._finish(holder, displaced=True)
                self._displace(holder.id, id)
                if debounce:
                    self.firsts[id] = first
            return "free", min(due, holder.date) if policy == "after" else due
        if moves:
            if not asks:
                self._move(holder, due)
                if debounce:
                    self.firsts[holder.id] = first
                self._event("rescheduled", holder.id, due, policy)
            return "moved", due
        return "kept", due

    def claim(
        self,
        worker: str,
        nonce: str,
        *,
        want: int,
        lease_ms: int,
        max_crashes: int,
        epoch: str = "",
        wary: bool = False,
        away_ms: int = 0,
        free: int | None = None,
        now_ms: int,
    ) -> Claim:
        self._begin(now_ms)
        free = want if free is None else free
        self._stand(self.new_generation)
        takeover = self._takeover(lease_ms, away_ms, moved=self.run not in ("", self.server))
        self.run = self.server
        last = self.claims.get(worker)
        if epoch not in ("", self.epoch):
            return self._answer([], paused=self.is_paused)
        if last and last.nonce == nonce:
            held = [(self.jobs[id], due) for id, due in last.jobs if id in self.jobs]
            return self._answer([(job, due) for job, due in held if job.fence == nonce], paused=self.is_paused)
        if self.is_paused:
            return self._answer([], paused=True)
        if self._waits_to_be_confirmed(wary):
            return self._answer([], more=True)
        taken: list[tuple[Job, int]] = []
        ended = [job for job in self.those(State.RUNNING) if job.date < takeover][:want]
        for job in ended:
            if self._crash(job, max_crashes) == "again":
                self._read([job])
                waits = any(map(self.in_force, job.words)) or bool(self._rate(job))
                date = (job.since or job.date) if waits else self.now
                if job.fence:
                    self._event("crashed", job.id, job.attempt, job.crashes, job.fence, date)
                if not waits or 0 < job.record.expires_ms <= self.now:
                    taken += self._take(job, job.attempt, nonce, lease_ms)
                    continue
                if not job.fence:
                    self._event("snoozed", job.id, job.attempt, job.crashes, "-", date)
                self._back(job, date, attempt=job.attempt - 1, evictions=job.evictions, unknown=job.unknown)
        returned, for_thread = self._open(want - len(ended), free)
        handled, held, rank, passes = len(ended), 0, 0, 0
        while rank < len(BANDS) and (room := min(want, MOST - held) - handled) > 0:
            before = held
            batch = [job for job in self._due() if job.record.band == BANDS[rank]][:room]
            self._read(batch)
            for job in batch:
                self.came_up.pop(job.id, None)
                has_token = self._has_token(job)
                if job.id in self.requests or not self._hold(job):
                    taken += self._take(job, job.attempt + 1, nonce, lease_ms, has_thread=len(taken) < free)
                    for_thread = for_thread or (job.early and has_token)
                if job.held or job.early:
                    held += 1
                else:
                    handled += 1
            rank += 1
            room = min(want, MOST - held) - handled
            refills = passes < 4 and room > 0 and self.ended
            if held > before or refills:
                self._call_waiters(room if refills else 1)
                rank, passes = 0, passes + 1
        self._close()
        self._call_waiters()
        if taken:
            self.claims[worker] = LastClaim(nonce, self.now, tuple((job.id, due) for job, due in taken))
        more = for_thread or bool(self._due()) or any(at <= self.now for at in self.opens.values())
        return self._answer(taken, more=more, returned=returned, for_thread=for_thread)

    def _rate(self, job: Job) -> str:
        """The rate that the job has now; "" for none."""
        name = job.rate.text if job.rate else ""
        return name if name in self.limits or self.limits.get(f"\1{job.record.task}") != "none" else ""

    def _read(self, jobs: Sequence[Job]) -> None:
        """Reads the tokens of the rates of these jobs, once per call."""
        for job in jobs:
            if job.rate is None or job.rate.text in self.buckets or not self._rate(job):
                continue
            name = job.rate.text
            told = self.limits.get(name) or self.limits.get(f"\1{job.record.task}") or job.rate.pace.told()
            count, per, burst = map(int, told.split(":"))
            each = per / count
            full = max(self.rates.get(name, 0), self.now)
            latest = self.now + burst * each
            self.buckets[name] = Bucket(each, burst, min(full, latest) - (burst - 1) * each, changed=full > latest)

    def _has_token(self, job: Job) -> bool:
        rate = self._rate(job)
        return rate == "" or self.buckets[rate].at <= self.now

    def _close(self) -> None:
        """Jobs that came up for a token and were not looked at wait again. The tokens are written."""
        waiting = set(self.waiting)
        for job in self.came_up.values():
            job.early = True
            waiting.add(job.rate.text if job.rate else "")
        for name, bucket in self.buckets.items():
            if bucket.changed:
                self.rates[name] = bucket.at + (bucket.burst - 1) * bucket.each
        for name in waiting:
            self.opens[f"\2{name}"] = ceil(self.buckets[name].at) if name in self.buckets else self.now

    def _hold(self, job: Job) -> bool:
        """Whether a pause holds the due job from now on."""
        word = next(filter(self.in_force, job.words), "")
        if word:
            self._withdraw(job)
            job.held = word
        return bool(word)

    def _open(self, most: int, free: int) -> tuple[set[str], bool]:
        """Puts jobs back that were held, with their dates. Returns their ids, and whether jobs with a token wait for a thread."""
        returned, names, for_thread = set[str](), list[str](), False
        opens = sorted((at, line) for line, at in self.opens.items() if at <= self.now)[:most]
        for at, line in opens:
            word = line[1:]
            if line[0] == "\2":
                if len(names) < free:
                    names.append(word)
                else:
                    for_thread = True
            elif self.in_force(word):  # the clock was put back
                self.opens[line] = int(self.pauses[word])
            elif most > 0:
                pace = int(self.pauses[word][1:]) if self.pauses[word][0] == "r" else 0
                start = max(at, self.now - 1000)
                count = min(most, (self.now - start) // pace + 1) if pace else most
                back = self.held(word)[:count]
                for job in back:
                    job.held = ""
                    self._put(job)
                    returned.add(job.id)
                most -= len(back)
                if len(back) < count:
                    del self.pauses[word], self.opens[line]
                else:
                    self.pauses[word] = f"r{pace}"
                    self.opens[line] = start + count * pace if pace else self.now
        if names and most > 0:
            self._open_rates(names, min(most, free))
        return returned | self.came_up.keys(), for_thread

    def _open_rates(self, names: Sequence[str], most: int) -> None:
        """As many jobs of these rates come up as there are tokens."""
        lines = {name: self.early(name) for name in names}
        self._read([line[0] for line in lines.values() if line])
        for name, line in lines.items():
            if not line:
                del self.opens[f"\2{name}"]
                continue
            count = most - len(self.came_up)
            if bucket := self.buckets.get(name) if self._rate(line[0]) else None:
                count = min(count, bucket.burst, floor((self.now - bucket.at) / bucket.each) + 1)
            self.waiting.add(name)
            for job in line[: max(0, count)]:
                job.early = False
                self.came_up[job.id] = job
            if len(self.came_up) >= most:
                return

    def limit(self, changes: Sequence[LimitChange], *, actor: str = "", now_ms: int) -> list[bool]:
        self._begin(now_ms)
        return [self._limit(*change) for change in changes]

    def _limit(self, kind: str, word: str, value: int | str) -> bool:
        if kind == "rate":
            return self._set_rate(word, str(value))
        new = f"r{value}" if kind == "resume" else str(value)
        if self.pauses.get(word) == new or (kind == "resume" and word not in self.pauses):
            return False
        self.pauses[word] = new
        self.opens[f"\1{word}"] = self.now if kind == "resume" else int(value)
        if new == "0":
            del self.opens[f"\1{word}"]
        return True

    def _set_rate(self, name: str, pace: str) -> bool:
        if self.limits.get(name, "") == pace:
            return False
        self.limits[name] = pace
        if not pace:
            del self.limits[name]
        for line in self.opens:
            if line == f"\2{name}" or (name[0] == "\1" and line[0] == "\2"):
                self.opens[line] = self.now
        return True

    def _due(self) -> list[Job]:
        waits = (job for job in self.those(State.SCHEDULED) if not (job.blocked or job.held or job.early or job.behind))
        due = [job for job in waits if job.place <= self.now]
        return sorted(due, key=lambda job: BANDS.index(job.record.band))

    def _take(self, job: Job, attempt: int, nonce: str, lease_ms: int, *, has_thread: bool = True) -> list[tuple[Job, int]]:
        """The job and the date that stood beside it; nothing if it has expired."""
        waited, name = job.state is State.SCHEDULED, job.name
        if waited and self.requests.pop(job.id, None) is not None:  # requested while it was unknown whether it runs
            self._withdraw(job)
            self._finish(job, cancelled=True)
            self._event("cancelled", job.id, job.attempt, job.crashes, "-")
            return []
        if 0 < job.record.expires_ms <= self.now:
            self._withdraw(job)
            self._expire(job)
            return []
        if waited and name and self.holders(name.text) >= name.most:
            self._end_turn(job)
            job.blocked = True
            return []
        if waited and (rate := self._rate(job)):
            if not has_thread or not self._has_token(job):  # it stays the next of its name, and keeps its turn
                job.score = None if job.score is None else int(f"{job.score:.0f}")
                job.early = True
                self.waiting.add(rate)
                return []
            self.buckets[rate].at += self.buckets[rate].each
            self.buckets[rate].changed = True
        if waited:
            self._end_turn(job)
        if name:
            if not self.turns:
                self.first_turn = max(self.turn + 1, self.now * 1000)
            job.turn = self.turns.get(name.text, self.first_turn)
            self.turns[name.text] = job.turn + 1
            self.turn = max(self.turn, job.turn)
        if waited:
            job.small, job.since = False, job.date if job.name or job.line else 0
        date, job.date = job.date, self.now + lease_ms
        job.state, job.attempt, job.fence, job.progress = State.RUNNING, attempt, nonce, ""
        self._event("claimed", job.id, attempt, job.crashes, nonce)
        return [(job, date)]

    def _expire(self, job: Job) -> None:
        if job.attempt or job.crashes or job.asks:
            self._fail(job)
            self._event("failed", job.id, job.attempt, job.crashes, "-")
        else:
            self._finish(job, displaced=True)
            self._event("expired", job.id)

    def _answer(
        self,
        taken: Sequence[tuple[Job, int]],
        *,
        more: bool = False,
        paused: bool = False,
        returned: Set[str] = frozenset(),
        for_thread: bool = False,
    ) -> Claim:
        jobs = [
            ClaimedJob(
                id=job.id,
                attempt=job.attempt,
                crashes=job.crashes,
                due_ms=due,
                record=job.record.encode(),
                fence=job.fence,
                queue="q",
                epoch=self.epoch,
                evictions=job.evictions,
                unknown_ms=max(0, self.now - job.unknown) if job.unknown else 0,
                asks=job.asks,
                turn=job.turn,
                held=job.id in returned,
            )
            for job, due in taken
        ]
        return Claim(
            jobs=jobs,
            wait_ms=0,
            now_ms=self.now,
            generation=self.generation,
            server=self.server,
            more=more,
            paused=paused,
            for_thread=for_thread,
        )

    def _takeover(self, lease_ms: int, away: int = 0, *, moved: bool = False) -> int:
        """Notes that a worker is here; the moment before which a lease must have ended to be taken over now."""
        last, self.alive = self.alive, self.now
        gap = 0 if last is None else max(0, self.now - last)
        silent, failed = gap > lease_ms / 2, away > lease_ms / 2
        breath = min(5000, lease_ms // 2)
        if self.guard and self.guard.until > self.now + lease_ms:  # the clock was put back
            self.guard = replace(self.guard, until=self.now + lease_ms)
        used = self.now - gap + breath if silent else self.now  # a guard does not expire while no worker could come
        active = self.guard if self.guard and self.guard.start < self.now and used < self.guard.until else None
        proven = failed or (moved and (silent or active is not None))
        if not silent and not proven:
            return active.start if active else self.now
        began = self.now - max(away if failed else 0, gap if silent else 0)
        guard = active or OutageGuard(start=began, until=0, since=self.now, next=began)
        if active and (silent or moved):
            guard = replace(guard, since=min(self.now, guard.since + gap) - breath)
        held_up = replace(guard, until=max(guard.until, self.now + breath))
        self.guard = guard.renewed(began, self.now, lease_ms) if proven else held_up
        return self.guard.start

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
                answers[id] = "lost" if job and job.fence else "wait" if self.rolled == "sweep" else "gone"
                continue
            job.date = self.now + lease_ms
            job.progress = (progress or {}).get(id) or job.progress
            asked = self.requests.get(id)
            answers[id] = "ok" if asked is None else "abort" if asked.startswith(ABORT) else "cancel"
        return answers

    def settle(self, items: Sequence[Outcome], *, worker: str, max_crashes: int, now_ms: int) -> list[str]:
        self._begin(now_ms)
        settled: set[str] = set()
        answers = []
        for item in items:
            job = self.jobs.get(item.id)
            if item.id in settled:
                answers.append("already")
            elif job is None or not job.fence:
                answers.append(self._unheld(item, job))
            elif (job.fence, job.attempt) != (item.fence, item.attempt):
                answers.append("lost")
            else:
                self._settle(job, item, max_crashes)
                settled.add(item.id)
                answers.append("done")
        self._call_waiters()
        return answers

    def _unheld(self, item: Outcome, job: Job | None) -> str:
        if job is None:
            return "already" if item.id in self.finished else "gone"
        back = item.kind in ("snooze", "ask", "evict", "park", "crash") or job.state is State.FAILED
        return "already" if back or job.attempt >= item.attempt else "gone"

    def _settle(self, job: Job, item: Outcome, max_crashes: int) -> None:
        fields = (job.id, job.attempt, job.crashes, job.fence)
        outcome, due = item.kind, self.now + item.delay_ms
        if job.id in self.requests and outcome in ("retry", "snooze", "ask", "evict", "park"):
            outcome = "cancel"
        if outcome == "crash":
            if self._crash(job, max_crashes) == "again":
                due = job.since or self.now
                self._event("crashed", job.id, job.attempt, job.crashes, job.fence, due)
                self._back(job, due, attempt=job.attempt - 1, evictions=job.evictions, unknown=job.unknown)
        elif outcome == "fail":
            self._fail(job)
            self._event("failed", *fields, body=item.detail)
        elif outcome == "retry":
            self._back(job, due, attempt=job.attempt)
            self._event("retried", *fields, due, body=item.detail)
        elif outcome in ("snooze", "ask", "evict", "park"):
            due = (outcome == "snooze" and not item.delay_ms and job.since) or due
            evictions, unknown = job.evictions, job.unknown
            if outcome == "ask" or (outcome == "snooze" and item.delay_ms):
                evictions = unknown = 0
            elif outcome == "evict":
                evictions += 1
            elif outcome == "park":
                unknown = unknown or self.now
            self._back(job, due, attempt=job.attempt - 1, evictions=evictions, unknown=unknown, asked=outcome == "ask")
            self._event("snoozed", *fields, due, *([job.asks + 1] if outcome == "ask" else []), body=item.detail)
        else:
            self._finish(job, cancelled=outcome == "cancel")
            if outcome != "cancel":
                self.offered.pop(job.id, None)
            self._event("cancelled" if outcome == "cancel" else "succeeded", *fields, body=item.detail)

    def offer(self, target: OfferTarget, body: bytes, *, id: str, attempt: int, nonce: str, worker: str, now_ms: int) -> OfferReply:
        self._begin(now_ms)
        job = self.jobs.get(id)
        if job is None or not job.fence:
            return OfferReply("gone", "")
        if (job.fence, job.attempt) != (nonce, attempt):
            return OfferReply("lost", "")
        if id in self.offered:
            return OfferReply("again", self.offered[id])
        if id in self.requests:
            return OfferReply("cancel", "")
        self.pushed += 1
        self.offered[id] = str(self.pushed)
        return OfferReply("offered", self.offered[id])

    def cancel(
        self,
        job: UUID | str,
        *,
        actor: str = "",
        reason: str = "",
        lacking: str = "",
        unless: str = "",
        abort: bool = False,
        now_ms: int,
    ) -> Changed:
        self._begin(now_ms)
        if unless == self.epoch:
            return Changed(Change.UNKNOWN, None, self.epoch)
        id = self._target(job)
        change = self._cancel(id, actor, lacking, abort) if id else Change.UNKNOWN
        self._call_waiters()
        return Changed(change, full(id) if id else None, self.epoch)

    def _target(self, job: UUID | str) -> str:
        if isinstance(job, UUID):
            return short(job)
        holder = self.holder(job)
        return holder.id if holder else ""

    def _cancel(self, id: str, actor: str, lacking: str, abort: bool) -> Change:
        job = self.jobs.get(id)
        if job is None:
            return self._cancel_lacking(id, actor, lacking, abort)
        if job.state is State.FAILED:
            return Change.FINISHED
        if job.state is State.RUNNING:
            return self._request(id, actor, abort)
        if lacking != "scheduled" and self._may_run(str(job.date), here=True):
            return self._request(id, actor, abort)
        self._withdraw(job)
        self._cancel_waiting(job, b"")
        return Change.DONE

    def _cancel_lacking(self, id: str, actor: str, row: str, abort: bool) -> Change:
        """Checks a job that is not in Redis: according to its row it waits or runs, or no process has looked."""
        ended, waits = self.finished.get(id), row not in ("", "running")
        if ended is None and self._may_run(row):
            return self._request(id, actor, abort)
        if (ended is None and waits) or (row and ended is not None and ended % 1 >= 0.5):
            self.finished.setdefault(id, self.now + 0.5)
            self._event("cancelled", id, 0, 0, "-", body=b"")
        if ended is None:
            return Change.DONE if waits else Change.UNKNOWN
        return Change.DONE if ended % 1 == 0.5 else Change.FINISHED

    def _may_run(self, row: str, *, here: bool = False) -> bool:
        """Whether a job that is not here, or waits here, may have begun in the epoch before."""
        if row.isdigit():
            if here and int(row) <= self.brought_back[0] and self.now < self.brought_back[1]:
                return True
            if int(row) > self.now or (here and not self.confirmed):
                return False
            return bool(self.rolled) or self.confirmed != self.server
        return row == "running"

    def _request(self, id: str, actor: str, abort: bool) -> Change:
        if id not in self.requests or (abort and not self.requests[id].startswith(ABORT)):
            self.requests[id] = (ABORT if abort else "") + actor.lstrip(ABORT)
            self._event("cancel_requested", id, *(["abort"] if abort else []))
        return Change.RUNNING

    def reschedule(
        self,
        job: UUID | str,
        *,
        due_ms: int | None = None,
        delay_ms: int | None = None,
        actor: str = "",
        lacking: str = "",
        unless: str = "",
        policy: str = "",
        now_ms: int,
    ) -> Changed:
        self._begin(now_ms)
        if unless == self.epoch:
            return Changed(Change.UNKNOWN, None, self.epoch)
        due = due_ms if due_ms is not None else self.now + (delay_ms or 0)
        id = self._target(job)
        found = self.jobs.get(id)
        change = Change.FINISHED if found or id in self.finished else Change.UNKNOWN
        unsure = found is not None and found.state is State.SCHEDULED and lacking != "waited"
        if found and (found.state is State.RUNNING or (unsure and self._may_run(str(found.date), here=True))):
            change = Change.RUNNING
        elif found and found.state is State.SCHEDULED:
            change, debounce, word = Change.DONE, DebouncePolicy.read(policy), policy_word(policy)
            best = {"earliest": min, "latest": max}.get(word)
            if debounce:
                due = min(due, self._first(id, debounce) + debounce.most_ms)
            if best and best(due, found.date) == found.date:
                due = found.date
            else:
                self._move(found, due)
                if debounce:
                    self.firsts[id] = self._first(id, debounce)
                self._event("rescheduled", id, due, *([word] if word else []))
        self._call_waiters()
        if id and change is Change.UNKNOWN and self._may_run(lacking):
            change = Change.RUNNING
        return Changed(change, full(id) if id else None, self.epoch, due_ms=due)

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
        if self.rolled:
            raise Restoring  # rows that have not heard of it would end the job again
        id, due = short(job), due_ms if due_ms is not None else self.now + delay_ms
        kept = self.jobs.get(id)
        if kept and kept.state is not State.FAILED:
            return (Change.RUNNING if kept.state is State.RUNNING else Change.CONFLICT), job
        if self.finished.get(id, 0) % 1 == 0.25:
            return Change.CONFLICT, job
        cancelled = self.finished.get(id, 0) % 1 >= 0.5
        use = record if record and (vouched or cancelled) else kept.record if kept else None
        if use is None:
            return Change.UNKNOWN, job
        if holder := self.holder(use.key):
            return Change.CONFLICT, full(holder.id)
        self.finished.pop(id, None)
        self.requests.pop(id, None)
        self.jobs[id] = fresh = Job(id, use, due)
        if kept and use is not record:
            fresh.turn, fresh.since = kept.turn, kept.since
        self._put(fresh)
        self._event("requeued", id, due, body=fresh.body)
        return Change.DONE, job

    @property
    def is_paused(self) -> bool:
        """Whether nothing may be claimed."""
        until = int(self.paused.get("paused_until", 0))
        return bool(self.paused) and (until == 0 or until > self.now)

    def pause(self, *, actor: str = "", reason: str = "", until_ms: int = 0, now_ms: int) -> bool:
        self._begin(now_ms)
        until = {"paused_until": str(until_ms)} if until_ms else {}
        if self.paused and self.paused.get("paused_until", "0") == str(until_ms):
            return False
        self.paused = {"paused": str(now_ms), "paused_by": actor, "paused_why": reason, **until}
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
        held = [job for job in self.those(State.SCHEDULED) if job.held or job.early]
        held = sorted(held, key=lambda job: (-(job.place if job.early else job.date), job.id))
        others = (job for job in self.those(State.SCHEDULED) if not (job.held or job.early))
        waiting = [*held, *sorted(others, key=lambda job: -1 if job.blocked or job.behind else BANDS.index(job.record.band))]
        for job in waiting[:limit]:
            if job.held or job.early or job.blocked or job.behind:
                self._withdraw(job)
            self._cancel_waiting(job, b'{"m":"purged"}')
        self._call_waiters()
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
            self._free(self.jobs.pop(id))
            self.finished[id] = now_ms
        granted: dict[str, int] = {}
        for job in [job for job in self.those(State.SCHEDULED) if job.blocked]:
            if job.name and self.holders(job.name.text) + granted.get(job.name.text, 0) < job.name.most:
                granted[job.name.text] = granted.get(job.name.text, 0) + 1
                job.blocked = False
        for job in self.those(State.SCHEDULED):
            if job.ahead and not job.early and job.score is not None and job.score > now_ms >= job.date:  # the clock was put back
                job.score = now_ms
        self._call_waiters()
        self.rates = {name: at for name, at in self.rates.items() if at > now_ms}
        self.claims = {worker: claim for worker, claim in self.claims.items() if claim.at >= now_ms - claims_ms}
        self.offered = {id: place for id, place in self.offered.items() if id in self.jobs}
        self.firsts = {id: date for id, date in self.firsts.items() if id in self.jobs}
        if self.confirmed == self.server and not self.rolled:
            self.requests = {id: by for id, by in self.requests.items() if id in self.jobs}
        return Tidied(len(old), len(failed), "0")
