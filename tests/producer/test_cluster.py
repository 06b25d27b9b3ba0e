"""Web processes whose queues are on a Redis Cluster, of which a master hangs or is gone, or a slot is open."""

from __future__ import annotations

import json
from collections.abc import Iterator
from itertools import permutations

import pytest
from django.core.management import CommandError, call_command
from django.db import transaction
from django.urls import reverse

import django_delayq as delayq
from django_delayq import clock, conf, ids
from django_delayq.console import health, overview
from django_delayq.exceptions import ConfigError, StoreUnavailable
from django_delayq.locks.lock import process_leases
from django_delayq.management.queue_findings import _left_behind
from django_delayq.mirror.pause_loop import PauseLoop
from django_delayq.models import Job
from django_delayq.producer.queues import purge
from django_delayq.producer.stores import stores
from django_delayq.store.connection.cluster import Node, slot_of
from django_delayq.store.keys import tag
from django_delayq.store.scripts.limits import LimitStore
from django_delayq.store.scripts.queue import QueueStore
from tests.depths import queue_depth
from tests.partitioned import fold
from tests.tasks_for_tests import close_order
from tests.topologies import ClusterNode, ClusterServers

QUEUES = ("orders", "redis", "b", "c", "d")

pytestmark = [pytest.mark.django_db(transaction=True)]


@pytest.fixture(scope="module")
def own_cluster() -> Iterator[ClusterServers]:
    """A Cluster of three masters, one of which may be unavailable."""
    with ClusterServers(cluster_require_full_coverage="no", cluster_node_timeout="60000") as running:
        yield running


@pytest.fixture
def cluster(own_cluster, settings) -> Iterator[ClusterServers]:
    """The same, empty."""
    for node in own_cluster.masters:
        assert node.call("FLUSHALL") == "+OK"
    queues = {**{queue: {} for queue in QUEUES}, "redis": {"DURABILITY": "redis"}}
    settings.DELAYQ = {**settings.DELAYQ, "REDIS": own_cluster.url, "QUEUES": queues, "DURABILITY": "outbox"}
    stores.reset()
    yield own_cluster
    stores.reset()
    for node in own_cluster.masters:
        node.resume()
        node.wait_ready()


@pytest.fixture
def sent(monkeypatch) -> list[int]:
    """The ports that something was sent to."""
    found: list[int] = []
    real = Node._send

    def watched(node, commands):
        found.append(node.address[1])
        return real(node, commands)

    monkeypatch.setattr(Node, "_send", watched)
    return found


def slot(queue: str) -> int:
    return slot_of(f"{{{queue}}}")


def masters(cluster: ClusterServers) -> dict[str, ClusterNode]:
    return {queue: cluster.serving(slot(queue)) for queue in QUEUES}


def beside(cluster: ClusterServers, queue: str) -> str:
    """A queue on another master."""
    of = masters(cluster)
    return next(other for other in QUEUES if of[other] is not of[queue] and other != "redis")


def test_one_call_puts_jobs_in_wherever_their_queues_are(cluster):
    assert len({node.port for node in masters(cluster).values()}) == 3
    jobs = delayq.schedule_many(close_order.using(delay="1h", queue=queue).bind(n) for n in range(10) for queue in QUEUES)
    assert all(job.created for job in jobs)
    assert [delayq.get(job.id).queue for job in jobs[: len(QUEUES)]] == list(QUEUES)
    assert [delayq.cancel(job) for job in jobs[: len(QUEUES)]] == ["done"] * len(QUEUES)
    assert delayq.cancel(jobs[7].id) == "done"
    seen = overview.look()
    assert sum(queue.depth.scheduled for queue in seen.queues) == 50 - 6
    assert (seen.missing, seen.error) == ({}, None)


def test_a_lock_has_a_slot_whether_or_not_it_names_a_queue(cluster):
    with delayq.lock("a") as one, delayq.lock("a", queue="b") as other:
        process_leases().poll()
        assert one.held
        assert other.held


