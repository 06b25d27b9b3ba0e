"""Consumers with random histories, the same each time: late, dying, extending, settling what they lost. They are judged by their
answers: no two hold one message at the same time, and nothing is lost or acked twice. `DELAYQ_HISTORIES=200` plays 200 of them.
"""

from __future__ import annotations

import os
from random import Random

import pytest

from django_delayq import ids
from django_delayq.states import MESSAGE
from django_delayq.store.scripts.queue import Outcome, QueueStore, ScheduleItem
from django_delayq.store.scripts.record import ClaimedJob, JobRecord
from tests.links import package_link

HISTORIES = int(os.environ.get("DELAYQ_HISTORIES", "6"))
STEPS = 300
T0 = 1_800_000_000_000
LEASE = 10_000  # ms; of the queue


class Ledger:
    """All answers. `hands`: by consumer and ID, the run and the end of its lease; `ends`: by ID, how it ended."""

    def __init__(self, store: QueueStore, seed: int) -> None:
        self.store, self.dice, self.now, self.claims = store, Random(seed), T0, 0
        self.pushed: list[str] = []
        self.hands: dict[tuple[str, str], tuple[ClaimedJob, int]] = {}
        self.lost: list[tuple[str, ClaimedJob]] = []
        self.ends: dict[str, str] = {}

    def pass_time(self) -> None:
        self.now += self.dice.choice((1, 50, 1000, LEASE // 2, LEASE, 2 * LEASE))

    def push(self) -> None:
        record = JobRecord(id=ids.new(), task=MESSAGE, payload=b"[[1]]", durable=False)
        self.store.schedule([ScheduleItem.of(record, due_ms=self.now)], now_ms=self.now)
        self.pushed.append(ids.short(record.id))

    def pull(self, who: str, want: int) -> None:
        self.claims += 1
        lease = self.dice.choice((5_000, LEASE, 60_000))
        told = {"want": want, "lease_ms": lease, "max_crashes": 0, "pulled_ms": LEASE, "now_ms": self.now}
        for job in self.store.claim(who, f"n{self.claims}", **told).jobs:
            self._nobody_holds(job.id)
            if job.lost:
                self.lost.append((who, job))
            else:
                self.hands[who, job.id] = job, self.now + lease

    def extend(self, who: str) -> None:
        held = [job for (holder, _), (job, _) in self.hands.items() if holder == who]
        lease = self.dice.choice((5_000, LEASE, 60_000))
        pairs = [(job.id, job.fence) for job in held]
        for id, answer in self.store.extend(pairs, worker=who, lease_ms=lease, pulled_ms=LEASE, now_ms=self.now).items():
            job, _ = self.hands.pop((who, id))
            if answer == "ok":
                self._nobody_holds(id)
                self.hands[who, id] = job, self.now + lease

    def settle(self, who: str) -> None:
        mine = [id for holder, id in self.hands if holder == who]
        if not mine:
            return
        id = self.dice.choice(mine)
        job, _ = self.hands.pop((who, id))
        kind = self.dice.choice(("ack", "ack", "retry", "snooze", "fail"))
        (answer,) = self.store.settle(
            [Outcome(id, job.attempt, job.fence, kind, self.dice.choice((0, LEASE)))], worker=who, max_crashes=0, now_ms=self.now
        )
        if answer == "done":
            self._nobody_holds(id)
            self._end(id, kind)

    def settle_lost(self) -> None:
        """Consumers with lost leases settle them now, perhaps late."""
        waiting, self.lost = self.lost, []
        for who, job in waiting:
            end = Outcome(job.id, job.attempt, job.fence, "retry", self.dice.choice((0, LEASE)))
            if self.store.settle([end], worker=who, max_crashes=0, now_ms=self.now) == ["done"]:
                self._nobody_holds(job.id)

    def die(self, who: str) -> None:
        self.hands = {key: held for key, held in self.hands.items() if key[0] != who}
        self.lost = [one for one in self.lost if one[0] != who]

    def drain(self) -> None:
        while len(self.ends) < len(self.pushed):
            self.now += 60_001 + LEASE
            self.pull("last", 200)
            self.settle_lost()
            while any(holder == "last" for holder, _ in self.hands):
                self.settle("last")

    def _nobody_holds(self, id: str) -> None:
        holders = [who for (who, held), (_, until) in self.hands.items() if held == id and until >= self.now]
        assert holders == [], f"{id} is somebody else's at {self.now - T0}"

    def _end(self, id: str, kind: str) -> None:
        if kind in ("ack", "fail"):
            assert id not in self.ends
            self.ends[id] = kind


@pytest.mark.parametrize("seed", range(HISTORIES))
def test_nobody_is_handed_what_another_was_told_to_hold_and_nothing_is_lost(link, seed):
    played = Ledger(QueueStore(package_link(link), prefix="t", queue="mail"), seed)
    for _ in range(STEPS):
        who = played.dice.choice(("a", "b", "c"))
        act = played.dice.choice(("push", "push", "pull", "pull", "pull", "extend", "settle", "settle", "lost", "die", "time", "time"))
        if act == "push":
            played.push()
        elif act == "pull":
            played.pull(who, played.dice.randrange(1, 6))
        elif act == "extend":
            played.extend(who)
        elif act == "settle":
            played.settle(who)
        elif act == "lost":
            played.settle_lost()
        elif act == "die" and played.dice.random() < 0.2:
            played.die(who)
        elif act == "time":
            played.pass_time()
    played.drain()
    assert set(played.ends) == set(played.pushed)
    keys = played.store.keys
    assert [played.store.link.execute("ZCARD", keys[name]) for name in ("leases", "normal")] == [0, 0]
