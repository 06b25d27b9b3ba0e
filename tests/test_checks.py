"""One test per check id."""

from __future__ import annotations

import dataclasses
import re
import ssl
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest
from django.core.checks import run_checks
from django.db import ConnectionHandler, connections

from django_delayq import checks, conf, under_test
from django_delayq.exceptions import ConfigError
from django_delayq.findings import KINDS
from django_delayq.management.queue_findings import redis_findings
from django_delayq.mirror import database_connections
from django_delayq.mirror.database_connections import narrow_pools
from django_delayq.producer.task import Registry, Task, registry, task
from django_delayq.store.connection import embedded
from django_delayq.store.connection.link import connect
from django_delayq.store.reads.fitness import NEWEST, link_findings, server_findings, unkept, version_findings
from django_delayq.store.reads.inspector import Inspector
from django_delayq.store.scripts.worker_registry import WorkerRegistry
from tests import servers
from tests.security.test_tls import certificates, tls
from tests.servers import USER, as_package
from tests.stage import ROOT, eventually
from tests.topologies import ClusterNode, ClusterServers, SentinelServer

__all__ = ["certificates", "tls"]  # fixtures


def found(settings, **delayq) -> dict[str, str]:
    """id -> message and hint of what the checks say of these settings."""
    settings.DELAYQ = {**settings.DELAYQ, **delayq}
    return {m.id: f"{m.msg} {m.hint}" for m in [*checks.check_settings(), *checks.check_tasks()]}


def test_the_settings_of_the_suite_are_clean(settings):
    assert found(settings) == {}
    assert [m for m in run_checks() if (m.id or "").startswith("delayq")] == []


def test_e001_an_unknown_setting_names_the_nearest_one(settings):
    said = found(settings, LAESE=3)["delayq.E001"]
    assert 'DELAYQ["LAESE"]' in said
    assert "did you mean 'LEASE'" in said


def test_e001_of_a_name_in_small_letters_names_the_setting(settings):
    assert "did you mean 'LEASE'" in found(settings, lease=30)["delayq.E001"]


def test_e001_of_what_holds_for_all_queues_says_so(settings):
    assert (
        'DELAYQ["QUEUES"]["orders"]["PREFIX"] applies to all queues.'
        in found(settings, QUEUES={"orders": {"PREFIX": "x"}})["delayq.E001"]
    )


def test_e001_in_a_queue_names_the_place(settings):
    said = found(settings, QUEUES={"orders": {"MAX_ATTEMPT": 3}})["delayq.E001"]
    assert 'DELAYQ["QUEUES"]["orders"]["MAX_ATTEMPT"]' in said
    assert "MAX_ATTEMPTS" in said


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("REDIS", 5),
        ("PREFIX", "a b"),
        ("DURABILITY", "disk"),
        ("AUDIT", "none"),
        ("LEASE", "soon"),
        ("LEASE", 4.9),
        ("MAX_ATTEMPTS", 0),
        ("MAX_ATTEMPTS", True),
        ("BACKOFF", "15 sec"),
        ("TIMEOUT", -1),
        ("MAX_CRASHES", "3"),
        ("MAX_PAYLOAD", 1),
        ("RETENTION", {"done": "7d"}),
        ("RETENTION", "7d"),
        ("SENSITIVE", "password"),
        ("SIGNING", "yes"),
        ("MIRROR_FULL", "panic"),
        ("QUEUES", ["orders"]),
        ("QUEUES", {"a/b": {}}),
        ("QUEUES", {"a": None}),
        ("QUEUES", {"a": {"PARTITIONS": 513}}),
        ("QUEUES", {"a": {"PARTITIONS": 0}}),
        ("QUEUES", {"a": {"FORMER_PARTITIONS": [513]}}),
        ("QUEUES", {"a": {"FORMER_PARTITIONS": 4}}),
        ("QUEUES", {"a": {"LEASE": "x"}}),
        ("QUEUES", {"a": {"CONSUMER": "pull", "RATE": "fast"}}),
        ("QUEUES", {"a": {"CONSUMER": "pull", "RATE": ("5/m", 0)}}),
        ("QUEUES", {"a": {"RATE": "5/m"}}),
    ],
)
def test_e002_a_wrong_value_names_the_place(settings, key, value):
    said = found(settings, **{key: value})["delayq.E002"]
    assert f'DELAYQ["{key}"]' in said


@pytest.mark.parametrize("options", [{"PARTITIONS": 2}, {"FORMER_PARTITIONS": [2]}])
@pytest.mark.parametrize("embedded", ["embedded", {"EMBEDDED": "/nowhere"}])
def test_e002_several_partitions_on_the_embedded_server(settings, options, embedded):
    one, queue = {"PARTITIONS": 1, "FORMER_PARTITIONS": [1][:0]}, {"REDIS": embedded, **options}
    for said in (found(settings, REDIS=embedded, QUEUES={"a": options}), found(settings, QUEUES={"a": queue})):
        assert 'DELAYQ["QUEUES"]["a"]["PARTITIONS"] cannot be with the embedded server' in said["delayq.E002"]
        assert "name a server, or a Cluster" in said["delayq.E002"]
    with pytest.raises(ConfigError, match="cannot be with the embedded server"):
        conf.get()
    assert "delayq.E002" not in found(settings, QUEUES={"a": {"REDIS": embedded, **one}})


