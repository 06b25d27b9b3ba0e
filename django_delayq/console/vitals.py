"""The health of the whole in a few signs, each judged: what a person on call looks at first."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Final, Literal

from django.utils.formats import number_format
from django.utils.functional import Promise
from django.utils.translation import gettext as now
from django.utils.translation import gettext_lazy as _
from django.utils.translation import ngettext

from django_delayq import clock, conf
from django_delayq.console import overview
from django_delayq.console.far_jobs import FarQueue
from django_delayq.console.overview import DOWN, Overview
from django_delayq.producer.stores import stores
from django_delayq.store.reads.fitness import MOST_SKEW, unmirrored
from django_delayq.store.reads.inspector import ServerFacts
from django_delayq.text import visible

Level = Literal["well", "late", "bad"]

TRIPS: Final = 3  # looks at Redis' clock by which it is judged
SLOW: Final = 0.05  # seconds of a round trip
FAST: Final = (1, 2, 5, 10, 20, 50)  # milliseconds: a fast one is told in steps
LATE: Final = (10.0, 300.0)  # seconds by which the oldest due job is late: a warning, bad
LAG: Final = (10.0, 60.0)  # seconds the mirror is behind
MOST_NAMED: Final = 3  # queues in a sign
HALF: Final = 0.5  # share of MIRROR_MAX_EVENTS that the mirror is behind
FULL: Final = (0.8, 0.95)  # share of maxmemory


@dataclass(frozen=True, slots=True, kw_only=True)
class Vital:
    """One sign. `name` is also that of its remedy. `page`: of what it speaks, "job" or "worker"; `query`: which of them."""

    name: str
    label: str | Promise
    value: str
    level: Level
    page: str = ""
    query: Mapping[str, str] = field(default_factory=dict)


def vitals(seen: Overview, unpublished: int) -> list[Vital]:
    """All signs there are: without Redis, only that it is away and how many rows wait for it."""
    return [*of_redis(seen), outbox(unpublished)]


def of_redis(seen: Overview) -> list[Vital]:
    """The signs that Redis gives, at least whether it is there."""
    shared, others = None, dict[str, ServerFacts]()
    if seen.error is None:
        links = stores.servers()
        for part, link in links.items():
            with suppress(*DOWN), stores.guarded(*part, schedules=len(links) > 1):
                facts = stores.inspector().server(TRIPS, link=link)
                if part[0]:
                    others[link.where] = facts
                else:
                    shared = facts
    found = [_reach(shared, [name for names, _ in seen.left_out for name in names])]
    if shared is not None or others:
        found += _queues(seen)
    if shared is not None:
        found += _server(shared)
    for where, facts in others.items():  # of these, what is wrong
        found += [replace(sign, value=f"{sign.value} ({where})") for sign in _server(facts) if sign.level != "well"]
    return found


def outbox(unpublished: int) -> Vital:
    """The sign of rows that wait to be published."""
    value = overview.count_shown(unpublished)
    level: Level = "late" if unpublished else "well"
    return Vital(name="outbox", label=_("Outbox"), value=value, level=level, page="job", query={"state": "unpublished"})


def exceptional() -> list[Vital]:
    """The signs of unresolved and of parked jobs, where there are any."""
    counted: list[tuple[str, Promise, int, Level]] = [
        ("unresolved", _("Unresolved"), overview.count_unresolved(), "bad"),
        ("parked", _("Parked"), overview.count_parked(), "late"),
    ]
    return [
        Vital(name=name, label=label, value=overview.count_shown(count), level=level, page="job", query={"state": name})
        for name, label, count, level in counted
        if count
    ]


def far(queues: Sequence[FarQueue]) -> list[Vital]:
    """The sign of far jobs, where a queue has a horizon."""
    if not queues:
        return []
    late = [queue for queue in queues if queue.late]
    value = overview.count_shown(sum(queue.count for queue in queues))
    if late:
        value += ", " + now("late in reaching Redis")
    return [Vital(name="far", label=_("Far"), value=value, level="bad" if late else "well", page="job", query={"state": "far"})]


def _reach(facts: ServerFacts | None, missing: Sequence[str]) -> Vital:
    label = _("Redis")
    if missing:
        names = ", ".join(map(visible, missing[:MOST_NAMED])) + ", …" * (len(missing) > MOST_NAMED)
        return Vital(name="redis", label=label, value=now("cannot be reached: %(queues)s") % {"queues": names}, level="bad")
    if facts is None:
        return Vital(name="redis", label=label, value=now("cannot be reached"), level="bad")
    slow = facts.round_trip >= SLOW
    took = facts.round_trip * 1000
    # In steps, so that a page whose numbers stand still mostly need not be sent again.
    value = f"{took:.0f} ms" if slow else f"< {next(step for step in FAST if took < step)} ms"
    return Vital(name="redis", label=label, value=value, level="late" if slow else "well")


def _queues(seen: Overview) -> list[Vital]:
    going = [(part.oldest_late_ms / 1000, queue) for queue in seen.queues for part in queue.parts.values() if not part.paused]
    late, latest = max(going, key=lambda one: one[0], default=(0.0, None))
    of_late = {"state": "due", **({"queue": latest.name} if latest and late else {})}
    unserved_queues = [queue.name for queue in seen.queues if queue.workers == 0 and not queue.pulled]
    dead = sum(bool(worker.get("died")) for worker in seen.workers)  # known, and what they held was given back: no cause for worry
    silent, unserved = len(seen.workers) - len(seen.present) - dead, len(unserved_queues)
    only = len(unserved_queues) == 1 and bool(seen.present) and not silent
    workers = ngettext("%(count)d alive", "%(count)d alive", len(seen.present)) % {"count": len(seen.present)}
    if silent:
        workers += ", " + now("%(count)d gone") % {"count": silent}
    if dead:
        workers += ", " + now("%(count)d died") % {"count": dead}
    if seen.present and unserved:
        text = ngettext("%(count)d queue without one", "%(count)d queues without one", unserved)
        workers += ", " + text % {"count": unserved}
    if seen.unseen is not None:
        workers = now("cannot be reached")
    level: Level = "bad" if not seen.present else "late" if silent or unserved else "well"
    lag = max((queue.lag.seconds for queue in seen.queues), default=0.0)
    most = conf.get().most_events
    share = max((queue.depth.untold / most for queue in seen.queues), default=0.0) if most else 0.0
    full = f", {share:.0%}" if share >= HALF else ""
    alone = unmirrored([queue.name for queue in seen.queues], seen.present)
    full += ", " + now("no mirror for %(queues)s") % {"queues": visible(", ".join(alone[:MOST_NAMED]))} if alone else ""
    behind: Level = "bad" if share >= HALF else "late" if alone and lag < LAG[1] else _level(lag, LAG)
    return [
        Vital(name="late", label=_("Oldest late"), value=_seconds(late), level=_level(late, LATE), page="job", query=of_late),
        Vital(
            name="workers",
            label=_("Workers"),
            value=workers,
            level=level,
            page="job" if only else "worker",
            query={"queue": unserved_queues[0]} if only else {},
        ),
        Vital(
            name="mirror",
            label=_("Mirror behind"),
            value=_seconds(lag) + full,
            level=behind,
        ),
    ]


def _server(facts: ServerFacts) -> list[Vital]:
    level: Level = "well" if facts.aof else "late"
    disk = now("append-only file") if facts.aof else now("snapshots only")
    if not facts.aof and not facts.rdb:
        disk, level = now("none"), "bad"
    found = [
        Vital(
            name="eviction",
            label=_("Eviction"),
            value=facts.policy or "?",
            level="well" if facts.policy in ("", "noeviction") else "bad",
        ),
        Vital(name="persistence", label=_("On disk"), value=disk, level=level),
    ]
    if facts.maxmemory:
        share = facts.used_memory / facts.maxmemory
        found.append(Vital(name="memory", label=_("Memory"), value=f"{share:.0%}", level=_level(share, FULL)))
    if abs(facts.skew) > MOST_SKEW + facts.round_trip:
        found.append(
            Vital(
                name="clock",
                label=_("Clock"),
                value=f"{'+' * (facts.skew > 0)}{number_format(facts.skew, 1)} s",
                level="late",
            )
        )
    return found


def _level(value: float, limits: tuple[float, float]) -> Level:
    return "bad" if value >= limits[1] else "late" if value >= limits[0] else "well"


def _seconds(value: float) -> str:
    return clock.text(round(value)) if value >= 1 else now("none")
