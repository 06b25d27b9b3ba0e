"""Fills a queue and its database with jobs in every state, and prints what is to become of each: `python -m rolling.fill`.

Runs are claimed and settled by single calls, as a worker of this release makes them; that worker is dead when this ends.
"""

import json
import sys
from importlib import import_module
from typing import Any
from unittest import mock

import django

django.setup()

import django_delayq as delayq  # noqa: E402  # Django first
from django_delayq import clock, conf, ids  # noqa: E402  # Django first
from django_delayq.store import queue as queues  # noqa: E402  # Django first
from django_delayq.store.queue import QueueStore  # noqa: E402  # Django first
from rolling.tasks import effect, note, stumble  # noqa: E402  # Django first


def either(*paths: str) -> Any:
    """The module as this release calls it, or the release before."""
    for path in paths:
        try:
            return import_module(path)
        except ModuleNotFoundError:
            continue
    raise ModuleNotFoundError(" or ".join(paths))


MirrorLoop = either("django_delayq.mirror.mirror_loop", "django_delayq.mirror.loop").MirrorLoop
stores = either("django_delayq.producer.stores", "django_delayq.stores").stores
producer = either("django_delayq.producer.put", "django_delayq.producer")

WORKER = "gone:1:w"
expected: dict[str, dict[str, object]] = {}
claims = iter(range(1, 1000))


def store(queue: str) -> QueueStore:
    config = conf.get()
    return QueueStore(stores.link, prefix=config.prefix, queue=queue, signer=config.signer)


def put(task, name: str, *, ends: str, runs: int, **options):
    """Schedules one, and says what it is to come to and how often it runs from now on."""
    job = delayq.schedule(task, name, **options)
    expected[str(job.id)] = {"name": name, "ends": ends, "runs": runs, "queue": job.queue}
    return job


def claim(queue: str = "orders"):
    return store(queue).claim(WORKER, f"n{next(claims)}", want=200, lease_ms=5_000, max_crashes=3).jobs


outcome_of: Any = getattr(queues, "SettleItem", None) or queues.Outcome  # as the release before calls it


def settle(job, outcome: str, *, delay: int = 0, **detail) -> None:
    text = json.dumps({"f": clock.wall_ms(), **detail}).encode()
    item = outcome_of(job.id, job.attempt, job.fence, outcome, delay, text)
    answers = store(job.queue).settle([item], worker=WORKER, max_crashes=3)
    assert answers == ["done"], answers


def run(task, name: str, outcome: str, *, ends: str, runs: int = 0, delay: int = 0, queue: str = "orders", **options):
    """Schedules one, claims it, and settles it."""
    detail = {"c": "ValueError", "m": "the first attempt fails", "t": "Traceback"} if outcome in ("retry", "fail") else {}
    job = put(task, name, ends=ends, runs=runs, queue=queue, **options)
    [claimed] = [one for one in claim(queue) if ids.full(one.id) == job.id]
    settle(claimed, outcome, delay=delay, **detail)
    return job


def fold() -> None:
    config = conf.get()
    for name in config.queues:
        MirrorLoop(stores.link, config.queue(name), prefix=config.prefix, using="default").drain()


def ended(told: str) -> None:
    """Jobs that have ended or will not run now."""
    run(note, f"succeeded, {told}", "ack", ends="succeeded")
    run(note, f"failed, {told}", "fail", ends="failed", max_attempts=1)
    run(stumble, f"retrying soon, {told}", "retry", ends="succeeded", runs=1, delay=1_500)
    run(stumble, f"retrying in an hour, {told}", "retry", ends="scheduled", delay=3_600_000)
    run(note, f"snoozing, {told}", "snooze", ends="succeeded", runs=1, delay=1_500)
    assert put(note, f"cancelled, {told}", ends="cancelled", runs=0, delay="1h").cancel() == "done"
    assert put(note, f"cancelled by key, {told}", ends="cancelled", runs=0, delay="1h", key=f"cancelled {told}")
    assert delayq.cancel(key=f"cancelled {told}", queue="orders") == "done"
    run(note, f"of redis durability, succeeded, {told}", "ack", ends="succeeded", queue="quick")
    run(note, f"of redis durability, failed, {told}", "fail", ends="failed", queue="quick", max_attempts=1)