def test_tests_of_a_project_may_go_to_an_embedded_server_whatever_its_partitions(settings, monkeypatch, tmp_path):
    settings.DELAYQ = {"REDIS": "redis://nowhere:1/0", "TEST_REDIS": {"EMBEDDED": str(tmp_path)}, "QUEUES": {"a": {"PARTITIONS": 4}}}
    monkeypatch.setattr(under_test, "ISOLATES", True)
    assert (conf.get().queue("a").partitions, conf.get().redis) == (4, {"EMBEDDED": str(tmp_path)})


def test_e007_signing_without_a_secret_key(settings):
    settings.SECRET_KEY = ""
    assert "SECRET_KEY" in found(settings, SIGNING=True)["delayq.E007"]


class Twin:
    name = "Good"

    def pack(self) -> None: ...

    def wrap(self, packed: object) -> None: ...


class Good(Twin): ...


@pytest.mark.parametrize(
    ("paths", "said"),
    [
        (["nowhere.Carrier"], "'nowhere.Carrier' cannot be imported"),
        (["tests.test_checks.Missing"], "cannot be imported"),
        (["tests.test_checks.Registry"], "is not a carrier.*pack"),
        (["tests.test_checks.Good", "tests.test_checks.Twin"], "has the same name as another carrier: 'Good'"),
    ],
)
def test_e008_a_carrier_that_is_none(settings, paths, said):
    assert re.search(said, found(settings, CARRIERS=paths)["delayq.E008"])


def test_e002_carriers_are_paths(settings):
    assert "dotted paths" in found(settings, CARRIERS=["Carrier"])["delayq.E002"]
    assert found(settings, CARRIERS=["tests.test_checks.Good"]) == {}


TEXT = "no function"


@pytest.mark.parametrize(("path", "said"), [("nowhere.link", "cannot be imported"), ("tests.test_checks.TEXT", "is not a function")])
def test_e060_what_makes_no_links(settings, path, said):
    assert said in found(settings, OBJECT_URL=path)["delayq.E060"]
    assert found(settings, OBJECT_URL="tests.test_checks.found") == {}


@pytest.mark.parametrize(("path", "said"), [("nowhere.keep", "cannot be imported"), ("tests.test_checks.TEXT", "is not a function")])
def test_e061_what_archives_nothing(settings, path, said):
    assert said in found(settings, ARCHIVE=path)["delayq.E061"]
    assert found(settings, ARCHIVE="tests.test_checks.found") == {}
    assert found(settings, ARCHIVE=Path("/nowhere")) == {}, "only check --deploy looks at directories"


@pytest.mark.parametrize("path", ["archive", "data/archive", "./archive", "", 7, "shop archive.keep"])
def test_e002_an_archive_is_a_function_or_an_absolute_path(settings, path):
    assert "must be the dotted path to a function" in found(settings, ARCHIVE=path)["delayq.E002"]


def test_e062_a_directory_for_archives_that_cannot_be_written(settings, tmp_path, delayq_redis):
    settings.DELAYQ = {**settings.DELAYQ, "ARCHIVE": tmp_path / "none"}
    [said] = [message.msg for message in checks.check_server() if message.id == "delayq.E062"]
    assert f"cannot write to {tmp_path / 'none'}, so no jobs are deleted: [Errno 2]" in said
    (tmp_path / "none").mkdir()
    assert [message for message in checks.check_server() if message.id == "delayq.E062"] == []
    assert list(tmp_path.joinpath("none").iterdir()) == []


def test_w046_an_archive_that_does_not_get_all(settings):
    given = {"ARCHIVE": "tests.test_checks.found", "AUDIT": "outcomes", "QUEUES": {"default": {}, "orders": {"AUDIT": "full"}}}
    assert "never archived: default (outcomes)." in found(settings, **given)["delayq.W046"]
    assert "delayq.W046" not in found(settings, ARCHIVE=None)


@pytest.mark.parametrize(
    ("url", "said"),
    [
        ("javascript:alert(1)", "must be a URL as text"),
        ("//elsewhere/{id}", "must be a URL as text"),
        (7, "must be a URL as text"),
        ("https://logs.example/?q={job}", r"unknown name {job}. Available names: {id}"),
        ("https://logs.example/?q={ids}", r"did you mean 'id'"),
        ("https://logs.example/?q={id!r}", r"unknown name {id!r}"),
        ("https://logs.example/?q={}", r"unknown name {}"),
        ("https://logs.example/?q={id", r"is not a valid template"),
    ],
)
def test_e002_a_link_to_the_log_that_is_none(settings, url, said):
    assert said in found(settings, LOG_URL=url)["delayq.E002"]
    assert found(settings, LOG_URL="/logs/{{x}}/?q={id}&t={task}&u={queue}&from={from}&to={to}") == {}


SHIPPING = {"KEY": "shipping-out", "KIND": "stream", "MAXLEN": None}


