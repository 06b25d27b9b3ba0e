"""Worker processes that serve a queue with several partitions."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from django_delayq import codec, ids
from django_delayq.store.connection.cluster import slot_of
from django_delayq.store.keys import Keys, tag
from django_delayq.store.reads.inspector import Inspector
from django_delayq.store.scripts.events import EventLog
from django_delayq.store.scripts.queue import QueueStore, ScheduleItem
from django_delayq.store.scripts.record import JobRecord
from tests.conftest import missing
from tests.links import package_link
from tests.stage import ROOT
from tests.topologies import ClusterServers, redis_program
from tests.worker.conftest import Shop, eventually
from tests.worker.test_restore import Site

COUNT = "tests.app.shop.tasks.count"
PARTS = 3


SCHEDULE = """
import django
django.setup()
import django_delayq as delayq
from tests.app.shop.tasks import write_down
from tests.depths import queue_depth
delayq.schedule_many(write_down.using(key=f"k{number}").bind(number, 0) for number in range(60))
for number in range(60, 120):
    delayq.schedule(write_down, number, 0)
later = delayq.schedule(write_down, 1, 0, delay="1h", key="later")
assert delayq.get(key="later", queue="default").id == later.id
assert delayq.schedule(write_down, 2, 0, delay="2h", key="later").id == later.id
assert delayq.reschedule(key="later", queue="default", delay="2h") == "done"
assert delayq.cancel(key="later", queue="default") == "done"
delayq.pause("default")
assert queue_depth("default").paused
delayq.resume("default")
"""


COUNTED = """
import django
django.setup()
import django_delayq as delayq
from tests.app.shop.tasks import count
for number in range(30):
    delayq.schedule(count, number, delay="3s")
