"""The situations of the drill in which Redis has forgotten something: each brings one about, and says what has to follow."""

from __future__ import annotations

from typing import Any
from uuid import UUID

from django_delayq import ids
from django_delayq.store.keys import NAMES
from django_delayq.store.scripts.decode import position
from django_delayq.store.scripts.events import FIRST, EventLog
from django_delayq.store.scripts.record import ClaimedJob
from django_delayq.store.scripts.recovery import EpochStore, RestoreItem
from tests.campaign.drill import MAX_CRASHES, Scene
from tests.campaign.situations import FAR
from tests.campaign.witness import Witness

ELSEWHERE = "old:server"  # the epoch of a claim before Redis lost what it held
PATIENCE = 61_000  # ms; a little longer than claims wait for a confirmation (claim.lua)


class Loss:
    """A scene whose queue can be wiped, and go back to a copy."""

    def __init__(self, scene: Scene) -> None:
        self.scene = scene
        self.keys = [scene.store.keys[name] for name in NAMES]
        self.copied: list[bytes | None] = []

    def wipe(self) -> None:
        self.scene.link.execute("DEL", *self.keys)
        self._another_witness()

    def copy(self) -> None:
        self.copied = self.scene.link.execute_many([("DUMP", key) for key in self.keys])

    def go_back(self) -> None:
        self.scene.link.execute("DEL", *self.keys)
        for key, value in zip(self.keys, self.copied, strict=True):
            if value is not None:
                self.scene.link.execute("RESTORE", key, 0, value)
        self._another_witness()

    def _another_witness(self) -> None:
        link, keys = self.scene.link, self.scene.store.keys
        self.scene.witness = Witness(link, keys, max_crashes=MAX_CRASHES, forgetting=False)

    def call(self, name: str, *arguments: Any, **options: Any) -> Any:
        """A call that brings something back, and a look at what it has left."""
        reply = getattr(EpochStore(self.scene.store), name)(*arguments, **options)
        self.scene.look()
        return reply

    def restore(self, *rows: RestoreItem) -> list[str]:
        answers: list[str] = self.call("restore", rows, epoch=self.scene.store.epoch())
        return answers

    def sweep(self) -> str:
        """Marks the data in Redis as unconfirmed. Returns the generation in which rows are restored."""
        epoch, renewed = EpochStore(self.scene.store), f"r{self.generation()}"
        self.scene.same(epoch.confirm(self.generation(), phase="sweep", renew=renewed, progress="me 0 0"), "ok", "a sweep")
        cursor = "0"
        while (cursor := epoch.sweep(renewed, cursor)[0]) not in ("", "0"):
            pass
        self.scene.link.execute("XTRIM", self.scene.store.keys["events"], "MAXLEN", 0)  # it tells of what has left
        self._another_witness()
        return renewed

    def adopt(self, job: ClaimedJob) -> str:
        """As the worker that holds it."""
        item = RestoreItem(id=job.id, record=job.record, attempt=job.attempt, crashes=job.crashes, fence=job.fence, delay_ms=FAR)
        answers: list[str] = self.call("adopt", [item], worker="w1", epoch=ELSEWHERE)[1]
        return answers[0]

    def row(self, id: UUID, **fields: Any) -> RestoreItem:
        """An unfinished row."""
        place = {name: fields.pop(name) for name in ("attempt", "crashes", "due_ms", "delay_ms") if name in fields}
        return RestoreItem(id=ids.short(id), record=self.scene.item(id=id, **fields).encode(), **place)

    def generation(self) -> str:
        return EventLog(self.scene.link, self.scene.store.keys).generation()

    def waiting(self, kind: str, **fields: Any) -> UUID:
        """A job after one attempt and one crash: waiting, or running for the second time."""
        job = self.scene.take(**fields)
        self.scene.settle(job, "crash")
        (job,) = self.scene.claim(lease_ms=FAR)
        self.scene.settle(job, "retry", delay_ms=FAR if kind == "waits" else 0)
        if kind == "runs":
            self.scene.claim(lease_ms=FAR)
        return ids.full(job.id)


def what_has_ended(scene: Scene) -> None:
    """The epoch does not rise again, whoever reports it."""
    loss = Loss(scene)
    for outcome in ("ack", "fail", "cancel"):
        job = scene.take()
        scene.settle(job, outcome)
        before = scene.dump()
        scene.same(loss.restore(loss.row(ids.full(job.id))), ["finished"], f"a row after {outcome}")
        scene.same(loss.adopt(job), "finished", f"a run after {outcome}")
        scene.same(scene.dump(), before, f"the queue after {outcome} and a restore")


def an_old_copy(scene: Scene) -> None:
    """Data after a rollback is not trusted: durable jobs are removed, and unfinished rows are restored."""
    loss, names = Loss(scene), ("ended", "tried", "failed", "runs")
    jobs = {name: loss.waiting("runs" if name == "runs" else "waits", key=name, durable=True) for name in names}
    held = scene.take(key="held", durable=True)
    failed = scene.take(key="once", durable=True)
    scene.settle(failed, "fail")
    stays = scene.add(FAR, key="stays", durable=False)
    loss.copy()
    loss.go_back()
    loss.sweep()
    dump = scene.dump()
    scene.same((list(dump.jobs), dump.keys), ([ids.short(stays)], {"stays": ids.short(stays)}), "what a sweep leaves")
    scene.same((dump.leases, dump.runs, dump.failed, dump.finished), ({}, {}, {}, {}), "traces that a sweep leaves")
    scene.same(loss.adopt(held), "wait", "a run, while all is swept")
    loss.call("confirm", loss.generation(), phase="adopt", progress="me 0 0")
    scene.same(loss.adopt(held), "adopted", "a run, after the sweep")
    due = scene.now() + 2 * FAR
    row = loss.row(jobs["tried"], key="tried", attempt=3, due_ms=due)
    scene.same(loss.restore(row, loss.row(ids.full(held.id), key="held")), ["restored", "there"], "rows after a sweep")
    found = scene.dump()
    scene.same((found.runs[row.id], found.due(row.id)), ("3:0:N:", float(due)), "a row that is back")
    loss.call("confirm", loss.generation())
    scene.settle(held)