@pytest.mark.parametrize(
    ("targets", "said"),
    [
        (["shipping"], r'DELAYQ\["TARGETS"\] must be a dict'),
        ({"shipping": "shipping-out"}, r'\["shipping"\] must be text that names a dict'),
        ({7: SHIPPING}, "must be text that names a dict"),
        ({"shipping": {**SHIPPING, "KEY": ""}}, r'\["KEY"\] must be a Redis key'),
        ({"shipping": {**SHIPPING, "KEY": "a b"}}, "must be a Redis key"),
        ({"shipping": {**SHIPPING, "KIND": "hash"}}, r'\["KIND"\] must be "stream" or "list"'),
        ({"shipping": {**SHIPPING, "MAXLEN": 0}}, r'\["MAXLEN"\] must be a whole number of at least 1.*settings TARGETS'),
        ({"shipping": {"KEY": "shipping-out", "KIND": "list"}}, r'\["MAXLEN"\] is missing.*or None'),
        ({"shipping": {"KIND": "list", "MAXLEN": 1}}, r'\["KEY"\] is missing'),
    ],
)
def test_e002_a_target_that_cannot_be_one(settings, targets, said):
    assert re.search(said, found(settings, TARGETS=targets)["delayq.E002"])


def test_e001_a_target_with_an_unknown_key(settings):
    said = found(settings, TARGETS={"shipping": {**SHIPPING, "MAX_LEN": 5}})["delayq.E001"]
    assert 'DELAYQ["TARGETS"]["shipping"]["MAX_LEN"]' in said
    assert "did you mean 'MAXLEN'" in said


@pytest.mark.parametrize("key", ["delayq", "delayq:{orders}:jobs", "delayq:out"])
def test_e050_a_target_among_the_keys_of_the_queues(settings, key):
    said = found(settings, TARGETS={"shipping": {**SHIPPING, "KEY": key}})["delayq.E050"]
    assert 'DELAYQ["TARGETS"]["shipping"]["KEY"]' in said
    assert "(delayq:)" in said


def test_e050_a_key_of_two_targets(settings):
    said = found(settings, TARGETS={"shipping": SHIPPING, "again": {**SHIPPING, "KIND": "list"}})["delayq.E050"]
    assert "that of the target 'shipping', too" in said


def test_targets_that_can_be_are_clean(settings):
    targets = {
        "shipping": SHIPPING,
        "invoices": {"KEY": "{orders}-invoices", "KIND": "list", "MAXLEN": 1000},
        "x": {**SHIPPING, "KEY": "delayqs"},
    }
    assert found(settings, TARGETS=targets) == {}


def test_e002_settings_that_are_no_dict(settings):
    settings.DELAYQ = ["REDIS"]
    assert [m.id for m in checks.check_settings()] == ["delayq.E002"]


def test_e003_an_alias_that_is_missing(settings):
    assert "'jobs'" in found(settings, REDIS="jobs")["delayq.E003"]


def test_e003_an_alias_that_is_not_on_redis(settings):
    assert "LocMemCache" in found(settings, REDIS="default")["delayq.E003"]


URL = "redis://127.0.0.1:1/0"
SENTINEL_URL = "redis+sentinel://127.0.0.1:1/mymaster/0"
CLUSTER_URL = "redis+cluster://127.0.0.1:1"
TLS_URL = "rediss://127.0.0.1:1/0"


@pytest.mark.parametrize("url", [URL, TLS_URL, SENTINEL_URL, CLUSTER_URL, "unix:///run/redis.sock"])
def test_e003_an_unknown_option_of_a_connection_names_the_nearest_one(settings, url):
    said = found(settings, REDIS={"URL": url, "OPTIONS": {"usrname": "shop"}})["delayq.E003"]
    assert "unknown option 'usrname' (did you mean 'username'?)" in said
    asked = f"{url}?usrname=shop"
    assert "'usrname'" in found(settings, REDIS=asked)["delayq.E003"]


@pytest.mark.parametrize(
    ("url", "options", "named"),
    [
        (URL, {"db": "one"}, "take: db."),
        (TLS_URL, {"ssl_cert_reqs": "perhaps"}, "take: ssl_cert_reqs."),
        (
            CLUSTER_URL,
            {"socket_read_size": 5, "username": "a", "credential_provider": object(), "password": "b"},
            "credential_provider",
        ),
        (f"{URL}?socket_read_size=big", {}, "'socket_read_size'"),
        (f"{SENTINEL_URL}?socket_read_size=big", {}, "'socket_read_size'"),
        (f"{CLUSTER_URL}?socket_read_size=big", {}, "'socket_read_size'"),
    ],
)
def test_e003_a_wrong_value_of_an_option_is_named(settings, url, options, named):
    assert named in found(settings, REDIS={"URL": url, "OPTIONS": options})["delayq.E003"]


@pytest.mark.parametrize("url", [URL, SENTINEL_URL, CLUSTER_URL])
def test_w004_options_that_are_not_obeyed_are_named_and_harm_nothing(settings, url):
    options = {"max_connections": 5, "socket_timeout": 9}
    said = found(settings, REDIS={"URL": f"{url}?timeout=20", "OPTIONS": options})
    assert set(said) == {"delayq.W004"}
    assert "max_connections, socket_timeout, timeout" in said["delayq.W004"]