"""


@pytest.fixture
def divided(shop: Shop) -> Shop:
    shop.settings = {"QUEUES": {"default": {"PARTITIONS": PARTS}, "slow": {}}}
    return shop


def put(shop: Shop, numbers: range, *, delay_ms: int = 0, into: range = range(PARTS)) -> list[str]:
    """A job a number, dealt to the partitions in turn."""
    found = []
    for place, partition in enumerate(into):
        records = [
            JobRecord(
                id=ids.new(partition), task=COUNT, durable=False, payload=codec.encode_payload((n,), {}, None, limit=65536, task=COUNT)
            )
            for n in numbers
            if n % len(into) == place
        ]
        store = QueueStore(package_link(shop.link), prefix="delayq", queue="default", partition=partition)
        store.schedule([ScheduleItem.of(record, delay_ms=delay_ms) for record in records])
        found += [ids.short(record.id) for record in records]
    return found


def test_a_worker_runs_what_is_due_in_all_partitions(divided: Shop) -> None:
    put(divided, range(60))
    put(divided, range(60, 63), delay_ms=3_600_000)
    assert divided.work("--burst").wait() == 0
    assert divided.counts() == dict.fromkeys(range(60), 1)
    inspector = Inspector(divided.link, prefix="delayq", partitions={"default": PARTS})
    assert [depth.scheduled for depth in inspector.by_partition(["default"])[0]] == [1, 1, 1]


def test_an_idle_worker_hears_of_a_job_in_each_partition(divided: Shop) -> None:
    divided.work()
    for number in range(6):
        put(divided, range(number, number + 1))
        eventually(lambda number=number: divided.counts().get(number) == 1)


@pytest.mark.slow
def test_workers_that_are_killed_lose_no_job_of_any_partition(divided: Shop) -> None:
    divided.settings |= {"LEASE": 2}
    put(divided, range(90))
    first = divided.work("--processes", "2")
    eventually(lambda: len(divided.counts()) > 10)
    first.kill_tree()
    divided.work("--processes", "2")
    eventually(lambda: len(divided.counts()) == 90)


def test_a_worker_serves_its_share_of_the_partitions(divided: Shop) -> None:
    put(divided, range(30))
    assert divided.work("--burst", "--partitions", "default=1-2").wait() == 0
    assert sorted(divided.counts()) == [n for n in range(30) if n % PARTS]
    assert divided.work("--burst", "--partitions", "default=0").wait() == 0
    assert divided.counts() == dict.fromkeys(range(30), 1)


ONE = {"QUEUES": {"default": {}, "slow": {}}}  # and none before


def test_jobs_in_partitions_that_the_settings_do_not_name_any_more_are_run(divided: Shop) -> None:
    put(divided, range(30))
    divided.settings |= ONE
    worker = divided.work("--burst")
    assert worker.wait() == 0
    assert divided.counts() == dict.fromkeys(range(30), 1)
    assert f"Add {PARTS} to FORMER_PARTITIONS" in worker.text()
    after = divided.work("--burst")
    assert after.wait() == 0
    assert "FORMER_PARTITIONS" not in after.text(), "they are empty"


def test_a_worker_without_a_share_of_what_is_left_leaves_it_to_others(divided: Shop) -> None:
    put(divided, range(30))
    divided.settings |= ONE
    assert divided.work("--burst", "--partitions", "default=0-1").wait() == 0
    assert sorted(divided.counts()) == [n for n in range(30) if n % PARTS != 2]


@pytest.mark.slow
def test_rows_of_such_partitions_come_back_to_a_wiped_redis_and_are_run(divided: Shop) -> None:
    divided.keep_rows(DURABILITY="outbox")
    environment = {**os.environ, **divided.project}
    subprocess.run([sys.executable, "-c", COUNTED], cwd=ROOT, env=environment, check=True)
    assert divided.work("--burst", "--roles", "mirror").wait() == 0
    divided.link.execute("FLUSHALL")
    divided.settings |= ONE
    worker = divided.work("--roles", "move,mirror,relay")
    eventually(lambda: divided.counts() == dict.fromkeys(range(30), 1), patience=60)
    assert "FORMER_PARTITIONS" in worker.text()


@pytest.mark.parametrize("given", ["default=0-3", "default=2-1", "default=x", "other=0", "default", "default=0,default=2"])
def test_a_share_that_cannot_be_is_refused(divided: Shop, given: str) -> None:
    worker = divided.work("--burst", "--partitions", given)
    assert worker.wait() == 2
    assert "--partitions" in worker.text()


def test_more_partitions_than_one_worker_serves_are_refused_with_the_way_out(shop: Shop) -> None:
    shop.settings = {"QUEUES": {"default": {"PARTITIONS": 129}, "slow": {}}}
    worker = shop.work("--burst")
    assert worker.wait() == 2
    assert "130 partitions" in worker.text()
    assert "--partitions orders=0-63" in worker.text()


def test_a_job_in_a_partition_far_beyond_the_settings_keeps_no_worker_from_those_that_they_name(divided: Shop) -> None:
    put(divided, range(30))
    put(divided, range(30, 31), into=range(300, 301))
    worker = divided.work("--burst")
    assert worker.wait() == 0, worker.text()
    assert divided.counts() == dict.fromkeys(range(30), 1)
    assert "Add 301 to FORMER_PARTITIONS" in worker.text()
    assert divided.work("--burst", "--partitions", "default=300").wait() == 0
    assert divided.counts() == dict.fromkeys(range(31), 1)


def test_rows_tell_of_the_jobs_of_all_partitions(divided: Shop) -> None:
    divided.keep_rows()
    divided.settings |= {"QUEUES": {"default": {"PARTITIONS": PARTS}}}
    jobs = put(divided, range(12))
    assert divided.work("--burst", "--roles", "move,mirror,relay").wait() == 0
    assert divided.counts() == dict.fromkeys(range(12), 1)
    told = divided.manage("delayq", "list", "--json", "--state", "succeeded", "--limit", "50")
    assert all(job in told for job in jobs)
    for partition in range(PARTS):
        assert EventLog(divided.link, Keys("delayq", "default", partition)).length() == 0


@pytest.mark.slow
def test_partitions_of_one_queue_run_on_all_masters_of_a_cluster(shop: Shop, redis_server) -> None:
    program = redis_program() or missing("no redis")
    with ClusterServers(program=program, replicas=False, cluster_require_full_coverage="no") as cluster:
        queues = {"default": {"PARTITIONS": 6}, "slow": {}}
        site = Site(shop, redis_server, REDIS=cluster.url, QUEUES=queues, DURABILITY="outbox")
        masters = {cluster.serving(slot_of(f"{{{tag('default', partition)}}}")).port for partition in range(6)}
        assert len(masters) == 3
        environment = {**os.environ, **site.shop.project}
        subprocess.run([sys.executable, "-c", SCHEDULE], cwd=ROOT, env=environment, check=True)
        site.work()
        eventually(lambda: site.states() == {"succeeded": 120, "cancelled": 1}, "120 jobs", patience=90)
