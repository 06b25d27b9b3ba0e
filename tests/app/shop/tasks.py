"""Tasks whose runs can be counted: each notes what it did in a list in Redis."""

from __future__ import annotations

import asyncio
import json
import multiprocessing
import os
import signal
import sys
import time
from typing import Any
from uuid import uuid4

from asgiref.sync import sync_to_async
from django.conf import settings
from django.contrib.auth.models import Group
from django.db import connection, transaction

import django_delayq as delayq
from django_delayq.store.connection.link import Link, connect
from tests.carriers import TENANT

_links: dict[int, Link] = {}


def link() -> Link:
    return _links.setdefault(os.getpid(), connect(settings.REDIS_URL, name="shop"))


def note(*words: Any) -> None:
    """Appends to the list `ran`; the moment comes first."""
    link().execute("RPUSH", "ran", " ".join(map(str, words)))


@delayq.task
def count(number: int) -> int:
    link().execute("HINCRBY", "counts", number, 1)
    return number * 2


@delayq.task
def own_answer(number: int) -> int:
    """Notes it as wrong if the database answers what somebody else has asked."""
    with connection.cursor() as cursor:
        cursor.execute("SELECT CAST(%s AS integer)", [number])
        found = cursor.fetchall()
    if found != [(number,)]:
        note("wrong", number, found)
    link().execute("HINCRBY", "counts", number, 1)
    return number


def _facts() -> list[object]:
    job = delayq.current()
    return [job.args, job.kwargs, job.meta, job.attempt, job.max_attempts, job.is_last_attempt, TENANT.get()]


@delayq.task
def facts(*args: object, **kwargs: object) -> list[object]:
    if not delayq.current().is_last_attempt:
        raise delayq.Retry("1ms")
    return _facts()


@delayq.task
async def async_facts(*args: object) -> list[object]:
    await asyncio.sleep(0)
    return _facts()


@delayq.task(max_attempts=1)
def waits(other: str, seconds: float) -> object:
    job = delayq.get(other)
    assert job is not None
    return job.result(seconds)


def pass_time(number: int, seconds: float | None) -> None:
    """Sleeps; None: until `Shop.release` is called for this number."""
    while seconds is None and not _is_released(number):
        time.sleep(0.02)
    time.sleep(seconds or 0)


def _is_released(number: int) -> bool:
    return os.path.exists(f"{settings.APP_FOLDER}/released {number}")


@delayq.task
def nap(number: int, seconds: float | None) -> None:
    note("began", number, os.getpid())
    pass_time(number, seconds)
    note("ended", number, os.getpid())


@delayq.task
def doze(name: int | str, seconds: float) -> None:
    time.sleep(seconds)
    note("dozed", name)


@delayq.task
async def async_nap(number: int, seconds: float | None) -> int:
    note("began", number, delayq.current().attempt)
    while seconds is None and not _is_released(number):
        await asyncio.sleep(0.02)
    await asyncio.sleep(seconds or 0)
    note("ended", number)
    return number


@delayq.task
def hog(seconds: float) -> None:
    """Keeps the interpreter to itself: no other thread of the process runs meanwhile."""
    import ctypes

    note("began hog")
    libc = ctypes.PyDLL(None)  # unlike CDLL it keeps the GIL
    libc.usleep.argtypes = [ctypes.c_uint]
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        libc.usleep(900_000)
    note("ended hog")


@delayq.task(timeout="200ms")
def seize() -> None:
    """Keeps it for good."""
    import ctypes

    ctypes.PyDLL(None).usleep(600_000_000)


@delayq.task
def die(number: int) -> None:
    note("began", number)
    os.kill(os.getpid(), signal.SIGKILL)


@delayq.task(max_attempts=3)
def err() -> None:
    note("attempt", delayq.current().attempt)
    raise ValueError("the answer is not 42")