def test_pool_arguments_of_a_url_and_of_a_cache_alias_stop_no_connection(settings, redis_server):
    at = servers.as_package(redis_server.url)
    asks = "&" if "?" in at else "?"
    settings.CACHES = {
        "theirs": {
            "BACKEND": "django_redis.cache.RedisCache",
            "LOCATION": at,
            "OPTIONS": {
                "CONNECTION_POOL_CLASS": "redis.BlockingConnectionPool",
                "CONNECTION_POOL_KWARGS": {"max_connections": 3, "timeout": 2, "socket_keepalive": True},
            },
        }
    }
    for redis in (f"{at}{asks}max_connections=5&timeout=20", {"URL": at, "OPTIONS": {"max_connections": 5}}, "theirs"):
        link = connect(redis)
        assert link.execute("PING") == b"PONG"
        link.close()


def test_e003_a_cache_that_spreads_its_keys_over_several_servers(settings):
    settings.CACHES = {
        "shards": {
            "BACKEND": "django_redis.cache.RedisCache",
            "LOCATION": [URL, "redis://127.0.0.1:2/0"],
            "OPTIONS": {"CLIENT_CLASS": "django_redis.client.ShardClient"},
        }
    }
    assert "over several servers" in found(settings, REDIS="shards")["delayq.E003"]


def broken_factory():
    raise LookupError("redis://:secret@host")


def test_e003_a_factory_that_raises_is_named_and_its_text_is_not(settings):
    said = found(settings, REDIS="tests.test_checks.broken_factory")["delayq.E003"]
    assert "LookupError" in said
    assert "secret" not in said


@pytest.fixture
def tasks(monkeypatch) -> Registry:
    own = Registry()
    monkeypatch.setattr(checks, "registry", own)
    monkeypatch.setattr(sys.modules["django_delayq.producer.task"], "registry", own)  # the package has a `task` of its own
    return own


def test_e004_a_task_on_a_queue_that_is_not_listed(settings, tasks):
    task(name="shop.close", queue="ordres")(lambda: None)
    said = found(settings)["delayq.E004"]
    assert "shop.close" in said
    assert "'ordres'" in said
    assert "orders" in said


def test_e038_a_task_on_a_queue_of_messages(settings, tasks):
    task(name="shop.close", queue="mail")(lambda: None)
    said = found(settings, QUEUES={"default": {}, "orders": {}, "redis": {}, "mail": {"CONSUMER": "pull"}})["delayq.E038"]
    assert "shop.close" in said
    assert "'mail'" in said


def test_e005_two_tasks_of_one_name(settings, tasks):
    def first() -> None: ...

    def second() -> None: ...

    task(name="shop.close")(first)
    assert isinstance(task(name="shop.close")(second), Task)
    said = found(settings)["delayq.E005"]
    assert "first" in said
    assert "second" in said


def test_e039_two_tasks_declare_different_rates_for_one_name(settings, tasks):
    for name, rate in (("shop.pay", "5/m"), ("shop.refund", "5/m"), ("shop.charge", "6/m")):
        task(name=name, rate=("bank:{bank}", rate))(lambda bank: None)
    said = found(settings)["delayq.E039"]
    assert "shop.pay says 5/m, burst 1; shop.charge says 6/m, burst 1" in said
    assert "refund" not in said


def test_e006_a_database_alias_that_is_missing(settings):
    assert "'jobs'" in found(settings, DATABASE="jobs")["delayq.E006"]


def test_e036_dates_without_a_zone(settings):
    settings.USE_TZ = False
    assert "Set USE_TZ to True" in found(settings)["delayq.E036"]


def test_e002_a_lease_that_a_short_pause_would_lose_says_what_to_write(settings):
    said = found(settings, QUEUES={"orders": {"LEASE": 3}})["delayq.E002"]
    assert 'DELAYQ["QUEUES"]["orders"]["LEASE"]' in said
    assert "at least 5 seconds" in said
    assert "Use 30" in said
    assert found(settings, QUEUES={"orders": {"LEASE": 5}, "default": {}, "redis": {}}) == {}


def test_a_timeout_longer_than_the_lease_is_no_mistake(settings):
    assert found(settings, QUEUES={"default": {}, "orders": {"LEASE": 30, "TIMEOUT": "2h"}, "redis": {}}) == {}


@pytest.mark.parametrize("backend", ["django_redis.cache.RedisCache", "django.core.cache.backends.redis.RedisCache"])
def test_w002_jobs_and_cache_in_one_database(settings, backend):
    settings.CACHES = {"default": {"BACKEND": backend, "LOCATION": "redis://localhost:6390/1"}}
    assert "cache.clear()" in found(settings, REDIS="redis://localhost:6390/1")["delayq.W002"]
    assert "delayq.W002" in found(settings, REDIS="default")
    assert found(settings, REDIS="redis://localhost:6390/2") == {}
    settings.CACHES["jobs"] = {"BACKEND": backend, "LOCATION": "redis://localhost:6390/2"}
    assert found(settings, REDIS="jobs") == {}
    settings.CACHES["pages"] = settings.CACHES["jobs"]
    assert "'pages'" in found(settings, REDIS="jobs")["delayq.W002"]


def test_w003_requests_in_transactions_of_another_database(settings, monkeypatch):
    other = {
        **connections.settings["default"],
        "ENGINE": "django.db.backends.sqlite3",
        "NAME": ":memory:",
        "OPTIONS": {},
    }
    monkeypatch.setitem(connections.settings, "shop", {**other, "ATOMIC_REQUESTS": True})
    assert "'shop'" in found(settings)["delayq.W003"]
    connections.settings["shop"]["ATOMIC_REQUESTS"] = False
    del connections["shop"]
    assert found(settings) == {}
    del connections["shop"]


