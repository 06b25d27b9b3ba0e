from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from django_delayq import conf
from django_delayq.mirror.mirror_loop import MirrorLoop
from django_delayq.models import Job, Tick
from django_delayq.periodic import schedule_rows
from django_delayq.periodic.dates import Dates
from django_delayq.periodic.declarations import Declaration, Declarations
from django_delayq.periodic.due_ticks import TickLoop
from django_delayq.producer.stores import stores
from django_delayq.producer.task import registry
from tests.tasks_for_tests import close_order

MINUTE = timedelta(minutes=1)


class DatabaseClock:
    """The database clock as the schedule loops read it."""

    def __init__(self) -> None:
        self.moment = datetime(2031, 3, 4, 12, 0, 30, tzinfo=UTC)

    def now(self, using: str = "default") -> datetime:
        return self.moment

    def advance(self, **duration: float) -> None:
        self.moment += timedelta(**duration)


class Code:
    """One version of a project's code: its declarations, and the loop of its worker."""

    def __init__(self) -> None:
        self.declared = Declarations()
        self.loop = TickLoop(declared=self.declared)

    def declare(self, name: str = "nightly", task=close_order, args=(7,), **options) -> Declaration:
        dates = {name: options.pop(name) for name in ("cron", "every_ms", "timezone", "jitter_ms") if name in options}
        declaration = Declaration(name=name, task=task.name, dates=Dates(**(dates or {"every_ms": 600_000})), args=args, **options)
        self.declared.add(declaration, registry.get(task.name))
        return declaration

    def poll(self, most: int = 50) -> float:
        """Runs passes until there is no more immediate work. Returns how long the loop would sleep."""
        for _ in range(most):
            if pause := self.loop.poll():
                return pause
        pytest.fail("the loop does not come to rest")

    def live(self, clock: DatabaseClock, *, seconds: int, step: int = 5) -> None:
        """Runs a pass every few seconds of that time."""
        for _ in range(0, seconds, step):
            clock.advance(seconds=step)
            self.poll()


@pytest.fixture
def clock(monkeypatch) -> DatabaseClock:
    made = DatabaseClock()
    monkeypatch.setattr(schedule_rows, "now", made.now)
    return made


@pytest.fixture
def tables(delayq_redis, transactional_db) -> None:
    """An empty database and an empty Redis."""


@pytest.fixture
def code(tables, clock) -> Code:
    return Code()


@pytest.fixture
def fold(tables):
    """Runs the mirror on all events."""

    def drain() -> None:
        config = conf.get()
        for name in config.queues:
            MirrorLoop(stores.link, config.queue(name), prefix=config.prefix, signer=config.signer).drain()

    return drain


def fates(name: str = "nightly") -> list[tuple[str, str]]:
    """Returns the ticks of a schedule, oldest first, each as time and fate."""
    found = Tick.objects.filter(schedule__name=name, by_hand=False).order_by("at")
    return [(f"{tick.at:%H:%M:%S}", tick.fate) for tick in found]


def in_redis(job: Job | Tick) -> str:
    """Returns the state of a job in Redis, or "" if Redis does not have it."""
    row = Job.objects.get(pk=job.job_id) if isinstance(job, Tick) else job
    view = stores.inspector().job(row.queue, row.pk)
    return view.state if view else ""
