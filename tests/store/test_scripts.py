"""The contracts in the headers of the Lua files, compared with the code."""

from __future__ import annotations

import re
from itertools import takewhile

import pytest

from django_delayq.states import TRANSITIONS
from django_delayq.store import keys
from django_delayq.store.keys import NAMES, Keys
from django_delayq.store.scripts import loader
from tests.store.board import LUA, NOW, SCRIPTS

FIELDS = ("keys", "include", "ARGV", "Returns")
ROOM = 15  # local variables that a change may add: Lua allows 200 in one function, and the whole script is one


def loaded(name):
    return loader.load(name, Keys("t", "q"))


def test_every_lua_file_can_be_loaded():
    assert all(loaded(name).keys for name in SCRIPTS)


def test_every_transition_names_a_script():
    assert {transition.script for transition in TRANSITIONS} <= set(SCRIPTS)


@pytest.mark.parametrize("name", SCRIPTS)
def test_a_script_begins_with_its_contract(name):
    text = LUA.joinpath(f"{name}.lua").read_text("utf-8")
    header = "\n".join(takewhile(lambda line: line.startswith("--"), text.splitlines()))
    assert header.startswith(f"-- {name}: ")
    for field in FIELDS:
        assert f"\n-- {field}" in header, f"{name}.lua does not say its {field}"
    assert re.search(r"\bO\(", header), f"{name}.lua does not say its complexity"


@pytest.mark.parametrize("name", SCRIPTS)
def test_a_script_uses_only_keys_it_declares(name):
    script = loaded(name)
    body = LUA.joinpath(f"{name}.lua").read_text("utf-8")
    used = set(re.findall(r"\bk_(\w+)", body))
    assert used <= set(script.keys)
    assert set(script.keys) <= set(NAMES)
    assert "KEYS[" not in body


@pytest.mark.parametrize("name", SCRIPTS)
def test_a_script_has_room_for_more_variables(board, name):
    more = "".join(f"local more{number}\n" for number in range(ROOM))
    board.link.execute("SCRIPT", "LOAD", more + loaded(name).text)


@pytest.mark.parametrize("name", [name for name in SCRIPTS if name not in {"counts", "schedule", "offer", "inspect", "probe"}])
def test_the_first_write_needs_no_memory(name):
    body = loaded(name).text.rpartition("\n-- O(")[2]
    assert re.findall(r"redis\.call\('(\w+)'", body)[0] == "HDEL"


@pytest.mark.parametrize("name", SCRIPTS)
def test_no_script_uses_a_command_whose_cost_grows_with_the_queue(name):
    commands = set(re.findall(r"'(LREM|KEYS|SMEMBERS|HGETALL|HKEYS|HVALS|LRANGE|SORT|SCAN)'", loaded(name).text))
    assert not commands


COMMENT = re.compile(r"--.*")
FUNCTION = re.compile(r"^local function (\w+)\(.*?^end$", re.MULTILINE | re.DOTALL)
WRITING = {
    "HSET",
    "HSETNX",
    "HDEL",
    "HINCRBY",
    "ZADD",
    "ZREM",
    "ZREMRANGEBYRANK",
    "XADD",
    "XTRIM",
    "UNLINK",
    "LPUSH",
    "BITFIELD",
    "SETRANGE",
}
READING = {
    "HGET",
    "HMGET",
    "HEXISTS",
    "HSCAN",
    "ZSCORE",
    "ZMSCORE",
    "ZCARD",
    "ZCOUNT",
    "ZLEXCOUNT",
    "ZRANGE",
    "ZRANGEBYSCORE",
    "XLEN",
    "LLEN",
    "EXISTS",
}
BANDS = {"high", "normal", "low"}


def writes(name: str) -> set[str]:
    """The keys that a script may change: those of commands that write, in its own lines or in functions that these lead to."""
    text = COMMENT.sub("", loaded(name).text)
    text = text.replace("'HDEL', k_meta, '_'", "")  # which is there to be the first write, and removes nothing
    functions = {found[1]: found[0] for found in FUNCTION.finditer(text)}
    reached, ahead, written = set(), [FUNCTION.sub("", text)], set()
    while ahead:
        part = ahead.pop()
        for command, key in re.findall(r"(?:\w\(|\{)'([A-Z]+)', (k_\w+|BANDS|band\b)", part):
            assert command in WRITING | READING, f"{name}.lua calls {command}: does it write?"
            if command in WRITING:
                written |= {key.removeprefix("k_")} if key.startswith("k_") else BANDS
        called = {other for other in functions if re.search(rf"\b{other}\(", part)} - reached
        reached |= called
        ahead += [functions[other] for other in called]
    return written


def table(head: str) -> list[list[str]]:
    """The rows of that table in the docstring of keys.py: their cells."""
    rows = (keys.__doc__ or "").partition(f"| {head} |")[2].partition("\n\n")[0].splitlines()[2:]
    return [[cell.strip() for cell in row.strip("| ").split(" | ")] for row in rows]


def test_the_table_of_keys_knows_each_key_once():
    for head in ("key | type | holds | lives", "key | written by"):
        named = [key for cells in table(head) for key in cells[0].split(", ")]
        assert sorted(named) == sorted(NAMES)


@pytest.mark.parametrize("key", NAMES)
def test_the_table_of_keys_names_the_scripts_that_write(key):
    [row] = [cells[1] for cells in table("key | written by") if key in cells[0].split(", ")]
    assert sorted(row.split(", ")) == [name for name in SCRIPTS if key in writes(name)]
    assert all(key in loaded(name).keys for name in row.split(", "))


def test_the_table_of_meta_names_its_fields():
    text = COMMENT.sub("", "".join(loaded(name).text for name in SCRIPTS))
    used = {field for call in re.findall(r"k_meta, ([^)]*)\)", text) for field in re.findall(r"'(\w+)'", call)}
    named = [field for cells in table("field of meta | holds") for field in cells[0].split(", ")]
    assert sorted(set(named) - {"seen:<format>"}) == sorted(used - {"_", "1", "2", "3"})


def test_a_flushed_script_cache_is_filled_again(board):
    board.put(1)
    board.link.execute("SCRIPT", "FLUSH")
    assert board.put(2) == "created"
    board.link.execute("SCRIPT", "FLUSH")
    assert len(board.claim(now=NOW).jobs) == 2


def test_a_script_may_be_forgotten_again_between_its_loading_and_its_call(board, monkeypatch):
    link, flushed = board.store.link, []
    execute = link.execute

    def flush_behind_a_load(*command):
        reply = execute(*command)
        if command[:2] == ("SCRIPT", "LOAD") and len(flushed) < 2:
            flushed.append(board.link.execute("SCRIPT", "FLUSH"))
        return reply

    board.link.execute("SCRIPT", "FLUSH")
    monkeypatch.setattr(link, "execute", flush_behind_a_load)
    board.put(1)
    assert (len(flushed), board.dump()["jobs"]) == (2, [1])
