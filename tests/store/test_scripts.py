"""What the headers of the Lua files promise, held against the code."""

from __future__ import annotations

import re
from importlib.resources import files
from itertools import takewhile

import pytest

from django_delayq.states import TRANSITIONS
from django_delayq.store import scripts
from django_delayq.store.keys import NAMES
from tests.store.board import NOW

FIELDS = ("keys", "include", "ARGV", "Returns")


def folder():
    return files("django_delayq.store").joinpath("lua")


def test_every_lua_file_is_a_script_the_loader_knows():
    names = {entry.name.removesuffix(".lua") for entry in folder().iterdir() if entry.name.endswith(".lua")}
    assert names == set(scripts.SCRIPTS)


def test_every_transition_names_a_script():
    assert {transition.script for transition in TRANSITIONS} <= set(scripts.SCRIPTS)


@pytest.mark.parametrize("name", scripts.SCRIPTS)
def test_a_script_begins_with_its_contract(name):
    text = folder().joinpath(f"{name}.lua").read_text("utf-8")
    header = "\n".join(takewhile(lambda line: line.startswith("--"), text.splitlines()))
    assert header.startswith(f"-- {name}: ")
    for field in FIELDS:
        assert f"\n-- {field}" in header, f"{name}.lua does not say its {field}"
    assert re.search(r"\bO\(", header), f"{name}.lua does not say its complexity"


@pytest.mark.parametrize("name", scripts.SCRIPTS)
def test_a_script_uses_only_keys_it_declares(name):
    script = scripts.load(name)
    body = folder().joinpath(f"{name}.lua").read_text("utf-8")
    used = set(re.findall(r"\bk_(\w+)", body))
    assert used <= set(script.keys)
    assert set(script.keys) <= set(NAMES)
    assert "KEYS[" not in body


@pytest.mark.parametrize("name", [name for name in scripts.SCRIPTS if name not in {"schedule", "inspect"}])
def test_the_first_write_needs_no_memory(name):
    body = folder().joinpath(f"{name}.lua").read_text("utf-8")
    writes = re.findall(r"redis\.call\('(\w+)'", body)
    assert writes[0] == "HDEL"


@pytest.mark.parametrize("name", scripts.SCRIPTS)
def test_no_script_uses_a_command_whose_cost_grows_with_the_queue(name):
    commands = set(re.findall(r"'(LREM|KEYS|SMEMBERS|HGETALL|HKEYS|HVALS|LRANGE|SORT|SCAN)'", scripts.load(name).text))
    assert not commands


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