@delayq.task(timeout="300ms", max_attempts=1)
def endless() -> None:
    note("began endless")
    try:
        while True:
            time.sleep(0.01)
    except delayq.SoftTimeout:
        note("soft timeout")
        raise


def _spin() -> None:
    while True:
        sum(range(100))


@delayq.task
def spin(number: int) -> None:
    """Goes on until it is interrupted, in Python's own bytecodes."""
    connection.ensure_connection()
    note("began", number)
    try:
        _spin()
    except delayq.Cancelled:
        note("interrupted", number)
        raise


@delayq.task
def give_in(number: int) -> int:
    """Is interrupted, and returns nevertheless."""
    note("began", number)
    try:
        _spin()
    except delayq.Cancelled:
        pass
    return number


@delayq.task
async def async_forever(number: int) -> None:
    note("began", number)
    try:
        await asyncio.sleep(600)
    finally:
        note("cleaned up", number)


@delayq.task
def open_files() -> int:
    """How many files of the database are open."""
    return _open_files()


@delayq.task(timeout="200ms", max_attempts=1)
def deaf(number: int) -> None:
    """Does not hear its soft timeout: it waits in C."""
    note("began", number)
    time.sleep(600)


@delayq.task(timeout="200ms", max_attempts=1)
async def async_endless() -> None:
    try:
        await asyncio.sleep(600)
    finally:
        note("cleaned up")


@delayq.task
def until_cancelled() -> None:
    note("began", delayq.current().id)
    job = delayq.current()
    for step in range(600):
        job.progress(step, 600)
        if job.cancel_requested:
            note("saw the request")
            raise delayq.Fail("cancelled")
        time.sleep(0.05)


@delayq.task
def moody() -> None:
    attempt = delayq.current().attempt
    note("attempt", attempt, delayq.current().crashes)
    if link().execute("INCR", "moods") == 1:
        raise delayq.Snooze("100ms", "not now")
    if attempt == 1:
        raise delayq.Retry("50ms", "once more")
    raise delayq.Fail("enough")


@delayq.task(poll="50ms 60ms 70ms")
def ask() -> None:
    asked = link().execute("INCR", "questions")
    note("asked", delayq.current().asked, "attempt", delayq.current().attempt)
    if asked == 2:
        raise ValueError("the line is busy")
    raise delayq.NotYet(f"answer {asked} is: not yet")


@delayq.task
def noop() -> None:
    """Does nothing."""


