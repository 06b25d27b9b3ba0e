"""Certain refusals are sent once and reported as refused. An uncertain outcome is never called refused."""

from __future__ import annotations

import re

import pytest

import django_delayq as delayq
from django_delayq.models import Job
from django_delayq.producer.stores import stores
from django_delayq.store.connection.error_replies import REFUSALS, StoreRefused
from django_delayq.store.keys import Keys
from django_delayq.store.scripts.loader import load
from tests import servers
from tests.mirror.conftest import orders
from tests.store.board import SCRIPTS
from tests.tasks_for_tests import close_order, ping
from tests.topologies import ToldNode

__all__ = ["orders"]  # a fixture

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.usefixtures("delayq_redis")]

CERTAIN = [
    "OOM command not allowed when used memory > 'maxmemory'.",
    "READONLY You can't write against a read only replica.",
    "MISCONF Redis is configured to save RDB snapshots, but it's currently unable to persist to disk.",
    "NOREPLICAS Not enough good replicas to write.",
    "MASTERDOWN Link with MASTER is down and replica-serve-stale-data is set to 'no'.",
    "BUSY Redis is busy running a script. You can only call SCRIPT KILL or SHUTDOWN NOSAVE.",
    "LOADING Redis is loading the dataset in memory",
    "NOAUTH Authentication required.",
    "NOPERM this user has no permissions to run the 'evalsha' command",
    "EVENTSFULL the mirror is 1000 jobs behind",
    "BADRECORD 1",
    "FORMAT 99",
    "SITE another",
    "CLUSTERDOWN The cluster is down",
    "MOVED 3999 127.0.0.1:6381",
    "ERR max number of clients reached",
]
UNKNOWN = [
    "WRONGTYPE Operation against a key holding the wrong kind of value script: abc, on @user_script:9.",
    "ERR The user executing the script can't run this command or subcommand script: abc, on @user_script:9.",
    "NEWCODE of a newer server",
]
ADVICE = {"OOM": "maxmemory", "READONLY": "to the primary", "NOPERM": "evalsha", "EVENTSFULL": "role mirror", "MISCONF": "disk"}


@pytest.fixture
def node(own_redis, settings):
    node = ToldNode(own_redis())
    settings.DELAYQ = {**settings.DELAYQ, "REDIS": node.url}
    stores.reset()
    delayq.schedule(ping)  # the scripts are loaded, and the connection is made
    yield node
    node.close()
    stores.reset()


@pytest.mark.parametrize("said", CERTAIN)
def test_a_certain_refusal_is_sent_once_and_says_that_the_job_was_not_taken(node, said):
    node.refuse("EVALSHA", said, times=9)
    with pytest.raises(delayq.StoreUnavailable, match=r"was not accepted\.$") as caught:
        delayq.schedule(ping)
    error, code = caught.value, said.partition(" ")[0]
    assert node.refused == ["EVALSHA"]
    assert error.nothing_done
    assert len(error.jobs) == 1
    assert "may have been carried out" not in str(error)
    assert ".." not in str(error).replace("…", "")
    assert ADVICE.get(code, "") in str(error)


@pytest.mark.parametrize("said", UNKNOWN)
def test_an_answer_from_the_middle_of_a_script_leaves_open_what_has_happened(node, said):
    node.refuse("EVALSHA", said, times=9)
    with pytest.raises(delayq.StoreUnavailable, match=r"is not known: `jobs`") as caught:
        delayq.schedule(ping)
    assert not caught.value.nothing_done
    assert node.refused == ["EVALSHA"], "it was answered: the same call again would hear the same"
    assert ".." not in str(caught.value)


def in_redis(job: delayq.Job) -> str | None:
    view = stores.inspector().job("orders", job.id)
    return None if view is None or view.state == "finished" else view.state


@pytest.fixture
def withdraw(redis_server):
    """Withdraws a right from the user of the package, and gives it back ("+zadd")."""
    yield lambda rule: redis_server.link.execute("ACL", "SETUSER", servers.USER, rule)
    redis_server.link.execute("ACL", "SETUSER", servers.USER, "+zadd", "+hdel")