def a_requeue_that_redis_forgot(scene: Scene) -> None:
    """The row has heard of it after the end that the old copy has, and is right."""
    loss = Loss(scene)
    for outcome in ("fail", "cancel"):
        job = scene.take(durable=True)
        scene.settle(job, outcome)
        loss.copy()
        loss.go_back()
        loss.sweep()
        found = loss.restore(loss.row(ids.full(job.id), delay_ms=FAR))
        scene.same(found, ["restored"], f"a row that was requeued after {outcome}")
        loss.call("confirm", loss.generation())


def another_server(scene: Scene) -> None:
    """It is not served before the database's side has confirmed it, nor while it is behind; without anybody, after a while."""
    loss = Loss(scene)
    claim = scene.store.claim("w1", "n", want=0, lease_ms=FAR, max_crashes=1)
    here, meta = claim.server, scene.store.keys["meta"]
    scene.add()
    scene.link.execute("HDEL", meta, "server")
    found = scene.claim(lease_ms=FAR)
    scene.same(len(found), 1, "a claim where no mirror has ever been")
    scene.settle(found[0])
    scene.same(scene.link.execute("HGET", meta, "server"), None, "a server that a claim has confirmed")
    scene.add()
    scene.link.execute("HSET", meta, "server", "another", "mirrored", "5-5")
    scene.same(scene.claim(), [], "a claim on another server")
    wrong = loss.call("confirm", claim.generation, server="another"), loss.call("confirm", "another", server=here)
    scene.same(wrong, ("changed", "changed"), "a confirmation of what is not there")
    scene.same(loss.call("confirm", claim.generation, server=here, mirrored="4-9"), "ok", "a confirmation")
    mirrored, noted = scene.link.execute("HMGET", meta, "mirrored", "server")
    scene.same((mirrored, noted.decode()), (b"5-5", here), "what is noted with a confirmation")
    (job,) = scene.claim(lease_ms=FAR)
    scene.settle(job)
    scene.add()
    far = f"{scene.now() + FAR}-3"
    begun = loss.call("confirm", claim.generation, phase="adopt", renew="r1", behind=far, progress="me 1 2")
    scene.same(begun, "ok", "that it is on its way back")
    scene.same(loss.generation(), "r1", "the generation of what is not believed")
    scene.expect(position(scene.witness._seen) > position(far), "new events stand before old ones")
    scene.same(scene.claim(), [], "a claim on what is not believed")
    scene.link.execute("HSET", meta, "moved_at", scene.now() - PATIENCE)
    scene.same(scene.claim(), [], "a claim while a restore is at work")
    scene.same(loss.call("confirm", "r1", phase="adopt", progress="you 0 0"), "busy", "another restore beside it")
    scene.link.execute("HSET", meta, "restoring", f"{scene.now() - PATIENCE} me 1 2")
    jobs = scene.claim(lease_ms=FAR)
    scene.same(len(jobs), 1, "a claim when nobody has restored for long")
    again = loss.call("confirm", "r1", phase="rest", progress="you 0 0")
    scene.same(again, "ok", "a restore where another has died")
    scene.add()
    scene.same(len(scene.claim(lease_ms=FAR)), 1, "a claim while the rest comes back")
    loss.call("confirm", "r1", server=here)
    scene.expect(scene.link.execute("HGET", meta, "rolled") is None, "what was confirmed is still on its way back")
    scene.link.execute("HDEL", meta, "server")
    scene.same(scene.claim(wary=True), [], "a claim from a store that none has confirmed, where a mirror is at work")
    loss.call("confirm", "r1", server=here)


def trims(scene: Scene) -> None:
    """Events that the mirror has written are removed up to that entry, and not on another server."""
    log = EventLog(scene.link, scene.store.keys)
    stream, meta = scene.store.keys["events"], scene.store.keys["meta"]
    for id in ("7-1", "7-2", "7-3", "8-1"):
        scene.link.execute("XADD", stream, id, "at", "7")
    log.trim("7-2", server="another")
    scene.same([entry.id for entry in log.read(FIRST, 9)], ["7-1", "7-2", "7-3", "8-1"], "a trim for another server")
    log.trim("7-2")
    scene.same([entry.id for entry in log.read(FIRST, 9)], ["7-3", "8-1"], "what a trim leaves")
    scene.same(scene.link.execute("HGET", meta, "mirrored"), b"7-2", "what a trim notes")


def wiped_twice(scene: Scene) -> None:
    """Each time it is another queue."""
    loss, seen = Loss(scene), set()
    for _ in range(3):
        loss.wipe()
        scene.add()
        seen.add(loss.generation())
    scene.same(len(seen), 3, "generations of a queue that was wiped twice")


ALL = (
    another_server,
    what_has_ended,
    an_old_copy,
    a_requeue_that_redis_forgot,
    trims,
    wiped_twice,
)
