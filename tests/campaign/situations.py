"""The situations of the drill. Each creates a situation and states what must follow. tests/store has what an undisturbed call does."""

from __future__ import annotations

import time

from django_delayq import ids
from django_delayq.states import Change
from django_delayq.store.scripts.queue import Kind, Outcome
from tests.campaign.drill import LEASE, MAX_CRASHES, Scene
from tests.laws import dump as dumps

FAR = 60_000  # ms


def schedule_sent_again(scene: Scene) -> None:
    """After a lost reply, while it waits, runs, and when it has ended in any way: it is there once, as it was."""
    scene.add(FAR)  # the first call on a queue is refused, because the queue has no id yet, and is sent again
    first = scene.item(FAR, payload=b'["first"]')
    scene.lost("schedule", [first])
    before = scene.dump()
    changed = scene.item(1000, id=first.id, payload=b'["second"]')
    scene.same(scene.do("schedule", [changed])[0].status, "again", "schedule sent again")
    scene.same(scene.dump().jobs, before.jobs, "the record after a re-send")
    for outcome, wanted in (("ack", "succeeded"), ("fail", "failed"), ("cancel", "cancelled")):
        item = scene.item(0)
        scene.do("schedule", [item])
        (job,) = scene.claim(lease_ms=FAR)
        scene.same(scene.do("schedule", [item])[0].status, "again", "schedule of a running job sent again")
        scene.settle(job, outcome)
        scene.same(scene.do("schedule", [item])[0].status, wanted, f"schedule sent again after {outcome}")
        scene.same(scene.claim(), [], "what a claim finds after that")
    scene.do("cancel", first.id)
    scene.same(scene.do("schedule", [first])[0].status, "cancelled", "schedule sent again after a cancel")


def key_conflicts(scene: Scene) -> None:
    """Every policy against a holder that waits and one that runs."""
    base = scene.now() + FAR
    wanted = {
        "keep": ("kept", "kept", "kept"),
        "error": ("taken", "taken", "taken"),
        "earliest": ("moved", "kept", "kept"),
        "latest": ("kept", "moved", "kept"),
        "replace": ("replaced", "replaced", "running"),
    }
    for policy, (sooner, later, running) in wanted.items():
        for due, status in ((base - 5000, sooner), (base + 5000, later), (base, running)):
            key = f"{policy} {due}"
            first = scene.item(key=key, due=0 if due == base else base)
            scene.do("schedule", [first])
            claimed = scene.claim(lease_ms=FAR)
            second = scene.item(key=key, due=due, policy=policy)
            reply = scene.do("schedule", [second])[0]
            scene.same(reply.status, status, f"a conflict under {policy}")
            dump, holder = scene.dump(), first.id
            if status == "replaced":
                holder = second.id
                again = scene.do("schedule", [first])[0].status
                scene.same(again, "displaced", "a replaced job sent again")
            else:
                again = scene.do("schedule", [second])[0].status
                scene.same(again, "displaced", "a merged job sent again")
            scene.same(reply.id, holder, f"the holder under {policy}")
            if not claimed:
                date = due if status in ("moved", "replaced") else base
                scene.same(dump.due(ids.short(holder)), date, f"the date under {policy}")
            for job in claimed:
                scene.settle(job)


def claim_sent_again(scene: Scene) -> None:
    """After a lost reply the same jobs come, as far as they are still held; also from a paused queue, also after a tidy."""
    for jobs in (1, 3):
        for _ in range(jobs):
            scene.add()
        nonce = f"again{jobs}"
        scene.lost("claim", "w1", nonce, want=10, lease_ms=FAR, max_crashes=MAX_CRASHES)
        scene.do("tidy")
        first = scene.claim(nonce=nonce, lease_ms=FAR)
        scene.same(len(first), jobs, "jobs of a claim sent again")
        scene.do("pause")
        scene.same(scene.claim(nonce=nonce), first, "a claim sent again to a paused queue")
        scene.do("resume")
        for number, job in enumerate(first):
            scene.settle(job, "retry" if number % 2 else "ack", delay_ms=FAR)
        scene.same(scene.claim(nonce=nonce), [], "a claim sent again after its jobs have ended")


