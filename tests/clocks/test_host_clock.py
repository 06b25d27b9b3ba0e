"""Whatever the clock of one host shows, rows and Redis are as with a right clock: every loop and every public call, one by one."""

from __future__ import annotations

import ast
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from asgiref.sync import async_to_sync
from django.core.cache import cache
from django.db import connection, transaction

import django_delayq as delayq
from django_delayq import clock, conf, ids
from django_delayq.console.operation_loop import OperationLoop
from django_delayq.contrib.gateway import tokens
from django_delayq.contrib.gateway.models import ALL, KeptAnswer, Token
from django_delayq.locks.lock import process_leases
from django_delayq.mirror.batches import BatchLoop
from django_delayq.mirror.bring_in import BringInLoop
from django_delayq.mirror.pause_loop import PauseLoop
from django_delayq.mirror.prune import OldOperationsLoop, OldTicksLoop, PruneLoop, TidyLoop
from django_delayq.mirror.relay import CommitRequestLoop, RelayLoop
from django_delayq.mirror.restore import RestoreLoop
from django_delayq.mirror.service import Service
from django_delayq.models import database
from django_delayq.models.internal import PeriodKey
from django_delayq.periodic.dates import Dates
from django_delayq.periodic.declarations import Declaration
from django_delayq.producer.outbox.shapes import Once
from django_delayq.producer.stores import stores
from django_delayq.producer.task import registry
from django_delayq.store.keys import Keys
from django_delayq.store.scripts.lock_store import LockStore
from django_delayq.store.scripts.worker_registry import WorkerRegistry
from django_delayq.targets import delivery
from django_delayq.targets.circuits import circuits
from django_delayq.worker.supervisor.worker_beat import Beat, Tidy
from tests.clocks.world import PREFIX, Line, World
from tests.contrib.gateway.conftest import Caller
from tests.targets.conftest import SECRET
from tests.targets.conftest import TASK as DELIVERY
from tests.targets.offers.conftest import TARGETS
from tests.targets.offers.conftest import TASK as OFFER
from tests.targets.receivers import Host, answer, drop
from tests.tasks_for_tests import book, close_order

WRONG = [timedelta(hours=-2), timedelta(hours=25), timedelta(days=31)]
HOUR = timedelta(hours=1)
CLOSE = 600.0  # seconds between two dates that are the same, on a machine that may be slow
Act = Callable[[World], Any]


class HostClock:
    """The clock of the host, which a test makes wrong. The clock of Redis stays right, and so does that of the database."""

    def __init__(self) -> None:
        self.wrong_by = timedelta()

    def now(self) -> datetime:
        return datetime.fromtimestamp(time.time_ns() / 1e9, UTC) + self.wrong_by

    def wall_ms(self) -> int:
        return time.time_ns() // 1_000_000 + self.wrong_by // timedelta(milliseconds=1)


@pytest.fixture
def host(monkeypatch) -> HostClock:
    made = HostClock()
    right = clock.now
    monkeypatch.setattr(database, "clock", SimpleNamespace(now=right))
    monkeypatch.setattr(clock, "now", made.now)
    monkeypatch.setattr(clock, "wall_ms", made.wall_ms)
    return made


@pytest.fixture
def world(host, settings, monkeypatch, delayq_redis, transactional_db) -> Iterator[Callable[[], World]]:
    queues = {
        "default": {},
        "orders": {"RETENTION": {"succeeded": "7d", "cancelled": "30d", "failed": "30d", "set_aside": "30d"}},
        "redis": {"DURABILITY": "redis"},
        "mail": {"CONSUMER": "pull"},
        "far": {"HORIZON": "2h"},
    }
    http = {"ALLOW": ["127.0.0.0/8"], "SECRETS": {"partner": SECRET}, "BREAKER": 1, "PAUSE": "1h", "READ": 5, "TIMEOUT": 5}
    settings.ROOT_URLCONF = "tests.contrib.gateway.gateway_urls"
    cache.clear()
    settings.DELAYQ = {**settings.DELAYQ, "PREFIX": PREFIX, "QUEUES": queues, "HTTP": http, "TARGETS": TARGETS}
    monkeypatch.setattr(registry, "_tasks", {**registry._tasks, DELIVERY.name: DELIVERY, OFFER.name: OFFER})
    monkeypatch.setattr("django_delayq.targets.circuits.uniform", lambda least, _most: least)  # no pause is longer by chance
    yield lambda: World(lambda: datetime.fromtimestamp(time.time(), UTC), delayq_redis.link)
    circuits.clear()
    delivery.clients.close()
    conf._config = None