@pytest.mark.slow
def test_a_master_that_hangs_has_a_breaker_of_its_own(cluster, sent):
    hung, well = "orders", beside(cluster, "orders")
    for queue in (hung, well):  # what asks for epochs
        delayq.schedule(close_order, 0, queue=queue)
    kept = delayq.schedule(close_order, 1, queue=hung, delay="1h")
    node = masters(cluster)[hung]
    node.pause()
    with transaction.atomic():
        away = [delayq.schedule(close_order, n, queue=hung) for n in range(3)]
        there = [delayq.schedule(close_order, n, queue=well) for n in range(3)]
    assert [job.created for job in there] == [True] * 3
    assert [job.created for job in away] == [None] * 3
    assert Job.objects.filter(published=None, pk__in=[job.id for job in away]).count() == 3
    del sent[:]
    assert delayq.schedule(close_order, 9, queue=hung).created is None
    assert sent == [], "it is left alone"
    assert delayq.schedule(close_order, 9, queue=well).created
    with pytest.raises(StoreUnavailable):
        delayq.cancel(kept)
    assert node.port in sent, "who asks by name is not turned away"
    node.resume()
    node.wait_ready()
    assert delayq.cancel(kept) == "done"
    assert delayq.schedule(close_order, 10, queue=hung).created


def test_a_task_is_paused_on_all_masters_and_on_one_that_refuses_later(cluster, monkeypatch):
    monkeypatch.setattr(stores.places.of("orders", 0)._cluster, "patience", 0.1)
    node = masters(cluster)["orders"]
    assert node.call("CLUSTER", "DELSLOTS", str(slot("orders"))) == "+OK"
    try:
        reply = delayq.pause(task=close_order)
        assert (reply.changed, "orders" in reply.unconfirmed) == (True, True)
    finally:
        node.serve(slot("orders"), slot("orders"))
    stores.reset()
    PauseLoop().poll()
    for queue in conf.get().queues:
        assert LimitStore(stores.queue(queue, 0)).paused()


def test_many_jobs_of_one_call_do_not_wait_one_behind_the_other_for_a_master_that_refuses(cluster, monkeypatch):
    asked: list[str] = []
    real = QueueStore.epoch

    def watched(store: QueueStore) -> str:
        asked.append(store.queue)
        return real(store)

    monkeypatch.setattr(QueueStore, "epoch", watched)
    monkeypatch.setattr(stores.places.of("orders", 0)._cluster, "patience", 0.1)
    node = masters(cluster)["orders"]
    assert node.call("CLUSTER", "DELSLOTS", str(slot("orders"))) == "+OK"  # it says CLUSTERDOWN, as one does that hears of nobody
    try:
        jobs = delayq.schedule_many(close_order.using(delay="1h").bind(n) for n in range(50))
        assert [job.created for job in jobs] == [None] * 50
        assert len(asked) <= 3, "once for all plans, and when they are published"
    finally:
        node.serve(slot("orders"), slot("orders"))


@pytest.mark.slow
def test_a_node_that_leads_to_one_that_is_gone_is_not_left_alone_for_it(cluster):
    of = masters(cluster)
    moved, stays = next((one, other) for one, other in permutations(QUEUES, 2) if of[one] is of[other] and "redis" not in (one, other))
    source, to = of[moved], of[beside(cluster, moved)]
    kept = delayq.schedule(close_order, 0, queue=moved, delay="1h")
    cluster.move(slot(moved), to)  # which this process does not know yet
    to.pause()
    with pytest.raises(StoreUnavailable, match=str(to.port)):
        delayq.cancel(kept)
    assert delayq.schedule(close_order, 1, queue=stays).created
    to.resume()
    to.wait_ready()
    cluster.move(slot(moved), source)
    assert delayq.cancel(kept) == "done"


def test_while_a_slot_is_open_its_jobs_wait_as_rows_and_people_see_all(cluster):
    delayq.schedule(close_order, 0, queue="orders", delay="1h")
    source, to = (masters(cluster)[queue] for queue in ("orders", beside(cluster, "orders")))
    cluster.open(slot("orders"), to)
    cluster.carry(slot("orders"), to, 2)
    waits = delayq.schedule(close_order, 1, queue="orders", delay="1h")
    assert waits.created is None
    assert delayq.schedule(close_order, 1, queue=beside(cluster, "orders")).created
    assert sum(queue.depth.scheduled for queue in overview.look().queues if queue.name == "orders") == 1
    cluster.carry(slot("orders"), to)
    cluster.settle(slot("orders"), to)
    assert delayq.schedule(close_order, 2, queue="orders", delay="1h").created
    cluster.move(slot("orders"), source)