def test_w045_django_tenants_beside_keys_that_all_tenants_share(settings, monkeypatch):
    assert "delayq.W045" not in found(settings)
    monkeypatch.setattr(registry, "_tasks", {**registry._tasks})

    @task(name="shop.synchronise", serial="order:{order_id}")
    def synchronise(order_id: int) -> None: ...

    monkeypatch.setattr(checks.apps, "is_installed", lambda name: name == "django_tenants")
    said = found(settings)["delayq.W045"]
    assert "share keys, concurrency names and locks" in said
    assert "'order:{order_id}' of shop.synchronise" in said
    assert "SILENCED_SYSTEM_CHECKS" in said
    settings.DELAYQ = {**settings.DELAYQ, "CARRIERS": ["tests.carriers.Tenant"], "SCOPE": "Tenant"}
    assert "delayq.W045" not in found(settings)


@pytest.mark.parametrize("path", ["Nobody", "tests.carriers.nothing", "tests.carriers.Tenant"])
def test_e066_a_scope_that_is_neither_a_function_nor_a_carrier(settings, path):
    settings.DELAYQ = {**settings.DELAYQ, "SCOPE": path}
    assert "dotted path to a function" in found(settings)["delayq.E066"]


def deploy(settings, url: str | dict[str, object], **given: object) -> dict[str, str]:
    settings.DELAYQ = {**settings.DELAYQ, "REDIS": url, **given}
    return {m.id: f"{m.msg} {m.hint}" for m in checks.check_server()}


def test_e010_a_server_that_may_evict_jobs(settings, own_redis):
    server = own_redis(maxmemory_policy="allkeys-lru", appendonly="yes")
    assert "allkeys-lru" in deploy(settings, server.url)["delayq.E010"]


def test_e012_a_replica(settings, own_redis):
    primary = own_redis(port=True, appendonly="yes")
    replica = own_redis(appendonly="yes", replicaof=f"127.0.0.1 {primary.port}")
    assert "delayq.E012" in deploy(settings, replica.url)


def test_e013_a_node_of_a_cluster_e014_a_sentinel_and_e015_a_database_that_is_not_there(settings, own_redis, request):
    node, server = ClusterNode(), own_redis(port=True, appendonly="yes")
    sentinel = SentinelServer(server)
    for other in (node, sentinel):
        request.addfinalizer(other.stop)
        other.start()
    found = {
        "delayq.E013": f"{node.tcp_url}/0",
        "delayq.E014": f"redis://{sentinel.place}/0",
        "delayq.E015": f"{server.tcp_url}/16",
    }
    for code, url in found.items():
        said = deploy(settings, url, SIGNING=True)
        assert list(said) == ["delayq.W015", code], "of what cannot be worked with nothing else is told"
    assert "delayq.E015" not in deploy(settings, f"{server.tcp_url}/15")


def test_e016_sentinels_that_know_no_such_master(settings, own_redis, request):
    sentinel = SentinelServer(own_redis(port=True), name="shop")
    request.addfinalizer(sentinel.stop)
    sentinel.start()
    said = deploy(settings, f"redis+sentinel://{sentinel.place}/sohp/0", SIGNING=True)
    assert list(said) == ["delayq.W014", "delayq.W015", "delayq.E016"]
    assert "'sohp'" in said["delayq.E016"]
    assert "sentinel monitor" in said["delayq.E016"]


@pytest.mark.django_db
def test_e022_more_replicas_wanted_than_there_are(settings, own_redis):
    server = own_redis(port=True, appendonly="yes", repl_diskless_sync_delay="0")
    queues = {"pings": {"DURABILITY": "redis", "REPLICAS": 1}, "orders": {}}
    said = deploy(settings, as_package(server.url), QUEUES=queues)["delayq.E022"]
    assert "REPLICAS of 'pings' requires up to 1." in said
    assert any(found.code == "E022" for found in redis_findings())
    own_redis(replicaof=f"127.0.0.1 {server.port}")
    eventually(lambda: "state=online" in server.call("INFO", "replication", whole=True), "the replica does not follow")
    assert "delayq.E022" not in deploy(settings, as_package(server.url), QUEUES=queues)
    assert server.call("ACL", "SETUSER", USER, "-wait") == "+OK"
    assert "has no permission for WAIT" in deploy(settings, as_package(server.url), QUEUES=queues)["delayq.E022"]


def test_a_cluster_is_looked_at_as_a_whole(settings):
    with ClusterServers(replicas=True, cluster_require_full_coverage="no", appendonly="yes") as cluster:
        assert list(deploy(settings, cluster.url, SIGNING=True)) == []
        slot, to = 5, cluster.masters[1]
        cluster.open(slot, to)
        said = deploy(settings, cluster.root_url, SIGNING=True)
        assert list(said) == ["delayq.W015", "delayq.W024"]
        assert f"5 from 127.0.0.1:{cluster.masters[0].port} to 127.0.0.1:{to.port}" in said["delayq.W024"]
        cluster.settle(slot, to)
        assert cluster.masters[2].call("CONFIG", "SET", "cluster-require-full-coverage", "yes") == "+OK"
        cluster.replicas[0].stop()
        eventually(
            lambda: "slave,fail " in cluster.masters[0].call("CLUSTER", "NODES", whole=True), "nobody sees that the replica is gone"
        )
        assert list(deploy(settings, cluster.root_url, SIGNING=True)) == ["delayq.W015", "delayq.W025", "delayq.W026"]


