"""The situations of the drill in which Redis has forgotten something: each brings one about, and says what has to follow."""

from __future__ import annotations

from dataclasses import replace
from typing import Any
from uuid import UUID

from django_delayq import ids
from django_delayq.job import ClaimedJob
from django_delayq.states import Change
from django_delayq.store.events import FIRST, EventLog, position
from django_delayq.store.ground import GroundStore, RestoreItem
from django_delayq.store.keys import NAMES
from tests.campaign.drill import MAX_CRASHES, Scene
from tests.campaign.situations import FAR
from tests.campaign.witness import Witness

ELSEWHERE = "old:server"  # the ground of a claim before Redis lost what it held
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
        reply = getattr(GroundStore(self.scene.store), name)(*arguments, **options)
        self.scene.look()
        return reply

    def restore(self, *rows: RestoreItem, rolled: bool = False) -> list[str]:
        answers: list[str] = self.call("restore", rows, rolled=rolled)[1]
        return answers

    def adopt(self, job: ClaimedJob, *, ground: str = ELSEWHERE, **changes: Any) -> str:
        """As the worker that holds it."""
        given = {"attempt": job.attempt, "crashes": job.crashes, "fence": job.fence, "delay_ms": FAR, **changes}
        item = RestoreItem(id=job.id, record=job.record, **given)
        answers: list[str] = self.call("adopt", [item], worker="w1", ground=ground)[1]
        return answers[0]

    def row(self, id: UUID, **fields: Any) -> RestoreItem:
        """An unfinished row."""
        place = {name: fields.pop(name) for name in ("attempt", "crashes", "due_ms", "delay_ms") if name in fields}
        return RestoreItem(id=ids.short(id), record=self.scene.item(id=id, **fields).record.encode(), **place)

    def generation(self) -> str:
        return EventLog(self.scene.link, self.scene.store.keys).generation()

    def waiting(self, kind: str, **fields: Any) -> UUID:
        """A job with one attempt and one crash behind it, waiting; or running for the second time."""
        job = self.scene.take(**fields)
        self.scene.settle(job, "crash")
        (job,) = self.scene.claim(lease_ms=FAR)
        self.scene.settle(job, "retry", delay_ms=FAR if kind == "waits" else 0)
        if kind == "runs":
            self.scene.claim(lease_ms=FAR)
        return ids.full(job.id)


def rows_of_a_wiped_queue(scene: Scene) -> None:
    """They come back with date, attempts, crashes and key; of two with one key one does; sent again they change nothing."""
    loss, now = Loss(scene), scene.now()
    jobs = [UUID(int=scene.item().record.id.int) for _ in range(4)]
    rows = [
        loss.row(jobs[0], attempt=2, crashes=1, due_ms=now + FAR, key="k"), loss.row(jobs[1], key="k"),
        loss.row(jobs[2], due_ms=now - FAR, delay_ms=FAR), loss.row(jobs[3], due_ms=now + FAR, key="other"),
    ]  # fmt: skip
    scene.same(loss.restore(*rows), ["restored", "merged", "restored", "restored"], "rows of a wiped queue")
    dump = scene.dump()
    scene.same(dump.runs, {rows[0].id: "2:1:N:"}, "attempts of a row that is back")
    scene.same(dump.keys, {"k": rows[0].id, "other": rows[3].id}, "keys of rows that are back")
    scene.same(dump.due(rows[0].id), now + FAR, "the date of a row that is back")
    scene.expect((dump.due(rows[2].id) or 0) >= now + FAR, "a row comes back sooner than workers can adopt it")
    scene.same(
        scene.do("requeue", jobs[1])[0], Change.UNKNOWN, "a requeue of a merged row, for which nobody has a record"
    )
    later = loss.row(jobs[0], attempt=3, due_ms=now, key="k")
    ended = [RestoreItem(id=rows[2].id, record=b"succeeded"), RestoreItem(id=rows[3].id, record=b"cancelled")]
    scene.same(loss.restore(later, *ended), ["there"] * 3, "rows of jobs that are there")
    scene.same(scene.dump(), dump, "the queue after rows of jobs that are there")


def what_has_ended(scene: Scene) -> None:
    """It does not rise again, whoever says so."""
    loss = Loss(scene)
    for outcome in ("ack", "fail", "cancel"):
        job = scene.take()
        scene.settle(job, outcome)
        before = scene.dump()
        for rolled in (False, True):
            scene.same(loss.restore(loss.row(ids.full(job.id)), rolled=rolled), ["finished"], f"a row after {outcome}")
        scene.same(loss.adopt(job), "finished", f"a run after {outcome}")
        scene.same(scene.dump(), before, f"the queue after {outcome} and a restore")


