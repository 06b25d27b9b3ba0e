"""Idle movers, simulated to the millisecond: as long as one of them sleeps and none has died, no job is late.

Workers sleep for as long as their claim says, or until a token calls the one that has slept longest; each runs one job at a time.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import count

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, precondition, rule, run_state_machine_as_test

from django_delayq import ids
from django_delayq.store.connection.link import Link
from django_delayq.store.scripts.queue import Outcome, QueueStore, ScheduleItem
from tests.store.board import LEASE, NOW, record

pytestmark = pytest.mark.slow

_examples = count()
RECOVERY = 2500  # ms: a dead timer owner counts as gone after 500, the others sleep for a second, and so does their heir
OFFSETS = st.sampled_from([0, 0, 1, 10, 300, 999, 1000, 1001, 1500, 2500])
RUNS = st.sampled_from([0, 0, 20, 700, 3000])


@dataclass
class Mover:
    """`at`: when it asks next; `since`: since when it sleeps; `held`: what it runs until then."""

    name: str
    at: int
    since: int
    held: Outcome | None = None


class IdleMovers(RuleBasedStateMachine):
    def __init__(self, link: Link) -> None:
        super().__init__()
        self.link = link
        self.store = QueueStore(link, prefix=f"waking{next(_examples)}", queue="q")
        self.now = NOW
        self.movers: list[Mover] = []
        self.ready: dict[str, int] = {}  # short id -> since when it may be claimed: due, and known
        self.numbers, self.nonces, self.names = count(1), count(1), count(1)
        self.died = NOW - 10 * RECOVERY
        self.runs_for = 0

    # Time

    def call(self) -> None:
        """Tokens wake those who have slept longest."""
        while sleepers := sorted((mover for mover in self.movers if not mover.held), key=lambda mover: mover.since):
            if not self.link.execute("RPOP", self.store.keys["wake"]):
                break
            self.ask(sleepers[0])

    def ask(self, mover: Mover) -> None:
        if mover.held:
            self.store.settle([mover.held], worker=mover.name, max_crashes=3, now_ms=self.now)
            mover.held = None
        nonce = f"n{next(self.nonces)}"
        claim = self.store.claim(mover.name, nonce, want=1, lease_ms=LEASE, max_crashes=3, now_ms=self.now)
        for job in claim.jobs:
            self.ready.pop(job.id, None)
            mover.held = Outcome(id=job.id, attempt=job.attempt, fence=nonce, kind="ack")
        mover.since = self.now
        mover.at = self.now + (self.runs_for if claim.jobs else 0 if claim.more else claim.wait_ms)

    def pass_time(self, until: int) -> None:
        self.call()
        while self.movers and (first := min(self.movers, key=lambda mover: mover.at)).at <= until:
            self.now = max(self.now, first.at)
            self.ask(first)
            self.call()
            self.nothing_is_late()
        self.now = until
        self.nothing_is_late()

    def nothing_is_late(self) -> None:
        sleeping = [mover for mover in self.movers if not mover.held and mover.at > self.now]
        allowed = RECOVERY if self.now - self.died < 2 * RECOVERY else 0
        late = {id: self.now - at for id, at in self.ready.items() if self.now - at > allowed}
        assert not (sleeping and late), f"{late} late, while {sleeping} sleep at {self.now}"

    # Rules

    @rule(offsets=st.lists(OFFSETS, min_size=1, max_size=4), band=st.sampled_from(["high", "normal", "low"]))
    def jobs_are_scheduled(self, offsets: list[int], band: str) -> None:
        items = [ScheduleItem.of(record(next(self.numbers), band=band), due_ms=self.now + offset) for offset in offsets]
        self.store.schedule(items, now_ms=self.now)
        self.ready |= {ids.short(item.id): item.due_ms or 0 for item in items}
        self.call()

    @precondition(lambda self: self.ready)
    @rule(pick=st.integers(0, 9), offset=OFFSETS)
    def a_job_is_rescheduled(self, pick: int, offset: int) -> None:
        id = sorted(self.ready)[pick % len(self.ready)]
        self.store.reschedule(ids.full(id), due_ms=self.now + offset, now_ms=self.now)
        self.ready[id] = self.now + offset
        self.call()

    @precondition(lambda self: self.ready)
    @rule(pick=st.integers(0, 9))
    def a_job_is_cancelled(self, pick: int) -> None:
        id = sorted(self.ready)[pick % len(self.ready)]
        self.store.cancel(ids.full(id), now_ms=self.now)
        del self.ready[id]

    @rule(step=st.sampled_from([1, 10, 100, 500, 1000, 3000]), runs_for=RUNS)
    def time_passes(self, step: int, runs_for: int) -> None:
        self.runs_for = runs_for
        self.pass_time(self.now + step)

    @precondition(lambda self: len(self.movers) < 4)
    @rule()
    def a_worker_comes(self) -> None:
        mover = Mover(f"w{next(self.names)}", self.now, self.now)
        self.movers.append(mover)
        self.pass_time(self.now)

    @precondition(lambda self: self.movers and self.now - self.died > 2 * RECOVERY)
    @rule(pick=st.integers(0, 3))
    def a_worker_dies(self, pick: int) -> None:
        self.movers.pop(pick % len(self.movers))
        self.died = self.now


def test_no_job_is_late_while_a_worker_sleeps(redis_server):
    budget = settings(
        max_examples=100,
        stateful_step_count=40,
        derandomize=True,
        database=None,
        deadline=None,
        suppress_health_check=list(HealthCheck),
    )
    run_state_machine_as_test(lambda: IdleMovers(redis_server.link), settings=budget)
