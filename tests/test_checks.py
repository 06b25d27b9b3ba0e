"""One test per check id."""

from __future__ import annotations

import dataclasses
import re
import sys

import pytest
from django.core.checks import run_checks
from django.db import connections

from django_delayq import checks
from django_delayq.health import server_findings
from django_delayq.store.connection import connect
from django_delayq.store.inspector import Inspector
from django_delayq.task import Registry, Task, task


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


def test_e001_in_a_queue_names_the_place(settings):
    said = found(settings, QUEUES={"orders": {"MAX_ATTEMPT": 3}})["delayq.E001"]
    assert 'DELAYQ["QUEUES"]["orders"]["MAX_ATTEMPT"]' in said
    assert "MAX_ATTEMPTS" in said


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("REDIS", 5), ("PREFIX", "a b"), ("DURABILITY", "disk"), ("AUDIT", "none"), ("LEASE", "soon"), ("LEASE", 4.9),
        ("MAX_ATTEMPTS", 0), ("MAX_ATTEMPTS", True), ("BACKOFF", "15 sec"), ("TIMEOUT", -1), ("MAX_CRASHES", "3"),
        ("MAX_PAYLOAD", 1), ("RETENTION", {"done": "7d"}), ("RETENTION", "7d"), ("SENSITIVE", "password"), ("SIGNING", "yes"),
        ("MIRROR_FULL", "panic"), ("QUEUES", ["orders"]), ("QUEUES", {"a/b": {}}), ("QUEUES", {"a": None}),
        ("QUEUES", {"a": {"PARTITIONS": 2}}), ("QUEUES", {"a": {"LEASE": "x"}}),
    ],
)  # fmt: skip
def test_e002_a_wrong_value_names_the_place(settings, key, value):
    said = found(settings, **{key: value})["delayq.E002"]
    assert f'DELAYQ["{key}"]' in said


def test_e007_signing_without_a_secret_key(settings):
    settings.SECRET_KEY = ""
    assert "SECRET_KEY" in found(settings, SIGNING=True)["delayq.E007"]


def test_e002_settings_that_are_no_dict(settings):
    settings.DELAYQ = ["REDIS"]
    assert [m.id for m in checks.check_settings()] == ["delayq.E002"]


def test_e003_an_alias_that_is_missing(settings):
    assert "'jobs'" in found(settings, REDIS="jobs")["delayq.E003"]


def test_e003_an_alias_that_is_not_on_redis(settings):
    assert "LocMemCache" in found(settings, REDIS="default")["delayq.E003"]


@pytest.fixture
def tasks(monkeypatch) -> Registry:
    own = Registry()
    monkeypatch.setattr(checks, "registry", own)
    monkeypatch.setattr(sys.modules["django_delayq.task"], "registry", own)  # the package has a `task` of its own
    return own


def test_e004_a_task_on_a_queue_that_is_not_listed(settings, tasks):
    task(name="shop.close", queue="ordres")(lambda: None)
    said = found(settings)["delayq.E004"]
    assert "shop.close" in said
    assert "'ordres'" in said
    assert "orders" in said


def test_e005_two_tasks_of_one_name(settings, tasks):
    def first() -> None: ...

    def second() -> None: ...

    task(name="shop.close")(first)
    assert isinstance(task(name="shop.close")(second), Task)
    said = found(settings)["delayq.E005"]
    assert "first" in said
    assert "second" in said


def test_e006_a_database_alias_that_is_missing(settings):
    assert "'jobs'" in found(settings, DATABASE="jobs")["delayq.E006"]


def test_e002_a_lease_that_a_short_pause_would_lose_says_what_to_write(settings):
    said = found(settings, QUEUES={"orders": {"LEASE": 3}})["delayq.E002"]
    assert 'DELAYQ["QUEUES"]["orders"]["LEASE"]' in said
    assert "at least 5 seconds" in said
    assert "Write 30" in said
    assert found(settings, QUEUES={"orders": {"LEASE": 5}, "default": {}, "redis": {}}) == {}


def test_a_timeout_longer_than_the_lease_is_no_mistake(settings):
    assert found(settings, QUEUES={"default": {}, "orders": {"LEASE": 30, "TIMEOUT": "2h"}, "redis": {}}) == {}


@pytest.mark.parametrize("backend", ["django_redis.cache.RedisCache", "django.core.cache.backends.redis.RedisCache"])
def test_w002_jobs_and_cache_in_one_database(settings, backend):
    settings.CACHES = {"default": {"BACKEND": backend, "LOCATION": "redis://localhost:6390/1"}}
    assert "cache.clear()" in found(settings, REDIS="redis://localhost:6390/1")["delayq.W002"]
    assert "delayq.W002" in found(settings, REDIS="default")
    assert found(settings, REDIS="redis://localhost:6390/2") == {}


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


def deploy(settings, url: str) -> dict[str, str]:
    settings.DELAYQ = {**settings.DELAYQ, "REDIS": url}
    return {m.id: f"{m.msg} {m.hint}" for m in checks.check_server()}


def test_e010_a_server_that_may_evict_jobs(settings, own_redis):
    server = own_redis(maxmemory_policy="allkeys-lru", appendonly="yes")
    assert "allkeys-lru" in deploy(settings, server.url)["delayq.E010"]


def test_e012_a_replica(settings, own_redis):
    primary = own_redis(port=True, appendonly="yes")
    replica = own_redis(appendonly="yes", replicaof=f"127.0.0.1 {primary.port}")
    assert "delayq.E012" in deploy(settings, replica.url)


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


def test_every_id_is_in_the_table_and_has_a_test():
    from pathlib import Path

    table = set(re.findall(r"delayq\.([EW]\d{3}) \|", checks.__doc__ or ""))
    source = Path(__file__).read_text().lower()
    assert {id for id in table if id.lower() not in source} == set()
