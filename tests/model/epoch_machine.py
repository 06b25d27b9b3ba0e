"""The machine in a shaky epoch: Redis is wiped, or goes back to what it held before; rows and workers bring back what was lost."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import count
from typing import Any

from hypothesis import strategies as st
from hypothesis.stateful import precondition, rule

from django_delayq.job_meta import bare, scope_of
from django_delayq.states import State
from django_delayq.store.connection.link import Link
from django_delayq.store.keys import NAMES
from django_delayq.store.scripts.decode import position
from django_delayq.store.scripts.events import FIRST
from django_delayq.store.scripts.queue import QueueStore
from django_delayq.store.scripts.record import ClaimedJob
from django_delayq.store.scripts.recovery import EpochStore, RestoreItem
from tests.laws import dump as dumps
from tests.model.contents import full
from tests.model.machine import QueueMachine
from tests.model.model import Model
from tests.model.wishes import Ending, Wish, picks, workers
from tests.store.board import LEASE

WAIT = 3000  # ms that a restored job waits at least, as the mirror asks for
PHASES = ("", "found", "sweep", "adopt", "rest")
ends = st.sampled_from(["retry", "retry", "retry", "ack", "fail", "snooze", "ask", "ask", "crash", "cancel"])
persons = st.sampled_from(["me", "me", "you", "restore"])


@dataclass(frozen=True)
class Copy:
    """The content of Redis at one moment, and how far the stream was read."""

    values: Sequence[bytes | None]
    model: Model
    last: dumps.Dump
    seen: str


class EpochMachine(QueueMachine):
    """With all rules of the other one."""

    def __init__(
        self, link: Link, store: type[QueueStore] = QueueStore, epoch: type[EpochStore] = EpochStore, *, partition: int = 0
    ) -> None:
        super().__init__(link, store, partition=partition)
        self.epoch = epoch(self.store)
        self.copy: Copy | None = None
        self.rows: dict[str, RestoreItem] = {}  # what the mirror would write down, as it would be restored
        self.folded = FIRST  # up to where it has come
        self.generations = {self.model.generation}
        self.epochs = {self.model.epoch}
        self.numbers = count(1)

    def call(self, name: str, *args: Any, **options: Any) -> Any:
        """Whatever a wiped queue is given, it never has the generation of an earlier one."""
        new = not self.model.generation
        reply = super().call(name, *args, **options)
        if new and self.model.generation:
            assert self.model.generation not in self.generations, f"{name} gave a wiped queue the generation of old"
        self.generations.add(self.model.generation)
        self.epochs.add(self.model.epoch)
        return reply

    # Strategies of the rules

    def _keys(self) -> list[str]:
        return [self.store.keys[name] for name in NAMES]

    def _start_anew(self, model: Model, last: dumps.Dump, seen: str) -> None:
        """Redis holds something else than before: nothing that was seen or sent counts any more."""
        model.pushed = self.model.pushed  # what others hold stays
        self.model, self.last, self.seen, self.sent = model, last, seen, []
        self.story.forget()

    def _keep_copy(self) -> None:
        values = self.link.execute_many([("DUMP", key) for key in self._keys()])
        self.copy = Copy(values, self.model.copy(), self.last, self.seen)

    def _go_back(self) -> None:
        """Another server has taken over, with the old copy. It is this one: so that it is another than the one on which everything
        was claimed, that one gets another name.
        """
        assert self.copy is not None
        self.link.execute("DEL", *self._keys())
        kept = [pair for pair in zip(self._keys(), self.copy.values, strict=True) if pair[1] is not None]
        self.link.execute_many([("RESTORE", key, 0, value) for key, value in kept])
        model, elsewhere = self.copy.model.copy(), f"elsewhere{next(self.numbers)}"
        if model.confirmed == model.server:
            model.confirmed = elsewhere
            self.link.execute("HSET", self.store.keys["meta"], "server", elsewhere)
        self.held = [job._replace(epoch=job.epoch.replace(model.server, elsewhere)) for job in self.held]
        last = dumps.read(self.link, self.store.keys)
        assert last == model.view(), "; ".join(last.difference(model.view()))
        self._start_anew(model, last, self.copy.seen)

    def _wipe(self) -> None:
        self.link.execute("DEL", *self._keys())
        self._start_anew(Model("", self.model.server), dumps.Dump(), FIRST)

    def _mirror(self) -> None:
        for job in self.model.jobs.values():
            item = RestoreItem(id=job.id, record=job.record.encode(), attempt=job.attempt, crashes=job.crashes, asks=job.asks)
            item = item._replace(first_ms=self.model.firsts.get(job.id, ""))
            if job.state is State.FAILED:
                self.rows.pop(job.id, None)
            elif job.state is State.RUNNING:
                begun: Any = "cancel" if job.id in self.model.requests else "run"
                attempt = job.attempt - 1 if job.fence else job.attempt
                self.rows[job.id] = item._replace(attempt=attempt, delay_ms=LEASE, begun=begun)
            else:
                self.rows[job.id] = item._replace(due_ms=job.date, delay_ms=WAIT, unsure_ms=LEASE)
        for id in self.model.finished:
            self.rows.pop(id, None)
        self.folded = max(self.folded, self.log.last_id(), key=position)

    def _some_rows(self, which: Sequence[int]) -> list[RestoreItem]:
        """The latest ones, or a few of them."""
        latest = sorted(self.rows, reverse=True)[:12]
        return [self.rows[latest[place]] for place in sorted({pick % len(latest) for pick in which})] if latest else []

    def _restore(self, items: Sequence[RestoreItem], who: str = "", epoch: str = "") -> None:
        progress = f"{who} {len(items)} {len(self.rows)}" if who else ""
        self.call("restore", items, epoch=epoch or self.model.known, progress=progress, actor="restore")

    def _adopt(self, held: Sequence[ClaimedJob], worker: str = "w1") -> None:
        """Calls as a worker does: once per epoch in which it has claimed, or once without an epoch."""
        for epoch in sorted({job.epoch for job in held}):
            mine = {(job.id, job.fence): job for job in reversed(held) if job.epoch == epoch}
            latest = {job.id: job for job in mine.values()}
            items = [
                RestoreItem(
                    id=job.id,
                    record=job.record,
                    attempt=job.attempt,
                    crashes=job.crashes,
                    fence=job.fence,
                    delay_ms=LEASE,
                    asks=job.asks,
                )
                for job in latest.values()
            ]
            self.call("adopt", items, worker=worker, epoch=epoch)

    def _confirm(self, phase: str = "", *, renew: bool = False, behind: bool = False, who: str = "", **given: str) -> None:
        options = {"server": self.model.server, "mirrored": self.folded, **given}
        if renew:
            options["renew"] = f"r{next(self.numbers)}"
        if behind:
            options["behind"] = self.folded
        if phase or who:
            options["progress"] = f"{who or 'me'} 0 {len(self.rows)}"
        generation = options.pop("generation", self.model.generation)
        done = self.call("confirm", generation, phase=phase, actor="restore", **options)
        if done == "ok" and behind:
            assert position(self.log.last_id()) > position(self.folded), "new events stand before those that were folded"

    def _sweep(self, generation: str = "") -> None:
        self.call("sweep", generation or self.model.generation, progress="me 0 0", actor="restore")

    # Rules

    @rule()
    def a_copy_is_made(self) -> None:
        self._keep_copy()

    @rule(upto=picks, here=st.sampled_from([True, True, True, False]))
    def the_mirror_comes_along(self, upto: int, here: bool) -> None:
        self._mirror()
        ms, number = position(self.log.last_id())
        self.seen = f"{ms}-{number + 1}"  # one more of the same millisecond
        self.link.execute("XADD", self.store.keys["events"], self.seen, "at", self.now)
        before = [entry.id for entry in self.log.read(FIRST, 1000)]
        mark, server = before[-1 - upto % len(before)], self.model.server if here else "elsewhere"
        self.log.trim(mark, server=server)
        self.model.trim(mark, server=server)
        left = [entry.id for entry in self.log.read(FIRST, 1000)]
        wanted = [id for id in before if position(id) > position(mark)] if here else before
        assert left == wanted, f"trim up to {mark} has left {left} of {before}"
        self._look("trim", None)

    @precondition(lambda self: self.copy)
    @rule(mirrored=st.booleans())
    def redis_goes_back(self, mirrored: bool) -> None:
        if mirrored:
            self._mirror()
        self._go_back()

    @precondition(lambda self: self.model.jobs)
    @rule(mirrored=st.booleans(), used=st.booleans())
    def redis_is_wiped(self, mirrored: bool, used: bool) -> None:
        if mirrored:
            self._mirror()
        self._wipe()
        if used:
            self.claim("w1", 2)

    @precondition(lambda self: self.held)
    @rule(those=st.lists(picks, min_size=1, max_size=4), worker=workers)
    def held_runs_are_adopted(self, those: list[int], worker: str) -> None:
        self._adopt([self.held[pick % len(self.held)] for pick in those], worker)

    @precondition(lambda self: self.rows)
    @rule(
        which=st.lists(picks, min_size=1, max_size=6),
        who=st.sampled_from(["", "me"]),
        epoch=st.sampled_from(["", "", "", "another:server"]),
    )
    def rows_come_back(self, which: list[int], who: str, epoch: str) -> None:
        self._restore(self._some_rows(which), who, epoch)

    @precondition(lambda self: self.model.generation)
    @rule(who=persons, step=st.sampled_from([0, 4999, 5000]), phase=st.sampled_from(["adopt", "rest"]))
    def somebody_would_restore(self, who: str, step: int, phase: str) -> None:
        self._confirm(phase, who=who)
        self.now += step
        self._confirm(phase, who="me")

    @precondition(lambda self: self.model.generation)
    @rule(
        phase=st.sampled_from(PHASES),
        renew=st.booleans(),
        behind=st.booleans(),
        wrong=st.sampled_from(["", "", "", "generation", "server"]),
    )
    def the_epoch_is_confirmed(self, phase: str, renew: bool, behind: bool, wrong: str) -> None:
        self._confirm(phase, renew=renew, behind=behind, **({wrong: "another"} if wrong else {}))

    @precondition(lambda self: self.model.generation)
    @rule(wrong=st.booleans())
    def all_durable_jobs_leave(self, wrong: bool) -> None:
        self._sweep("another" if wrong else "")

    @precondition(lambda self: self.model.jobs)
    @rule(those=st.lists(picks, min_size=1, max_size=3))
    def jobs_are_dropped_that_have_ended_by_their_rows(self, those: list[int]) -> None:
        known = sorted(self.model.jobs)
        self.call("drop", sorted({known[pick % len(known)] for pick in those}), actor="doctor")

    @precondition(lambda self: self.model.generation)
    @rule(
        worker=workers,
        pick=picks,
        step=st.sampled_from([0, 0, 59_999, 60_000, 60_001]),
        worked=st.booleans(),
        wary=st.booleans(),
    )
    def a_worker_claims_in_the_epoch_that_it_knows(self, worker: str, pick: int, step: int, worked: bool, wary: bool) -> None:
        self.now += step
        if worked:
            self._confirm("adopt")
        self.claim(worker, 3, epoch=sorted(self.epochs)[pick % len(self.epochs)])
        self.claim(worker, 3, epoch=self.model.epoch, wary=wary)

    @precondition(lambda self: self.running())
    @rule(
        first=st.sampled_from(["adopt", "rows", "claim"]),
        how=st.lists(ends, max_size=4),
        claims=st.booleans(),
        stale=st.booleans(),
    )
    def what_happens_is_forgotten_and_restored(self, first: str, how: list[str], claims: bool, stale: bool) -> None:
        """As it goes: a copy is old, jobs go on, another server comes up with the copy, its data is found to be older. `stale`: the
        copy is the newer one, and the mirror was behind.
        """
        (self._mirror if stale else self._keep_copy)()
        for job, outcome in zip(self.running(), how, strict=False):
            self.settle(self.ending(job, Ending(0, outcome, 5000 if stale else 0, 0)))
        if claims:
            self.now += 1000
            self.claim("w2", 3)
        (self._keep_copy if stale else self._mirror)()
        self._go_back()
        self.claim("w3", 2, epoch=self.model.epoch)
        self._confirm("sweep", renew=True, behind=position(self.log.last_id()) < position(self.folded))
        self.claim("w3", 2, epoch=self.model.epoch)
        self._adopt(self.held)
        self._sweep()
        self.call("extend", [(job.id, job.fence) for job in self.held[:2]], worker="w1", lease_ms=LEASE)
        self._confirm("adopt")
        if first == "adopt":
            self._adopt(self.held)
        self._restore(self._some_rows(range(12)), "me")
        self._confirm("rest")
        if first == "claim":
            self.now += WAIT + 1
            self.claim("w3", 3)
        self._adopt(self.held)
        self._confirm()
        self.claim("w1", 5, epoch=self.model.epoch)

    @precondition(lambda self: self.model.finished or self.model.those(State.FAILED))
    @rule(pick=picks, gap=st.sampled_from([0, 1, 5000]))
    def a_requeue_is_forgotten(self, pick: int, gap: int) -> None:
        ended = [job.id for job in self.model.those(State.FAILED)] + list(self.model.finished)
        id = ended[pick % len(ended)]
        self._keep_copy()
        self.now += gap
        self.call("requeue", full(id), self.records.get(id), vouched=True, actor="clerk")
        self._mirror()
        self._go_back()
        self._confirm("sweep", renew=True)
        self._sweep()
        self._confirm("adopt")
        self._restore([self.rows[id]] if id in self.rows else [], "me")
        self._confirm()

    @precondition(lambda self: self.model.those(State.SCHEDULED))
    @rule(pick=picks, moves=st.booleans(), gap=st.sampled_from([0, 5000]))
    def a_change_is_forgotten(self, pick: int, moves: bool, gap: int) -> None:
        """Another server does not know of it, and gets it before it is confirmed. The earlier date may have arrived meanwhile."""
        waiting = self.model.those(State.SCHEDULED)
        job, due_ms = full(waiting[pick % len(waiting)].id), self.now + 60_000
        self._keep_copy()
        for lacking in ("", "waited" if moves else "scheduled"):
            if moves:
                self.call("reschedule", job, due_ms=due_ms, lacking=lacking, actor="clerk")
            else:
                self.call("cancel", job, lacking=lacking, actor="clerk")
            if not lacking:
                self._go_back()
                self.now += gap
        self._confirm()
        self.claim("w1", 5, epoch=self.model.epoch)

    @precondition(lambda self: self.running())
    @rule(first=st.sampled_from(["adopt", "rows", "schedule"]), which=st.lists(picks, min_size=4, max_size=12))
    def all_is_lost_and_restored(self, first: str, which: list[int]) -> None:
        self._mirror()
        keys = {record.key for record in self.records.values() if record.key}
        self._wipe()
        if first == "schedule" and keys:
            key = sorted(keys)[which[0] % len(keys)]
            wish = Wish(False, 0, bare(key), "normal", 0, True, "keep", 0, 3, True, scope=scope_of(key))
            self.call("schedule", [self.item(wish)], actor="clerk")
        if first != "rows":
            self._adopt(self.held)
        if self.model.generation:
            self._confirm("adopt")
        self._restore(self._some_rows(which), "me")
        self._adopt(self.held, "w2")
        if self.model.generation:
            self._confirm()
        self.claim("w1", 5, epoch=self.model.epoch)


def machine(
    link: Link, store: type[QueueStore] = QueueStore, epoch: type[EpochStore] = EpochStore, *, partition: int = 0
) -> Callable[[], EpochMachine]:
    """The arguments that hypothesis creates a machine with, one per example."""
    return lambda: EpochMachine(link, store, epoch, partition=partition)