def test_a_slot_that_is_open_keeps_no_job_of_its_neighbours_from_redis(cluster, settings):
    """Both are scheduled by one call."""
    settings.DELAYQ = {**settings.DELAYQ, "QUEUES": {"orders": {"PARTITIONS": 12}}}
    of = {partition: cluster.serving(slot_of(f"{{{tag('orders', partition)}}}")) for partition in range(12)}
    options = close_order.using(delay="1h", queue="orders")
    before = [options.using(key=str(n)).schedule(n) for n in range(60)]  # epochs are known
    opened = ids.partition(before[0].id)  # of a call with these keys it comes first
    beside = next(other for other in of if other != opened and of[other] is of[opened])
    to = next(node for node in cluster.masters if node is not of[opened])
    number = slot_of(f"{{{tag('orders', opened)}}}")
    assert {delayq.cancel(job) for job in before} == {"done"}
    cluster.open(number, to)
    cluster.carry(number, to, 2)
    jobs = delayq.schedule_many(options.using(key=str(n)).bind(n) for n in range(60))
    parts = {job.id: ids.partition(job.id) for job in jobs}
    assert {opened, beside} <= set(parts.values())
    assert {parts[job.id] for job in jobs if job.created is None} == {opened}
    cluster.carry(number, to)
    cluster.settle(number, to)
    cluster.move(number, of[opened])


@pytest.mark.slow
def test_people_see_what_is_there_and_what_is_missing(cluster):
    for queue in QUEUES:
        delayq.schedule(close_order, 1, delay="1h", queue=queue)
    gone = masters(cluster)["orders"]
    missing = {queue for queue, node in masters(cluster).items() if node is gone}
    gone.pause()
    seen = overview.look()
    assert set(seen.missing) == missing
    assert {queue.name for queue in seen.queues} == set(QUEUES) - missing
    assert health.redis_signs(seen)[0].level == "bad"
    told = {(name, labels.get("queue", "")): value for name, labels, value in health.redis_samples()}
    assert told["delayq_up", ""] == 0
    assert {queue for name, queue in told if name == "delayq_jobs_due"} == set(QUEUES) - missing


@pytest.mark.slow
def test_a_queue_whose_partitions_are_on_several_masters_is_read_as_a_whole(cluster, settings, sent):
    settings.DELAYQ = {**settings.DELAYQ, "QUEUES": {"orders": {"PARTITIONS": 6}, "redis": {"DURABILITY": "redis"}}}
    for n in range(40):
        delayq.schedule(close_order, n, delay="1h", queue="orders", key=str(n))
    assert len(stores.servers()) == 3
    of = {partition: cluster.serving(slot_of(f"{{{tag('orders', partition)}}}")) for partition in range(6)}
    del sent[:]
    [orders, _] = overview.look().queues
    assert orders.depth.scheduled == 40
    assert set(sent) == {node.port for node in cluster.masters}
    gone = next(node for node in of.values() if node is not masters(cluster)["redis"])
    gone.pause()
    jobs = [delayq.schedule(close_order, n, delay="1h", queue="orders", key=f"new{n}") for n in range(40)]
    assert {job.created for job in jobs if of[ids.partition(job.id)] is not gone} == {True}
    assert {job.created for job in jobs if of[ids.partition(job.id)] is gone} == {None}


class Divided:
    """A queue of 16 partitions with 64 jobs, of which one master hangs."""

    def __init__(self, cluster: ClusterServers) -> None:
        self.of = {partition: cluster.serving(slot_of(f"{{{tag('orders', partition)}}}")) for partition in range(16)}
        self.jobs = [delayq.schedule(close_order, n, delay="1h", queue="orders", key=str(n)) for n in range(64)]
        fold()
        self.hung = next(node for node in cluster.masters if node is not cluster.serving(slot("default")))
        self.away = [partition for partition, node in self.of.items() if node is self.hung]
        self.there = sum(ids.partition(job.id) not in self.away for job in self.jobs)
        self.hung.pause()
        stores.forget()

    @property
    def without(self) -> str:
        return f"{len(self.away)} of 16"


@pytest.fixture
def divided(cluster, settings) -> Divided:
    settings.DELAYQ = {**settings.DELAYQ, "QUEUES": {"default": {}, "orders": {"PARTITIONS": 16}}}
    stores.reset()
    return Divided(cluster)


@pytest.mark.slow
def test_a_name_whose_former_home_is_away_waits_for_it(divided, settings):
    orders = {"PARTITIONS": 32, "FORMER_PARTITIONS": [16]}
    settings.DELAYQ = {**settings.DELAYQ, "QUEUES": {"default": {}, "orders": orders}}
    homes = {name: conf.get().queue("orders").homes(name) for name in map(str, range(200))}
    name, former = next((name, former[0]) for name, (_, *former) in homes.items() if former and former[0] in divided.away)
    job = delayq.schedule(close_order, 1, delay="1h", queue="orders", serial=name)
    assert (job.created, ids.partition(job.id)) == (None, former)
    assert Job.objects.get(pk=job.id).published is None


