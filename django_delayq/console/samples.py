"""The queues in numbers, for whoever watches by machine: what Redis, the database and the workers say, each number with its name and
labels. The names are those of docs/reference/metrics.md; who writes them down knows their types.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from datetime import timedelta
from typing import Final

from django.db import Error as DriverError
from django.db import connections

from django_delayq import conf
from django_delayq.console import far_jobs, overview, schedule_views
from django_delayq.console.overview import DOWN, FRESH, MOST_COUNTED, QueueView
from django_delayq.exceptions import StoreUnavailable
from django_delayq.models import UNPUBLISHED, UNRESOLVED, Job, SetAside, database_clock
from django_delayq.producer.stores import stores
from django_delayq.store.reads.figures import QueueCounts
from django_delayq.store.reads.fitness import server_findings
from django_delayq.store.reads.inspector import ServerFacts

Sample = tuple[str, Mapping[str, str], float]

STATES: Final = ("working", "quiet", "leaving", "silent")


def of_all() -> list[Sample]:
    """All there is. What cannot be asked is told as not up, and left out."""
    return [*of_redis(), *of_database()]


def of_redis() -> list[Sample]:
    """What Redis says of the queues, of its workers and of itself."""
    return _part("redis", _redis)


def of_database() -> list[Sample]:
    """What only the rows know. Nothing is counted beyond MOST_COUNTED + 1."""
    return _part("database", lambda: [("delayq_up", {"part": "database"}, 1), *_database()])


def down(part: str) -> list[Sample]:
    """It cannot be asked."""
    return [("delayq_up", {"part": part}, 0)]


def _part(part: str, ask: Callable[[], list[Sample]]) -> list[Sample]:
    try:
        return ask()
    except (*DOWN, DriverError):
        return down(part)


def _redis() -> list[Sample]:
    seen = overview.look()
    if seen.error is not None:
        raise seen.error
    names = [queue.name for queue in seen.queues]
    counted, away = stores.from_each(names, lambda reach: stores.figures(reach).counts(names))
    counts = {one.queue: one for one in counted if one.queue not in away.queues}
    links = stores.servers()
    several = len(links) > 1
    facts: list[ServerFacts] = []
    for part, link in links.items():
        try:
            with stores.guarded(*part, schedules=several):
                facts.append(stores.inspector().server(link=link))
        except StoreUnavailable:
            if not several:
                raise
    whole = not (seen.left_out or away) and len(facts) == len(links)
    found: list[Sample] = [("delayq_up", {"part": "redis"}, int(whole))]
    found += [sample for queue in seen.queues if queue.name in counts for sample in _queue(queue, counts[queue.name])]
    states = Counter(_state(worker) for worker in seen.workers if not worker.get("died"))
    found += [("delayq_workers", {"state": state}, states[state]) for state in STATES]
    found += [
        ("delayq_slots", {}, sum(map(overview.slots, seen.present))),
        ("delayq_slots_busy", {}, sum(overview.whole(worker, "busy") for worker in seen.present)),
        *_servers(facts),
    ]
    return found


def _servers(facts: Sequence[ServerFacts]) -> list[Sample]:
    """Of several servers: each number of the one of which it is worst."""
    if not facts:
        return []
    fullest = max(facts, key=lambda one: (one.used_memory / one.maxmemory if one.maxmemory else 0.0, one.used_memory))
    return [
        ("delayq_redis_round_trip_seconds", {}, max(one.round_trip for one in facts)),
        ("delayq_redis_clock_skew_seconds", {}, max((one.skew for one in facts), key=abs)),
        ("delayq_redis_memory_bytes", {}, fullest.used_memory),
        ("delayq_redis_memory_limit_bytes", {}, fullest.maxmemory),
        ("delayq_redis_evicts", {}, any(found.code == "E010" for one in facts for found in server_findings(one))),
        ("delayq_redis_append_only", {}, all(one.aof for one in facts)),
    ]


def _queue(queue: QueueView, counts: QueueCounts) -> list[Sample]:
    depth, of = queue.depth, {"queue": queue.name}
    return [
        *(
            ("delayq_jobs", {**of, "state": state}, count)
            for state, count in (("scheduled", depth.scheduled), ("running", depth.running), ("failed", depth.failed))
        ),
        ("delayq_jobs_due", of, depth.due),
        ("delayq_jobs_delayed", of, depth.scheduled - depth.due),
        ("delayq_jobs_retrying", of, depth.retrying),
        ("delayq_jobs_failed_lately", {**of, "within": "1h"}, counts.failed_hour),
        ("delayq_jobs_failed_lately", {**of, "within": "1d"}, counts.failed_day),
        ("delayq_oldest_late_seconds", of, queue.oldest_late),
        ("delayq_queue_paused", of, depth.paused),
        *(_partitions(queue) if conf.get().queue(queue.name).divided else []),
        *(
            []
            if queue.pulled or queue.workers is None
            else [("delayq_queue_workers", of, queue.workers), ("delayq_queue_slots", of, queue.slots)]
        ),  # it lacks none
        ("delayq_mirror_lag_events", of, depth.events),
        ("delayq_mirror_lag_jobs", of, depth.untold),
        ("delayq_mirror_lag_seconds", of, queue.lag.seconds),
        ("delayq_tombstones", of, counts.tombstones),
        *(("delayq_jobs_last_minute", {**of, "kind": kind}, count) for kind, count in counts.minute.items()),
    ]


def _partitions(queue: QueueView) -> list[Sample]:
    """How many it has, and how many of them could not be asked: these are in no other number of the queue."""
    return [
        ("delayq_queue_partitions", {"queue": queue.name}, queue.partitions),
        ("delayq_queue_partitions_away", {"queue": queue.name}, len(queue.away)),
    ]


def _state(worker: Mapping[str, object]) -> str:
    state = "silent" if worker["silent"] else str(worker.get("state", ""))
    return state if state in STATES else "working"


def _database() -> list[Sample]:
    config = conf.get()
    queues = list(config.queues)
    now = database_clock.now(connections[config.database])
    waiting = Job.objects.using(config.database).filter(UNPUBLISHED, durable=True, created_at__lt=now - timedelta(seconds=FRESH))
    # In the order of an index, and counted here: by queue, each count might pass over all rows of the others.
    rows = list(waiting.order_by("id").values_list("queue", "created_at")[: MOST_COUNTED + 1])
    kept = list(SetAside.objects.using(config.database).order_by("pk").values_list("queue", flat=True)[: MOST_COUNTED + 1])
    unsure = list(Job.objects.using(config.database).filter(UNRESOLVED).order_by().values_list("queue", flat=True)[: MOST_COUNTED + 1])
    far = {queue.name: queue for queue in far_jobs.far_queues()}
    unpublished, aside, unresolved = Counter(queue for queue, _ in rows), Counter(kept), Counter(unsure)
    return [
        *(("delayq_outbox_rows", {"queue": queue}, unpublished[queue]) for queue in queues),
        ("delayq_outbox_oldest_seconds", {}, max(0.0, (now - rows[0][1]).total_seconds()) if rows else 0.0),
        *(("delayq_unresolved_jobs", {"queue": queue}, unresolved[queue]) for queue in queues),
        *(("delayq_far_jobs", {"queue": queue}, far[queue].count if queue in far else 0) for queue in queues),
        *(("delayq_far_late", {"queue": queue}, queue in far and far[queue].late) for queue in queues),
        *(("delayq_set_aside_events", {"queue": queue}, aside[queue]) for queue in queues),
        *(("delayq_schedules_wrong", {"why": why}, count) for why, count in schedule_views.count_wrong(config.database).items()),
    ]
