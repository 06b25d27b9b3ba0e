"""No password leaks. For any error in an address, the texts name only the scheme, the host or the alias."""

from __future__ import annotations

import logging
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
from redis import Redis

from django_delayq import checks, conf
from django_delayq.exceptions import DelayqError, StoreUnavailable
from django_delayq.producer.stores import stores
from django_delayq.store.connection.address import where
from django_delayq.store.connection.link import connect
from django_delayq.worker.supervisor import lease_files
from tests import servers
from tests.links import opened
from tests.worker.conftest import Shop, eventually

SECRET = ("hunter", "s3cret")  # both halves of every password here: some mistakes tear it apart
BACKENDS = ("django_redis.cache.RedisCache", "django.core.cache.backends.redis.RedisCache")
MISTAKES: dict[str, Any] = {
    "scheme of the other server": "valkey://:hunters3cret@cache.internal:6379/0",
    "scheme of the other server with TLS": "valkeys://:hunters3cret@cache.internal:6379/0",
    "scheme in capitals": "REDIS://:hunters3cret@cache.internal:6379/0",
    "scheme with a plus": "redis+tls://:hunters3cret@cache.internal:6379/0",
    "scheme of the web": "http://:hunters3cret@cache.internal:6379/0",
    "one slash": "redis:/:hunters3cret@cache.internal:6379/0",
    "without slashes": "redis::hunters3cret@cache.internal:6379/0",
    "no scheme": ":hunters3cret@cache.internal:6379/0",
    "no scheme, two slashes": "//:hunters3cret@cache.internal:6379/0",
    "only the separator": "://:hunters3cret@cache.internal:6379/0",
    "a quote too many": '"redis://:hunters3cret@cache.internal:6379/0"',
    "a space before": " redis://:hunters3cret@cache.internal:6379/0",
    "user and host alone": "hunters3cret@cache.internal",
    "a bare slash": "redis://:hunter/s3cret@cache.internal:6379/0",
    "a bare slash behind a user": "redis://hunter/s3cret@cache.internal:6379/0",
    "a bare slash behind digits": "redis://:123/hunters3cret@cache.internal:6379/0",
    "a bare question mark": "redis://:hunter?s3cret@cache.internal:6379/0",
    "a bare question mark behind a user": "redis://hunter?s3cret=1@cache.internal:6379/0",
    "a bare hash": "redis://:hunter#s3cret@cache.internal:6379/0",
    "a bare hash behind a user": "rediss://hunter#s3cret@cache.internal:6379/0",
    "a bracket": "redis://:hunter[s3cret@cache.internal:6379/0",
    "a port that is a password": "redis://cache.internal:hunters3cret/0",
    "options behind the host": "redis://cache.internal;password=hunters3cret",
    "options behind the host and a comma": "redis://cache.internal,password=hunters3cret",
    "a password behind the host": "redis://cache.internal hunters3cret",
    "a port of a password behind it": "redis://cache.internal:6379:hunters3cret/0",
    "a path of a socket": "unix://:hunter/s3cret@/run/redis.sock",
    "a database that is a password": "redis://cache.internal/?db=hunters3cret",
    "Sentinels without a master": "redis+sentinel://:hunters3cret@s1:26379,s2:26379",
    "a password behind the Sentinels": "redis+sentinel://s1:26379,s2:26379,password=hunters3cret/mymaster/0",
    "a bare slash before the Sentinels": "rediss+sentinel://:hunter/s3cret@s1:26379/mymaster/0",
    "a database of Sentinels that is a password": "redis+sentinel://s1:26379/mymaster/hunters3cret",
    "a Cluster": "redis+cluster://:hunters3cret@n1:6379,n2:6379/3",
    "a dict with a small key": {"url": "redis://:hunters3cret@cache.internal:6379/0"},
    "a dict by parts": {"HOST": "cache.internal", "PASSWORD": "hunters3cret"},
    "a list": ["redis://:hunters3cret@cache.internal:6379/0"],
    "bytes": b"redis://:hunters3cret@cache.internal:6379/0",
    "a dict of a list": {"URL": ["redis://:hunters3cret@cache.internal:6379/0"]},
    "a dict of a mistake": {"URL": "valkey://:hunters3cret@cache.internal:6379/0"},
    "a dict without scheme": {"URL": ":hunters3cret@cache.internal:6379/0", "OPTIONS": {"password": "hunters3cret"}},
}
ADDRESSES = {
    name: url
    for name, url in MISTAKES.items()
    if isinstance(url, str) and name != "user and host alone"  # Django reads such a LOCATION as a name
}


def clean(text: str) -> None:
    assert [half for half in SECRET if half in text] == [], text


def everything_said(call: Callable[[], object]) -> str:
    """Returns the error text that a person would see, with its causes."""
    with pytest.raises(DelayqError) as caught:
        call()
    return "".join(traceback.format_exception(caught.value))


def told_by_the_checks() -> str:
    found = [*checks.check_settings(), *checks.check_server()]
    assert found
    return " ".join(f"{message.msg} {message.hint}" for message in found)


def without_source(said: str) -> str:
    """A traceback quotes the lines of this file, and these contain the passwords of the tests."""
    return "\n".join(line for line in said.splitlines() if not line.startswith("    "))


@pytest.mark.parametrize("name", MISTAKES)
def test_a_mistyped_address_keeps_its_password_to_itself(settings, name, capsys):
    settings.DELAYQ = {**settings.DELAYQ, "REDIS": MISTAKES[name]}
    stores.reset()
    said = without_source(everything_said(lambda: connect(conf.get().redis)))
    clean(said)
    assert 'DELAYQ["REDIS"]' in said
    clean(told_by_the_checks())
    clean(capsys.readouterr().err)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("name", ADDRESSES)
