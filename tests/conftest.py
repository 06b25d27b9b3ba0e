"""Fixtures for all: the shared Redis, and servers that a test may kill."""

from __future__ import annotations

import io
import json
import os
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import pytest
from django.core.management import CommandError, call_command
from django.db import connections
from hypothesis import settings as hypothesis_settings

from django_delayq import ids
from django_delayq.producer.stores import TIMEOUT, stores
from django_delayq.store.connection import commands
from django_delayq.store.connection.link import Link, connect
from django_delayq.testing import plugin
from tests import emptying, links, servers
from tests.servers import RedisServer, Server, ServerMissing

WAITING = (
    "tests/worker/",
    "tests/formats/",
    "tests/testing/test_projects.py",
    "tests/producer/test_replicas.py",
    "tests/producer/test_cluster.py",
    "tests/store/test_sentinels.py",
    "tests/locks/",
    "tests/targets/",
    "tests/security/test_tls_cluster.py",
)


def missing(reason: str) -> None:
    """A service that is not here: skipped on a laptop, an error on CI."""
    if os.environ.get("CI") == "true":
        pytest.fail(reason)
    pytest.skip(reason)


def pytest_configure(config: pytest.Config) -> None:
    """Removes deadlines of examples. Exits at once if a server that the whole run needs is missing."""
    # No deadline: how fast an example runs says something about the machine. The same examples in every run of CI.
    hypothesis_settings.register_profile("tests", deadline=None, derandomize=os.environ.get("CI") == "true")
    hypothesis_settings.load_profile("tests")
    emptying.begin()
    if not config.pluginmanager.is_registered(plugin):  # its entry point is that of an install which is older than it
        config.pluginmanager.register(plugin, "delayq")
    if reason := getattr(sys.modules.get("tests.settings"), "MISSING", ""):
        pytest.exit(f"skipped: {reason}", returncode=int(os.environ.get("CI") == "true"))


@pytest.hookimpl(tryfirst=True)  # before pytest deselects by markers
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Marks tests with random input as slow. Files whose tests wait for processes come first, so that none of them is left for the end,
    when the others have done.
    """
    for item in items:
        if getattr(getattr(item, "obj", None), "is_hypothesis_test", False):
            item.add_marker(pytest.mark.slow)
    items.sort(key=lambda item: not item.nodeid.startswith(WAITING))


@dataclass(frozen=True)
class SharedRedis:
    """The server that the whole run shares (see tests/settings.py); emptied before each test that asks for it."""

    url: str
    link: Link


@pytest.fixture
def redis_server(settings) -> Iterator[SharedRedis]:
    link = connect(settings.REDIS_URL, name="tests")
    link.execute("FLUSHALL")
    yield SharedRedis(settings.REDIS_URL, link)
    link.close()


@dataclass(frozen=True)
class Answer:
    """The result of a command: its exit code, its standard output, and the message of a CommandError."""

    code: int
    out: str
    error: str = ""

    @property
    def json(self) -> Any:
        return json.loads(self.out)

    @property
    def lines(self) -> list[str]:
        return self.out.splitlines()


Run = Callable[..., Answer]


class Terminal(io.StringIO):
    """A terminal with a person who types this text."""

    def isatty(self) -> bool:
        return True


@pytest.fixture
def run(monkeypatch) -> Run:
    """Runs a command: `run("cancel", job.id, "--json")`. Without `typed`, no terminal is attached. With `typed`, a person types that
    text.
    """

    def command(*words: object, typed: str | None = None) -> Answer:
        monkeypatch.setattr(sys, "stdin", io.StringIO() if typed is None else Terminal(f"{typed}\n"))
        out = io.StringIO()
        try:
            call_command("delayq", *map(str, words), stdout=out)
        except SystemExit as end:
            return Answer(int(end.code or 0), out.getvalue())
        except CommandError as error:
            return Answer(error.returncode, out.getvalue(), str(error))
        return Answer(0, out.getvalue())

    return command


@pytest.fixture(autouse=True)
def producers_are_patient(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """On a busy machine, the shared server can get no CPU time for longer than producers wait. Tests with another server can stop it,
    and wait like a project does.
    """
    if not {"own_redis", "own_cluster"} & set(request.fixturenames):
        monkeypatch.setattr(stores, "_timeout", 20 * TIMEOUT)


@pytest.fixture(autouse=True)
def fast_tests_neither_freeze_nor_kill_a_server(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Their outcome would depend on the load of the machine."""
    left_out = request.node.get_closest_marker("slow") or request.node.get_closest_marker("browser")
    monkeypatch.setattr(Server, "spared_by", "" if left_out else request.node.nodeid)


@pytest.fixture(autouse=True)
def links_are_closed() -> Iterator[None]:
    """Those that tests have opened by `tests.links`; and commands that a server of one test refused are tried again in the next. Ids of
    a test whose clock was ahead are ahead too, and so would be those of the next test.
    """
    yield
    ids._sequence = ids._Sequence()
    links.close_all()
    commands.forget()


@pytest.fixture
def own_redis() -> Iterator[Callable[..., RedisServer]]:
    """Makes servers that the test may kill: `own_redis(appendonly="yes")`."""
    made: list[RedisServer] = []

    def make(**options: object) -> RedisServer:
        try:
            server = RedisServer(**options)
        except ServerMissing as error:
            missing(str(error))
        made.append(server)
        server.start()
        return server

    yield make
    for server in made:
        server.stop()


@pytest.fixture(scope="session")
def django_db_setup(django_db_setup: None, django_db_blocker: Any) -> Iterator[None]:
    """PostgreSQL drops no database while a session uses it, and it notices late that a killed process has gone."""
    yield
    with django_db_blocker.unblock():
        for one in connections.all():
            if one.vendor == "postgresql":
                with one.cursor() as cursor:
                    others = "pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid()"
                    cursor.execute(f"SELECT pg_terminate_backend(pid) FROM {others}")


@pytest.fixture(scope="session")
def postgres() -> Iterator[dict[str, Any]]:
    """An entry of DATABASES on PostgreSQL, with a driver that has pools. A server is started if the tests use another database."""
    pytest.importorskip("psycopg_pool")
    database = json.loads(os.environ["DELAYQ_TEST_DATABASE"])
    if database["ENGINE"].endswith("postgresql"):
        yield database
        return
    try:
        server = servers.PostgresServer()
    except ServerMissing as error:
        missing(str(error))
    with server:
        yield server.database()


@pytest.fixture
def delayq_redis(redis_server: SharedRedis) -> Iterator[SharedRedis]:
    """The shared server, with the producer's link and breaker fresh."""
    from django_delayq.producer.stores import stores

    stores.reset()
    yield redis_server
    stores.reset()
