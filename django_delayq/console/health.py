"""The health of the queues: a table of measures with their limits, the signs for people, and the samples for monitoring systems.

The dashboard and `/health/` show signs. `delayq doctor` uses the same limits, and `/metrics` exports samples.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from datetime import timedelta
from math import inf
from typing import Final, Literal, NamedTuple

from django.db import Error as DriverError
from django.utils.formats import number_format
from django.utils.functional import Promise
from django.utils.translation import gettext as now
from django.utils.translation import gettext_lazy as _
from django.utils.translation import ngettext

from django_delayq import conf, durations
from django_delayq.console import overview, schedule_views
from django_delayq.console.overview import DOWN, FRESH, MOST_COUNTED, Overview, QueueView
from django_delayq.models import UNPUBLISHED, UNRESOLVED, Job, SetAside, database
from django_delayq.producer.stores import stores
from django_delayq.store.connection.link import Link
from django_delayq.store.reads.figures import QueueCounts
from django_delayq.store.reads.fitness import MOST_SKEW, server_findings, unmirrored
from django_delayq.store.reads.inspector import ServerFacts
from django_delayq.text import visible

Level = Literal["well", "late", "bad"]
Sample = tuple[str, Mapping[str, str], float]  # name, labels, value

TRIPS: Final = 3  # round trips, of which the fastest counts
FAST: Final = (1, 2, 5, 10, 20, 50)  # milliseconds: a fast round trip is shown in steps
MOST_NAMED: Final = 3  # queues in a sign
STATES: Final = ("working", "quiet", "leaving", "silent")  # of workers, in samples


class SignMeasure(NamedTuple):
    """One row of the table. `late` and `bad`: the values from which the sign has that level. `finding`: what `delayq doctor` reports
    from the higher of both limits on. `metric`: what `/metrics` exports.
    """

    sign: str
    meaning: str
    late: float = inf
    bad: float = inf
    finding: str = ""
    metric: str = ""

    def level(self, value: float) -> Level:
        return "bad" if value >= self.bad else "late" if value >= self.late else "well"

    def is_finding(self, value: float) -> bool:
        """Whether `delayq doctor` reports this value."""
        return value >= (self.late if self.bad == inf else self.bad)


LABELS: Final[Mapping[str, Promise]] = {
    "redis": _("Redis"),
    "late": _("Oldest late"),
    "workers": _("Workers"),
    "mirror": _("Mirror behind"),
    "eviction": _("Eviction"),
    "persistence": _("On disk"),
    "memory": _("Memory"),
    "clock": _("Clock"),
    "outbox": _("Outbox"),
    "unresolved": _("Unresolved"),
    "parked": _("Parked"),
    "far": _("Far"),
    "schedules": _("Schedules"),
}
MEASURES: Final[Mapping[str, SignMeasure]] = {
    "unreachable": SignMeasure("redis", "Servers and queues that cannot be reached", bad=1, finding="D007", metric="delayq_up"),
    "round_trip": SignMeasure("redis", "Seconds that a round trip takes", late=0.05, metric="delayq_redis_round_trip_seconds"),
    "lateness": SignMeasure(
        "late",
        "Seconds that the oldest due job is late, except in paused queues",
        late=10,
        bad=300,
        metric="delayq_oldest_late_seconds",
    ),
    "no_worker": SignMeasure("workers", "1 if no worker is running", bad=1, metric="delayq_workers"),
    "silent": SignMeasure("workers", "Workers that disappeared without stopping", late=1, metric="delayq_workers"),
    "unserved": SignMeasure("workers", "Queues that no worker serves", late=1, finding="D004", metric="delayq_queue_workers"),
    "lag": SignMeasure(
        "mirror",
        "Age in seconds of the oldest event that is not in the database yet",
        late=10,
        bad=60,
        finding="D006",
        metric="delayq_mirror_lag_seconds",
    ),
    "backlog": SignMeasure(
        "mirror",
        "Events that are not in the database yet, as a fraction of MIRROR_MAX_EVENTS",
        bad=0.5,
        finding="D012",
        metric="delayq_mirror_lag_jobs",
    ),
    "unmirrored": SignMeasure("mirror", "Queues that are served, but by no worker with the role mirror", late=1, finding="D004"),
    "evicts": SignMeasure("eviction", "1 if Redis can evict jobs", bad=1, finding="E010", metric="delayq_redis_evicts"),
    "no_disk": SignMeasure("persistence", "1 if Redis does not write to disk", bad=1, finding="W010"),
    "snapshots": SignMeasure(
        "persistence", "1 if Redis only writes snapshots", late=1, finding="W011", metric="delayq_redis_append_only"
    ),
    "memory": SignMeasure("memory", "Used memory as a fraction of maxmemory", late=0.8, bad=0.95, metric="delayq_redis_memory_bytes"),
    "skew": SignMeasure(
        "clock",
        f"1 if Redis's clock differs by more than {MOST_SKEW:g} s",
        late=1,
        finding="W012",
        metric="delayq_redis_clock_skew_seconds",
    ),
    "outbox": SignMeasure(
        "outbox", f"Committed jobs that have not reached Redis within {FRESH:g} s", late=1, metric="delayq_outbox_rows"
    ),
    "outbox_age": SignMeasure(
        "outbox", "Seconds since the oldest of these jobs was committed", late=60, finding="D002", metric="delayq_outbox_oldest_seconds"
    ),
    "unresolved": SignMeasure("unresolved", "Unresolved jobs", bad=1, finding="D033", metric="delayq_unresolved_jobs"),
    "parked": SignMeasure("parked", "Parked jobs", late=1, finding="D035"),
    "far_late": SignMeasure("far", "Queues whose far jobs reach Redis too late", bad=1, finding="D023", metric="delayq_far_late"),
    "trouble": SignMeasure("schedules", "Schedules that cannot create jobs", bad=1, finding="D030", metric="delayq_schedules_wrong"),
    "ticks_late": SignMeasure(
        "schedules",
        f"Schedules whose ticks are more than {schedule_views.LATE:g} s late",
        late=1,
        finding="D031",
        metric="delayq_schedules_wrong",
    ),
    "retired": SignMeasure(
        "schedules", "Schedules that were retired in the last week", late=1, finding="D032", metric="delayq_schedules_wrong"
    ),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Sign:
    """One sign with its current value. `page` and `query`: the list of the admin that shows what the sign counts."""

    name: str
    value: str
    level: Level
    page: str = ""
    query: Mapping[str, str] = field(default_factory=dict)

    @property
    def label(self) -> Promise:
        return LABELS[self.name]


def redis_signs(seen: Overview) -> list[Sign]:
    """The signs that come from Redis. If Redis cannot be reached, the list has only the sign `redis`."""
    facts = _server_facts(TRIPS) if seen.error is None else {}
    shared = facts.pop(stores.link, None)
    found = [_reach_sign(shared, [name for names, _ in seen.left_out for name in names])]
    if shared is not None or facts:
        found += _queue_signs(seen)
    if shared is not None:
        found += _server_signs(shared)
    for link, other in facts.items():  # only what is wrong there
        found += [replace(sign, value=f"{sign.value} ({link.where})") for sign in _server_signs(other) if sign.level != "well"]
    return found


def _server_facts(trips: int = 1) -> dict[Link, ServerFacts]:
    """The facts of each server that can be reached."""
    links, found = stores.servers(), dict[Link, ServerFacts]()
    for part, link in links.items():
        with suppress(*DOWN), stores.guarded(*part, schedules=len(links) > 1):
            found[link] = stores.inspector().server(trips, link=link)
    return found


def row_signs(unpublished: int) -> list[Sign]:
    """The signs that come from the database: the outbox, and others if there is something to show.

    Raises:
        DatabaseError: the database cannot be reached.
    """
    found = [_sign("outbox", overview.count_shown(unpublished), {"outbox": unpublished}, page="job", query={"state": "unpublished"})]
    for name, count in (("unresolved", overview.count_unresolved()), ("parked", overview.count_parked())):
        if count:
            found.append(_sign(name, overview.count_shown(count), {name: count}, page="job", query={"state": name}))
    if queues := overview.far_queues():
        late = sum(queue.late for queue in queues)
        value = overview.count_shown(sum(queue.count for queue in queues)) + (", " + now("late in reaching Redis") if late else "")
        found.append(_sign("far", value, {"far_late": late}, page="job", query={"state": "far"}))
    trouble, late, retired = schedule_views.count_wrong().values()
    texts = (
        (trouble, ngettext("%(count)d with problems", "%(count)d with problems", trouble)),
        (late, ngettext("%(count)d late", "%(count)d late", late)),
        (retired, ngettext("%(count)d retired", "%(count)d retired", retired)),
    )
    if value := ", ".join(text % {"count": count} for count, text in texts if count):
        found.append(_sign("schedules", value, {"trouble": trouble, "ticks_late": late, "retired": retired}, page="periodic"))
    return found


def _sign(name: str, value: str, measured: Mapping[str, float], *, page: str = "", query: Mapping[str, str] | None = None) -> Sign:
    """The sign with the worst level of these measures."""
    levels = {MEASURES[measure].level(number) for measure, number in measured.items()}
    level: Level = "bad" if "bad" in levels else "late" if "late" in levels else "well"
    return Sign(name=name, value=value, level=level, page=page, query=query or {})


def _reach_sign(facts: ServerFacts | None, missing: Sequence[str]) -> Sign:
    if missing:
        names = ", ".join(map(visible, missing[:MOST_NAMED])) + ", …" * (len(missing) > MOST_NAMED)
        return _sign("redis", now("cannot be reached: %(queues)s") % {"queues": names}, {"unreachable": len(missing)})
    if facts is None:
        return _sign("redis", now("cannot be reached"), {"unreachable": 1})
    took = facts.round_trip * 1000
    # In steps: a page whose values did not change is not sent again.
    step = next((step for step in FAST if took < step), None)
    return _sign("redis", f"{took:.0f} ms" if step is None else f"< {step} ms", {"round_trip": facts.round_trip})


def _queue_signs(seen: Overview) -> list[Sign]:
    going = [(part.oldest_late_ms / 1000, queue) for queue in seen.queues for part in queue.parts.values() if not part.paused]
    late, latest = max(going, key=lambda one: one[0], default=(0.0, None))
    of_late = {"state": "due", **({"queue": latest.name} if latest and late else {})}
    unserved = [queue.name for queue in seen.queues if queue.unserved]
    dead = sum(bool(worker.get("died")) for worker in seen.workers)  # not a problem: their jobs were given back
    silent = len(seen.workers) - len(seen.present) - dead
    only = len(unserved) == 1 and bool(seen.present) and not silent
    workers = ngettext("%(count)d alive", "%(count)d alive", len(seen.present)) % {"count": len(seen.present)}
    if silent:
        workers += ", " + now("%(count)d gone") % {"count": silent}
    if dead:
        workers += ", " + now("%(count)d died") % {"count": dead}
    if seen.present and unserved:
        text = ngettext("%(count)d queue without one", "%(count)d queues without one", len(unserved))
        workers += ", " + text % {"count": len(unserved)}
    if seen.unseen is not None:
        workers = now("cannot be reached")
    lag = max((queue.lag.seconds for queue in seen.queues), default=0.0)
    backlog = max((queue.backlog for queue in seen.queues), default=0.0)
    alone = unmirrored([queue.name for queue in seen.queues], seen.present)
    full = f", {backlog:.0%}" if MEASURES["backlog"].is_finding(backlog) else ""
    full += ", " + now("no mirror for %(queues)s") % {"queues": visible(", ".join(alone[:MOST_NAMED]))} if alone else ""
    return [
        _sign("late", _seconds(late), {"lateness": late}, page="job", query=of_late),
        _sign(
            "workers",
            workers,
            {"no_worker": not seen.present, "silent": silent, "unserved": len(unserved)},
            page="job" if only else "worker",
            query={"queue": unserved[0]} if only else {},
        ),
        _sign("mirror", _seconds(lag) + full, {"lag": lag, "backlog": backlog, "unmirrored": len(alone)}),
    ]


def _server_signs(facts: ServerFacts) -> list[Sign]:
    codes = {found.code for found in server_findings(facts)}
    disk = now("append-only file") if facts.aof else now("snapshots only") if facts.rdb else now("none")
    found = [
        _sign("eviction", facts.policy or "?", {"evicts": "E010" in codes}),
        _sign("persistence", disk, {"no_disk": "W010" in codes, "snapshots": "W011" in codes}),
    ]
    if facts.maxmemory:
        share = facts.used_memory / facts.maxmemory
        found.append(_sign("memory", f"{share:.0%}", {"memory": share}))
    if "W012" in codes:
        found.append(_sign("clock", f"{'+' * (facts.skew > 0)}{number_format(facts.skew, 1)} s", {"skew": 1}))
    return found


def _seconds(value: float) -> str:
    return durations.text(round(value)) if value >= 1 else now("none")


def all_samples() -> list[Sample]:
    """All samples. If Redis or the database cannot be reached, its samples are missing and its `delayq_up` is 0."""
    return [*redis_samples(), *database_samples()]


def redis_samples() -> list[Sample]:
    """The samples of queues, workers and servers."""
    return _samples_of("redis", _redis_samples)


def database_samples() -> list[Sample]:
    """The samples of rows. Counts end at MOST_COUNTED + 1."""
    return _samples_of("database", lambda: [("delayq_up", {"part": "database"}, 1), *_row_samples()])


def down_sample(part: str) -> list[Sample]:
    return [("delayq_up", {"part": part}, 0)]


def _samples_of(part: str, ask: Callable[[], list[Sample]]) -> list[Sample]:
    try:
        return ask()
    except (*DOWN, DriverError):
        return down_sample(part)


def _redis_samples() -> list[Sample]:
    seen = overview.look()
    if seen.error is not None:
        raise seen.error
    names = [queue.name for queue in seen.queues]
    counted, away = stores.from_each(names, lambda reach: stores.figures(reach).counts(names))
    counts = {one.queue: one for one in counted if one.queue not in away.queues}
    facts = list(_server_facts().values())
    if not facts:
        return down_sample("redis")
    whole = not (seen.left_out or away) and len(facts) == len(stores.servers())
    found: list[Sample] = [("delayq_up", {"part": "redis"}, int(whole))]
    found += [sample for queue in seen.queues if queue.name in counts for sample in _queue_samples(queue, counts[queue.name])]
    reported = ("silent" if worker["silent"] else str(worker.get("state", "")) for worker in seen.workers if not worker.get("died"))
    states = Counter(state if state in STATES else "working" for state in reported)
    found += [
        *(("delayq_workers", {"state": state}, states[state]) for state in STATES),
        ("delayq_slots", {}, sum(map(overview.slots, seen.present))),
        ("delayq_slots_busy", {}, sum(overview.whole(worker, "busy") for worker in seen.present)),
        *_server_samples(facts),
    ]
    return found


def _server_samples(facts: Sequence[ServerFacts]) -> list[Sample]:
    """For several servers, each sample has the worst value."""
    fullest = max(facts, key=lambda one: (one.used_memory / one.maxmemory if one.maxmemory else 0.0, one.used_memory))
    return [
        ("delayq_redis_round_trip_seconds", {}, max(one.round_trip for one in facts)),
        ("delayq_redis_clock_skew_seconds", {}, max((one.skew for one in facts), key=abs)),
        ("delayq_redis_memory_bytes", {}, fullest.used_memory),
        ("delayq_redis_memory_limit_bytes", {}, fullest.maxmemory),
        ("delayq_redis_evicts", {}, any(found.code == "E010" for one in facts for found in server_findings(one))),
        ("delayq_redis_append_only", {}, all(one.aof for one in facts)),
    ]


def _queue_samples(queue: QueueView, counts: QueueCounts) -> list[Sample]:
    depth, of = queue.depth, {"queue": queue.name}
    parts, workers = list[Sample](), list[Sample]()
    if conf.get().queue(queue.name).divided:  # no other sample includes the partitions that cannot be reached
        parts = [("delayq_queue_partitions", of, queue.partitions), ("delayq_queue_partitions_away", of, len(queue.away))]
    if not queue.pulled and queue.workers is not None:
        workers = [("delayq_queue_workers", of, queue.workers), ("delayq_queue_slots", of, queue.slots)]
    return [
        *(
            ("delayq_jobs", {**of, "state": state}, count)
            for state, count in (("scheduled", depth.scheduled), ("running", depth.running), ("failed", depth.failed))
        ),
        ("delayq_jobs_due", of, depth.due),
        ("delayq_jobs_delayed", of, depth.scheduled - depth.due - depth.held - depth.rated),
        ("delayq_jobs_held", of, depth.held),
        ("delayq_jobs_rate_limited", of, depth.rated),
        ("delayq_jobs_behind", of, depth.behind),
        ("delayq_jobs_retrying", of, depth.retrying),
        ("delayq_jobs_failed_lately", {**of, "within": "1h"}, counts.failed_hour),
        ("delayq_jobs_failed_lately", {**of, "within": "1d"}, counts.failed_day),
        ("delayq_oldest_late_seconds", of, queue.oldest_late),
        ("delayq_queue_paused", of, depth.paused),
        *parts,
        *workers,
        ("delayq_mirror_lag_events", of, depth.events),
        ("delayq_mirror_lag_jobs", of, depth.untold),
        ("delayq_mirror_lag_seconds", of, queue.lag.seconds),
        ("delayq_tombstones", of, counts.tombstones),
        *(("delayq_jobs_last_minute", {**of, "kind": kind}, count) for kind, count in counts.minute.items()),
    ]


def _row_samples() -> list[Sample]:
    config = conf.get()
    queues = list(config.queues)
    now = database.now()
    waiting = Job.objects.filter(UNPUBLISHED, durable=True, created_at__lt=now - timedelta(seconds=FRESH))
    # Reads in the order of an index. A count for each queue could scan all rows of the others.
    rows = list(waiting.order_by("id").values_list("queue", "created_at")[: MOST_COUNTED + 1])
    kept = list(SetAside.objects.order_by("pk").values_list("queue", flat=True)[: MOST_COUNTED + 1])
    unsure = list(Job.objects.filter(UNRESOLVED).order_by().values_list("queue", flat=True)[: MOST_COUNTED + 1])
    far = {queue.name: queue for queue in overview.far_queues()}
    unpublished, aside, unresolved = Counter(queue for queue, _ in rows), Counter(kept), Counter(unsure)
    return [
        *(("delayq_outbox_rows", {"queue": queue}, unpublished[queue]) for queue in queues),
        ("delayq_outbox_oldest_seconds", {}, max(0.0, (now - rows[0][1]).total_seconds()) if rows else 0.0),
        *(("delayq_unresolved_jobs", {"queue": queue}, unresolved[queue]) for queue in queues),
        *(("delayq_far_jobs", {"queue": queue}, far[queue].count if queue in far else 0) for queue in queues),
        *(("delayq_far_late", {"queue": queue}, queue in far and far[queue].late) for queue in queues),
        *(("delayq_set_aside_events", {"queue": queue}, aside[queue]) for queue in queues),
        *(("delayq_schedules_wrong", {"why": why}, count) for why, count in schedule_views.count_wrong().items()),
    ]
