"""Schedules of the sample project for campaigns. APP_CALENDAR sets their number and version ("old/50"). The new version drops, adds
and changes schedules: their period or their arguments. Durations of hours or minutes in the package are seconds here. The loops
record each completed pass.
"""

from __future__ import annotations

import asyncio
import random
import time
import zlib
from collections.abc import Callable
from datetime import timedelta
from functools import wraps
from typing import Any

from django.conf import settings

import django_delayq as delayq
from django_delayq.periodic import due_ticks, overlap
from django_delayq.periodic.declarations import Declaration, declarations
from django_delayq.producer.outbox import declarations as seen
from tests.app import record, tasks
from tests.laws.almanac import Limits, Plan

LIMITS = Limits()
PERIODS = (1, 2, 3, 5, 7, 10, 15, 20, 30)  # seconds
CRONS = {"* * * * *": 60, "*/2 * * * *": 120}
DROPPED, ADDED, REDATED, REARGUED = 0, 1, (2, 3), 4  # by the last digit of their numbers
LONGEST = 4.0  # seconds of a run


@delayq.task
def calendar_work(op: str, seconds: float, _version: str = "") -> None:
    """One run in seven fails at first, and one in five of those that take a while takes much longer."""
    with tasks._run(op):
        time.sleep(_seconds(seconds))
        _fail()


@delayq.task(queue="orders")
async def calendar_coroutine(op: str, seconds: float, _version: str = "") -> None:
    """The same, as a coroutine."""
    with tasks._run(op):
        await asyncio.sleep(_seconds(seconds))
        _fail()


def _seconds(seconds: float) -> float:
    return min(LONGEST, seconds * 6 if _dice() % 5 == 0 else seconds)


def _fail() -> None:
    if _dice() % 7 == 0 and delayq.current().attempt == 1:
        raise tasks.Trouble("not at first")


def _dice() -> int:
    return zlib.crc32(delayq.current().id.bytes)


def declare(version: str, count: int) -> None:
    """Declares them as that version does."""
    for number in range(count):
        dice, kind = random.Random(f"schedule/{number}"), number % 10
        periods: list[float | str] = [*PERIODS, *CRONS]
        index, further = number % len(periods), dice.randint(1, len(periods) - 1)
        if version == "new" and kind in REDATED:
            index = (index + further) % len(periods)
        if kind == (DROPPED if version == "new" else ADDED):
            continue
        dates = periods[index]
        policy = dice.choice(("allow", "allow", "skip", "wait"))
        jitter = dice.choice((None, None, 0.9))
        missed: Any = dice.choice(("skip", "once", "all"))
        told = version if kind == REARGUED else ""
        seconds = 0.0 if policy == "allow" else 0.2 if policy == "wait" else 0.3  # who waits must catch up
        options: dict[str, Any] = {"jitter": jitter, "missed": missed, "overlap": policy, "name": f"s{number:02}"}
        options["args"] = (f"calendar/{number}", seconds, told)
        shown = delayq.periodic(dates, **options) if isinstance(dates, str) else delayq.periodic(every=dates, **options)
        shown(dice.choice((calendar_work, calendar_work, calendar_coroutine)))


def plans() -> dict[str, Plan]:
    """The declarations, in the form that the judge needs."""
    return {one.name: _plan(one) for one in declarations.all()}


def _plan(one: Declaration) -> Plan:
    dates = one.dates
    return Plan(
        name=one.name,
        period=dates.every_ms or CRONS[dates.cron] * 1000,
        dates=dates.text,
        mark=one.fingerprint,
        jitter=dates.jitter_ms,
        missed=one.missed,
        overlap=one.overlap,
    )


def _noted(what: str, step: Callable[..., Any], version: str) -> Callable[..., Any]:
    @wraps(step)
    def noting(*args: Any) -> Any:
        since, passes = time.time_ns() // 1_000_000 - record.CLOCK * 1000, record.own(settings.APP_FOLDER, "passes")
        if what == "look":
            passes.write(say="looking", version=version, since=since)
        answer = step(*args)
        passes.write(say=what, version=version, since=since)
        return answer

    return noting


def _hurry() -> None:
    ms = timedelta(milliseconds=1)
    due_ticks.NEAR, due_ticks.FAR, due_ticks.LATE = LIMITS.near * ms, (LIMITS.near + 1000) * ms, LIMITS.late * ms
    seen.NOTED, seen.ALIVE, due_ticks.RETIRED = LIMITS.look / 2 * ms, LIMITS.alive * ms, LIMITS.retired * ms
    overlap.SHORTEST, overlap.LONGEST, overlap.UNKNOWN = 0.2, 2.0, 1.0
    due_ticks.LOOK, due_ticks.IDLE = LIMITS.look * ms, LIMITS.look / 1000


def begin(version: str, count: int) -> None:
    """All of it, in a process of that version."""
    _hurry()
    declare(version, count)
    record.own(settings.APP_FOLDER, f"plans-{version}").write(
        version=version, plans={name: _fields(plan) for name, plan in plans().items()}
    )
    due_ticks.TickLoop.poll = _noted("pass", due_ticks.TickLoop.poll, version)
    due_ticks.Deployments.look = _noted("look", due_ticks.Deployments.look, version)


def _fields(plan: Plan) -> dict[str, Any]:
    return {name: getattr(plan, name) for name in plan.__slots__}


if settings.APP_CALENDAR:
    begin(settings.APP_CALENDAR.partition("/")[0], int(settings.APP_CALENDAR.partition("/")[2]))
