"""Redis goes away under requests and workers, and comes back: no request fails, nothing is lost, nothing is run twice."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator

import pytest

from django_delayq.store.connection.link import connect
from django_delayq.worker import hanging_calls
from django_delayq.worker.hanging_calls import MOST_HANGING, answers
from tests.links import opened
from tests.stage import ROOT
from tests.topologies import Trio
from tests.worker.conftest import Shop, eventually
from tests.worker.test_restore import Site

# A web process: a request every 10 ms, each with a transaction, until its input is closed.
REQUESTS = """
import select, sys, time
import django
django.setup()
from django.db import transaction
from tests.app.shop.tasks import write_down
number = 0
while not select.select([sys.stdin], [], [], 0.01)[0]:
    number += 1
    began = time.monotonic()
    try:
        with transaction.atomic():
            write_down.using(delay=number % 5 * 0.3).schedule(number, 0.02)
        print("ok", number, time.monotonic() - began, flush=True)
    except Exception as error:
        print("failed", number, repr(error), flush=True)
"""


@pytest.mark.slow
@pytest.mark.parametrize("how", ["stopped", "killed"])
def test_no_request_fails_and_no_job_is_lost_or_doubled_while_redis_is_away(shop: Shop, own_redis, how: str) -> None:
    server = own_redis(appendonly="yes", appendfsync="always")
    shop.url, shop.link = server.url, connect(server.url, name="test")
    ledger, answers = shop.ledger, shop.folder / "answers"
    shop.keep_rows(DURABILITY="outbox")
    for _ in range(2):
        shop.work("--roles", "move,mirror,relay", "--threads", "4", "-v", "0")
    with open(answers, "wb") as out:
        web = subprocess.Popen(
            [sys.executable, "-c", REQUESTS],
            cwd=ROOT,
            stdin=subprocess.PIPE,
            stdout=out,
            env={**os.environ, **shop.project},
        )
    try:
        eventually(lambda: ledger.exists() and len(ledger.read_text().splitlines()) > 50)
        (server.terminate if how == "stopped" else server.kill)()
        time.sleep(10)
        server.start()
        time.sleep(3)
    finally:
        web.communicate(timeout=60)
    told = [line.split() for line in answers.read_text().splitlines()]
    assert [line for line in told if line[0] != "ok"] == []
    wanted = {int(line[1]) for line in told}
    assert len(wanted) > 100  # how many it is says the machine

    def ran() -> Counter[int]:
        return Counter(int(line.split()[0]) for line in ledger.read_text().splitlines())

    eventually(lambda: wanted <= ran().keys(), f"every one of {len(wanted)} jobs", patience=60)
    time.sleep(2)
    assert {number: times for number, times in ran().items() if times != 1} == {}
    assert ran().keys() == wanted


@pytest.fixture
def trio() -> Iterator[Trio]:
    with Trio(save="") as trio:
        yield trio


def killed(trio: Trio) -> None:
    trio.master.kill()


def frozen(trio: Trio) -> None:
    trio.master.pause()


@pytest.mark.slow
@pytest.mark.parametrize("harmed", [frozen, killed])
def test_jobs_run_once_and_none_is_lost(shop: Shop, trio: Trio, harmed: Callable[[Trio], None]) -> None:
    site = Site(shop, trio.master, REDIS=trio.url)
    workers = [site.work("--processes", "2"), site.work()]
    # Nothing ends until the master is gone, since what it has not passed on would run again.
    site.schedule(((0, 8), 0, None))
    site.running(8)
    site.schedule(((100, 160), 11, 0.0), ((200, 260), 10, 0.0), ((900, 910), 3600, 0.0))
    eventually(lambda: site.rows("SELECT count(*) FROM delayq_job WHERE published IS NULL") == [(0,)])
    trio.wait_equal()
    harmed(trio)
    site.schedule(((300, 320), 0, 0.0), ((400, 420), 1, 0.0))  # Redis is away: these are rows
    trio.wait_promoted(trio.replica)
    shop.link = opened(trio.replica.url)
    shop.release(*range(8))
    site.schedule(((500, 520), 0, 0.0))
    eventually(lambda: site.states() == {"succeeded": 188, "scheduled": 10}, "188 jobs", patience=90)
    site.none_ran_twice()
    assert len(site.runs()) == 188
    assert shop.left() == 10
    eventually(lambda: shop.link.execute("CLIENT", "LIST").count(b"cmd=blpop") == 3, "the wake lines at the new master")
    for worker in workers:
        worker.signal(15)
        assert worker.wait() == 0, worker.text()


LONG = 20.0


def nothing() -> None:
    """Runs after a call."""


def test_who_asks_while_others_do_gets_their_answer_however_many_there_are() -> None:
    may_end = threading.Event()
    times: list[int] = []

    def question() -> int:
        times.append(1)
        may_end.wait(LONG)
        return 42

    first, *others = (hanging_calls._call(question, LONG, nothing) for _ in range(8 * MOST_HANGING))
    assert first is not None
    assert all(other is first for other in others)
    may_end.set()
    assert first.done.wait(LONG)
    assert (first.answer, len(times)) == (42, 1)
    assert answers(LONG, question, behind=nothing) == [42]
    assert len(times) == 2, "what has come back is asked anew"


def test_a_question_that_hangs_is_asked_a_few_times_more_and_one_that_does_not_beside_it() -> None:
    may_end = threading.Event()
    times: list[int] = []

    def hangs() -> None:
        times.append(1)
        may_end.wait(LONG)

    for _ in range(MOST_HANGING + 2):
        assert answers(0.05, hangs, lambda: 1, behind=nothing)[0] is None
    assert len(times) <= MOST_HANGING
    assert answers(LONG, lambda: 1, behind=nothing) == [1]
    asked = len(times)
    may_end.set()
    assert eventually(lambda: answers(LONG, hangs, behind=nothing) and len(times) > asked), "it is asked when it hangs no more"


def test_what_raises_is_none_and_the_next_one_asks_again() -> None:
    times: list[int] = []

    def wrong() -> int:
        times.append(1)
        raise LookupError("no shop")

    assert answers(LONG, wrong, behind=nothing) == answers(LONG, wrong, behind=nothing) == [None]
    assert len(times) == 2
