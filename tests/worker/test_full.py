"""Redis at maxmemory: schedules are refused or wait as rows, what is there runs and settles, and then all flows again by itself."""

from __future__ import annotations

from collections import Counter

import pytest

from tests.links import opened
from tests.worker.conftest import Shop, eventually

# A request: durable jobs in a transaction, and one that only Redis would know.
REQUEST = """
import django_delayq as delayq
from django.db import transaction
from django_delayq.models import Job
from tests.app.shop.tasks import write_down
with transaction.atomic():
    jobs = [write_down.schedule(number) for number in range({first}, {first} + 20)]
print(Job.objects.filter(pk__in=[job.id for job in jobs]).count())
try:
    print(write_down.using(queue="slow").schedule({first} + 20).created)
except delayq.StoreUnavailable as error:
    print(error)
"""


@pytest.mark.slow
def test_schedules_wait_or_are_refused_and_the_rest_goes_on(shop: Shop, own_redis) -> None:
    server = own_redis()
    shop.url, shop.link = server.url, opened(server.url)
    ledger = shop.ledger
    shop.keep_rows(DURABILITY="outbox", LEASE=6, QUEUES={"default": {}, "slow": {"DURABILITY": "redis"}})

    def ran() -> Counter[int]:
        return Counter(int(line.split()[0]) for line in ledger.read_text().splitlines()) if ledger.exists() else Counter()

    worker = shop.work("--roles", "move,mirror,relay", "--threads", "8")
    shop.put_many("write_down", [(number, 8.0) for number in range(4)])
    shop.put_many("write_down", [(number,) for number in range(100, 400)], delay_ms=1500)
    eventually(lambda: shop.leases() >= 4)  # what has been due for longest is claimed first
    shop.link.execute("CONFIG", "SET", "maxmemory", "1")

    rows, refusal = shop.manage("shell", "-v", "0", "-c", REQUEST.format(first=1000)).splitlines()
    assert rows == "20"
    assert "maxmemory" in refusal or "memory" in refusal, refusal
    # Longer than the lease: it is extended, and what has been due drains.
    eventually(lambda: set(ran()) == {*range(4), *range(100, 400)}, patience=60)
    eventually(lambda: not shop.leases())
    assert not shop.left()
    assert set(ran().values()) == {1}
    assert worker.process.poll() is None

    shop.link.execute("CONFIG", "SET", "maxmemory", "0")
    eventually(lambda: set(range(1000, 1020)) <= set(ran()), "what waited as rows", patience=60)
    assert shop.manage("shell", "-v", "0", "-c", REQUEST.format(first=2000)).splitlines() == ["20", "True"]
    eventually(lambda: set(range(2000, 2021)) <= set(ran()), patience=60)
    assert 1020 not in ran(), "it was refused, and its caller knows"
    assert set(ran().values()) == {1}
    worker.signal(15)
    assert worker.wait() == 0, worker.text()


def test_at_twice_the_limit_of_events_a_worker_claims_no_more_until_the_mirror_has_come(shop: Shop) -> None:
    shop.settings = {"MIRROR_MAX_EVENTS": 1000}
    jobs = 1500
    shop.put_many("doze", [(number, 0.0) for number in range(jobs)])

    def told() -> int:
        return sum(len(entry.items) for entry in shop.events())

    shop.work("--threads", "4")
    eventually(lambda: told() >= 2000 and not shop.leases())
    assert shop.left() > jobs // 4, "the rest waits"
    assert told() <= 2 * 1000 + 4 * 200, "and what was held when the limit was reached"