@pytest.mark.slow
def test_sums_are_of_the_partitions_that_answer_and_say_which_do_not(divided, sent):
    del sent[:]
    seen = overview.look()
    assert sent.count(divided.hung.port) == 1, "it is waited for once"
    [orders] = [queue for queue in seen.queues if queue.name == "orders"]
    assert (orders.depth.scheduled, sorted(orders.away), seen.missing) == (divided.there, divided.away, {})
    assert sorted({*orders.parts, *orders.away}) == list(range(16))
    [(names, _)] = seen.left_out
    assert names == [f"orders/{partition}" for partition in divided.away]
    [redis, *_] = health.redis_signs(seen)
    assert (redis.level, redis.value.startswith("cannot be reached: orders/")) == ("bad", True)


@pytest.mark.slow
def test_metrics_say_how_many_partitions_are_in_no_number(divided):
    told = {(name, *labels.values()): value for name, labels, value in health.redis_samples()}
    assert told["delayq_up", "redis"] == 0
    assert told["delayq_jobs", "orders", "scheduled"] == divided.there
    assert (told["delayq_queue_partitions", "orders"], told["delayq_queue_partitions_away", "orders"]) == (16, len(divided.away))
    assert ("delayq_queue_partitions", "default") not in told


@pytest.mark.slow
def test_the_lateness_of_a_queue_is_that_of_its_worst_partition_that_is_not_paused(divided):
    partition = next(ids.partition(job.id) for job in divided.jobs if ids.partition(job.id) not in divided.away)
    store = stores.queue("orders", partition)
    store.link.execute("ZADD", store.keys["normal"], 1, ids.short(divided.jobs[0].id))
    shown = {sign.name: sign for sign in health.redis_signs(overview.look())}
    assert shown["late"].level == "bad"
    store.pause()
    shown = {sign.name: sign for sign in health.redis_signs(overview.look())}
    assert shown["late"].level == "well"


@pytest.mark.slow
def test_pages_come_without_the_partitions_that_do_not_answer(divided, admin_client):
    page = admin_client.get(reverse("admin:delayq_queue_changelist")).content.decode()
    assert f"without {divided.without}" in page
    assert f"The figures from Redis do not include orders/{divided.away[0]}" in page
    stores.forget()
    page = admin_client.get(reverse("admin:delayq_queue_change", args=["orders"])).content.decode()
    assert f"{divided.without} partitions cannot be reached." in page
    assert page.count('<td colspan="7" class="delayq-error') == len(divided.away)
    for address in ("delayq_job_changelist", "delayq_worker_changelist", "delayq_queue_trends"):
        stores.forget()
        answer = admin_client.get(reverse(f"admin:{address}"))
        assert answer.status_code == 200
    page = answer.content.decode()
    assert f"The figures from Redis do not include orders/{divided.away[0]}" in page, "of the trends"
    for away in (True, False):
        job = next(job for job in divided.jobs if (ids.partition(job.id) in divided.away) is away)
        stores.forget()
        assert admin_client.get(reverse("admin:delayq_job_change", args=[job.id])).status_code == 200


@pytest.mark.slow
@pytest.mark.parametrize("span", ["1h", "7d"])
def test_charts_are_of_the_partitions_that_answer(divided, admin_client, span):
    there = next(partition for partition in divided.of if partition not in divided.away)
    store = stores.queue("orders", there)
    store.link.execute("HSET", store.keys["stats"], f"{clock.wall_ms() // 60_000 - 1}:succeeded", 5)
    for place in (reverse("admin:delayq_queue_change", args=["orders"]), reverse("admin:delayq_queue_trends")):
        stores.forget()
        seen = admin_client.get(f"{place}?span={span}").context
        assert (seen["trouble"], seen["whole"]["succeeded"]) == ("", 5)
        [(names, _)] = seen["left_out"]
        assert names.startswith(f"orders/{divided.away[0]}")


@pytest.mark.slow
def test_status_says_which_partitions_are_in_no_number(divided, capsys):
    with pytest.raises(SystemExit):
        call_command("delayq", "status")
    lines = capsys.readouterr().out.splitlines()
    assert f"without {divided.without} partitions" in next(line for line in lines if line.startswith("orders "))
    for partition in divided.away:
        assert "unreachable" in next(line for line in lines if line.split()[:1] == [f"orders/{partition}"])
    assert any(line.startswith(f"Not included in the totals: orders/{divided.away[0]}, ") for line in lines)
    with pytest.raises(SystemExit):
        call_command("delayq", "status", "--json")
    [orders] = [one for one in json.loads(capsys.readouterr().out)["queues"] if one["queue"] == "orders"]
    assert (orders["partitions_away"], len(orders["partitions"])) == (len(divided.away), 16)
    assert [one["partition"] for one in orders["partitions"] if "error" in one] == divided.away