# acts of a project


def schedules(world: World) -> None:
    delayq.schedule(close_order, 20)
    delayq.schedule(close_order.using(delay="1h", expires="2h"), 21)
    delayq.schedule(close_order.using(run_at=world.now() + 3 * HOUR, expires=world.now() + 4 * HOUR), 22)
    delayq.schedule(close_order.using(key="waiting", on_conflict="earliest", delay="1h"), 23)
    delayq.schedule(close_order.using(queue="far", delay="4h"), 24)
    delayq.schedule(close_order.using(queue="far", run_at=world.now() + 90 * HOUR, key="far", on_conflict="latest"), 25)
    for number, hours in enumerate((1, 3, 90), 31):
        delayq.schedule(close_order.using(queue="far", run_at=world.now() + hours * HOUR), number)


async def schedules_by_async_code(world: World) -> None:
    await delayq.aschedule(close_order.using(delay="1h", expires="2h"), 21)
    await delayq.aschedule_many([close_order.using(delay="1h").bind(26)])


def schedules_many(world: World) -> None:
    delayq.schedule_many([close_order.using(delay="1h", expires=f"{n}h").bind(n) for n in (2, 3)])


def cancels(world: World) -> None:
    assert [delayq.cancel(world.jobs[name]) for name in ("waiting", "far", "unpublished", "due")]


def reschedules(world: World) -> None:
    for name in ("waiting", "far", "unpublished", "far soon"):
        delayq.reschedule(world.jobs[name], delay="4h")
    delayq.reschedule(world.jobs["due"], run_at=world.now() + 5 * HOUR)


def runs_now(world: World) -> None:
    for name in ("waiting", "far", "unpublished"):
        delayq.run_now(world.jobs[name])


def requeues(world: World) -> None:
    for name in ("failed", "cancelled"):
        delayq.requeue(world.jobs[name])


def pauses(world: World) -> None:
    delayq.pause("orders", reason="stock-taking")
    delayq.pause("redis")
    delayq.resume("redis")
    delayq.pause(task=close_order, until=world.now() + HOUR, reason="stock-taking")
    delayq.pause(name="partner:7")
    delayq.resume(name="partner:7", pace="100/m")
    PauseLoop().poll()


def schedules_once(world: World) -> None:
    """One period lasts, one has passed, and of one the key is freed."""
    for number, key in enumerate(("lasts", "has passed", "is freed"), 51):
        delayq.schedule(close_order, number, key=key, once_for="24h")
    for _ in range(3):
        world.run()
    world.fold()
    PeriodKey.objects.filter(digest=Once.of_job("orders", "has passed").digest).update(until=world.now() - HOUR / 60)
    assert delayq.forget(key="is freed", queue="orders") == "done"
    created = [delayq.schedule(close_order, 54, key=key, once_for="24h").created for key in ("lasts", "has passed", "is freed")]
    assert created == [False, True, True]


async def acts_by_async_code(world: World) -> None:
    await delayq.acancel(world.jobs["waiting"])
    await delayq.areschedule(world.jobs["far"], delay="4h")
    await delayq.arun_now(world.jobs["unpublished"])
    await delayq.arequeue(world.jobs["failed"])
    await delayq.apause("orders")
    await delayq.aresume("orders")
    assert await delayq.aforget(key="waiting", queue="orders") == "unknown", "it has no period"
    assert (await delayq.aget(world.jobs["succeeded"].id)).task == close_order.name


def gets(world: World) -> None:
    states = {name: delayq.get(job.id).state for name, job in world.jobs.items()}
    assert {name: state for name, state in states.items() if state != name.split()[-1]} == {
        "retried": "scheduled",
        "lost": "running",
        "waiting": "scheduled",
        "due": "scheduled",
        "redis waiting": "scheduled",
        "far": "scheduled",
        "far soon": "scheduled",
        "unpublished": "scheduled",
        "old": "cancelled",
    }