def runs_of_a_wiped_queue(scene: Scene) -> None:
    """Their workers adopt them, before their rows are back or after; whoever went on with the job keeps it."""
    loss = Loss(scene)
    for again in (False, True):
        job = scene.take(key="k")
        loss.wipe()
        if again:
            loss.restore(loss.row(ids.full(job.id), key="k", delay_ms=FAR))
        for _ in range(2):
            scene.same(loss.adopt(job), "adopted", "a run of a wiped queue")
        dump = scene.dump()
        scene.same(dump.runs, {job.id: f"1:0:N:{job.fence}"}, "an adopted run")
        scene.same((dump.due(job.id), dump.keys), (None, {"k": job.id}), "the date and the key of an adopted run")
        scene.same(len(scene.told("restored")), 1 + again, "what is told of an adoption")
        scene.same(scene.settle(job), "done", "the settle of an adopted run")
    job = scene.take()
    loss.wipe()
    loss.restore(loss.row(ids.full(job.id)))
    (other,) = scene.claim("w2", lease_ms=FAR)
    scene.same(loss.adopt(job), "lost", "a run whose job another worker has")
    scene.same(scene.settle(other), "done", "the settle of who has it")
    for row in ({"attempt": 1}, {"attempt": 2}, {"crashes": 1}):
        loss.wipe()
        loss.restore(loss.row(ids.full(job.id), delay_ms=FAR, **row))
        scene.same(loss.adopt(job), "lost", f"a run whose job went on: {row}")


def nothing_was_lost(scene: Scene) -> None:
    """On the ground of its claim no run is adopted: it has ended, and that was forgotten in time."""
    loss = Loss(scene)
    job = scene.take()
    scene.settle(job)
    scene.store.tidy(tombstones_ms=0)
    loss.wipe()
    scene.do("claim", "w", "n", want=0, lease_ms=FAR, max_crashes=1)
    ground = scene.store.claim("w", "n", want=0, lease_ms=FAR, max_crashes=1).ground
    scene.same(loss.adopt(job, ground=ground), "lost", "a run on the ground of its claim")


def a_key_that_was_taken(scene: Scene) -> None:
    """A run goes on without it."""
    loss = Loss(scene)
    job = scene.take(key="k")
    loss.wipe()
    second = ids.short(scene.add(FAR, key="k"))
    run = RestoreItem(id=job.id, record=job.record, attempt=1, fence=job.fence, delay_ms=FAR)
    answers = GroundStore(scene.store).adopt([run], worker="w1", ground=ELSEWHERE)[1]
    dump = scene.dump()
    scene.same((answers, dump.keys), (["adopted"], {"k": second}), "the key of another, after an adoption")


def an_old_copy(scene: Scene) -> None:
    """Where the data was rolled back, rows have the last word, unless Redis is further."""
    loss, names = Loss(scene), ("moved", "ended", "tried", "same", "ahead", "crashed")
    jobs = {name: loss.waiting("waits", key=name) for name in names}
    jobs |= {name: loss.waiting("runs", key=name) for name in ("runs", "stopped", "further")}
    scene.do("cancel", [jobs["stopped"]])
    dump, due = scene.dump(), scene.now() + 2 * FAR
    date = {name: dump.due(ids.short(job)) for name, job in jobs.items()}
    loss.copy()
    loss.go_back()
    finished = {"ended": b"cancelled", "stopped": b"succeeded"}
    want = {
        "moved": ({"attempt": 1, "crashes": 1, "due_ms": due}, "restored"), "tried": ({"attempt": 3, "due_ms": due}, "restored"),
        "same": ({"attempt": 1, "crashes": 1, "due_ms": int(date["same"] or 0)}, "there"),
        "ahead": ({"due_ms": int(date["ahead"] or 0)}, "there"),
        "crashed": ({"attempt": 1, "crashes": 2, "due_ms": due}, "restored"),
        "runs": ({"attempt": 2, "due_ms": due}, "restored"), "further": ({"attempt": 1, "due_ms": due}, "there"),
    }  # fmt: skip
    rows = [loss.row(jobs[name], key=name, **fields) for name, (fields, _) in want.items()]
    ends = [RestoreItem(id=ids.short(jobs[name]), record=word) for name, word in finished.items()]
    answers = dict(zip([*want, *finished], loss.restore(*rows, *ends, rolled=True), strict=True))
    wanted = {name: answer for name, (_, answer) in want.items()} | dict.fromkeys(finished, "dropped")
    scene.same(answers, wanted, "rows of a queue that was rolled back")
    found, behind = (
        scene.dump(),
        {"moved": "1:1", "tried": "3:1", "same": "1:1", "ahead": "1:1", "crashed": "1:2", "runs": "2:1"},
    )
    for name, run in behind.items():
        scene.same(found.runs[ids.short(jobs[name])], f"{run}:N:", f"attempts and crashes, {name}")
        right = float(due) if wanted[name] == "restored" else date[name]
        scene.same(found.due(ids.short(jobs[name])), right, f"the date, {name}")
    scene.same(found.state(ids.short(jobs["further"])), "running", "a run that is further than its row")
    scene.expect("ended" not in found.keys and "stopped" not in found.keys, "a dropped job keeps its key")
    for name, status in (("ended", "cancelled"), ("stopped", "finished")):
        again = scene.do("schedule", [scene.item(id=jobs[name])])[0].status
        scene.same(again, status, f"schedule sent again after a drop, {name}")
    scene.same(len(scene.told("dropped")), 2, "what is told of drops")