def test_a_mistyped_location_of_a_cache_keeps_its_password_to_itself(settings, name, backend):
    settings.CACHES = {"default": {"BACKEND": backend, "LOCATION": ADDRESSES[name]}}
    settings.DELAYQ = {**settings.DELAYQ, "REDIS": "default"}
    said = without_source(everything_said(lambda: connect(conf.get().redis)))
    clean(said)
    assert "'default'" in said
    clean(told_by_the_checks())


@pytest.mark.parametrize("separator", [";", ","])
def test_a_separator_in_a_password_tears_no_location_apart_in_public(settings, separator):
    url = f"redis://:hunter{separator}s3cret@cache.internal:6379/0"
    settings.CACHES = {"default": {"BACKEND": BACKENDS[1], "LOCATION": url}}
    clean(without_source(everything_said(lambda: connect("default"))))


def test_a_location_by_sentinel_is_told_by_its_service(settings):
    settings.CACHES = {
        "default": {
            "BACKEND": BACKENDS[0],
            "LOCATION": "redis://:hunters3cret@orders/1",
            "OPTIONS": {
                "CLIENT_CLASS": "django_redis.client.SentinelClient",
                "CONNECTION_POOL_CLASS": "redis.sentinel.SentinelConnectionPool",
                "SENTINELS": [("127.0.0.1", 1)],
                "SENTINEL_KWARGS": {"password": "hunters3cret"},
                "CONNECTION_FACTORY": "django_redis.pool.SentinelConnectionFactory",
            },
        }
    }
    link = connect("default", timeout=0.1)
    assert link.where == "orders by Sentinel at 127.0.0.1:1, db 1"
    clean(without_source(everything_said(lambda: link.execute("PING"))))


def test_a_factory_that_quotes_its_address_is_not_quoted(monkeypatch):
    monkeypatch.setattr("tests.links.opened", lambda: Redis.from_url("redis://:hunter/s3cret@cache.internal"))
    said = without_source(everything_said(lambda: connect("tests.links.opened")))
    clean(said)
    assert "'tests.links.opened' in DELAYQ['REDIS'] raised ValueError" in said


def test_what_can_be_used_is_used():
    """The rules against split addresses accept whole addresses."""
    for url, place in {
        "redis://:p%40ss%2Fw%C3%B6rd@cache.internal:6380/3": "cache.internal:6380, db 3",
        "rediss://user:a@b@cache.internal": "cache.internal:6379, db 0",
        "redis://[::1]:6379/1?health_check_interval=3": "::1:6379, db 1",
        "unix://user:pw@/run/redis%40home.sock?db=2": "unix:/run/redis@home.sock, db 2",
    }.items():
        assert connect(url).where == place, urlsplit(url).scheme


def test_settings_do_not_show_the_address_when_they_are_printed(settings):
    settings.DELAYQ = {**settings.DELAYQ, "REDIS": "redis://:hunters3cret@cache.internal:6379/0"}
    clean(f"{conf.get()!r} {conf.get()}")


class WithoutAuth(servers.RedisServer):
    """A server without the AUTH command. A server quotes the arguments of a command that it does not know."""

    def command(self) -> list[str]:
        return [*super().command(), "--rename-command", "AUTH", "elsewhere"]


def test_a_server_that_quotes_what_it_was_sent_is_not_quoted(request, caplog):
    caplog.set_level(logging.DEBUG)
    server = WithoutAuth(port=True)
    request.addfinalizer(server.stop)
    server.start()
    link = connect(f"redis://delayq:hunters3cret@127.0.0.1:{server.port}/0")
    said = without_source(everything_said(lambda: link.execute("PING")))
    clean(said)
    clean(caplog.text)
    assert "Check the user, the password" in said
    with pytest.raises(StoreUnavailable):
        link.dedicated()
    clean(without_source(everything_said(link.dedicated)))


def test_a_worker_shows_its_password_in_no_title_no_file_and_no_line(own_redis, shop: Shop):
    server = own_redis()
    opened(server.url).execute("ACL", "SETUSER", "shop", "on", ">hunters3cret", "~*", "+@all")
    shop.url, shop.link = server.url, opened(server.url)
    shop.settings = {"REDIS": {"URL": server.url, "OPTIONS": {"username": "shop", "password": "hunters3cret"}}}
    worker = shop.work("--processes", "2")
    eventually(lambda: len(worker.children()) == 2)
    shop.put("count", 1)
    eventually(shop.counts)
    place = lease_files.place()
    if place is not None:
        files = list(place.glob(f"{worker.pid}-*"))
        assert files
        for path in files:
            clean(path.read_bytes().decode("latin-1"))
    for pid in (worker.pid, *worker.children()):
        clean(Path(f"/proc/{pid}/cmdline").read_text())
        clean(Path(f"/proc/{pid}/comm").read_text())
    facts = shop.link.execute("HGETALL", "delayq:{workers}")
    clean(repr(facts))
    worker.signal(15)
    assert worker.wait() == 0
    clean(worker.text())


def test_an_address_for_people_holds_host_port_and_database_only():
    kwargs = {"host": "cache.internal", "port": 6379, "db": 2, "username": "u", "password": "hunters3cret"}
    assert where(kwargs) == "cache.internal:6379, db 2"