@pytest.mark.slow
def test_a_pause_that_did_not_reach_all_is_told_and_repeated(divided, admin_client):
    """It reaches those that answer, and the answer names the others."""
    reply = delayq.pause("orders", actor="kim", reason="x")
    assert {*reply.unconfirmed} == {f"orders/{partition}" for partition in divided.away}
    divided.hung.resume()
    divided.hung.wait_ready()
    stores.reset()
    [orders] = [queue for queue in overview.look().queues if queue.name == "orders"]
    assert orders.paused_parts == 16 - len(divided.away)
    page = admin_client.get(reverse("admin:delayq_queue_changelist")).content.decode()
    assert f"paused: {orders.paused_parts} of 16" in page
    assert ("Resume orders" in page, "Pause orders" in page) == (True, True)
    assert delayq.pause("orders", actor="kim", reason="x")
    assert not delayq.pause("orders", actor="kim", reason="x")
    [orders] = [queue for queue in overview.look().queues if queue.name == "orders"]
    assert (orders.depth.paused, orders.paused_parts) == (True, 0)
    assert delayq.resume("orders")
    assert not delayq.resume("orders")


@pytest.mark.slow
def test_a_purge_empties_what_answers_and_names_what_does_not(divided):
    with pytest.raises(StoreUnavailable, match=f"orders/{divided.away[0]}"):
        sum(purge("orders"))
    divided.hung.resume()
    divided.hung.wait_ready()
    stores.reset()
    assert queue_depth("orders").scheduled == 64 - divided.there
    assert sum(purge("orders")) == 64 - divided.there
    assert sum(purge("orders")) == 0


@pytest.mark.slow
def test_the_command_purges_what_answers_and_says_what_it_could_not_count(divided, capsys):
    away = [f"orders/{partition}" for partition in divided.away]
    with pytest.raises(SystemExit) as caught:
        call_command("delayq", "purge", "orders", "--dry-run", "--json")
    document = json.loads(capsys.readouterr().out)
    assert (caught.value.code, document["would_cancel"], list(document["missing"])) == (1, divided.there, away)
    with pytest.raises(CommandError, match=away[0]):
        call_command("delayq", "purge", "orders", "--yes", "--json")
    document = json.loads(capsys.readouterr().out)
    assert (document["cancelled"], list(document["missing"])) == (divided.there, away)
    divided.hung.resume()
    divided.hung.wait_ready()
    stores.reset()
    call_command("delayq", "purge", "orders", "--yes", "--json")
    assert json.loads(capsys.readouterr().out) == {"queue": "orders", "cancelled": 64 - divided.there}


def test_all_is_well_of_a_whole_cluster(cluster):
    stores.reset()
    assert len(stores.servers()) == 3
    assert health.redis_signs(overview.look())[0].level == "well"
    assert {labels["part"]: value for name, labels, value in health.redis_samples() if name == "delayq_up"} == {"redis": 1}


def test_a_queue_with_a_cluster_of_its_own_leaves_the_shared_server_what_it_was(cluster, settings, redis_server):
    queues = {"orders": {}, "spread": {"REDIS": cluster.url}}
    settings.DELAYQ = {**settings.DELAYQ, "REDIS": redis_server.url, "QUEUES": queues}
    jobs = [delayq.schedule(close_order, 1, delay="1h", queue=queue) for queue in queues]
    assert all(job.created for job in jobs)
    assert redis_server.link.execute("HLEN", "delayq:{orders}:jobs") == 1
    assert cluster.serving(slot("spread")).call("HLEN", "delayq:{spread}:jobs") == ":1"
    assert [type(stores.places.of(queue, 0)).__name__ for queue in queues] == ["Link", "SlotLink"]


def test_the_test_kit_does_not_go_to_a_cluster(cluster, settings):
    with pytest.raises(ConfigError, match="a single server"):
        from django_delayq.testing.kit import Kit

        Kit()._link(conf.get())


def test_doctor_takes_no_queue_of_a_cluster_for_one_that_was_left_behind(cluster):
    for queue in QUEUES:
        delayq.schedule(close_order, 1, delay="1h", queue=queue)
    assert [found for queue in QUEUES for found in _left_behind(queue)] == []


def test_a_lock_is_guarded_by_the_breaker_of_its_own_node(cluster):
    with delayq.lock("stock") as lock:
        assert lock._holding.node == lock.queue
        assert stores.places.of(lock.queue, 0) is lock._holding.store.link
