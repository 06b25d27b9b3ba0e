"""The situations of the drill in which people change jobs and queues: each brings one about, and says what has to follow."""

from __future__ import annotations

from uuid import uuid4

from django_delayq import ids
from django_delayq.states import Change
from tests.campaign.drill import Scene
from tests.campaign.situations import FAR


def failed_holder(scene: Scene) -> None:
    """A failed job gives its key away; a requeue does not take it from who has it now."""
    job = scene.take(key="k")
    scene.settle(job, "fail")
    second = scene.add(FAR, key="k")
    scene.same(scene.do("requeue", ids.full(job.id))[0], Change.CONFLICT, "a requeue whose key is taken")
    scene.do("cancel", [second])
    scene.same(scene.do("requeue", ids.full(job.id), delay_ms=FAR)[0], Change.DONE, "a requeue whose key is free")
    scene.same(scene.do("schedule", [scene.item(FAR, key="k")])[0].status, "kept", "a conflict with a requeued job")


def by_key(scene: Scene) -> None:
    """Cancel and reschedule by business key."""
    first = scene.add(FAR, key="order 1")
    scene.same(scene.do("reschedule", "order 1", delay_ms=2 * FAR)[:2], (Change.DONE, first), "a reschedule by key")
    scene.same(scene.do("cancel_one", "order 1")[:2], (Change.DONE, first), "a cancel by key")


def cancel_requests(scene: Scene) -> None:
    """A request is told to the worker and once to the mirror; it ends a retry or a snooze, and undoes no success."""
    for outcome, kind in (("retry", "cancelled"), ("snooze", "cancelled"), ("ack", "succeeded"), ("fail", "failed")):
        job = scene.take(key=f"{outcome}")
        for _ in range(2):
            scene.same(scene.do("cancel", [ids.full(job.id)]), [Change.RUNNING], "a cancel of a running job")
        answer = scene.do("extend", [(job.id, job.fence)], worker="w1", lease_ms=FAR, progress={job.id: "1/3"})
        scene.same(answer, {job.id: "cancel"}, "an extend after a cancel request")
        before = len(scene.told(kind))
        scene.same(scene.settle(job, outcome), "done", f"{outcome} after a cancel request")
        scene.same(len(scene.told(kind)), before + 1, f"{kind} after a cancel request and {outcome}")


def cancels(scene: Scene) -> None:
    """Of a job that waits, one that has tried before, one that nobody knows yet."""
    job = scene.add(FAR, key="k")
    scene.same(scene.do("cancel", [job]), [Change.DONE], "a cancel")
    scene.same(scene.do("cancel", [job]), [Change.DONE], "a second cancel")
    tried = scene.take()
    scene.settle(tried, "retry", delay_ms=FAR)
    scene.same(scene.do("cancel", [ids.full(tried.id)]), [Change.DONE], "a cancel between attempts")
    item = scene.item(0)
    scene.do("cancel", [item.record.id], lacking="scheduled")
    scene.same(scene.do("schedule", [item])[0].status, "cancelled", "a publication after a cancel")


def changes_refused(scene: Scene) -> None:
    """What runs or has ended keeps its date."""
    running = scene.take()
    scene.same(scene.do("reschedule", ids.full(running.id), delay_ms=5)[0], Change.RUNNING, "of a running job")
    scene.same(scene.do("requeue", ids.full(running.id))[0], Change.RUNNING, "a requeue of a running job")
    scene.settle(running, "fail")
    scene.same(scene.do("reschedule", ids.full(running.id), delay_ms=5)[0], Change.FINISHED, "of a failed job")
    job = scene.add(FAR)
    scene.same(scene.do("reschedule", job, delay_ms=2 * FAR)[0], Change.DONE, "of a job that waits")
    scene.same(scene.do("requeue", job)[0], Change.CONFLICT, "a requeue of a job that waits")


def requeues(scene: Scene) -> None:
    """Only of what failed or was cancelled, with the edit that was made."""
    edited = scene.item(FAR, payload=b'["edited"]').record
    job = scene.take()
    scene.settle(job, "fail")
    edit = scene.item(id=ids.full(job.id), payload=b'["edited"]').record
    scene.same(scene.do("requeue", edit.id, edit, delay_ms=FAR)[0], Change.DONE, "a requeue of a failed job")
    scene.same(scene.dump().jobs[job.id], edit.encode(), "the record after a requeue with an edit")
    cancelled = scene.item(FAR).record
    scene.do("schedule", [scene.item(FAR, id=cancelled.id)])
    scene.do("cancel", [cancelled.id])
    scene.same(scene.do("requeue", cancelled.id, cancelled, vouched=False)[0], Change.DONE, "of a cancelled job")
    (run,) = scene.claim(lease_ms=FAR)
    scene.settle(run)
    scene.same(scene.do("requeue", cancelled.id, cancelled)[0], Change.CONFLICT, "of a job that has succeeded")
    stranger = scene.do("requeue", uuid4(), edited, vouched=False)
    scene.same(stranger[0], Change.UNKNOWN, "a requeue for which nobody vouches")


def pauses(scene: Scene) -> None:
    """A paused queue gives nothing, and tells of it once."""
    scene.add()
    scene.same((scene.do("pause"), scene.do("pause")), (True, False), "two pauses")
    scene.same(scene.claim(), [], "a claim from a paused queue")
    scene.same((scene.do("resume"), scene.do("resume")), (True, False), "two resumes")
    scene.same(len(scene.claim()), 1, "a claim after a resume")


def purges(scene: Scene) -> None:
    """No more than was said, with their keys."""
    for number in range(5):
        scene.add(FAR, key=f"k{number}")
    scene.same(scene.do("purge", limit=3), (3, 2), "a purge of three of five")
    scene.same(scene.do("purge"), (2, 0), "a purge of the rest")


def tidying(scene: Scene) -> None:
    """What is young stays; a failed job that goes leaves a tombstone."""
    items = [scene.item(), scene.item()]
    before = scene.now()
    for item, outcome in zip(items, ("ack", "fail"), strict=True):
        scene.do("schedule", [item])
        (job,) = scene.claim(lease_ms=FAR)
        scene.settle(job, outcome)
    scene.store.tidy(failed_before_ms=before - 1)
    dump = scene.dump()
    scene.same(len(dump.finished), 1, "young tombstones")
    scene.same(len(dump.failed), 1, "jobs that have just failed")
    scene.store.tidy(failed_before_ms=scene.now() + FAR)
    scene.same(scene.dump().failed, {}, "failed jobs after a tidy")
    for item, wanted in zip(items, ("succeeded", "finished"), strict=True):
        scene.same(scene.store.schedule([item])[0].status, wanted, "schedule sent again after a tidy")


ALL = (
    failed_holder,
    by_key,
    cancel_requests,
    cancels,
    changes_refused,
    requeues,
    pauses,
    purges,
    tidying,
)
