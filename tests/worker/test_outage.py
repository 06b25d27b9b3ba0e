"""Redis goes away under requests and workers, and comes back: no request fails, nothing is lost, nothing is run twice."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections import Counter

import pytest

from django_delayq.store.connection.link import connect
from tests.stage import ROOT
from tests.worker.conftest import Shop, eventually

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