def claim_sent_late(scene: Scene) -> None:
    """A worker that was frozen past its lease asks again: what others have taken over is theirs."""
    job = scene.held("w1")
    scene.expect("w1" in scene.dump().claims, "a claim is not remembered")
    scene.overtaken("w2")
    scene.same(scene.claim("w1", nonce=job.fence), [], "a claim sent again after a takeover")


def dates(scene: Scene) -> None:
    """No job runs before its date, to the millisecond."""
    for number in range(24):
        scene.add(600 + 13 * number)
    got: list[object] = list(scene.claim(lease_ms=FAR))

    def some() -> bool:
        reply = scene.store.claim("w1", f"d{len(got)}x{next(scene.nonces)}", want=10, lease_ms=FAR, max_crashes=1)
        for job in reply.jobs:
            scene.expect(job.due_ms <= reply.now_ms, f"{job.id} is claimed {job.due_ms - reply.now_ms} ms early")
        got.extend(reply.jobs)
        return len(got) == 24

    scene.until(some, "all are claimed")
    scene.look()


def expiry(scene: Scene) -> None:
    """A job that is too late does not run; neither does one whose worker vanished before."""
    scene.add(0, expires_ms=scene.now() - 1)
    scene.same(scene.claim(), [], "a claim of an expired job")
    scene.same(len(scene.told("expired")), 1, "expired jobs")
    scene.held(expires_ms=scene.now() + LEASE)
    scene.until(lambda: scene.told("failed") or scene.claim("w2"), "the second one expires")
    scene.same((len(scene.told("expired")), len(scene.told("failed"))), (1, 1), "jobs that expired before a run and after")


def lease_ends(scene: Scene) -> None:
    """No lease is taken before its end, to the millisecond; each is taken after it."""
    for _ in range(16):
        scene.add()
    # Without a look in between: a machine that is busy with something else must be through before the first ends.
    claims = [scene.store.claim("w1", f"e{number}", want=1, lease_ms=1000 + 7 * number, max_crashes=9) for number in range(16)]
    jobs = {job.id for claim in claims for job in claim.jobs}
    scene.same((len(jobs), [len(claim.jobs) for claim in claims]), (16, [1] * 16), "jobs claimed one by one")
    scene.look()
    until = {id: due for id, due in scene.dump().leases.items() if id in jobs}
    seen: set[str] = set()

    def some() -> bool:
        reply = scene.store.claim("w2", f"l{next(scene.nonces)}", want=10, lease_ms=FAR, max_crashes=9)
        for job in reply.jobs:
            early = until[job.id] - reply.now_ms
            scene.expect(early < 0, f"{job.id} is taken over {early:.0f} ms before its lease has ended")
        seen.update(job.id for job in reply.jobs)
        return len(seen) == len(until)

    scene.until(some, "all are taken over")
    scene.look()


def takeover(scene: Scene) -> None:
    """The next run has the same attempt and one crash more, and begins without progress; then it is poison."""
    job = scene.held(key="k")
    scene.do("extend", [(job.id, job.fence)], worker="w1", lease_ms=LEASE, progress={job.id: "1/2"})
    scene.same(scene.dump().progress, {job.id: "1/2"}, "progress")
    (second,) = scene.overtaken()
    scene.same((second.attempt, second.crashes), (1, 1), "attempt and crashes after a takeover")
    scene.same(scene.dump().progress, {}, "progress of the next run")
    scene.until(lambda: scene.claim("w3") or scene.told("failed"), "poison fails")
    scene.same(len(scene.told("failed")), 1, "poison jobs")


def takeover_after_request(scene: Scene) -> None:
    """A job whose cancel was requested does not run again when its worker vanishes."""
    scene.same(scene.do("cancel", ids.full(scene.held(key="k").id))[0], Change.RUNNING, "a cancel of a running job")
    scene.until(lambda: scene.claim("w2") or scene.told("cancelled"), "it is cancelled")
    scene.same(len(scene.told("cancelled")), 1, "cancelled jobs")