@pytest.mark.parametrize("key", ["", "k"])
def test_a_job_whose_record_alone_came_in_is_not_said_to_be_scheduled(redis_server, withdraw, key):
    delayq.schedule(ping, delay="1h")  # the scripts are loaded
    withdraw("-zadd")
    with pytest.raises(delayq.StoreUnavailable, match=r"is not known: `jobs`") as caught:
        delayq.schedule(ping, delay="1h", key=key, durability="redis")
    withdraw("+zadd")
    [left] = caught.value.jobs
    assert delayq.cancel(left, queue="redis") is delayq.Change.DONE
    job = delayq.schedule(ping, delay="1h", key=key, durability="redis")
    assert (job.created, job.id == left, job.state) == (True, False, delayq.State.SCHEDULED)


def test_the_relay_puts_in_a_row_whose_record_alone_came_in(orders, withdraw):
    delayq.schedule(close_order, 6, delay="1h")
    withdraw("-zadd")
    job = delayq.schedule(close_order, 7, delay="1h", key="o:7")
    assert in_redis(job) is None
    withdraw("+zadd")
    for _ in range(3):
        orders.relay.poll()
        orders.fold()
    assert in_redis(job) == "scheduled"
    assert Job.objects.get(pk=job.id).published is not None


def test_a_holder_that_could_not_be_replaced_is_as_it_was(orders, withdraw):
    holder = delayq.schedule(close_order, 7, delay="1h", key="o:7", durability="redis")
    withdraw("-hdel")
    with pytest.raises(delayq.StoreUnavailable):
        delayq.schedule(close_order, 8, delay="1h", key="o:7", on_conflict="replace", durability="redis")
    withdraw("+hdel")
    assert in_redis(holder) == "scheduled"
    job = delayq.schedule(close_order, 8, delay="1h", key="o:7", on_conflict="replace", durability="redis")
    assert (in_redis(holder), in_redis(job)) == (None, "scheduled")


def test_a_refusal_after_a_lost_reply_leaves_open_what_has_happened(node):
    node.answer("EVALSHA", b"no reply of Redis\r\n", 1)
    node.refuse("SCRIPT", "OOM no")
    real = node._rules

    class Then(dict):
        def get(self, name, default=None):
            if name == "EVALSHA" and node.refused == ["EVALSHA"]:
                return (b"-OOM command not allowed.\r\n", 1)
            return super().get(name, default)

    node._rules = Then(real)
    with pytest.raises(delayq.StoreUnavailable, match="is not known") as caught:
        delayq.schedule(ping)
    assert node.refused == ["EVALSHA", "EVALSHA"]
    assert not caught.value.nothing_done


def test_a_server_that_cannot_be_reached_has_taken_nothing(own_redis, settings):
    server = own_redis()
    settings.DELAYQ = {**settings.DELAYQ, "REDIS": server.url}
    stores.reset()
    server.stop()
    with pytest.raises(delayq.StoreUnavailable, match=r"Nothing was sent\. The job \w+ was not accepted\.$") as caught:
        delayq.schedule(ping)
    assert caught.value.nothing_done


def test_a_batch_that_is_refused_names_all_of_its_jobs(node):
    node.refuse("EVALSHA", CERTAIN[0], times=9)
    with pytest.raises(StoreRefused, match=r"3 jobs were not accepted\.$") as caught:
        delayq.schedule_many(ping.bind() for _ in range(3))
    assert node.refused == ["EVALSHA"]
    assert len(caught.value.jobs) == 3


def test_a_change_that_is_refused_was_not_made(node):
    job = delayq.schedule(ping, delay="1h")
    node.refuse("EVALSHA", CERTAIN[0], times=9)
    with pytest.raises(StoreRefused, match="nothing was changed"):
        job.cancel()
    assert node.refused == ["EVALSHA"]


def test_every_error_of_our_scripts_is_in_the_table_of_refusals():
    codes = {code for name in SCRIPTS for code in re.findall(r"error_reply\('([A-Z]+)", load(name, Keys("t", "q")).text)}
    assert {"EVENTSFULL", "BADRECORD", "FORMAT", "RESTORING"} <= codes <= REFUSALS.keys()
