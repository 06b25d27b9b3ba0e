"""A queue in Redis and the model of it, driven side by side through whatever may happen, with the same clock."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from itertools import count
from typing import Any
from uuid import UUID

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule

from django_delayq.job_meta import NAMED, Rate, SharedName, bare, scope_of, scoped
from django_delayq.setting_readers import OfferTarget
from django_delayq.states import State
from django_delayq.store.connection.error_replies import StoreError
from django_delayq.store.connection.link import Link
from django_delayq.store.keys import NAMES, tag
from django_delayq.store.scripts.events import FIRST, EventLog
from django_delayq.store.scripts.limits import LimitChange, LimitStore
from django_delayq.store.scripts.queue import Claim, Outcome, QueueStore
from django_delayq.store.scripts.record import Changed, ClaimedJob, JobRecord, ScheduleItem
from django_delayq.store.scripts.recovery import EpochStore
from tests.laws import dump as dumps
from tests.laws.history import MODEL, History, Look, Sees
from tests.laws.judge import judge
from tests.laws.story import Story
from tests.model.contents import full, short
from tests.model.model import Model, Restoring
from tests.model.wishes import (
    PACES,
    SHARED,
    Ending,
    Wish,
    actors,
    ages,
    delays,
    endings,
    epochs,
    lackings,
    modes,
    picks,
    rate_changes,
    steps,
    wishes,
    words,
    workers,
)
from tests.store.board import LEASE, NOW, job_id, record

STRANGER = 999  # the number of a job that was never scheduled
SELDOM = 16_000  # ms, the longest that a claim tells a worker to wait
SCRIPTS = {
    "start_schedule": "schedule",
    "resume": "pause",
    "adopt": "restore",
    "drop": "sweep",
}  # of methods with another name
FORGETTING = {"tidy", "confirm"}  # these drop tombstones
# Changes that are not compared: whether tombstones that tidy removes are in the table, and everything of a sweep in which rows decide.
UNSAID = {**dict.fromkeys((*FORGETTING, "drop"), Sees.SCRIPT), "sweep": Sees.SCRIPT | Sees.CHANGES}
REPEATABLE = {
    "schedule",
    "start_schedule",
    "settle",
    "requeue",
    "cancel",
    "pause",
    "resume",
    "limit",
}  # sent again, these change nothing
_examples = count()


def plain(reply: Any) -> Any:
    """A reply without its class, and without the waiting time of a claim, which the model leaves open."""
    if isinstance(reply, Claim):
        reply = reply._replace(wait_ms=0)
    if isinstance(reply, list | tuple):
        return [plain(part) for part in reply]
    return reply


def server_of(link: Link) -> str:
    """The run of the server."""
    found = re.search(rb"run_id:(\w+)", link.execute("INFO", "server"))
    return found[1].decode() if found else ""


class QueueMachine(RuleBasedStateMachine):
    """Each rule makes one or a few calls. `call` compares the replies, the events, and all that Redis then holds."""

    def __init__(self, link: Link, store: type[QueueStore] = QueueStore, *, partition: int = 0) -> None:
        super().__init__()
        self.link = link
        self.partition = partition
        self.store = store(link, prefix=f"model{next(_examples)}", queue="q", partition=partition)
        self.epoch = EpochStore(self.store)
        self.target = OfferTarget(name="out", key=f"{self.store.keys.prefix}-{{{tag('q', partition)}}}", kind="list", maxlen=None)
        self.log = EventLog(link, self.store.keys)
        self.model = Model("g1", server_of(link))
        self.now = NOW
        self.seen, self.last = FIRST, dumps.Dump()
        self.records: dict[str, JobRecord] = {}
        self.held: list[ClaimedJob] = []  # what workers took, the latest first; they never learn that they lost it
        self.sent: list[tuple[str, tuple[Any, ...], dict[str, Any]]] = []
        self.claimed: dict[str, tuple[str, int]] = {}  # worker -> nonce and size of its last claim
        self.nonces = count(1)
        self.max_crashes = 1
        self.story = Story()
        link.execute("HSET", self.store.keys["meta"], "generation", "g1")

    def teardown(self) -> None:
        own = {*(self.store.keys[name] for name in NAMES), self.target.key}
        there = {key.decode() for key in self.link.execute("KEYS", f"{self.store.keys.prefix}[:-]*")}
        self.link.execute("DEL", *own)
        assert there <= own, f"written elsewhere: {there - own}"

    def id(self, number: int) -> UUID:
        """A made-up one of this partition."""
        return job_id(number, self.partition)

    # The two sides

    def call(self, name: str, *args: Any, **options: Any) -> Any:
        """The same call to both sides; everything is compared."""
        self.sent = [*self.sent[-20:], (name, args, options)]
        side = next(side for side in (self.store, self.epoch, LimitStore(self.store)) if hasattr(side, name))
        found: Any = Restoring
        try:
            answer = getattr(side, name)(*args, now_ms=self.now, **options)
            found = answer() if callable(answer) else answer  # a call that was only sent answers later, or raises
        except StoreError as error:
            if "RESTORING" not in error.reply:
                raise
        if not self.model.generation:
            self.model.new_generation = self.log.generation()
        expected: Any = Restoring
        with suppress(Restoring):
            expected = getattr(self.model, name)(*args, now_ms=self.now, **options)
        if isinstance(expected, Changed) and self.model.events:
            expected = expected._replace(event=self.log.last_id())
        assert plain(found) == plain(expected), f"{name} answered {plain(found)}, not {plain(expected)}"
        if name == "claim":
            assert 0 <= found.wait_ms <= SELDOM, f"claim answered wait_ms={found.wait_ms}"
        self._look(name, options.get("worker", options.get("actor")))
        return found

    def _look(self, name: str, by: str | None) -> None:
        entries = self.log.read(self.seen, 100)
        after = dumps.read(self.link, self.store.keys)
        found = [(item.kind, item.fields, item.body) for entry in entries for item in entry.items]
        expected = self.model.events
        assert [event[:2] for event in found] == [event[:2] for event in expected], f"{name} told {found}, not {expected}"
        for (kind, _, body), (*_, wanted) in zip(found, expected, strict=True):
            assert wanted is None or body == wanted, f"{name} told {kind} with {body!r}, not {wanted!r}"
        assert len(entries) <= 1, f"{name} appended {len(entries)} entries"
        assert all(entry.at_ms == self.now and by in (None, entry.by) for entry in entries), f"{name}: {entries}"
        view = self.model.view()
        assert after == view, f"{name} left " + "; ".join(after.difference(view))
        look = Look(
            before=self.last,
            after=after,
            entries=entries,
            pages=self.story.read(entries),
            script=SCRIPTS.get(name, name),
            forgetting=name in FORGETTING,
            keyless=self.model.keyless(),
            crowded=self.model.crowded(),
            noted=self.model.noted(),
        )
        wrong = judge(History(sees=MODEL & ~UNSAID.get(name, Sees(0)), looks=[look], max_crashes=self.max_crashes))
        if name in UNSAID:
            self.story.forget(ended=name in FORGETTING)
        assert not wrong, f"{name}: " + "; ".join(map(str, wrong))
        self.seen, self.last = entries[-1].id if entries else self.seen, after

    def claim(self, worker: str, want: int, nonce: str = "", **options: Any) -> Claim:
        nonce = nonce or f"n{next(self.nonces)}"
        self.claimed[worker] = nonce, want
        usual = {"lease_ms": LEASE, "max_crashes": self.max_crashes}
        reply: Claim = self.call("claim", worker, nonce, want=want, **usual, **options)
        self.took(reply)
        return reply

    def took(self, reply: Claim) -> None:
        fresh = [job for job in reply.jobs if job not in self.held]
        self.held = [*fresh, *self.held][:12]

    def running(self) -> list[ClaimedJob]:
        """The jobs that are held, the latest first."""
        return [job for job in self.held if self.last.runs.get(job.id, "").split(":")[3:4] == [job.fence]]

    def extend(self, items: list[tuple[str, str]], progress: dict[str, str] | None = None) -> Any:
        return self.call("extend", items, worker="w1", lease_ms=LEASE, progress=progress)

    def settle(self, *items: Outcome) -> Any:
        return self.call("settle", list(items), worker="w1", max_crashes=self.max_crashes)

    def ending(self, job: ClaimedJob, ending: Ending) -> Outcome:
        """As a worker would settle it: no retry where no attempt is left."""
        spent = job.attempt >= dumps.record_of(job.record).max_attempts
        outcome = "fail" if ending.outcome == "retry" and spent else ending.outcome
        return Outcome(
            id=job.id,
            attempt=job.attempt + ending.slip,
            fence=job.fence,
            kind=outcome,
            delay_ms=ending.delay,
            detail=b'{"r":1}',
        )

    def pass_lease(self) -> None:
        """Lets every lease run out while a worker that wants nothing keeps asking, so that nothing looks like an outage; another one
        comes a millisecond too early.
        """
        for step, worker, want in (
            (14_000, "idle", 0),
            (14_000, "idle", 0),
            (LEASE - 28_000, "hasty", 1),
            (1, "idle", 0),
        ):
            self.now += step
            self.claim(worker, want)

    def pick(self, number: int) -> UUID:
        """A job of any kind: mostly one that lives, now and then a finished one or one that never was."""
        live = sorted(self.model.jobs, reverse=True)[:7]
        ended = sorted(self.model.finished, reverse=True)[:4]
        candidates = [*live, *ended, short(self.id(STRANGER))]
        return full(candidates[number % len(candidates)])

    def item(self, wish: Wish) -> ScheduleItem:
        made = [*self.records.values()][-12:]
        if wish.again and made:
            use = made[wish.pick % len(made)]
        else:
            number = len(self.records) + 1
            expires = self.now + wish.offset + wish.expires if wish.expires else 0
            name = scoped(wish.scope if wish.name == 1 else "", SHARED[wish.name])
            rate = Rate(wish.rate, PACES[wish.rate]) if wish.rate else None
            shared = SharedName(name, wish.name, rate, wish.fair)
            given = {"meta": {NAMED: shared.packed()}} if wish.name or wish.fair or rate else {}
            payload = json.dumps([[], {}, given]).encode() if given else b"[[]]"
            says = {"payload": payload, "key": scoped(wish.scope, wish.key), "band": wish.band, "expires_ms": expires}
            use = record(number, id=self.id(number), max_attempts=wish.most, durable=wish.durable, scope=wish.scope, **says)
            self.records[short(use.id)] = use
        due = {"delay_ms": max(0, wish.offset)} if wish.delayed else {"due_ms": self.now + wish.offset}
        if wish.late == "replaced":
            return ScheduleItem.of(use, on_conflict=f"replaced@{short(self.id(STRANGER))}", **due)
        first = str(self.now - 3000) if wish.policy.endswith("/") else ""  # a row knows it
        return ScheduleItem.of(use, on_conflict=wish.policy + first + self.named(use.key, wish.late), **due)

    def named(self, key: str, late: str) -> str:
        """The policy arguments of a late publication."""
        holder = self.model.holder(key)
        named = short(self.id(STRANGER)) if late == "another" else holder.id if late == "holder" and holder else ""
        return f"@{named}" if late else ""

    def known(self, epoch: str) -> str:
        return self.model.known if epoch == "known" else epoch

    # Rules: jobs come, are claimed, and end

    @initialize(
        max_crashes=st.integers(0, 2),
        wanted=st.lists(wishes, min_size=1, max_size=4),
        confirmed=st.booleans(),
    )
    def a_queue_with_some_jobs(self, max_crashes: int, wanted: list[Wish], confirmed: bool) -> None:
        self.max_crashes = max_crashes
        if confirmed:
            self.call("confirm", "g1", actor="restore")
        self.call("schedule", [self.item(wish) for wish in wanted], actor="clerk")

    @rule(wanted=st.lists(wishes, min_size=1, max_size=4), actor=actors)
    def jobs_are_scheduled(self, wanted: list[Wish], actor: str) -> None:
        self.call("schedule", [self.item(wish) for wish in wanted], actor=actor)

    @rule(wanted=st.lists(wishes, max_size=4), mode=modes, epoch=epochs, actor=actors)
    def jobs_are_published(self, wanted: list[Wish], mode: str, epoch: str, actor: str) -> None:
        items = [self.item(wish) for wish in wanted]
        self.call("start_schedule", items, mode=mode, epoch=self.known(epoch), actor=actor)

    @precondition(lambda self: self.last.keys)
    @rule(wish=wishes, pick=picks, mode=modes)
    def a_key_that_is_held_is_wanted(self, wish: Wish, pick: int, mode: str) -> None:
        keys = sorted(self.last.keys)
        key = keys[pick % len(keys)]
        wish = replace(wish, again=False, key=bare(key), scope=scope_of(key))
        self.call("start_schedule", [self.item(wish)], mode=mode, epoch=self.model.known, actor="web")

    @rule(wanted=st.lists(wishes, min_size=1, max_size=4), worker=workers)
    def jobs_are_scheduled_and_claimed(self, wanted: list[Wish], worker: str) -> None:
        self.call("schedule", [self.item(replace(wish, offset=min(0, wish.offset))) for wish in wanted], actor="clerk")
        self.claim(worker, 3)

    @rule(worker=workers, want=st.integers(0, 5), free=st.sampled_from([None, None, 0, 1, 2]))
    def a_worker_claims(self, worker: str, want: int, free: int | None) -> None:
        self.claim(worker, want, free=free)

    @precondition(lambda self: self.model.those(State.SCHEDULED))
    @rule(worker=workers, early=st.sampled_from([0, 0, 0, 1, 1000]), want=st.integers(1, 5))
    def a_job_comes_due_and_is_claimed(self, worker: str, early: int, want: int) -> None:
        due = self.model.those(State.SCHEDULED)[0].date
        self.now = max(self.now, due - early)
        self.claim(worker, want)

    @rule(step=steps)
    def time_passes(self, step: int) -> None:
        self.now += step

    @rule(step=st.sampled_from([-3_600_000, -500, 3_600_000]))
    def the_clock_is_put(self, step: int) -> None:
        self.now += step

    @precondition(lambda self: self.held)
    @rule(those=st.lists(endings, min_size=1, max_size=4), stranger=st.sampled_from([False, False, False, True]))
    def runs_end(self, those: list[Ending], stranger: bool) -> None:
        items = [self.ending(self.held[ending.pick % len(self.held)], ending) for ending in those]
        if stranger:
            items.append(Outcome(id=short(self.id(STRANGER)), attempt=1, fence="n1", kind="ack"))
        self.settle(*items)

    @precondition(lambda self: self.running())
    @rule(ending=endings)
    def a_run_ends(self, ending: Ending) -> None:
        running = self.running()
        self.settle(self.ending(running[ending.pick % len(running)], replace(ending, slip=0)))

    @precondition(lambda self: self.running())
    @rule(ending=endings)
    def a_run_ends_and_the_job_is_claimed_again(self, ending: Ending) -> None:
        job = self.running()[ending.pick % len(self.running())]
        self.settle(self.ending(job, replace(ending, slip=0)))
        self.now += ending.delay
        self.claim("w2", 5)
        self.settle(self.ending(job, ending))

    @precondition(lambda self: self.running())
    @rule(pick=picks, outcome=st.sampled_from(["evict", "park"]), delay=st.sampled_from([0, 1000]))
    def a_run_is_put_off_and_the_next_one_too(self, pick: int, outcome: Any, delay: int) -> None:
        job = self.running()[pick % len(self.running())]
        self.settle(self.ending(job, Ending(0, outcome, 0, 0)))
        self.claim("w2", 5)
        again = [one for one in self.running() if one.id == job.id]
        self.settle(*(self.ending(one, Ending(0, "snooze", delay, 0)) for one in again))

    @precondition(lambda self: self.running())
    @rule(pick=picks, between=st.sampled_from(["snooze", "retry", "crash", "ask", "park"]), delay=st.sampled_from([0, 1000]))
    def a_run_asks_and_what_comes_between_leaves_that(self, pick: int, between: Any, delay: int) -> None:
        job = self.running()[pick % len(self.running())]
        for outcome in ("ask", between, "ask"):
            again = [one for one in self.running() if one.id == job.id]
            self.settle(*(self.ending(one, Ending(0, outcome, delay, 0)) for one in again))
            self.now += delay
            self.claim("w2", 5)

    def offer(self, job: ClaimedJob, slip: int = 0) -> str:
        told = {"id": job.id, "attempt": job.attempt + slip, "nonce": job.fence, "worker": "w1"}
        status: str = self.call("offer", self.target, b"[1]", **told).status
        pushed = self.link.execute("LLEN", self.target.key)
        assert pushed == self.model.pushed, f"offer answered {status}, and {pushed} stand there, not {self.model.pushed}"
        return status

    @precondition(lambda self: self.held)
    @rule(those=st.lists(picks, min_size=1, max_size=3), slip=st.sampled_from([0, 0, 0, -1, 1]))
    def runs_offer(self, those: list[int], slip: int) -> None:
        for pick in those:
            self.offer(self.held[pick % len(self.held)], slip)

    @precondition(lambda self: self.running())
    @rule(pick=picks, ending=endings)
    def a_run_offers_and_so_does_the_next_one(self, pick: int, ending: Ending) -> None:
        job = self.running()[pick % len(self.running())]
        first = self.offer(job)
        self.settle(self.ending(job, replace(ending, slip=0)))
        self.now += ending.delay
        self.claim("w2", 5)
        for again in (one for one in self.running() if one.id == job.id):
            assert self.offer(again) == ("again" if first in ("offered", "again") else "offered")

    @rule(
        name=st.sampled_from([1, 1, 1, 2]),
        bands=st.lists(st.sampled_from(["high", "normal", "low"]), min_size=3, max_size=5),
        ending=endings,
        how=st.sampled_from(["cancel", "later", "now", "purge", "expire", "replace", "claim"]),
        which=picks,
    )
    def of_a_busy_name_the_next_one_is_changed(self, name: int, bands: list[str], ending: Ending, how: str, which: int) -> None:
        base = Wish(False, 0, "", "normal", 0, False, "replace", 0, 3, True, name)
        wanted = [replace(base, band=band, offset=-n, key="n" if n == which % 3 else "") for n, band in enumerate(bands)]
        wanted[-1] = replace(wanted[-1], expires=5 if how == "expire" else 0)
        self.call("schedule", [self.item(wish) for wish in wanted], actor="clerk")
        self.claim("w1", 5)
        waiting = self.model.waiters(SHARED[name])
        holders = [job for job in self.running() if self.model.jobs[job.id].name]
        if holders and ending.pick % 2:
            self.settle(self.ending(holders[-1], replace(ending, slip=0)))
        job = full(waiting[which % 2 * (len(waiting) - 1)].id) if waiting else self.pick(which)
        if how == "cancel":
            self.call("cancel", job, actor="clerk")
        elif how in ("later", "now"):
            self.call("reschedule", job, delay_ms=3000 if how == "later" else 0, actor="clerk")
        elif how == "purge":
            self.call("purge", limit=1 + which % 3, actor="clerk")
        elif how == "replace":
            self.call("schedule", [self.item(replace(base, key="n", band=bands[0]))], actor="clerk")
        elif how == "expire":
            self.now += 6
        self.claim("w2", 5)

    @rule(
        bands=st.lists(st.sampled_from(["high", "normal", "normal"]), min_size=3, max_size=8),
        fair=st.sampled_from(["x", "y"]),
        ahead=st.sampled_from([0, 0, 0, 1000]),
        name=st.sampled_from([0, 0, 0, 3]),
        how=st.sampled_from(["cancel", "later", "now", "purge", "replace", "pause", "claim", "claim"]),
        wants=st.lists(st.integers(1, 6), min_size=1, max_size=4),
        which=picks,
    )
    def of_a_busy_word_jobs_take_turns(
        self, bands: list[str], fair: str, ahead: int, name: int, how: str, wants: list[int], which: int
    ) -> None:
        base = Wish(False, 0, "", "normal", 0, False, "replace", 0, 3, True, name, fair=fair)
        wanted = [replace(base, band=band, offset=ahead * n - 1, key="n" if n == which % 3 else "") for n, band in enumerate(bands)]
        self.call("schedule", [self.item(wish) for wish in wanted], actor="clerk")
        lines = [job for job in self.model.those(State.SCHEDULED) if job.line]
        job = full(lines[which % len(lines)].id) if lines else self.pick(which)
        if how == "cancel":
            self.call("cancel", job, actor="clerk")
        elif how in ("later", "now"):
            self.call("reschedule", job, delay_ms=3000 if how == "later" else 0, actor="clerk")
        elif how == "purge":
            self.call("purge", limit=1 + which % 5, actor="clerk")
        elif how == "replace":
            self.call("schedule", [self.item(replace(base, key="n", band=bands[0]))], actor="clerk")
        elif how == "pause":
            self.call("limit", [LimitChange("pause", "task:shop.close", self.now + 1)], actor="clerk")
        for want in wants:
            self.claim("w2", want)
            self.now += which % 2

    @precondition(lambda self: any(job.name for job in self.model.those(State.RUNNING)) and not self.model.paused)
    @rule(name=st.sampled_from([1, 1, 2]), asked=st.booleans())
    def who_holds_a_name_is_lost_while_others_come_due(self, name: int, asked: bool) -> None:
        if asked and self.running():
            self.call("cancel", full(self.running()[0].id), actor="clerk")
        self.pass_lease()
        wish = Wish(False, 0, "", "high", -1, False, "keep", 0, 3, True, name)
        self.call("schedule", [self.item(wish), self.item(wish)], actor="clerk")
        self.claim("thief", 5)
        self.claim("thief", 5)

    @precondition(lambda self: self.held)
    @rule(those=st.lists(picks, min_size=1, max_size=3), progress=st.sampled_from(["", "1/3", "2/3"]))
    def leases_are_extended(self, those: list[int], progress: str) -> None:
        held = [self.held[pick % len(self.held)] for pick in those]
        fences = {job.id: job.fence for job in held}
        self.extend([*fences.items(), (short(self.id(STRANGER)), "n1")], dict.fromkeys(fences, progress))

    @precondition(lambda self: self.running() and not self.model.paused)
    @rule(ending=endings, extends=st.booleans(), asked=st.sampled_from([False, False, True]), again=st.booleans())
    def a_lease_is_lost_and_its_first_holder_comes_late(self, ending: Ending, extends: bool, asked: bool, again: bool) -> None:
        lost = self.running()
        if asked:
            self.call("cancel", full(lost[ending.pick % len(lost)].id), actor="clerk")
        self.pass_lease()
        self.claim("thief", 10)
        for job in lost[:2]:
            if extends:
                self.extend([(job.id, job.fence)], {job.id: "9/9"})
            self.settle(self.ending(job, replace(ending, slip=0)))
        if again:
            self.claim("thief", 10, nonce=self.claimed["thief"][0])

    @precondition(lambda self: self.running())
    @rule(
        gap=st.sampled_from([15_000, 15_001, 31_000, 90_000]),
        extends=st.booleans(),
        later=st.booleans(),
        back=st.sampled_from([0, 0, 0, 3_600_000]),
        told=st.sampled_from([0, 0, 0, 1, 500]),
        again=st.booleans(),
        anew=st.sampled_from([False, False, True]),
    )
    def redis_is_away_for_a_while(self, gap: int, extends: bool, later: bool, back: int, told: int, again: bool, anew: bool) -> None:
        """The same if no worker came for as long: then no failed calls are reported."""
        job = self.running()[0]
        self.now += gap
        if extends:
            self.extend([(job.id, job.fence)])
        if anew:
            self.server_changes()
        self.claim("thief", 10, away_ms=gap + 1 - told if told else 0)
        if again:
            for step in (4999, 1):
                self.now += step
                self.claim("thief", 10, away_ms=gap + step if told > 1 else 0)
        self.now -= back
        if back:
            self.claim("thief", 10)
        if later:
            self.pass_lease()
            self.claim("thief", 10)

    @precondition(lambda self: self.running())
    @rule(gaps=st.lists(st.sampled_from([500, 10_000, 15_001, 60_000]), min_size=3, max_size=8), told=st.booleans(), anew=st.booleans())
    def one_outage_follows_the_other(self, gaps: list[int], told: bool, anew: bool) -> None:
        for gap in gaps:
            self.now += gap
            if anew:
                self.server_changes()
            self.claim("thief", 1, away_ms=max(gap, 15_001) if told else 0)

    def server_changes(self) -> None:
        """As if workers had been on another one until now."""
        if self.model.run:
            self.model.run = "another"
            self.link.execute("HSET", self.store.keys["meta"], "run", "another")

    # Rules: people change jobs

    @precondition(lambda self: self.model.jobs)
    @rule(which=st.lists(picks, min_size=1, max_size=3), actor=actors, lacking=lackings)
    def jobs_are_cancelled(self, which: list[int], actor: str, lacking: str | int) -> None:
        asked = {"actor": actor, "lacking": self.lacking(lacking), "abort": which[0] % 2 == 1}
        for pick in which:
            self.call("cancel", self.pick(pick), **asked)

    def lacking(self, wish: str | int) -> str:
        return wish if isinstance(wish, str) else str(self.now + wish)

    @rule(pick=picks, lacking=lackings, moves=st.booleans(), unless=st.sampled_from(["", "", "other:epoch", "known"]))
    def a_job_is_changed_by_its_id(self, pick: int, lacking: str | int, moves: bool, unless: str) -> None:
        unless = self.model.epoch if unless == "known" else unless
        options = {"lacking": self.lacking(lacking), "unless": unless, "actor": "clerk"}
        if moves:
            self.call("reschedule", self.pick(pick), delay_ms=3000, **options)
        else:
            self.call("cancel", self.pick(pick), **options)

    @precondition(lambda self: self.running())
    @rule(pick=picks, both=st.booleans(), ending=endings)
    def a_running_job_is_cancelled(self, pick: int, both: bool, ending: Ending) -> None:
        job = self.running()[pick % len(self.running())]
        for actor, abort in (("clerk", ending.pick % 2 == 1), ("\1boss", pick % 2 == 1))[: 1 + both]:
            self.call("cancel", full(job.id), actor=actor, abort=abort)
        self.extend([(job.id, job.fence)])
        if both:
            self.settle(self.ending(job, replace(ending, slip=0)))

    @precondition(lambda self: self.model.jobs)
    @rule(pick=picks, delay=delays, date=st.booleans(), actor=actors, policy=st.sampled_from(["", "earliest", "latest", "latest+5000"]))
    def a_job_is_rescheduled(self, pick: int, delay: int, date: bool, actor: str, policy: str) -> None:
        when = {"due_ms": self.now + delay} if date else {"delay_ms": delay}
        self.call("reschedule", self.pick(pick), actor=actor, policy=policy, **when)

    @precondition(lambda self: self.last.keys)
    @rule(key=st.sampled_from(["a", "b", "never"]), cancel=st.booleans(), actor=actors)
    def a_job_is_changed_by_its_key(self, key: str, cancel: bool, actor: str) -> None:
        if cancel:
            self.call("cancel", key, actor=actor)
        else:
            self.call("reschedule", key, delay_ms=2000, actor=actor)

    @rule(pick=picks, given=st.booleans(), vouched=st.booleans(), delay=delays, actor=actors)
    def a_job_is_requeued(self, pick: int, given: bool, vouched: bool, delay: int, actor: str) -> None:
        job = self.pick(pick)
        known = self.records.get(short(job))
        edited = replace(known, payload=b'[[1],{"edited":1}]') if known and given else None
        honest = vouched and self.last.state(short(job)) in (State.FAILED, State.CANCELLED)
        self.call("requeue", job, edited, vouched=honest, delay_ms=delay, actor=actor)

    @precondition(lambda self: self.model.those(State.FAILED))
    @rule(pick=picks, given=st.booleans(), delay=delays)
    def a_failed_job_is_requeued(self, pick: int, given: bool, delay: int) -> None:
        failed = self.model.those(State.FAILED)
        job = full(failed[pick % len(failed)].id)
        edited = replace(self.records[short(job)], payload=b"[[2]]") if given else None
        self.call("requeue", job, edited, delay_ms=delay)

    # Rules: rates

    @rule(changes=st.lists(rate_changes, min_size=1, max_size=3), worker=workers, want=st.integers(0, 5))
    def rates_are_set(self, changes: list[tuple[str, str]], worker: str, want: int) -> None:
        self.call("limit", [LimitChange("rate", *change) for change in changes], actor="clerk")
        self.claim(worker, want)

    @rule(
        bands=st.lists(st.sampled_from(["high", "normal", "normal"]), min_size=2, max_size=6),
        rate=st.sampled_from(["p", "q"]),
        name=st.sampled_from([0, 0, 1, 3]),
        fair=st.sampled_from(["", "", "x"]),
        how=st.sampled_from(["cancel", "later", "now", "purge", "replace", "pause", "tidy", "claim", "claim"]),
        wants=st.lists(st.tuples(st.integers(1, 5), st.sampled_from([None, None, 0, 1])), min_size=1, max_size=5),
        step=st.sampled_from([1, 333, 334, 500, 1000, 5000]),
        which=picks,
    )
    def jobs_wait_for_tokens(
        self,
        bands: list[str],
        rate: str,
        name: int,
        fair: str,
        how: str,
        wants: list[tuple[int, int | None]],
        step: int,
        which: int,
    ) -> None:
        base = Wish(False, 0, "", "normal", 0, False, "replace", 0, 3, True, name, fair=fair, rate=rate)
        wanted = [replace(base, band=band, offset=-n, key="n" if n == which % 3 else "") for n, band in enumerate(bands)]
        self.call("schedule", [self.item(wish) for wish in wanted], actor="clerk")
        self.claim("w1", 5)
        early = self.model.early(rate)
        job = full(early[which % len(early)].id) if early else self.pick(which)
        if how == "cancel":
            self.call("cancel", job, actor="clerk")
        elif how in ("later", "now"):
            self.call("reschedule", job, delay_ms=3000 if how == "later" else 0, actor="clerk")
        elif how == "purge":
            self.call("purge", limit=1 + which % 5, actor="clerk")
        elif how == "replace":
            self.call("schedule", [self.item(replace(base, key="n", band=bands[0]))], actor="clerk")
        elif how == "pause":
            self.call("limit", [LimitChange("pause", "task:shop.close", self.now + step)], actor="clerk")
        elif how == "tidy":
            self.call("tidy", tombstones_ms=0)
        for want, free in wants:
            self.now += step
            self.claim("w2", want, free=free)

    # Rules: words are paused

    @rule(
        paused=st.lists(words, min_size=1, max_size=2),
        until=st.sampled_from([0, 0, 0, 1, 1000, 60_000]),
        worker=workers,
        want=st.integers(1, 5),
    )
    def words_are_paused(self, paused: list[str], until: int, worker: str, want: int) -> None:
        self.call("limit", [LimitChange("pause", word, until and self.now + until) for word in paused], actor="clerk")
        self.claim(worker, want)

    @precondition(lambda self: self.model.pauses)
    @rule(pick=picks, pace=st.sampled_from([0, 0, 300, 1000]), worker=workers, want=st.integers(0, 5))
    def a_word_is_resumed(self, pick: int, pace: int, worker: str, want: int) -> None:
        paused = sorted(self.model.pauses)
        self.call("limit", [LimitChange("resume", paused[pick % len(paused)], pace)], actor="boss")
        self.claim(worker, want)

    @precondition(lambda self: self.model.opens)
    @rule(worker=workers, step=st.sampled_from([0, 300, 1000]), want=st.integers(1, 5))
    def held_jobs_return(self, worker: str, step: int, want: int) -> None:
        self.now = max(self.now, min(self.model.opens.values())) + step
        self.claim(worker, want)

    # Rules: what concerns the whole queue

    @rule(worker=workers, again=st.booleans(), long=st.sampled_from([False, False, False, False, True]), until=delays)
    def the_queue_is_paused(self, worker: str, again: bool, long: bool, until: int) -> None:
        self.call("pause", actor="clerk", reason="bank holiday", until_ms=until and self.now + until)
        self.claim(worker, 3, self.claimed[worker][0] if again and worker in self.claimed else "")
        if not long:
            self.call("resume", actor="boss")

    @precondition(lambda self: self.model.paused)
    @rule(actor=actors)
    def the_queue_is_resumed(self, actor: str) -> None:
        self.call("resume", actor=actor)

    @precondition(lambda self: len(self.model.those(State.SCHEDULED)) > 2)
    @rule(limit=st.sampled_from([1, 2, 2, 200]), actor=actors)
    def the_queue_is_purged(self, limit: int, actor: str) -> None:
        self.call("purge", limit=limit, actor=actor)

    @precondition(lambda self: len(self.last.finished) > 2 or self.last.failed)
    @rule(age=ages, failed=st.sampled_from([None, None, 0, 1, 10_000]), claims=st.booleans())
    def what_is_old_is_tidied(self, age: int, failed: int | None, claims: bool) -> None:
        before = None if failed is None else self.now - failed
        self.call("tidy", tombstones_ms=age, failed_before_ms=before, **({"claims_ms": 60_000} if claims else {}))

    # Rules: replies are lost

    @precondition(lambda self: self.sent)
    @rule(step=st.sampled_from([0, 1, 1000]))
    def a_reply_is_lost_and_the_call_is_sent_again(self, step: int) -> None:
        name, args, options = self.sent[-1]
        before, seen = self.last, self.seen
        self.now += step
        reply = self.call(name, *args, **options)
        expiring = step and any(dumps.record_of(record).expires_ms for record in before.jobs.values())  # a holder may have by now
        asks = options.get("mode", "").startswith("ask")  # with a delay it may mean a later date by now
        if name in REPEATABLE and not asks and not expiring:
            assert self.last == before, f"{name} sent again changed something"
            assert self.seen == seen or options.get("lacking"), f"{name} sent again told something"
        if name == "claim":
            self.took(reply)

    @precondition(lambda self: self.sent)
    @rule(pick=picks)
    def an_old_call_comes_once_more(self, pick: int) -> None:
        name, args, options = self.sent[-1 - pick % len(self.sent)]
        if name in ("schedule", "start_schedule", "settle", "extend", "cancel", "reschedule"):
            self.call(name, *args, **options)

    @precondition(lambda self: self.claimed)
    @rule(pick=picks, want=st.sampled_from([None, None, 0]), epoch=st.sampled_from(["", "", "other:epoch", "known"]))
    def a_worker_sends_its_last_claim_again(self, pick: int, want: int | None, epoch: str) -> None:
        worker = sorted(self.claimed)[pick % len(self.claimed)]
        nonce, size = self.claimed[worker]
        self.claim(worker, size if want is None else want, nonce, epoch=self.model.epoch if epoch == "known" else epoch)


def machine(link: Link, store: type[QueueStore] = QueueStore, *, partition: int = 0) -> Callable[[], QueueMachine]:
    """The arguments that hypothesis creates a machine with, one per example."""
    return lambda: QueueMachine(link, store, partition=partition)