def outage(scene: Scene) -> None:
    """A worker cannot reach Redis for more than a lease, and again: what was good at the start of that stays with its worker."""
    job = scene.held()
    time.sleep(1.5 * LEASE / 1000)
    scene.same(scene.claim("w2", away_ms=int(1.5 * LEASE)), [], "a claim after an outage")
    time.sleep(0.6 * LEASE / 1000)
    scene.same(scene.claim("w2", away_ms=int(0.6 * LEASE)), [], "a claim after another outage")
    answer = scene.do("extend", [(job.id, job.fence)], worker="w1", lease_ms=LEASE)
    scene.same(answer, {job.id: "ok"}, "an extend after an outage")


def sign_of_life(scene: Scene) -> None:
    """An extend is one."""
    job = scene.take()
    before = int(scene.dump().meta["alive"])
    time.sleep(0.01)
    scene.do("extend", [(job.id, job.fence)], worker="w1", lease_ms=FAR)
    scene.expect(int(scene.dump().meta["alive"]) > before, "an extend is no sign of life")


def stale_fence(scene: Scene) -> None:
    """A worker thawed after a takeover changes nothing, whatever it says."""
    old = scene.held()
    (new,) = scene.overtaken()
    scene.do("extend", [(new.id, new.fence)], worker="w2", lease_ms=FAR)
    lease = scene.dump().leases[new.id]
    for outcome in ("ack", "retry", "snooze", "fail", "crash", "cancel"):
        scene.same(scene.settle(old, outcome), "lost", f"a stale {outcome}")
    answer = scene.do("extend", [(old.id, old.fence)], worker="w1", lease_ms=2 * FAR)
    scene.same(answer, {old.id: "lost"}, "a stale extend")
    scene.same(scene.dump().leases[new.id], lease, "the lease after a stale extend")
    scene.same(scene.settle(new, attempt=new.attempt + 1), "lost", "a settle with a wrong attempt")
    scene.same(scene.settle(new), "done", "the settle of the present run")
    answer = scene.do("extend", [(new.id, new.fence)], worker="w2", lease_ms=FAR)
    scene.same(answer, {new.id: "gone"}, "an extend after the end")


def settle_sent_again(scene: Scene) -> None:
    """After a lost reply, and twice in a batch: it counts once."""
    every: tuple[Kind, ...] = ("ack", "retry", "snooze", "fail", "crash", "cancel")
    for outcome in every:
        for key in ("", f"key {outcome}"):
            job = scene.take(key=key)
            item = Outcome(job.id, job.attempt, job.fence, outcome, FAR, b'{"m":"x"}')
            scene.lost("settle", [item], worker="w1", max_crashes=MAX_CRASHES)
            scene.same(scene.settle(job, outcome, delay_ms=FAR), "already", f"{outcome} sent again")
            if outcome == "crash":
                scene.do("cancel", ids.full(job.id))
            job = scene.take()
            item = Outcome(job.id, job.attempt, job.fence, outcome, FAR)
            answers = scene.do("settle", [item, item], worker="w1", max_crashes=MAX_CRASHES)
            scene.same(answers, ["done", "already"], f"{outcome} twice in a batch")
            scene.do("cancel", ids.full(job.id))


def put_off(scene: Scene) -> None:
    """The number of evictions, and the time since when the task is unknown, are kept until a run ends by itself."""

    def past(outcome: Kind, delay_ms: int = 0) -> str:
        nonlocal job
        scene.settle(job, outcome, delay_ms=delay_ms)
        (job,) = scene.until(lambda: scene.claim(lease_ms=FAR), f"it is claimed after {outcome}")
        return dumps.run_of(scene.dump().runs[job.id]).past

    job = scene.take()
    scene.same([past("evict"), past("evict"), past("snooze")], ["e1", "e2", "e2"], "evictions")
    first = past("park")
    scene.expect(first.startswith("e2u"), f"the past of a parked job is {first}")
    time.sleep(0.01)
    scene.same(past("park"), first, "since when nobody knows its task, the second time")
    scene.same((job.evictions, job.unknown_ms > 0), (2, True), "what a claim says of the past")
    scene.same(past("snooze", 1), "", "the past after a run that ended by itself")


# Those that wait come first.
ALL = (
    lease_ends,
    takeover,
    outage,
    expiry,
    stale_fence,
    claim_sent_late,
    takeover_after_request,
    dates,
    schedule_sent_again,
    key_conflicts,
    claim_sent_again,
    sign_of_life,
    settle_sent_again,
    put_off,
)
