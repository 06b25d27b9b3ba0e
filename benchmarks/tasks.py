"""The tasks of the benchmarks."""

from __future__ import annotations

import time

import django_delayq as delayq
from benchmarks import sightings
from benchmarks.adapters import base
from django_delayq import ids

nothing = delayq.task(base.nothing, name="bench.nothing")
late = delayq.task(base.late, name="bench.late")
nap = delayq.task(base.nap, name="bench.nap")


RATED_NAMES, RATED_PER_SECOND = 1_000, 1_000


@delayq.task(name="bench.rated", rate=("bank:{bank}", f"{RATED_PER_SECOND // RATED_NAMES}/s"))
def rated(text: str, bank: int) -> None:
    """Does nothing, at the rate of its bank."""
    base.nothing(text)


def stay(seconds: float) -> None:
    """Notes when it begins, and, negative, when it ends."""
    base.marks.add(time.time())
    time.sleep(seconds)
    base.marks.add(-time.time())


stayer = delayq.task(stay, name="bench.stayer")


@delayq.task(name="bench.relay")
def relay(seconds: float, more: int) -> None:
    """The same; its last act is to schedule the next of so many."""
    stay(seconds)
    if more:
        delayq.schedule(relay, seconds, more - 1)


def change(row: int) -> None:
    """One statement through the ORM."""
    from django.contrib.auth.models import User

    User.objects.filter(pk=row).update(first_name="updated")
    base.marks.add(time.time())


update = delayq.task(change, name="bench.update")


mended = delayq.task(lambda job: None, name="bench.mended")


@delayq.task(name="bench.broken", max_attempts=1, on_failure=mended)
def broken() -> None:
    """Fails at once."""
    raise delayq.Fail("broken")


@delayq.task(name="bench.seen")
def seen(number: int) -> None:
    """Notes when it runs, which it is, and in which partition that was."""
    base.marks.add(sightings.mark(number, ids.partition(delayq.current().id), time.time()))