@delayq.task
def write_down(number: int, seconds: float | None = 0.0) -> None:
    """Notes its run in a file, which no fault of Redis or of the database reaches: one write per line."""
    pass_time(number, seconds)
    _to_ledger(number, time.time_ns() // 1_000_000)


def _to_ledger(*words: Any) -> None:
    ledger = os.open(f"{settings.APP_FOLDER}/ledger", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    try:
        os.write(ledger, (" ".join(map(str, words)) + "\n").encode())
    finally:
        os.close(ledger)


@delayq.task
def stay(number: int, seconds: float | None) -> None:
    """Notes in that file when it begins and when it ends."""
    _to_ledger("began", number)
    pass_time(number, seconds)
    _to_ledger("ended", number)


@delayq.task
def pay_slowly(number: int, seconds: float | None) -> None:
    """Writes a row in a step that happens once."""
    _to_ledger("began", number)
    pass_time(number, seconds)
    with delayq.once("payment"):
        Group.objects.create(name=f"payment {number} {uuid4()}")
    _to_ledger("ended", number)


@delayq.task
def leave_by_itself(number: int) -> None:
    """Ends the process under the worker, as a daemon's parent does."""
    note("began", number)
    os._exit(number)


def fork() -> None:
    if os.fork():
        os.wait()
    else:
        note("copy", os.getpid())


@delayq.task
def split(number: int) -> None:
    """Forks, and lets the copy come back from the task as well."""
    fork()


@delayq.task
async def async_split() -> None:
    fork()


@delayq.task(atomic=True)
def atomic_split() -> None:
    transaction.on_commit(lambda: note("committed by", os.getpid()))
    fork()


@delayq.task
def terminate_a_child() -> str:
    """What multiprocessing's Pool does when it is closed."""
    child = multiprocessing.get_context("fork").Process(target=time.sleep, args=(600,))
    child.start()
    time.sleep(0.2)
    child.terminate()
    child.join(5)
    code = child.exitcode
    child.kill()
    return str(code)


@delayq.task
async def async_exit() -> None:
    async def leave() -> None:
        raise SystemExit(1)

    await asyncio.gather(leave())


@delayq.task
async def async_stop() -> None:
    asyncio.get_running_loop().stop()


@delayq.task
async def async_query(seconds: float) -> int:
    """Opens a connection as the ORM does. Returns how many files of the database were open before."""

    def query() -> int:
        note("began", seconds)
        before = _open_files()
        connection.ensure_connection()
        time.sleep(seconds)
        return before

    return await sync_to_async(query)()


def _open_files() -> int:
    return sum(os.path.realpath(f"/proc/self/fd/{name}") == _database() for name in os.listdir("/proc/self/fd"))


def _database() -> str:
    return os.path.realpath(settings.DATABASES["default"]["NAME"])


@delayq.task
def leave_open() -> None:
    """Leaves a transaction open, as a soft timeout does that comes while Django closes it."""
    transaction.atomic().__enter__()
    Group.objects.create(name="half")


@delayq.task
def write_row() -> None:
    Group.objects.create(name="whole")


@delayq.task(atomic=True)
def pay(number: int) -> int:
    """Writes a row, which a second run must not double."""
    note("paying", number)
    Group.objects.create(name=f"payment {number} {uuid4()}")
    return number


@delayq.task(atomic=True)
def pay_for_ever(number: int) -> None:
    Group.objects.create(name=f"payment {number} {uuid4()}")
    note("paying", number)
    _spin()


@delayq.task(atomic=True)
def pay_and_wait(number: int) -> int:
    """Continues after its commit until its cancel is requested."""

    def wait() -> None:
        note("paid", number)
        while not delayq.current().cancel_requested:
            time.sleep(0.01)

    transaction.on_commit(wait)
    Group.objects.create(name=f"payment {number} {uuid4()}")
    return number


@delayq.task(backoff="50ms")
def pay_in_steps(number: int) -> None:
    with delayq.once("charge") as first:
        note("first" if first else "again")
        Group.objects.create(name=f"payment {number} {uuid4()}")
    if delayq.current().attempt < 3:
        raise ConnectionError("the shipper is away")
    with delayq.once("ship"):
        Group.objects.create(name=f"parcel {number} {uuid4()}")


@delayq.task(backoff="50ms")
def quote(text: str) -> None:
    """Fails for good, with errors that all quote the argument."""
    try:
        int(text)
    except ValueError as error:
        error.add_note(text)
        raise ExceptionGroup(text, [KeyError(text), error]) from error


@delayq.task
def tick(name: str, seconds: float = 0.0) -> None:
    """Notes the beginning and the end of each run of a schedule, of which tick, and as which job."""
    job = delayq.current()
    said = (name, job.meta["delayq.periodic"]["tick"], job.short_id)
    note("began", *said, time.monotonic())
    time.sleep(seconds)
    note("ended", *said, time.monotonic())


for _schedule in json.loads(os.environ.get("APP_SCHEDULES", "[]")):  # what this version of the project declares
    delayq.periodic(**_schedule)(tick)


@delayq.task
def numbered(name: str, number: int, seconds: float) -> None:
    """Holds a name: everything it writes has the number of its turn."""
    turn = delayq.current().turn
    note("began", name, turn, number)
    time.sleep(seconds)
    note("ended", name, turn, number)


@delayq.task
def in_memory(*names: str) -> list[str]:
    """Which of these its process has loaded."""
    return [name for name in names if name in sys.modules]
