"""The table of Redis commands is complete, and what a server refuses is named before a worker starts."""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from django_delayq.store.connection import commands
from django_delayq.store.connection.commands import BY_NAME, COMMANDS, ON_CLUSTERS
from django_delayq.store.connection.link import connect
from django_delayq.store.keys import Keys
from django_delayq.store.reads.fitness import TRIED, optional_findings, rights_findings
from django_delayq.store.scripts.loader import load
from tests import servers
from tests.conftest import missing
from tests.links import opened
from tests.servers import RedisServer, redis_program
from tests.store.board import SCRIPTS
from tests.topologies import valkey_program

PACKAGE = Path(commands.__file__).parents[2]
SENT = {"execute", "execute_many", "send_command", "start"}
# Words in capitals that are not commands of the package: arguments of BITFIELD, and commands about whose rights the doctor asks.
NOT_SENT = {"set", "incrby", "get", "flushall", "config|set", "type"}
BY_CLIENT = {"select", "auth"}  # redis-py sends them
CONTAINERS = {"client", "config", "script", "xinfo", "cluster", "acl", "sentinel"}


def server_commands(link) -> set[str]:
    return {entry[0].decode().lower() for entry in link.execute("COMMAND")} - {"post", "host:"}  # Redis 6.2 lists words of HTTP


def of_lua(known: set[str]) -> set[str]:
    text = "\n".join(load(name, Keys("t", "q")).text for name in SCRIPTS if name != "probe")
    return {word.lower() for word in re.findall(r"'([A-Z]{3,})'", text)} & known


def named(words: list[ast.expr]) -> str:
    texts = [one.value for one in words[:2] if isinstance(one, ast.Constant) and isinstance(one.value, str)]
    if not texts or not re.fullmatch(r"[A-Z]{3,}", texts[0]):
        return ""
    name = texts[0].lower()
    return f"{name}|{texts[1].lower()}" if name in CONTAINERS and len(texts) == 2 else name


def of_python(known: set[str]) -> set[str]:
    """Words that may begin a command: in a tuple, in a list, or in a call that sends it."""
    found: set[str] = set()
    for path in PACKAGE.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Tuple | ast.List):
                found.add(named(node.elts))
            elif isinstance(node, ast.Call):
                found.add(named(node.args))
    return {name for name in found if name.partition("|")[0] in known}


def test_every_command_that_the_package_sends_is_in_the_table_and_no_other(own_redis):
    known = server_commands(opened(own_redis().url)) | {"sentinel", "cluster", "asking"}
    used = (of_lua(known) | of_python(known) | BY_CLIENT) - NOT_SENT
    used -= {"client", "config", "script", "xinfo", "cluster", "acl", "sentinel"}
    assert used - set(BY_NAME) == set(), "a command without a row"
    assert set(BY_NAME) - used == set(), "a row without a command"


def test_the_rights_of_the_documents_are_those_of_the_table():
    assert [f"+{command.name}" for command in COMMANDS] == servers.acl()[3:]
    assert [f"+{command.name}" for command in ON_CLUSTERS] == servers.cluster_rules()


def test_every_required_command_is_tried_or_used_at_the_start():
    used = {"evalsha", "script|load", "select", "wait"}  # by the probe itself, by the connection, and by the look at replicas
    assert {command.name for command in COMMANDS if not command.instead} == {command.name for command in TRIED} | used
    assert TRIED[0].name == "unlink"


PROGRAMS: dict[str, Callable[[], str]] = {"redis": redis_program, "valkey": valkey_program}  # the oldest leg plays it on Redis 6.2


@pytest.fixture(scope="module", params=PROGRAMS)
def server(request) -> Iterator[RedisServer]:
    program = PROGRAMS[request.param]() or missing(f"no {request.param}")
    server = RedisServer()
    server.program = program
    server.start()
    yield server
    server.stop()


@pytest.fixture
def tried(server):
    """Returns the findings for a user with the rights of the documents and these rules."""
    root = opened(server.url)

    def ask(*rules: str, find=lambda link: rights_findings(link, "delayq", [("orders", 0)])) -> list:
        root.execute("ACL", "SETUSER", "narrow", "reset", "on", ">pw", *servers.acl(), *rules)
        link = connect(server.url.replace("unix://", "unix://narrow:pw@"))
        commands.forget()
        try:
            return list(find(link))
        finally:
            link.close()
            assert root.execute("KEYS", "*") == []

    yield ask
    commands.forget()


def test_with_the_rights_of_the_documents_nothing_is_refused(tried):
    assert tried() == []


@pytest.mark.parametrize("name", [command.name for command in TRIED])
def test_a_command_that_is_refused_is_named_with_the_line_that_allows_it(tried, name):
    [finding] = tried(f"-{name.partition('|')[0]}")  # as Redis 6.2 knows it
    assert finding.code == "E021"
    assert finding.level == "error"
    assert f"rejects {BY_NAME[name].words}, which is required for" in finding.message
    assert f"+{name}" in finding.hint


def test_several_are_named_at_once(tried):
    [finding] = tried("-zadd", "-xtrim")
    assert "rejects ZADD, XTRIM, which is required for" in finding.message
    assert "+zadd +xtrim" in finding.hint


@pytest.mark.parametrize("rule", ["-evalsha", "-script"])
def test_a_probe_that_is_refused_itself_names_the_command(tried, server, rule):
    opened(server.url).execute("SCRIPT", "FLUSH")
    [finding] = tried(rule)
    assert rule[1:] in finding.message
    assert "+evalsha '+script|load'" in finding.hint


def test_keys_that_are_refused_are_named_by_the_rule_for_them(tried):
    [finding] = tried("resetkeys", "~other:*")
    assert "permissions to access" in finding.message
    assert "'~delayq:*'" in finding.hint


def test_an_optional_command_is_a_warning_that_says_what_happens_instead(tried):
    def find(link):
        return optional_findings(link, Keys("delayq", "orders", 0))

    assert tried(find=find) == []
    found = {finding.message for finding in tried("-blpop", find=find)}
    assert len(found) == 1
    assert "look for due jobs every second" in found.pop()


def test_a_server_without_memory_is_not_taken_for_one_that_refuses_rights(tried, server):
    root = opened(server.url)
    root.execute("CONFIG", "SET", "maxmemory", "1")
    try:
        assert tried() == []
    finally:
        root.execute("CONFIG", "SET", "maxmemory", "0")


class Renaming(RedisServer):
    def command(self) -> list[str]:
        return [*super().command(), "--rename-command", "XTRIM", ""]


def test_a_renamed_command_is_named(request):
    server = Renaming()
    server.start()
    request.addfinalizer(server.stop)
    [finding] = rights_findings(opened(server.url), "delayq", [("orders", 0)])
    assert "rejects XTRIM" in finding.message
    assert "rename-command" in finding.hint