def locks(world: World) -> None:
    with delayq.lock("order:42", lease="10s") as lock:
        lock.check()
        process_leases().poll()
        lock.check()
        assert lock.held
    LockStore(world.link, Keys.of(PREFIX, "default", 0)).lock("order:43", "another", lease_ms=60_000, holder="another")
    with pytest.raises(delayq.LockTaken), delayq.lock("order:43", queue="default"):
        pytest.fail("another host has the lock")


def runs(world: World) -> None:
    """Jobs look at their own dates, take steps, and are put off."""

    def looks() -> None:
        job = delayq.current()
        assert abs(job.now - world.now()) < HOUR / 6
        assert abs(job.started_at - world.now()) < HOUR / 6
        assert job.lateness < HOUR
        assert job.run_at <= job.now

    def waits() -> None:
        raise delayq.Snooze("1h")

    def again() -> None:
        raise delayq.Retry("1h")

    for task in (looks, waits, again):
        world.bench.register(task)
        world.bench.put(task.__name__)
    delayq.schedule(book, 1)
    world.run()
    world.bench.extender.poll()
    world.bench.deadlines.poll()
    world.bench.recovery.poll()
    world.fold()


def kills(world: World) -> None:
    """A run does not end in time, and its process is killed."""
    world.bench.register(lambda: None, name="hangs", timeout=5.0)
    world.bench.tasks["hangs"] = world.bench.tasks.pop("<lambda>", None) or world.bench.tasks["hangs"]
    world.bench.put("hangs")
    world.bench.move()
    run = world.bench.take()
    world.bench.executor._decode(run)
    run.task = world.bench.tasks["hangs"]
    world.bench.executor._perform(run)  # its outcome is lost
    outcome = world.bench.deadlines._item(world.bench.child, world.bench.leases, next(iter(world.bench.leases.held())))
    world.bench.stores[0].settle([outcome], worker="w/1", max_crashes=3)


def host_of(world: World, *script: Any) -> Host:
    made = Host(list(script))
    world.jobs.setdefault("hosts", []).append(made)
    return made


def delivers(world: World) -> None:
    """The first host asks for an hour, the second one for a date, the third one is down, and left alone for an hour."""
    until = format_datetime(world.now() + HOUR, usegmt=True)
    busy, dated, down = (
        host_of(world, answer(503, Retry_After="3600")),
        host_of(world, answer(429, Retry_After=until)),
        host_of(world, drop),
    )
    for one in (busy, dated):
        delayq.deliver(one.url(), json=1, expires="2h", secret="partner", max_attempts=4)
    for _ in range(3):
        delayq.deliver(down.url(), json=1, backoff="1h", max_attempts=4)
    for _ in range(3):
        world.run()
    for one in (busy, dated):
        [request] = one.requests
        assert abs(int(request.headers["webhook-timestamp"]) - world.now().timestamp()) < 300
    assert len(down.requests) == 1
    world.fold()


async def delivers_and_more_by_async_code(world: World) -> None:
    await delayq.adeliver("http://127.0.0.1:1/", json=1, delay="1h", expires="2h")
    await delayq.aoffer({"n": 1}, to="shipping", delay="1h")
    await delayq.apush("mail", {"n": 9}, delay="1h")
    async with await delayq.apull("mail") as batch:
        await batch.aack()


def offers(world: World) -> None:
    delayq.offer({"n": 1}, to="shipping")
    delayq.offer({"n": 2}, to="shipping", delay="1h", expires="2h")
    world.run()
    world.fold()


def pushes_and_pulls(world: World) -> None:
    delayq.push("mail", {"n": 9}, delay="1h", expires="2h")
    with delayq.pull("mail", 3) as batch:
        first, second, third = batch
        first.ack()
        second.retry("1h", reason="busy")
        third.fail("broken")
        first_end = clock.from_ms(batch.lease_end_ms)
        assert abs(first_end - world.now()) < HOUR / 6
    world.fold()