def test_e018_slots_that_nobody_serves_and_e019_a_node_that_cannot_be_reached(settings):
    with ClusterServers(cluster_require_full_coverage="no", appendonly="yes") as cluster:
        for node in cluster.masters:
            assert node.call("CLUSTER", "DELSLOTS", "16000") == "+OK"
        cluster.masters[1].terminate()
        said = deploy(settings, f"redis+cluster://127.0.0.1:{cluster.masters[0].port}", SIGNING=True)
        assert {"delayq.E018", "delayq.E019", "delayq.W025"} <= set(said)
        assert "No node of the Cluster serves these slots (1): 16000." in said["delayq.E018"]
        assert f"127.0.0.1:{cluster.masters[1].port}" in said["delayq.E019"]


def test_e017_the_address_of_a_cluster_at_a_server_of_its_own(settings, own_redis):
    server = own_redis(port=True, appendonly="yes")
    said = deploy(settings, f"redis+cluster://127.0.0.1:{server.port}", SIGNING=True)
    assert list(said) == ["delayq.W015", "delayq.E017"]
    assert f"redis://[user:password@]127.0.0.1:{server.port}/0" in said["delayq.E017"]


def test_e020_an_address_without_tls_at_a_server_that_speaks_it(settings, certificates, tls):
    server = tls(appendonly="yes")
    said = deploy(settings, f"redis://localhost:{server.tls_port}/2", SIGNING=True)
    assert list(said) == ["delayq.W015", "delayq.E020"]
    assert f"rediss://[user:password@]localhost:{server.tls_port}/2" in said["delayq.E020"]


def test_w010_no_persistence_and_w011_snapshots_only(settings, own_redis):
    assert list(deploy(settings, own_redis().url)) == ["delayq.W010"]
    assert list(deploy(settings, own_redis(save="60 1000").url)) == ["delayq.W011"]
    assert deploy(settings, own_redis(appendonly="yes").url) == {}


def test_w013_a_server_that_is_away(settings, tmp_path):
    assert list(deploy(settings, f"unix://{tmp_path}/none.sock")) == ["delayq.W013"]


def test_e011_and_w012_by_made_up_facts(redis_server):
    facts = Inspector(connect(redis_server.url), prefix="t").server()
    old = dataclasses.replace(facts, flavour="redis", version=(6, 0, 16), aof=True)
    assert [finding.code for finding in server_findings(old)] == ["E011"]
    ahead = dataclasses.replace(facts, skew=90.0, aof=True)
    [skew] = server_findings(ahead)
    assert (skew.code, "90.0 s ahead" in skew.message) == ("W012", True)


def test_every_check_has_a_test():
    source = "".join(path.read_text() for path in (ROOT / "tests").rglob("test_*.py")).lower()
    assert [id for id in KINDS if id[0] != "D" and id.lower() not in source] == []


def test_every_row_of_the_table_is_reported_somewhere_and_no_id_stands_for_two_findings():
    package = Path(checks.__file__).parent
    sources = "".join(path.read_text() for path in package.rglob("*.py") if path.stem != "findings")
    assert [id for id in KINDS if f'"{id}"' not in sources] == []
    ids = re.findall(r"^        ([DEW]\d{3})=\(", (package / "findings.py").read_text(), re.MULTILINE)
    assert len(ids) == len(KINDS)
    assert all(kind.meaning and kind.remedy and "\n" not in kind.meaning for kind in KINDS.values())


def pool(monkeypatch, pool: object, **database: object) -> ConnectionHandler:
    """The databases, among them "pooled" with that pool."""
    entry = {"ENGINE": "django.db.backends.postgresql", "NAME": "postgres", **database, "OPTIONS": {"pool": pool}}
    handler = ConnectionHandler({"default": {}, "pooled": entry})
    monkeypatch.setattr(database_connections, "connections", handler)
    return handler


@pytest.mark.parametrize(
    ("options", "largest"),
    [(True, 4), ({"min_size": 2, "max_size": 7}, 7), ({"min_size": 6}, 6), ({"max_size": 8}, None), ({"min_size": 9}, None)],
)
def test_w070_a_pool_that_is_smaller_than_the_threads_of_a_process(settings, monkeypatch, options, largest):
    pytest.importorskip("psycopg")
    pool(monkeypatch, options)
    said = found(settings)
    if largest is None:
        assert said == {}
    else:
        assert f"The pool of the database 'pooled' opens at most {largest} connections" in said["delayq.W070"]
        assert "Set OPTIONS['pool']['max_size'] of this database to 8 or more" in said["delayq.W070"]
        assert f"--threads {largest} and silence this" in said["delayq.W070"]


def test_w070_of_a_worker_with_threads_of_its_own(monkeypatch):
    pytest.importorskip("psycopg")
    pool(monkeypatch, {"min_size": 1, "max_size": 9})
    assert list(narrow_pools(9)) == []
    assert [one.code for one in narrow_pools(10)] == ["W070"]
    pool(monkeypatch, {"min_size": 1, "max_size": 1})
    [narrow] = narrow_pools(1)
    assert "to 2 or more." in narrow.hint, "the process that keeps records has two threads"