def a_requeue_that_redis_forgot(scene: Scene) -> None:
    """The row has heard of it after the end that the old copy has, and is right; but only if it was a requeue that it has heard of."""
    loss = Loss(scene)
    for outcome in ("fail", "cancel"):
        job = scene.take()
        scene.settle(job, outcome)
        loss.copy()
        loss.go_back()
        row = loss.row(ids.full(job.id), delay_ms=FAR)
        for requeued, answer in ((False, "finished"), (True, "restored")):
            found = loss.restore(replace(row, requeued=requeued), rolled=True)
            scene.same(found, [answer], f"a row that was requeued, or not, after {outcome}")


def a_later_run(scene: Scene) -> None:
    """An old copy has a run that has ended; its worker's present one counts."""
    loss = Loss(scene)
    old = scene.take()
    loss.copy()
    scene.settle(old, "retry")
    (job,) = scene.claim(lease_ms=FAR)
    loss.go_back()
    scene.same(loss.adopt(job), "adopted", "a later run, after an old copy")
    scene.same(scene.settle(old), "lost", "the settle of a run that the copy has")
    scene.same(scene.settle(job), "done", "the settle of a later run")


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
    scene.same(wrong, (False, False), "a confirmation of what is not there")
    scene.same(loss.call("confirm", claim.generation, server=here, mirrored="4-9"), True, "a confirmation")
    mirrored, noted = scene.link.execute("HMGET", meta, "mirrored", "server")
    scene.same((mirrored, noted.decode()), (b"5-5", here), "what is noted with a confirmation")
    (job,) = scene.claim(lease_ms=FAR)
    scene.settle(job)
    scene.add()
    far = f"{scene.now() + FAR}-3"
    scene.same(loss.call("confirm", claim.generation, renew="r1", behind=far), True, "that it was rolled back")
    scene.same(loss.generation(), "r1", "the generation of data that was rolled back")
    scene.expect(position(scene.witness._seen) > position(far), "new events stand before old ones")
    scene.same(scene.claim(), [], "a claim on data that was rolled back")
    scene.link.execute("HSET", meta, "moved_at", scene.now() - PATIENCE)
    loss.call("restore", [], rolled=True, progress="me 1 2")
    scene.same(scene.claim(), [], "a claim while a restore is at work")
    scene.same(loss.call("restore", [], progress="you 0 0")[0], "", "another restore beside it")
    scene.link.execute("HSET", meta, "restoring", f"{scene.now() - PATIENCE} me 1 2")
    jobs = scene.claim(lease_ms=FAR)
    scene.same(len(jobs), 1, "a claim when nobody has restored for long")
    scene.expect(loss.call("restore", [], progress="you 0 0")[0] != "", "a dead restore stands in the way")
    loss.call("confirm", "r1", server=here)
    scene.expect(scene.link.execute("HGET", meta, "rolled") is None, "what was confirmed is still rolled back")
    ended = RestoreItem(id=jobs[0].id, record=b"succeeded")
    found = loss.call("restore", [ended], rolled="noted")[1]
    scene.same(found, ["there"], "a row, for a restore that has not heard that all is confirmed")


def trims(scene: Scene) -> None:
    """What is folded goes, to the entry, and not on another server."""
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
    another_server, rows_of_a_wiped_queue, what_has_ended, runs_of_a_wiped_queue, nothing_was_lost, a_key_that_was_taken,
    an_old_copy, a_requeue_that_redis_forgot, a_later_run, trims, wiped_twice,
)  # fmt: skip
