"""Jobs of many names on several workers that are killed, judged by a ledger: `python -m tests.worker.serial_run`. By default
10,000 jobs of 100 names on 4 workers, with 40 kills of a process and 4 of a whole worker.
"""

from __future__ import annotations

import argparse
import os
import signal
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from django_delayq import codec, ids
from django_delayq.job_meta import NAMED
from django_delayq.store.scripts.queue import ScheduleItem
from django_delayq.store.scripts.record import JobRecord

TASK = "tests.app.shop.tasks.numbered"
PATIENCE = 600.0


def put(store: Any, jobs: int, names: int, seconds: float) -> None:
    """Jobs of each name in turn, each a millisecond later than the one before, all of them due."""
    now_ms = int(store.link.execute("TIME")[0]) * 1000 - jobs
    items = []
    for number in range(jobs):
        name = f"order:{number % names}"
        payload = codec.encode_payload((name, number, seconds), {}, {"meta": {NAMED: [name, 1]}}, limit=65536, task=TASK)
        record = JobRecord(id=ids.new(), task=TASK, durable=False, payload=payload)
        items.append(ScheduleItem.of(record, due_ms=now_ms + number))
    for start in range(0, jobs, 200):
        store.schedule(items[start : start + 200])


def wrong(ledger: Sequence[str], jobs: int) -> list[str]:
    """The violations in the ledger: lines "began|ended name turn number", in the order in which they were written."""
    found: list[str] = []
    latest: dict[str, int] = {}
    order: dict[str, list[int]] = {}
    ended: set[int] = set()
    for line in ledger:
        word, name, turn, number = line.split()
        if int(turn) < latest.get(name, 0):
            found.append(f"{line}: turn {latest[name]} of that name has begun before")
        elif word == "began" and int(turn) == latest.get(name):
            found.append(f"{line}: two runs of one turn")
        latest[name] = max(latest.get(name, 0), int(turn))
        if word == "ended":
            ended.add(int(number))
        elif int(number) not in order.setdefault(name, []):
            order[name].append(int(number))
    found += [f"{name}: not the oldest first: {numbers}" for name, numbers in order.items() if numbers != sorted(numbers)]
    if lacking := jobs - len(ended):
        found.append(f"{lacking} jobs have not ended")
    return found


def play(shop: Any, *, jobs: int, names: int, seconds: float, workers: int, kills: int, losses: int = 0) -> list[str]:
    """Puts jobs in, kills as they proceed, and returns what is wrong. `kills`: of a task process; `losses`: of a whole worker, of which
    another takes the place.
    """
    put(shop.store(), jobs, names, seconds)
    started = [shop.work("--threads", "8") for _ in range(workers)]
    deadline = time.monotonic() + PATIENCE
    times = kills + losses
    done = 0
    while shop.left():
        if time.monotonic() > deadline:
            break
        if done < times and int(shop.link.execute("LLEN", "ran")) >= 2 * jobs * (done + 1) / (times + 2):
            place = done % workers
            if losses and done % (times // losses) == 0:
                started[place].signal_tree(signal.SIGKILL)
                started[place] = shop.work("--threads", "8")
            else:
                for child in started[place].children()[:1]:
                    os.kill(child, signal.SIGKILL)
            done += 1
        time.sleep(0.005)
    found = wrong(shop.ran(), jobs)
    return found if done == times else [*found, f"{done} of {times} kills came"]


def main() -> int:
    """Says what is wrong, and answers with the exit code."""
    said = argparse.ArgumentParser(description=__doc__)
    for name, usual in (("jobs", 10_000), ("names", 100), ("workers", 4), ("kills", 40), ("losses", 4)):
        said.add_argument(f"--{name}", type=int, default=usual)
    said.add_argument("--seconds", type=float, default=0.005, help="that each job runs")
    told = vars(said.parse_args())
    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "tests.settings")
    from tests.servers import RedisServer

    server = RedisServer()
    server.start()
    try:
        from django_delayq.store.connection.link import connect
        from tests.worker.conftest import Shop

        with tempfile.TemporaryDirectory() as folder:
            shop = Shop(server.url, connect(server.url, name="serial"), Path(folder))
            shop.settings = {"LEASE": 5, "MAX_CRASHES": 100}
            try:
                began = time.monotonic()
                found = play(shop, **told)
            finally:
                for worker in shop.workers:
                    worker.kill_tree()
            runs = sum(line.startswith("began") for line in shop.ran())
    finally:
        server.stop()
    numbers = SimpleNamespace(**told)
    sys.stdout.write(f"{numbers.jobs} jobs of {numbers.names} names, {runs} runs, {time.monotonic() - began:.0f} s\n")
    sys.stdout.write("\n".join(found[:20]) + "\n" if found else "never two of a name at once, and oldest first\n")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
