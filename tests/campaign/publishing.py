"""The drill's situations about publishing rows: late rows, rows that wait for a holder, and calls that only check."""

from __future__ import annotations

from typing import Any

from django_delayq import ids
from django_delayq.states import Change
from django_delayq.store.scripts.events import EventLog
from django_delayq.store.scripts.record import ScheduleItem, ScheduleReply
from django_delayq.store.scripts.recovery import EpochStore
from tests.campaign.drill import Scene
from tests.campaign.situations import FAR


def publish(scene: Scene, *items: ScheduleItem, **options: Any) -> list[ScheduleReply]:
    """Publishes like the publisher, without having asked the rows, unless `mode` says otherwise."""
    replies = scene.store.start_schedule(items, **{"mode": "", **options})()[1]
    scene.look()
    return replies


def confirmed(scene: Scene) -> str:
    """Redis holds what the database has seen, and so all jobs that hold keys. Returns the epoch."""
    scene.store.epoch()
    EpochStore(scene.store).confirm(EventLog(scene.link, scene.store.keys).generation())
    return scene.store.epoch()


def late_ones(scene: Scene) -> None:
    """A policy affects only the named holder. The answer names the job that it was merged into."""
    confirmed(scene)
    base = scene.now() + FAR
    first = scene.item(key="k", due=base)
    holder = ids.short(first.id)
    publish(scene, first)
    before = scene.dump()
    for policy in ("replace@", "latest@", f"replace@{ids.short(scene.item().id)}"):
        reply = publish(scene, scene.item(key="k", due=base + 1, policy=policy))[0]
        scene.same((reply.status, reply.id), ("contested", first.id), f"a late one that says {policy}")
        scene.same(scene.dump(), before, "the queue after a late one that was contested")
    moving = scene.item(key="k", due=base + 5000, policy=f"latest@{holder}")
    scene.same(publish(scene, moving)[0].status, "moved", "a late one that names its holder")
    told = scene.told("merged")[-1][1].fields
    scene.same(told, (ids.short(moving.id), holder, "latest"), "what is told of a merge")
    scene.same(scene.do("cancel", moving.id)[0], Change.FINISHED, "a cancel of a merged job")
    second = scene.item(key="k", due=base + 9000, policy=f"replace@{holder}")
    scene.same(publish(scene, second)[0].status, "replaced", "a late one that names its holder")
    why = f'"r":"{ids.short(second.id)}"'.encode()
    scene.expect(why in scene.told("cancelled")[-1][1].body, "a replaced job does not say by which")
    scene.same(scene.do("cancel", first.id)[0], Change.FINISHED, "a cancel of a replaced job")
    scene.same(scene.dump().due(ids.short(second.id)), base + 9000, "the date of a job that replaces another")


def once_more(scene: Scene) -> None:
    """`after` replaces a waiting job and keeps the earlier date. If the holder has started, the job waits without a trace."""
    confirmed(scene)
    base = scene.now() + FAR
    publish(scene, scene.item(key="k", due=base))
    for due, wanted in ((base + 5000, base), (base - 5000, base - 5000)):
        item = scene.item(key="k", due=due, policy="after")
        scene.same(publish(scene, item)[0].status, "replaced", "a job behind one that waits")
        scene.same(scene.dump().due(ids.short(item.id)), wanted, "its date")
    job = scene.take(key="k2")
    for delay in (None, FAR):
        if delay:
            scene.settle(job, "retry", delay_ms=delay)
        before = scene.dump()
        reply = publish(scene, scene.item(key="k2", policy="after"))[0]
        scene.same(reply.status, "behind", "a job behind one that has begun")
        scene.same(scene.dump(), before, "the queue after a job that waits behind another")