def waiting(told: str) -> None:
    """Jobs that wait, for later or to be run."""
    put(note, f"tomorrow, {told}", ends="scheduled", runs=0, delay="1d")
    put(note, f"tomorrow with a key, {told}", ends="scheduled", runs=0, delay="1d", key=f"far {told}")
    moved = put(note, f"moved from tomorrow to soon, {told}", ends="succeeded", runs=1, delay="1d", key=f"moved {told}")
    assert delayq.reschedule(moved, delay="1s") == "done"
    merged = delayq.schedule(note, "merged", delay="1d", key=f"far {told}")
    assert merged.created is False
    put(note, f"replaced, {told}", ends="cancelled", runs=0, delay="1d", key=f"replaced {told}")
    put(note, f"replacing, {told}", ends="scheduled", runs=0, delay="1d", key=f"replaced {told}", on_conflict="replace")
    put(note, f"soon, {told}", ends="succeeded", runs=1, delay="1500ms")
    put(note, f"of redis durability, tomorrow, {told}", ends="scheduled", runs=0, delay="1d", queue="quick")
    put(note, f"of a paused queue, {told}", ends="scheduled", runs=0, queue="bank")
    put(note, f"that expires tomorrow, {told}", ends="succeeded", runs=1, delay="1s", expires="1d")


def held(told: str) -> None:
    """Jobs that the dead worker runs; on a slow machine also those that were to come due soon."""
    asked = put(note, f"running with a request to cancel, {told}", ends="cancelled", runs=0)
    mine = {
        put(note, f"running, {told}", ends="succeeded", runs=1).id,
        put(note, f"running with a key, {told}", ends="succeeded", runs=1, key=f"running {told}").id,
        put(effect, f"running, atomic, {told}", ends="succeeded", runs=1).id,
        put(note, f"running, of redis durability, {told}", ends="succeeded", runs=1, queue="quick").id,
        asked.id,
    }
    assert mine <= {ids.full(one.id) for queue in ("orders", "quick") for one in claim(queue)}
    assert asked.cancel() == "running"


def due(told: str) -> None:
    """Jobs that wait for a worker. Nothing may be claimed behind this."""
    put(note, f"due, {told}", ends="succeeded", runs=1)
    put(note, f"due, first, {told}", ends="succeeded", runs=1, priority=10)
    put(note, f"due, last, {told}", ends="succeeded", runs=1, priority=-10)
    put(note, f"due with a key, {told}", ends="succeeded", runs=1, key=f"due {told}")
    put(effect, f"due, atomic, {told}", ends="succeeded", runs=1)
    put(stumble, f"due, and stumbles, {told}", ends="succeeded", runs=2)
    put(note, f"due, of redis durability, {told}", ends="succeeded", runs=1, queue="quick")
    put(note, f"cancelled when due, {told}", ends="cancelled", runs=0).cancel()


def main() -> None:
    """Half of each kind is known to the database, half only to the stream of events."""
    delayq.pause("bank", actor="clerk", reason="bank holiday")
    for told in ("told", "untold"):
        ended(told)
        waiting(told)
        held(told)
        if told == "told":
            fold()
    due("told")
    fold()
    due("untold")
    with mock.patch.object(producer, "_publish"):
        put(note, "unpublished, due", ends="succeeded", runs=1)
        put(note, "unpublished, tomorrow", ends="scheduled", runs=0, delay="1d", key="unpublished")
        withdrawn = put(note, "unpublished, cancelled", ends="cancelled", runs=0, delay="1d")
    assert withdrawn.cancel() == "done"
    json.dump({"now_ms": clock.wall_ms(), "expected": expected}, sys.stdout)


if __name__ == "__main__":
    main()
