"""The rules that make faults, and the list of those that survive."""

from __future__ import annotations

import pytest

from django_delayq.clock import from_ms
from tests.mutation import lua, python, targets
from tests.mutation.judge import changed, put_in
from tests.mutation.mutant import Change, Mutant, named, sample
from tests.mutation.survivors import SURVIVORS

SCRIPT = """-- a comment: if a == b then
local status = 'done' -- and 'x'
if now < due and not held then
  redis.call('ZADD', k, '(' .. key, id)
  status = 'lost'
end
return limit - 200
"""


def made(rules, text: str) -> dict[str, str]:
    """Rule -> the line as it becomes."""
    found = {}
    for mutant in named("file", text, rules.changes(text)):
        found[mutant.key.rpartition(" [")[2].replace("]", "")] = mutant.of(text).splitlines()[mutant.line - 1].strip()
    return found


def test_a_script_gets_every_fault_of_the_rules_and_none_in_a_comment():
    assert made(lua, SCRIPT) == {
        "done to lost": "local status = 'lost' -- and 'x'",
        "lost to done": "status = 'done'",
        "negated": "if not (now < due and not held) then",
        "< to <=": "if now <= due and not held then",
        "and to or": "if now < due or not held then",
        "without redis.call ZADD": "",
        "- to +": "return limit + 200",
        "one more": "return limit - 201",
        "one less": "return limit - 199",
    }


def test_more_arguments_than_have_names_are_no_fault():
    assert made(lua, "local a, b = unpack(ARGV, 4, 15)\n") == {
        "one more": "local a, b = unpack(ARGV, 5, 15)",
        "one less": "local a, b = unpack(ARGV, 4, 14)",
    }
    assert made(lua, "local a, b = unpack(ARGV, at, at + TWO - 1)\n") == {
        "+ to -": "local a, b = unpack(ARGV, at, at - TWO - 1)",
        "one more": "local a, b = unpack(ARGV, at, at + TWO - 2)",
    }


def test_a_module_gets_faults_in_its_functions():
    text = '''"""Words."""
LIMIT = 200
def due(now: int, *jobs) -> bool:
    """Words of 3."""
    if not jobs:
        tell(now)
    return now >= 5 and jobs[0] in LATE
'''
    assert made(python, text) == {
        "negated": "if (not (not jobs)):",
        "without tell": "pass",
        "returns None": "return None",
        ">= to >": "return now > 5 and jobs[0] in LATE",
        "and to or": "return now >= 5 or jobs[0] in LATE",
        "one more": "return now >= 6 and jobs[0] in LATE",
        "one more 2": "return now >= 5 and jobs[1] in LATE",
        "in to not in": "return now >= 5 and jobs[0] not in LATE",
    }


@pytest.mark.parametrize("file", targets.files())
def test_each_fault_has_a_key_of_its_own_and_changes_the_text(file):
    text = (targets.PACKAGE / file).read_text()
    mutants = targets.mutants(file)
    assert len({mutant.key for mutant in mutants}) == len(mutants)
    assert [mutant.key for mutant in mutants if mutant.of(text) == text] == []
    if file.endswith(".py"):
        for mutant in sample(mutants, 10):
            changed(mutant)


def test_every_fault_leaves_a_script_that_redis_can_read(redis_server):
    for file in targets.files():
        if file.endswith(".lua"):
            text = (targets.PACKAGE / file).read_text()
            for mutant in targets.mutants(file):
                redis_server.link.execute("SCRIPT", "LOAD", mutant.of(text))
            redis_server.link.execute("SCRIPT", "FLUSH")


def test_keys_stay_while_other_lines_are_edited():
    before = [mutant.key for mutant in named("file", SCRIPT, lua.changes(SCRIPT))]
    edited = "local more = {}\n" + SCRIPT
    assert [mutant.key for mutant in named("file", edited, lua.changes(edited))] == before
    assert sample(named("file", edited, lua.changes(edited)), 3) == sample(named("file", edited, lua.changes(edited)), 3)
    several = [sample(named("file", SCRIPT, lua.changes(SCRIPT)), 3, seed) for seed in range(3)]
    assert sorted(mutant.key for some in several for mutant in some) == sorted(before)


def test_a_fault_of_a_module_is_in_the_function_that_everybody_has_imported(monkeypatch):
    monkeypatch.setattr(from_ms, "__code__", from_ms.__code__)
    text = (targets.PACKAGE / "clock.py").read_text()
    start = text.index("    return", text.index("def from_ms("))
    put_in(Mutant("clock.py", "", 0, Change("", start, text.index("\n", start), "    return 'the fault'")))
    assert from_ms(1) == "the fault"


def test_a_fault_that_survives_is_made_by_a_rule_and_has_a_reason():
    keys = {mutant.key for file in targets.files() for mutant in targets.mutants(file)}
    assert SURVIVORS.keys() - keys == set()
    assert [key for key, reason in SURVIVORS.items() if not reason] == []


def test_every_file_and_test_that_is_named_is_there():
    root = targets.PACKAGE.parent
    for file in targets.files():
        assert (targets.PACKAGE / file).is_file(), file
        for test in targets.judges(file):
            assert (root / test).is_file(), test