def questions(scene: Scene) -> None:
    """Returns the outcome that a job would have: nothing is written, displaced or created."""
    base = scene.now() + FAR
    item = scene.item(key="k", due=base)
    scene.same(publish(scene, item, mode="ask")[0].status, "asked", "a question to an empty store")
    scene.same(scene.dump().meta, {}, "an empty store that was asked")
    confirmed(scene)
    scene.same(publish(scene, item, mode="ask")[0].status, "free", "a question about a free key")
    scene.same(scene.dump().jobs, {}, "a queue that was asked")
    publish(scene, item)
    before = scene.dump()
    for policy in ("replace", "after"):
        reply = publish(scene, scene.item(key="k", policy=policy), mode="ask")[0]
        scene.same(reply.status, "free", f"a question whose policy is {policy}")
        scene.same(scene.dump(), before, "a queue that was asked")


def keys_that_redis_may_lack(scene: Scene) -> None:
    """While the data is unconfirmed, a caller that has not asked the rows gets no key. A job without a key is accepted."""
    before = scene.dump().jobs
    keyed = scene.item(FAR, key="k")
    replies = publish(scene, keyed, scene.item(FAR))
    scene.same([reply.status for reply in replies], ["asked", "created"], "a publication to a store that was wiped")
    scene.same(len(scene.dump().jobs) - len(before), 1, "jobs that went in")
    scene.same(scene.told("merged"), [], "what is told of a job whose rows are to be asked")
    scene.same(publish(scene, keyed, mode="told")[0].status, "created", "a publication by who has asked the rows")
    generation = EventLog(scene.link, scene.store.keys).generation()
    EpochStore(scene.store).confirm(generation, phase="rest", progress="me 0 0")
    scene.same(publish(scene, scene.item(FAR, key="k2"))[0].status, "asked", "a publication while rows come back")
    confirmed(scene)
    scene.same(publish(scene, scene.item(FAR, key="k2"))[0].status, "created", "a publication to a store that has all")


def epoch_of_rows(scene: Scene) -> None:
    """Answers about rows from another epoch are not trusted."""
    epoch = confirmed(scene)
    scene.same(publish(scene, scene.item(FAR), epoch="another:server"), [], "a publication from another epoch")
    scene.same(scene.dump().jobs, {}, "the queue after it")
    for known in ("", epoch):
        scene.same(publish(scene, scene.item(FAR), epoch=known)[0].status, "created", "a publication from this epoch")


def cancels_of_what_is_lacking(scene: Scene) -> None:
    """Callers report them; they hold, and the same call returns the same answer. In the epoch that answered, they change nothing."""
    waits, runs = scene.item(FAR).id, scene.item(FAR).id
    for times in (1, 2):
        changed = scene.do("cancel", waits, lacking="scheduled")
        scene.same((changed.change, bool(changed.event)), (Change.DONE, True), "a cancel of a row that waits")
        scene.same(len(scene.told("cancelled")), times, "what is told of it")
    scene.same(scene.do("cancel", waits)[0], Change.DONE, "a cancel of what was cancelled")
    scene.same(len(scene.told("cancelled")), 2, "what is told of a cancel that was done before")
    scene.same(scene.do("cancel", runs, lacking="running")[0], Change.RUNNING, "a cancel of a row that runs")
    scene.same(len(scene.told("cancel_requested")), 1, "what is told of it")
    job = scene.add(FAR, key="k")
    epoch = scene.do("cancel", runs).epoch
    scene.same(scene.do("cancel", job, unless=epoch)[0], Change.UNKNOWN, "a cancel where it has been answered")
    scene.same(scene.do("reschedule", job, unless=epoch)[0], Change.UNKNOWN, "a new date where it has been answered")
    moved = scene.do("reschedule", job, delay_ms=2 * FAR)
    scene.expect(bool(moved.event), "a new date whose event is not named")
    scene.same(scene.do("cancel", job)[0], Change.DONE, "a cancel of a job that is there")


ALL = (
    late_ones,
    once_more,
    questions,
    keys_that_redis_may_lack,
    epoch_of_rows,
    cancels_of_what_is_lacking,
)
