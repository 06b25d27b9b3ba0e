"""The content of a queue in plain Python, and the changes that several scripts have in common. A job has a state and a date. The data
in Redis follows from these (`view`): priority bands, leases and keys.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable
from copy import copy
from functools import cache
from typing import Any, Self

from django_delayq import ids
from django_delayq.states import State
from tests.laws.dump import BANDS, Dump
from tests.model.job import Bucket, Job, LastClaim, OutageGuard

short = cache(ids.short)
full = cache(ids.full)

Happened = tuple[str, tuple[str, ...], bytes | None]  # kind, fields, body (None: any)


class Contents:
    """The queue. After each call `events` holds what that call appends to the stream."""

    def __init__(self, generation: str, server: str = "") -> None:
        self.generation = generation  # "" for none
        self.server = server
        self.new_generation = ""  # the generation that a queue without one is given
        self.confirmed = ""  # the server whose data is what the database has seen
        self.mirrored = ""  # the last event that the database has
        self.rolled = ""  # the phase of the way back
        self.restoring = ""
        self.brought_back = (
            0,
            0,
        )  # until when overdue jobs that were restored wait, and until when a worker may hold them nevertheless
        self.moved: tuple[str, int] | None = None  # a server that waits to be confirmed, and since when
        self.jobs: dict[str, Job] = {}
        self.finished: dict[str, float] = {}
        self.requests: dict[str, str] = {}  # the actor who requested the cancel of a running job, or of one that may run
        self.offered: dict[str, str] = {}  # where what a job has offered was put
        self.firsts: dict[str, int] = {}  # the first date of each job for which `at_most` was named
        self.pushed = 0  # the length of the target, which is not part of the queue
        self.claims: dict[str, LastClaim] = {}
        self.paused: dict[str, str] = {}
        self.pauses: dict[str, str] = {}  # of words: until when, or that they were resumed, see limits.lua
        self.opens: dict[str, int] = {}  # when the next job of a line returns, which a word or a rate holds
        self.limits: dict[str, str] = {}  # of rates: what a person has set, and of the task: what the newest code declares
        self.rates: dict[str, float] = {}  # when all tokens of a rate are there again
        self.alive: int | None = None  # when a worker was last here
        self.run = ""  # the server on which a worker was last
        self.guard: OutageGuard | None = None
        self.came_back: set[str] = set()  # names of runs that did, and of which more have run since than may
        self.turn = self.first_turn = 0  # the last one that a holder of a name was given; the first of a call
        self.freed: dict[str, int] = {}  # while a call lasts: how many of those that wait for a name may come next
        self.doubtful: set[str] = set()  # of these names perhaps none is free
        self.ended: list[str] = []  # while a call lasts: the lines of fair words whose turn has ended, in order
        self.buckets: dict[str, Bucket] = {}  # while a claim lasts: the tokens of rates
        self.came_up: dict[str, Job] = {}  # while a claim lasts: the jobs that came up for a token and were not looked at yet
        self.waiting: set[str] = set()  # while a claim lasts: the rates of jobs that wait for a token
        self.told = False  # while a call of schedule lasts: whether its sender has asked the rows who holds the keys
        self.events: list[Happened] = []
        self.now = 0

    # Queries

    @property
    def epoch(self) -> str:
        """The generation and the server, as claim answers them."""
        return f"{self.generation}:{self.server}"

    def holder(self, key: str) -> Job | None:
        """The unfinished job with that business key."""
        if not key:
            return None
        held = (job for job in self.jobs.values() if job.record.key == key and not job.keyless)
        return next((job for job in held if job.state is not State.FAILED), None)

    def keyless(self) -> set[str]:
        """The jobs that go on without their key."""
        return {id for id, job in self.jobs.items() if job.keyless}

    def holders(self, name: str) -> int:
        """How many jobs hold that name."""
        return sum(job.state is State.RUNNING and job.name is not None and job.name.text == name for job in self.jobs.values())

    def crowded(self, limit: Callable[[Iterable[int]], int] = max) -> set[str]:
        """The names with more holders than allowed, because running jobs were restored after a loss and another had started. Jobs of a
        name can allow different numbers: `limit` chooses one.
        """
        allowed: dict[str, list[int]] = defaultdict(list)
        for name in (job.name for job in self.jobs.values() if job.name):
            allowed[name.text].append(name.most)
        return {name for name, most in allowed.items() if self.holders(name) > limit(most)} & self.came_back

    def waiters(self, name: str) -> list[Job]:
        """The jobs that wait for that name, in the order in which they come next."""
        waiting = (job for job in self.jobs.values() if job.blocked and job.name and job.name.text == name)
        return sorted(waiting, key=lambda job: (BANDS.index(job.record.band), job.date, job.id))

    def behind(self, line: str) -> list[Job]:
        """The jobs that wait for the turn of a fair word, in the order in which they come next."""
        return sorted((job for job in self.jobs.values() if job.behind and job.line == line), key=lambda job: (job.date, job.id))

    def in_turn(self, line: str) -> Job | None:
        """The job that has the turn."""
        return next((job for job in self.jobs.values() if job.ahead and job.line == line), None)

    def held(self, word: str) -> list[Job]:
        """The jobs that this word holds, in the order in which they return."""
        held = (job for job in self.jobs.values() if job.held == word)
        return sorted(held, key=lambda job: (BANDS.index(job.record.band), job.date, job.id))

    def early(self, rate: str) -> list[Job]:
        """The jobs that wait for a token of this rate, in the order in which they return."""
        early = (job for job in self.jobs.values() if job.early and job.rate and job.rate.text == rate)
        return sorted(early, key=lambda job: (BANDS.index(job.record.band), job.place, job.id))

    def in_force(self, word: str) -> bool:
        """Whether it is paused now."""
        value = self.pauses.get(word, "r")
        return value[0] != "r" and (value == "0" or int(value) > self.now)

    def copy(self) -> Self:
        """As it is now."""
        twin = copy(self)
        twin.jobs = {id: copy(job) for id, job in self.jobs.items()}
        twin.finished, twin.claims, twin.paused = dict(self.finished), dict(self.claims), dict(self.paused)
        twin.requests, twin.offered, twin.firsts = dict(self.requests), dict(self.offered), dict(self.firsts)
        twin.pauses, twin.opens = dict(self.pauses), dict(self.opens)
        twin.limits, twin.rates = dict(self.limits), dict(self.rates)
        return twin

    def noted(self) -> set[str]:
        """The jobs that are not running, and whose cancel was requested when it was unknown whether they run."""
        return {id for id in self.requests if id not in self.jobs or self.jobs[id].state is not State.RUNNING}

    def those(self, state: State) -> list[Job]:
        """The jobs in one state, earliest date first; ids decide between equal dates, as in a sorted set."""
        jobs = (job for job in self.jobs.values() if job.state is state)
        return sorted(jobs, key=lambda job: (job.place, job.id))

    def view(self) -> Dump:
        """The data that Redis should hold."""
        dump = Dump(finished=dict(self.finished), cancels=dict(self.requests), offered=dict(self.offered), meta=self._meta())
        dump.claims = {worker: claim.line() for worker, claim in self.claims.items()}
        dump.pauses = dict(self.pauses)
        dump.firsts = {id: str(date) for id, date in self.firsts.items()}
        dump.opens, dump.limits, dump.rates = dict(self.opens), dict(self.limits), dict(self.rates)
        for id, job in self.jobs.items():
            dump.jobs[id] = job.record.encode()
            places = {State.SCHEDULED: job.record.band, State.RUNNING: "leases", State.FAILED: "failed"}
            line = f"\1{job.held}" if job.held else job.line if job.behind else job.name.text if job.blocked and job.name else ""
            line = f"\2{job.rate.text}" if job.early and job.rate else line
            place = int(job.place) if job.early else job.date
            getattr(dump, "blocked" if line else places[job.state])[id] = -place if job.held or job.early else job.place
            if line:
                dump.waiters.append(f"{line}\0{BANDS.index(job.record.band) + 1}{place:015d}\0{id}".encode())
            if name := job.shared:
                most, _, rest = name.told().partition(":")
                dump.names[id] = f"{most}:{job.turn}:{job.since}:{rest}"
                if job.ahead:
                    dump.holders.append(f"{job.line}\0{id}".encode())
                if job.state is State.RUNNING and name.text:
                    dump.holders.append(f"{name.text}\0{id}".encode())
            if job.state is not State.FAILED:
                if job.record.key and not job.keyless:
                    dump.keys[job.record.key] = id
                if job.begun:
                    dump.runs[id] = job.run()
                if job.asks:
                    dump.asks[id] = str(job.asks)
            if job.progress:
                dump.progress[id] = job.progress
        dump.holders.sort()
        dump.waiters.sort()
        return dump

    def _meta(self) -> dict[str, str]:
        meta = dict(self.paused)
        told = {"generation": self.generation, "server": self.confirmed, "mirrored": self.mirrored}
        told |= {"run": self.run, "rolled": self.rolled, "restoring": self.restoring}
        meta |= {name: value for name, value in told.items() if value}
        if any(self.brought_back):
            meta["brought_back"] = "{} {}".format(*self.brought_back)
        if self.moved:
            meta["moved_to"], meta["moved_at"] = self.moved[0], str(self.moved[1])
        if self.alive is not None:
            meta["alive"] = str(self.alive)
        if self.guard:
            meta |= self.guard.fields()
        return meta

    # Moves that several scripts make

    def _begin(self, now_ms: int) -> None:
        self.now, self.events, self.freed, self.doubtful, self.ended = now_ms, [], {}, set(), []
        self.buckets, self.came_up, self.waiting = {}, {}, set()
        self.turns: dict[str, int] = {}  # of each name the next one of this call
        self.came_back = self.crowded(min)  # the job that allows more can end first

    def _event(self, kind: str, *fields: Any, body: bytes | None = None) -> None:
        self.events.append((kind, tuple(map(str, fields)), body))

    def _unlease(self, job: Job) -> None:
        if job.state is State.RUNNING:
            self.requests.pop(job.id, None)
            self._free(job)

    def _free(self, job: Job) -> None:
        if job.name:
            self.freed[job.name.text] = self.freed.get(job.name.text, 0) + 1

    def _withdraw(self, job: Job) -> None:
        """It leaves the place where it waits; it may have been the one that was to come next."""
        job.held, job.early = "", False
        if job.state is State.SCHEDULED and job.name:
            job.blocked = False
            self._free(job)
            self.doubtful.add(job.name.text)
        if job.state is State.SCHEDULED:
            self._end_turn(job)

    def _end_turn(self, job: Job) -> None:
        """It leaves its band or its line, so another job of its fair word may be next."""
        job.ahead = job.behind = False
        job.score = None
        if job.line and job.line not in self.ended:
            self.ended.append(job.line)

    def _give_turn(self, job: Job, place: int) -> None:
        job.behind, job.ahead = False, True
        self._come_up(job, place)

    def _come_up(self, job: Job, place: int) -> None:
        """Into its band: if it is due, after all that have come up before."""
        job.behind = False
        job.score = self.now - 1 + place / 4096 if job.date <= self.now else None

    def _gives_way(self, holder: Job, due: int) -> bool:
        """Whether the job with the turn is not due, and leaves it to one with an earlier date."""
        if holder.early or holder.place <= self.now or holder.place <= due:
            return False
        holder.ahead, holder.behind, holder.score = False, True, None
        return True

    def _put(self, job: Job) -> None:
        """A job that waits nowhere comes into its band, or into the line of its fair word."""
        if not job.line:
            return
        job.since = job.date
        holder = self.in_turn(job.line)
        if (holder and not self._gives_way(holder, job.date)) or (not holder and job.line in self.ended):
            job.behind = True
        else:
            self._give_turn(job, 0)

    def _move(self, job: Job, due: int) -> None:
        """It waits for another date."""
        self._withdraw(job)
        job.date = due
        if job.line:
            job.since, job.behind = due, True
            holder = self.in_turn(job.line)
            if holder:
                self._gives_way(holder, due)

    def _call_fair(self, line: str, most: int, place: int) -> None:
        """The next job of a fair word gets the turn. Those after it that are due and can be claimed by this call come up, too."""
        if self.in_turn(line):
            return
        most = 1 if "\2" in line else most
        for number, job in enumerate(self.behind(line)[:most]):
            if number == 0:
                self._give_turn(job, place)
                most = 1 if job.name else most
            elif number >= most or job.date > self.now or job.name:
                return
            else:
                self._come_up(job, number * len(self.ended) + place)

    def _call_waiters(self, room: int = 1) -> None:
        called = 0
        for name, times in self.freed.items():
            holders = self.holders(name)
            for job in self.waiters(name)[:times]:
                if name in self.doubtful:
                    if job.name and holders >= job.name.most:
                        break
                    holders += 1
                job.blocked = False
                called += 1
        for place, line in enumerate(self.ended, 1):
            self._call_fair(line, max(1, (room - called) // len(self.ended)), place)
        self.freed, self.doubtful, self.ended = {}, set(), []

    def _finish(self, job: Job, *, cancelled: bool = False, displaced: bool = False) -> None:
        self._unlease(job)
        del self.jobs[job.id]
        self.finished[job.id] = self.now + (0.75 if displaced else 0.5 if cancelled else 0.25)

    def _cancel_waiting(self, job: Job, body: bytes) -> None:
        self._finish(job, cancelled=True)
        self._event("cancelled", job.id, 0, 0, "-", body=body)

    def _fail(self, job: Job) -> None:
        self._unlease(job)
        self.jobs[job.id] = Job(job.id, job.record, self.now, State.FAILED, turn=job.turn, since=job.since)

    def _back(self, job: Job, due: int, *, attempt: int, evictions: int = 0, unknown: int = 0, asked: bool = False) -> None:
        self._unlease(job)
        asks = job.asks + asked
        self.jobs[job.id] = Job(
            job.id,
            job.record,
            due,
            attempt=attempt,
            crashes=job.crashes,
            keyless=job.keyless,
            evictions=evictions,
            unknown=unknown,
            asks=asks,
            turn=job.turn,
            since=job.since,
            small=job.small and bool(attempt or job.crashes or evictions or unknown or asks),
        )
        self._put(self.jobs[job.id])

    def _crash(self, job: Job, max_crashes: int) -> str:
        """A worker died: "again" if the job must run again, otherwise it is cancelled or fails. A run restored from its row counts
        nothing, because its worker is unknown.
        """
        job.crashes += 1 if job.fence else 0
        job.attempt += 0 if job.fence else 1
        fields = (job.id, job.attempt, job.crashes, job.fence or "-")
        if job.id in self.requests:
            self._finish(job, cancelled=True)
            self._event("cancelled", *fields)
        elif job.crashes > max_crashes:
            self._fail(job)
            self._event("failed", *fields)
        else:
            return "again"
        return "ended"