def asks_the_gateway(world: World) -> None:
    """A request that is repeated, kept answers on both sides of 24 hours, and tokens that live and that have expired."""
    token, text = tokens.make("partner", queues=[ALL], verbs=[ALL], expires="1h")
    caller = Caller(text, token)
    for hours in (23, 25):
        at = world.now() - hours * HOUR
        KeptAnswer.objects.create(digest=f"{hours}", request="", job=ids.new(), created_at=at, held_until=at, status=200)
    for key in ("one", "two"):
        first, again = (caller.post("jobs", {"task": close_order.name, "args": [41], "delay": "1h"}, key=key) for _ in range(2))
        assert (first.status_code, again.json()["id"]) == (201, first.json()["id"])
    assert {row.digest for row in KeptAnswer.objects.filter(request="")} == {"23"}
    Token.objects.update(expires_at=world.now() - HOUR / 60)
    assert caller.get(f"jobs/{first.json()['id']}").status_code == 401
    Token.objects.all().delete()  # their letters are chance


def declares(world: World) -> None:
    dates = Dates(cron="0 4 1 1 *", timezone="Europe/Berlin")
    world.declared.add(Declaration(name="nightly", task=close_order.name, dates=dates, args=(91,)), registry.get(close_order.name))
    world.tick()


# loops


def one(loop: Any) -> Act:
    """A pass of the loop that this makes."""

    def act(world: World) -> None:
        loop(world).poll()

    return act


def parts(loop: Any, *queues: str, **more: Any) -> Act:
    """A pass over each of these queues."""

    def act(world: World) -> None:
        for name in queues or ("default", "orders", "redis", "far"):
            loop(stores.places, conf.get().queue(name), **more).poll()

    return act


def restores(world: World) -> None:
    """Redis has lost all, and a rescheduled job was moved just before."""
    delayq.reschedule(world.jobs["waiting"], delay="1h")
    world.fold()
    world.link.execute("FLUSHALL")
    for name in ("default", "orders", "redis", "far"):
        loop = RestoreLoop(stores.places, conf.get().queue(name), prefix=PREFIX)
        for _ in range(30):
            loop._look_at = 0.0
            loop.poll()


def relays(world: World) -> None:
    for _ in range(2):
        RelayLoop(stores.places, conf.get().queue("orders"), prefix=PREFIX, young=0).poll()


def commits(world: World) -> None:
    """A process dies between its commit and the changes that go with it."""
    with transaction.atomic():
        delayq.cancel(world.jobs["waiting"], at_commit=True)
        delayq.reschedule(world.jobs["redis waiting"], delay="3h", at_commit=True)
        connection.run_on_commit.clear()
    CommitRequestLoop(young=0).poll()
    world.fold()


def batches(world: World) -> None:
    """One that waits for a job, and one that is cancelled."""
    with delayq.batch(close_order.using(delay="1h").bind(51), key="one") as batch:
        batch.schedule(close_order, 52, then=close_order.using(delay="1h").bind(53))
    with delayq.batch(close_order.bind(54), key="two") as other:
        other.schedule(close_order, 55, delay="1h")
    other.cancel(reason="wrong")
    world.run()
    world.fold()
    BatchLoop().poll()
    assert (batch.state, other.state, delayq.get_batch(key="one").then is None) == ("succeeded", "cancelled", False)


def serves(world: World) -> None:
    """All loops of a process that keeps records."""
    service = Service(stores.places, conf.get(), conf.get().queues.values())
    for _ in range(3):
        service.poll()
        for runner in service._runners:
            runner.wake()


def beats(world: World) -> None:
    Beat(WorkerRegistry(stores.link, prefix=PREFIX), "w/1", lambda: {"started": clock.wall_ms()}, lambda *_: None).poll()


def tidies(world: World) -> None:
    tidy = Tidy(world.bench.stores)
    for _ in range(3):
        tidy.poll()


STORED: dict[str, Any] = {"prefix": PREFIX}
WORKER = "a worker under a wrong clock"  # see test_real_workers.py

