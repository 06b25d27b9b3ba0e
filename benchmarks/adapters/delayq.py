"""This project, with its defaults except for the values in the environment."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import nullcontext
from datetime import datetime, timedelta
from functools import partial
from typing import Any

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "benchmarks.settings")

import django

django.setup()

from django.db import transaction

import django_delayq as delayq
from benchmarks import sightings, tasks
from benchmarks.adapters import base
from django_delayq import clock, conf
from django_delayq.messages.push import KIND
from django_delayq.mirror.mirror_loop import MirrorLoop
from django_delayq.mirror.restore import RestoreLoop
from django_delayq.mirror.service import Service
from django_delayq.producer.options import NONE, Conflict, Options
from django_delayq.producer.outbox import rows
from django_delayq.producer.schedule import Binding
from django_delayq.producer.schedule import plan as plan_of
from django_delayq.producer.stores import stores

TASKS = {name: getattr(tasks, name) for name in ("nothing", "late", "nap", "update")}
ROLES = os.environ.get("BENCH_ROLES", "move")
ROOM = float(os.environ.get("BENCH_ROOM", "1"))  # how many times the usual time until the first job is due


def users(count: int) -> float:
    """Rows for the updates."""
    from django.contrib.auth.models import User

    User.objects.bulk_create(User(pk=number + 1, username=f"user-{number}") for number in range(count))
    return 0.0


def insert(count: int) -> float:
    """Bare INSERTs of the rows that the outbox writes, each in a separate transaction. Returns seconds."""
    from django.db import connection
    from django.db.models.sql import InsertQuery

    statements = []
    for number in range(count):
        plan = plan_of(TASKS["nothing"], NONE, (f"{number:0100d}",), {}, None)
        row = rows.model_of(rows.new_row(plan, plan.queue, clock.from_ms(plan.job.due_ms), on_conflict="keep"))
        query = InsertQuery(type(row))
        query.insert_values(row._meta.concrete_fields, [row])
        statements += query.get_compiler(connection=connection).as_sql()
    with connection.cursor() as cursor:
        began = time.perf_counter()
        for text, values in statements:
            cursor.execute(text, values)
        return time.perf_counter() - began


def fold(count: int) -> float:
    """Lets the mirror write all events that are there; seconds."""
    config = conf.get()
    service = Service(stores.link, config, config.queues.values(), ["mirror"])
    began = time.perf_counter()
    service.drain()
    return time.perf_counter() - began


def restore(count: int) -> float:
    """Brings back what Redis has lost, with the mirror in turn, as a worker does it; seconds until so many jobs are back."""
    config = conf.get()
    common: Any = {"prefix": config.prefix, "signer": config.signer}
    loop = RestoreLoop(stores.link, config.queue("default"), **common)
    mirror = MirrorLoop(stores.link, config.queue("default"), **common)
    began = time.perf_counter()
    for step in loop.drain():
        if step.back == count:
            return time.perf_counter() - began
        mirror.poll()
    raise SystemExit(f"{loop.progress.back} of {count} jobs are back")


def confirm(count: int) -> float:
    """Has the server confirmed, as a worker with a mirror does it; seconds."""
    config = conf.get()
    common: Any = {"prefix": config.prefix, "signer": config.signer}
    loop = RestoreLoop(stores.link, config.queue("default"), **common)
    mirror = MirrorLoop(stores.link, config.queue("default"), **common)
    began = time.perf_counter()
    for _ in loop.drain():
        mirror.poll()
    return time.perf_counter() - began


def messages(count: int, *, keyed: bool = False) -> float:
    """Pushes so many; seconds."""
    began = time.perf_counter()
    options = Options(queue="messages")
    bindings = (
        Binding(KIND, options._replace(key=f"message:{number}") if keyed else options, (f"{number:0100d}",), {})
        for number in range(count)
    )
    delayq.schedule_many(bindings)
    return time.perf_counter() - began


def pull(count: int) -> float:
    """Pulls and acks them, a hundred at a time; seconds."""
    began = time.perf_counter()
    done = 0
    while done < count:
        batch = delayq.pull("messages", 100, wait=10)
        batch.ack()
        done += len(batch)
    return time.perf_counter() - began


def wakes(share: int, count: int) -> float:
    """From the beginning of a push in another process until the consumer that waits has it: seconds, by that share of them."""
    pusher = os.fork()
    if not pusher:
        for _ in range(count):
            time.sleep(0.005)
            delayq.push("messages", time.time())
        os._exit(0)
    late: list[float] = []
    while len(late) < count:
        with delayq.pull("messages", 10, wait=10) as batch:
            now = time.time()
            for message in batch:
                late.append(now - message.body)
                message.ack()
    os.waitpid(pusher, 0)
    return sorted(late)[min(count - 1, count * share // 100)]


def named(names: int | None, count: int, *, keyed: bool = False) -> float:
    """Schedules jobs that do nothing with `names` different names, of which one runs at a time; None: a different name for each; 0:
    no name. `keyed`: each also has a different key. All are due at the same time, a few seconds from now. Returns that time in
    seconds since 1970.
    """
    due = time.time() + ROOM * (4 + count / 4000)
    task = TASKS["nothing"].using(run_at=clock.from_ms(round(due * 1000)))
    numbers = range(count)
    if keyed:
        bindings = (task.using(serial=f"order:{each}", key=f"order:{each}").bind(f"{each:0100d}") for each in numbers)
    elif names == 0:
        bindings = (task.bind(f"{number:0100d}") for number in numbers)
    else:
        bindings = (task.using(serial=f"order:{number % (names or count)}").bind(f"{number:0100d}") for number in numbers)
    delayq.schedule_many(bindings)
    if time.time() > due:
        raise SystemExit("the jobs were due before they were in")
    return due


def rated(names: int, count: int) -> float:
    """The same with `names` rates, which together allow `RATED_PER_SECOND` starts in a second; 0: no rate. Then the jobs are due one
    after the other, at the same pace.
    """
    due = time.time() + ROOM * (4 + count / 4000)
    task = TASKS["nothing"] if names == 0 else tasks.rated
    at = [due + number / tasks.RATED_PER_SECOND if names == 0 else due for number in range(count)]
    delayq.schedule_many(
        task.using(run_at=clock.from_ms(round(at[number] * 1000))).bind(
            *([f"{number:0100d}"] if names == 0 else [f"{number:0100d}", number * names // count])
        )
        for number in range(count)
    )
    if time.time() > due:
        raise SystemExit("the jobs were due before they were in")
    return due


def tenants(count: int) -> float:
    """Schedules jobs of `TENANTS`, one tenant after the other. All are due at the same time. Returns that time."""
    each = count // tasks.TENANTS
    return _put_all(count, lambda due: (tasks.shared.using(run_at=due).bind(number + 1, number // each) for number in range(count)))


def beside(count: int, *, fair: bool = True, alone: bool = False) -> float:
    """Schedules so many jobs of one tenant, which are due at the same time, and one of each other tenant, due one after the other from
    then on. `alone`: only one job of the first. Returns the time of the first date.
    """
    task = tasks.shared if fair else tasks.unshared

    def bound(due: datetime) -> Iterator[Binding]:
        for number in range(1 if alone else count):
            yield task.using(run_at=due).bind(number + 1, 0)
        for number in range(tasks.TENANTS - 1):
            date = due + timedelta(seconds=number * sightings.EVERY)
            yield task.using(run_at=date).bind(sightings.FIRST_OF_OTHERS + number, number + 1)

    return _put_all(count, bound)


def _put_all(count: int, bound: Callable[[datetime], Iterable[Binding]]) -> float:
    due = clock.from_ms(round((time.time() + ROOM * (4 + count / 3000)) * 1000))
    delayq.schedule_many(bound(due))
    if time.time() > due.timestamp():
        raise SystemExit("the jobs were due before they were in")
    return due.timestamp()


def keyed(policy: Conflict, keys: int | None, count: int, *, atomic: bool = False) -> float:
    """Schedules jobs one call at a time, with that many keys in turn (None: a different key for each). Returns seconds."""
    began = time.perf_counter()
    for number in range(count):
        with transaction.atomic() if atomic else nullcontext():
            key = f"{policy}:{atomic}:{number % (keys or count)}"
            delayq.schedule(TASKS["nothing"], f"{number:0100d}", delay=3600, key=key, on_conflict=policy)
    return time.perf_counter() - began


def keyed_many(count: int) -> float:
    """Schedules jobs in bulk, each with a different key. Returns seconds."""
    began = time.perf_counter()
    task = TASKS["nothing"]
    delayq.schedule_many(task.using(delay=3600, key=f"many:{number}").bind(f"{number:0100d}") for number in range(count))
    return time.perf_counter() - began


def in_turn(count: int) -> float:
    """Puts in so many jobs of one name, of which one runs at a time, each 5 ms; seconds."""
    began = time.perf_counter()
    delayq.schedule_many(tasks.stayer.using(serial="order:1").bind(0.005) for _ in range(count))
    return time.perf_counter() - began


def relayed(count: int) -> float:
    """Puts in the first of so many jobs, of which each schedules the next at its end; seconds."""
    began = time.perf_counter()
    delayq.schedule(tasks.relay, 0.005, count - 1)
    return time.perf_counter() - began


def seen(count: int) -> float:
    """Schedules so many that are due one after the other, each for itself, so that its partition is chosen for it alone. Returns the
    origin of their dates, in seconds since 1970.
    """
    origin = time.time() + ROOM * (3 + count / 150)
    for number in range(1, count + 1):
        delayq.schedule(tasks.seen, number, run_at=clock.from_ms(round((origin + number * sightings.EVERY) * 1000)))
    if time.time() > origin:
        raise SystemExit("the jobs were due before they were in")
    return origin


def at_once(count: int) -> float:
    """Schedules so many for now, one after the other; the longest of the calls, in seconds."""
    longest = 0.0
    for number in range(sightings.FIRST_AT_ONCE, sightings.FIRST_AT_ONCE + count):
        began = time.perf_counter()
        delayq.schedule(tasks.seen, number)
        longest = max(longest, time.perf_counter() - began)
        time.sleep(sightings.AT_ONCE)
    return longest


class Delayq(base.Adapter):
    """Bulk: schedule_many."""

    name = "django-delayq"
    version = delayq.__version__
    settings = "defaults: leases, fences and events for every job; no log line per job; no mirror unless noted"
    many_by = "schedule_many"
    verbs = {
        "users": users,
        "insert": insert,
        "fold": fold,
        "restore": restore,
        "confirm": confirm,
        "messages": messages,
        "pull": pull,
        "unnamed": partial(named, 0),
        "unrated": partial(rated, 0),
        "rated1000": partial(rated, tasks.RATED_NAMES),
        "tenants": tenants,
        "beside": beside,
        "beside_one": partial(beside, alone=True),
        "beside_unfair": partial(beside, fair=False),
        "named": partial(named, None),
        "named_keyed": partial(named, None, keyed=True),
        "named100": partial(named, 100),
        "named10000": partial(named, 10_000),
        "messages_keyed": partial(messages, keyed=True),
        "keyed": partial(keyed, "keep", None),
        "keyed_atomic": partial(keyed, "keep", None, atomic=True),
        "keyed_many": keyed_many,
        "kept": partial(keyed, "keep", 1),
        "replaced": partial(keyed, "replace", 1),
        "latest": partial(keyed, "latest", 1),
        "in_turn": in_turn,
        "relayed": relayed,
        "seen": seen,
        "at_once": at_once,
        "wakes50": partial(wakes, 50),
        "wakes99": partial(wakes, 99),
    }

    def put(self, task: str, args: Sequence[Any], due: float | None) -> None:
        """One job."""
        delayq.schedule(TASKS[task], *args, **self._options(due))

    def put_many(self, task: str, jobs: Iterable[tuple[Sequence[Any], float | None]]) -> None:
        """Many jobs."""

        delayq.schedule_many(TASKS[task].using(**self._options(due)).bind(*args) for args, due in jobs)

    def _options(self, due: float | None) -> dict[str, Any]:
        found: dict[str, Any] = {} if due is None else {"run_at": clock.from_ms(round(due * 1000))}
        return {**found, "key": self.key()} if self.keyed else found

    def worker(self, processes: int, threads: int) -> list[str]:
        """manage.py delayq_worker."""
        words = ["-m", "django", "delayq_worker", "--verbosity", "0", "--roles", ROLES, "--processes", str(processes)]
        return base.python(*words, *(["--threads", str(threads)] if threads else []))


if __name__ == "__main__":
    base.main(Delayq())
