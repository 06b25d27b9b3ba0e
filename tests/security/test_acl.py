"""The Redis user of docs/howto/run-redis.md has all rights that the package needs, and no others."""

from __future__ import annotations

import re

import pytest

import django_delayq as delayq
from django_delayq.models import Job
from django_delayq.producer.stores import stores
from django_delayq.store.connection.error_replies import StoreError
from django_delayq.store.reads.figures import Figures
from tests import servers
from tests.links import opened
from tests.mirror.conftest import Orders
from tests.tasks_for_tests import close_order, ping
from tests.worker.conftest import Shop, eventually

# Commands that the client library sends by itself, or that a worker does not need.
OPTIONAL = {"client|setinfo", "config|get", "client", "config"}  # the last two: how Redis 6.2 names them
# For a URL with a database number, for a client that checks its connection, for `benchmarks.own_servers`, for `REPLICAS`.
RARE = {"select", "ping", "unlink", "wait"}


def refused(link) -> set[str]:
    """Returns the commands and keys that Redis refused to the package's user since the last call, in lower case."""
    entries = [dict(zip(entry[::2], entry[1::2], strict=True)) for entry in link.execute("ACL", "LOG")]
    link.execute("ACL", "LOG", "RESET")
    return {entry[b"object"].decode().lower() for entry in entries if entry[b"username"] == servers.USER.encode()}


def test_the_user_of_the_tests_is_the_documented_one(redis_server):
    rules = servers.acl()
    assert "-@all" in rules
    assert "~delayq:*" in rules
    assert not [rule for rule in rules if rule.startswith(("+@", "allkeys", "allcommands", "~*"))]
    who = opened(servers.as_package(redis_server.url))
    with pytest.raises(StoreError, match=r"(?i)no permissions"):
        who.execute("ACL", "WHOAMI")
    with pytest.raises(StoreError, match=r"(?i)no permissions"):
        who.execute("FLUSHALL")
    with pytest.raises(StoreError, match=r"(?i)no permissions"):
        who.execute("HGET", "sessions", "a")


def test_web_commands_and_workers_need_no_more_and_no_less(shop: Shop, orders, run, own_redis, settings):
    server = own_redis()
    shop.url, shop.link = server.url, opened(server.url)
    shop.keep_rows()
    settings.DELAYQ = {**settings.DELAYQ, "REDIS": servers.as_package(server.url)}
    jobs = [delayq.schedule(close_order, n, delay="1h", key=f"k{n}") for n in range(3)]
    jobs[0].reschedule(delay="2h")
    jobs[1].cancel()
    delayq.schedule(close_order, 9, key="k2", on_conflict="replace", delay="1h")
    delayq.pause("orders")
    delayq.resume("orders")
    for words in (["status"], ["inspect", jobs[0].id], ["doctor"], ["purge", "orders", "--yes"]):
        run(*words)
    orders = Orders()
    job = delayq.schedule(close_order, 5)
    [claimed] = orders.claim()
    assert orders.store.cancel(job.id).change == delayq.Change.RUNNING
    orders.settle(claimed, "fail")
    orders.fold()
    assert job.requeue() is delayq.Change.DONE
    orders.fold()
    Job.objects.filter(pk=job.id).update(published=None)
    orders.relay.poll()
    orders.store.tidy()
    Figures(stores.link, prefix="delayq").hours(["orders"])
    worker = shop.work("--roles", "move,mirror,relay")
    shop.put_many("count", [(n,) for n in range(300)], delay_ms=500)
    eventually(lambda: len(shop.counts()) == 300)
    eventually(lambda: not shop.leases())
    worker.signal(15)
    assert worker.wait() == 0, worker.text()

    assert refused(shop.link) <= OPTIONAL
    called = set(re.findall(r"cmdstat_([\w|]+):", shop.link.execute("INFO", "commandstats").decode()))
    documented = {rule[1:] for rule in servers.acl() if rule.startswith("+")}
    # Redis 6.2 counts subcommands under their command
    needless = {rule for rule in documented if not called & {rule, rule.partition("|")[0]}}
    assert needless <= RARE


def test_a_user_that_may_less_is_told_what_to_look_at(own_redis, settings, transactional_db):
    server = own_redis()
    link = opened(server.url)
    link.execute("ACL", "SETUSER", "poor", "on", ">pw", "~delayq:*", "-@all", "+client|setname", "+evalsha", "+script|load")
    settings.DELAYQ = {**settings.DELAYQ, "REDIS": f"unix://poor:pw@{server.socket}"}
    stores.reset()
    with pytest.raises(delayq.StoreUnavailable, match=r"(?i)permission|can't run"):
        delayq.schedule(ping)
    stores.reset()


def test_a_wrong_password_is_told_so_without_showing_it(redis_server, settings):
    url = redis_server.url.replace("unix://", f"unix://{servers.USER}:hunter2@")
    with pytest.raises(delayq.StoreUnavailable) as error:
        opened(url).execute("PING")
    assert "Check the user and the password" in str(error.value)
    assert "hunter2" not in str(error.value)


def test_a_worker_runs_jobs_as_that_user(shop: Shop, redis_server):
    def users() -> dict[str, str]:
        """Returns the users by connection id."""
        lines = redis_server.link.execute("CLIENT", "LIST").decode().splitlines()
        return {line.split()[0]: line.split("user=")[1].split()[0] for line in lines if "name=delayq" in line}

    before = users()  # connections that other tests left open
    worker = shop.work()
    shop.put_many("count", [(n,) for n in range(300)])
    eventually(lambda: len(shop.counts()) == 300)
    assert {user for id, user in users().items() if id not in before} == {servers.USER}
    worker.signal(15)
    assert worker.wait() == 0
