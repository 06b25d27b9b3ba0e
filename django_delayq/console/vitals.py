"""The health of the whole in a few signs, each judged: what a person on call looks at first."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass
from typing import Final, Literal

from django.utils.formats import number_format
from django.utils.functional import Promise
from django.utils.translation import gettext as now
from django.utils.translation import gettext_lazy as _
from django.utils.translation import ngettext

from django_delayq import clock, conf
from django_delayq.console import overview
from django_delayq.console.overview import DOWN, Overview
from django_delayq.producer.stores import stores
from django_delayq.store.fitness import MOST_SKEW
from django_delayq.store.inspector import ServerFacts

Level = Literal["well", "late", "bad"]

SLOW: Final = 0.05  # seconds of a round trip
FAST: Final = (1, 2, 5, 10, 20, 50)  # milliseconds: a fast one is told in steps
LATE: Final = (10.0, 300.0)  # seconds by which the oldest due job is late: a warning, bad
LAG: Final = (10.0, 60.0)  # seconds the mirror is behind
HALF: Final = 0.5  # share of MIRROR_MAX_EVENTS that the mirror is behind
FULL: Final = (0.8, 0.95)  # share of maxmemory


@dataclass(frozen=True, slots=True, kw_only=True)
class Vital:
    """One sign. `name` is also that of its remedy."""

    name: str
    label: str | Promise
    value: str
    level: Level


def vitals(seen: Overview, unpublished: int) -> list[Vital]:
    """All signs there are: without Redis, only that it is away and how many rows wait for it."""
    return [*of_redis(seen), outbox(unpublished)]


def of_redis(seen: Overview) -> list[Vital]:
    """The signs that Redis gives, at least whether it is there."""
    facts = None
    if seen.error is None:
        with suppress(*DOWN), stores.guarded():
            facts = stores.inspector().server()
    found = [_reach(facts)]
    if facts is not None:
        found += [*_queues(seen), *_server(facts)]
    return found


def outbox(unpublished: int) -> Vital:
    """The sign of rows that wait to be published."""
    value = overview.count_shown(unpublished)
    return Vital(name="outbox", label=_("Outbox"), value=value, level="late" if unpublished else "well")


def _reach(facts: ServerFacts | None) -> Vital:
    label = _("Redis")
    if facts is None:
        return Vital(name="redis", label=label, value=now("cannot be reached"), level="bad")
    slow = facts.round_trip >= SLOW
    took = facts.round_trip * 1000
    # In steps, so that a page whose numbers stand still mostly need not be sent again.
    value = f"{took:.0f} ms" if slow else f"< {next(step for step in FAST if took < step)} ms"
    return Vital(name="redis", label=label, value=value, level="late" if slow else "well")


def _queues(seen: Overview) -> list[Vital]:
    late = max((queue.oldest_late for queue in seen.queues if not queue.depth.paused), default=0.0)
    silent, unserved = len(seen.workers) - len(seen.present), sum(not (queue.workers or queue.pulled) for queue in seen.queues)
    workers = ngettext("%(count)d alive", "%(count)d alive", len(seen.present)) % {"count": len(seen.present)}
    if silent:
        workers += ", " + now("%(count)d gone") % {"count": silent}
    if seen.present and unserved:
        text = ngettext("%(count)d queue without one", "%(count)d queues without one", unserved)
        workers += ", " + text % {"count": unserved}
    level: Level = "bad" if not seen.present else "late" if silent or unserved else "well"
    lag = max((queue.lag.seconds for queue in seen.queues), default=0.0)
    most = conf.get().most_events
    share = max((queue.depth.untold / most for queue in seen.queues), default=0.0) if most else 0.0
    full = f", {share:.0%}" if share >= HALF else ""
    return [
        Vital(name="late", label=_("Oldest late"), value=_seconds(late), level=_level(late, LATE)),
        Vital(name="workers", label=_("Workers"), value=workers, level=level),
        Vital(
            name="mirror",
            label=_("Mirror behind"),
            value=_seconds(lag) + full,
            level="bad" if full else _level(lag, LAG),
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