@pytest.fixture
def unblocked(django_db_blocker) -> Iterator[None]:
    """The checks may ask databases that are none of the tests'."""
    with django_db_blocker.unblock():
        yield


def test_w071_pools_that_may_open_more_connections_than_the_server_allows(settings, own_redis, postgres, monkeypatch, unblocked):
    handler = pool(monkeypatch, {"max_size": 60}, **postgres)
    server = own_redis(appendonly="yes")
    assert list(deploy(settings, server.url)) == [], "two processes, as one worker has, open 120 of 197"
    link = connect(server.url)
    workers = WorkerRegistry(link, prefix="delayq")
    every = {"queues": list(settings.DELAYQ["QUEUES"]), "records": list(settings.DELAYQ["QUEUES"])}
    workers.beat("host:1:a", {**every, "processes": 3, "sides": ["records"]})
    said = deploy(settings, server.url)
    assert list(said) == ["delayq.W071"]
    assert "so 4 processes of workers can open 240. The server allows 197" in said["delayq.W071"]
    handler["pooled"].settings_dict["HOST"] = "/nowhere"
    handler["pooled"].close()
    handler["pooled"].close_pool()
    handler["pooled"].settings_dict["OPTIONS"]["pool"] = {"max_size": 60, "timeout": 1}
    assert list(deploy(settings, server.url)) == [], "a server that cannot be asked"
    handler["pooled"].close_pool()
    link.close()


# the way to the server


def on_the_way(redis, *, signed: bool = True) -> list[str]:
    return [finding.code for finding in link_findings(redis, signed=signed)]


def test_w014_another_host_without_tls(settings):
    said = deploy(settings, "redis://:secret@cache.invalid:6379/0")
    assert "cache.invalid:6379, db 0 does not use TLS" in said["delayq.W014"]
    assert "rediss://" in said["delayq.W014"]
    assert "secret" not in repr(said)
    for here in ("localhost", "127.0.0.1", "127.8.8.8", "[::1]"):
        assert on_the_way(f"redis://:secret@{here}:6379/0") == []
    assert on_the_way("rediss://:secret@cache.invalid:6379/0") == []


@pytest.mark.parametrize("backend", ["django_redis.cache.RedisCache", "django.core.cache.backends.redis.RedisCache"])
def test_w014_by_the_alias_of_a_cache(settings, backend):
    settings.CACHES = {"default": {"BACKEND": backend, "LOCATION": "redis://:secret@cache.invalid:6379/1"}}
    assert on_the_way("default") == ["W014"]


def test_w015_no_password(settings, own_redis):
    server = own_redis(port=True, appendonly="yes")
    settings.DELAYQ = {**settings.DELAYQ, "SIGNING": True}
    said = deploy(settings, f"{server.tcp_url}/0")
    assert list(said) == ["delayq.W015"]
    assert "without a password" in said["delayq.W015"]
    assert on_the_way("redis://user@localhost:6379/0") == ["W015"]
    assert on_the_way({"URL": "redis://localhost:6379/0", "OPTIONS": {"password": "secret"}}) == []


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({}, False),
        ({"ssl_cert_reqs": "required"}, False),
        ({"ssl_cert_reqs": "none"}, True),
        ({"ssl_cert_reqs": None}, True),
        ({"ssl_cert_reqs": ssl.CERT_NONE}, True),
        ({"ssl_check_hostname": False}, True),
    ],
)
def test_w016_tls_that_checks_nothing(settings, options, told):
    said = deploy(settings, {"URL": "rediss://:secret@cache.invalid:6379/0", "OPTIONS": options})
    assert ("delayq.W016" in said) is told


@pytest.mark.parametrize("query", ["ssl_cert_reqs=none", "ssl_check_hostname=false"])
def test_w016_in_the_address(settings, query):
    assert "ssl_ca_certs" in deploy(settings, f"rediss://:secret@cache.invalid:6379/0?{query}")["delayq.W016"]


def test_w017_jobs_that_are_not_signed_in_a_redis_by_network(settings, own_redis):
    server = own_redis(port=True, appendonly="yes")
    url = servers.as_package(f"{server.tcp_url}/0")
    assert list(deploy(settings, url)) == ["delayq.W017"]
    settings.DELAYQ = {**settings.DELAYQ, "SIGNING": True}
    assert deploy(settings, url) == {}
    assert on_the_way("unix:///run/redis.sock", signed=False) == []


def test_w018_an_embedded_directory_that_is_not_private(settings, tmp_path):
    home = tmp_path / "data"
    settings.DELAYQ = {**settings.DELAYQ, "REDIS": {"EMBEDDED": str(home)}}
    home.mkdir()
    home.chmod(0o755)
    try:
        said = {m.id: m.msg for m in checks.check_server()}
        assert f"{home} is open to other users (mode 0755)" in said["delayq.W018"]
        assert "delayq.W018" not in {m.id for m in checks.check_server()}, "its start has mended it"
        assert on_the_way({"EMBEDDED": str(tmp_path / "none")}) == []
    finally:
        embedded.stop(home)