LOOPS: dict[str, Act | str] = {
    "BatchLoop": batches,
    "BringInLoop": parts(BringInLoop, "far", **STORED),
    "CommitRequestLoop": commits,
    "MirrorLoop": runs,
    "OldOperationsLoop": one(lambda world: OldOperationsLoop(stores.places, conf.get())),
    "OldTicksLoop": one(lambda world: OldTicksLoop(stores.places, conf.get())),
    "OperationLoop": one(lambda world: OperationLoop()),
    "PauseLoop": pauses,
    "PruneLoop": parts(PruneLoop),
    "RelayLoop": relays,
    "RestoreLoop": restores,
    "Service": serves,
    "TickLoop": declares,
    "TidyLoop": parts(TidyLoop, **STORED),
    "LockLeases": locks,
    "Beat": beats,
    "Tidy": tidies,
    "Mover": runs,
    "Consumer": runs,
    "Settler": runs,
    "LeaseExtender": runs,
    "HangingProcesses": kills,
    "ProcessRecovery": runs,
    **dict.fromkeys(
        (
            "HostRecovery",
            "LoopSchedule",
            "Movers",
            "OutageLog",
            "Probe",
            "RecordsReport",
            "Recycler",
            "Reloader",
            "SoftTimer",
            "Systemd",
            "UnendingLoop",
        ),
        WORKER,
    ),
}
CALLS: dict[str, Act] = {
    "schedule": schedules,
    "schedule_many": schedules_many,
    "task": schedules,
    "cancel": cancels,
    "reschedule": reschedules,
    "run_now": runs_now,
    "requeue": requeues,
    "pause": pauses,
    "resume": pauses,
    "forget": schedules_once,
    "get": gets,
    "lock": locks,
    "once": runs,
    "batch": batches,
    "get_batch": batches,
    "current": runs,
    "deliver": delivers,
    "offer": offers,
    "push": pushes_and_pulls,
    "pull": pushes_and_pulls,
    "periodic": declares,
    **dict.fromkeys(("aschedule", "aschedule_many"), async_to_sync(schedules_by_async_code)),
    **dict.fromkeys(
        ("acancel", "areschedule", "arun_now", "arequeue", "apause", "aresume", "aforget", "aget"),
        async_to_sync(acts_by_async_code),
    ),
    **dict.fromkeys(("adeliver", "aoffer", "apush", "apull"), async_to_sync(delivers_and_more_by_async_code)),
}
OTHERS: dict[str, Act] = {"gateway": asks_the_gateway}
ACTS = {act: name for name, act in {**CALLS, **LOOPS, **OTHERS}.items() if act is not WORKER}


def test_every_public_call_is_in_the_table():
    calls = {name for name in delayq.__all__ if not isinstance(getattr(delayq, name), type)}
    assert calls == set(CALLS)


def test_every_loop_is_in_the_table():
    found = set()
    for path in Path(delayq.__file__).parent.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            protocol = isinstance(node, ast.ClassDef) and any(ast.unparse(base) == "Protocol" for base in node.bases)
            if isinstance(node, ast.ClassDef) and not protocol:
                found |= {node.name for one in node.body if isinstance(one, ast.FunctionDef) and one.name == "poll"}
    assert found == set(LOOPS)


def played(world: Callable[[], World], host: HostClock, act: Act, wrong_by: timedelta) -> list[Line]:
    made = world()
    host.wrong_by = wrong_by
    try:
        act(made)
        return made.dump()
    finally:
        host.wrong_by = timedelta()
        circuits.clear()
        for one in made.jobs.get("hosts", ()):
            one.close()


@pytest.mark.parametrize("act", [pytest.param(act, id=name) for act, name in ACTS.items()])
def test_whatever_the_clock_of_a_host_shows_rows_and_redis_are_as_with_a_right_one(world, host, act):
    right = played(world, host, act, timedelta())
    for wrong_by in WRONG:
        wrong = played(world, host, act, wrong_by)
        assert [text for text, _ in wrong] == [text for text, _ in right], f"with the clock wrong by {wrong_by}"
        for (text, dates), (_, others) in zip(wrong, right, strict=True):
            assert all(abs(one - other) < CLOSE for one, other in zip(dates, others, strict=True)), (
                f"{wrong_by}: {text} {dates} {others}"
            )