def test_w019_workers_that_answer_probes_on_all_addresses(settings, own_redis):
    server = own_redis(appendonly="yes")
    link = connect(server.url)
    workers = WorkerRegistry(link, prefix="delayq")
    for number, health in enumerate(("*:8081", "127.0.0.1:8081", "", 7, None, ["*:1"])):
        workers.beat(f"host:1:{number}", {"queues": [], "health": health})
    workers.beat("host:1:old", {"queues": []})
    link.close()
    said = deploy(settings, server.url)
    assert list(said) == ["delayq.W019"]
    assert "1 of the workers answers" in said["delayq.W019"]
    assert "--health-host" in said["delayq.W019"]


def test_w020_a_dependency_newer_than_those_tested(settings, own_redis, monkeypatch):
    server = own_redis(appendonly="yes")
    monkeypatch.setattr(checks, "version", lambda name: {"Django": "6.2a1", "redis": "8.99", "django-redis": "8.0"}[name])
    found = [m.msg for m in checks.check_server() if m.id == "delayq.W020"]
    assert [text.partition(" is newer")[0] for text in found] == ["Django 6.2a1", "django-redis 8.0"]
    assert list(deploy(settings, server.url)) == ["delayq.W020"]


def test_w022_a_queue_of_messages_whose_records_nobody_keeps(settings, own_redis):
    server = own_redis(appendonly="yes")
    queues = {"default": {}, "orders": {}, "redis": {}, "mail": {"CONSUMER": "pull"}}
    assert list(deploy(settings, server.url, QUEUES=queues)) == [], "nobody works at all: perhaps nobody has been started yet"
    link = connect(server.url)
    workers = WorkerRegistry(link, prefix="delayq")
    workers.beat("host:1:a", {"queues": ["default"], "sides": ["records"], "records": ["default", "orders"]})
    said = deploy(settings, server.url, QUEUES=queues)
    assert list(said) == ["delayq.W022"]
    assert "'mail'" in said["delayq.W022"]
    workers.beat("host:1:b", {"queues": [], "sides": ["records"], "records": ["mail"]})
    assert list(deploy(settings, server.url, QUEUES=queues)) == []
    workers.beat("host:1:c", {"queues": ["redis"], "records": []})
    said = deploy(settings, server.url, QUEUES=queues)
    assert list(said) == ["delayq.W022"]
    assert "Workers run jobs of the queue 'redis', but none of them has the roles mirror and relay for it" in said["delayq.W022"]
    link.close()


@pytest.mark.parametrize("said", [7, None, [[]], {"mail": 1}])
def test_what_somebody_else_has_written_as_a_worker_keeps_no_records(said):
    assert unkept(["mail"], [{"records": said}]) == ["mail"]


def test_these_tests_run_on_nothing_newer_than_what_is_said_to_be_tested():
    assert list(version_findings(checks.installed())) == []
    assert set(checks.installed()) == set(NEWEST)


def test_the_oldest_that_are_supported_are_what_one_run_of_the_tests_installs():
    root = Path(__file__).parents[1]
    needed = tomllib.loads((root / "pyproject.toml").read_text())["project"]["dependencies"]
    assert {re.split("[<>=]", line)[0].lower() for line in needed} == {name.lower() for name in NEWEST}
    assert all(re.fullmatch(r"[a-z-]+>=[\d.]+", line) for line in needed), "no upper bounds: a check warns beyond"
    assert "leg-oldest" in (root / ".ci" / "run").read_text()


@pytest.mark.parametrize(("inline", "debug", "said"), [(True, False, ["delayq.E009"]), (True, True, []), (False, False, [])])
def test_e009_jobs_that_run_inline_in_production(settings, inline, debug, said):
    settings.DELAYQ = {**settings.DELAYQ, "INLINE": inline}
    settings.DEBUG = debug
    assert [message.id for message in checks.check_inline()] == said


@pytest.mark.parametrize(
    ("path", "near"),
    [("tests.producer.outsied", "tests.producer.outside"), ("tests.prodocer.outside", "tests.producer.outside"), ("zzz", None)],
)
def test_e065_a_module_of_tasks_that_does_not_exist_comes_with_the_nearest_one(settings, path, near):
    said = found(settings, TASK_MODULES=["tests.producer.outside", path])["delayq.E065"]
    near_text = f" Did you mean {near!r}? " if near else " "
    assert said.startswith(f"DELAYQ['TASK_MODULES'] contains {path!r}, but there is no such module.{near_text}")


@pytest.mark.parametrize("given", ["shop.mail", ["shop mail"], [7], ["shop..mail"]])
def test_e002_what_is_no_list_of_modules(settings, given):
    assert 'DELAYQ["TASK_MODULES"] must be a list of dotted module names' in found(settings, TASK_MODULES=given)["delayq.E002"]


@pytest.mark.django_db
def test_e021_a_command_that_is_needed_and_refused_where_the_command_line_asks_for_it(settings, own_redis):
    server = own_redis()
    root = connect(server.url)
    root.execute("ACL", "SETUSER", USER, "-xtrim")
    settings.DELAYQ = {**settings.DELAYQ, "REDIS": as_package(server.url)}
    said = [m for m in run_checks(include_deployment_checks=True, databases=["default"]) if m.id == "delayq.E021"]
    assert len(said) == 1
    assert "rejects XTRIM, which is required for the mirror" in said[0].msg
    assert [m for m in run_checks(include_deployment_checks=True) if m.id == "delayq.E021"] == [], "nothing is written unasked"
    assert root.execute("KEYS", "*") == []
    root.close()
