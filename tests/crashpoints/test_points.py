"""The crash points reach every failpoint of the package, and failpoints stand around every call to Redis."""

from __future__ import annotations

import ast
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from django_delayq.store.scripts import SCRIPTS
from tests.crashpoints.cases import AFTER, BEFORE, KINDS, POINTS, cases, tenth

PACKAGE = Path(__file__).parents[2] / "django_delayq"
CALLS = {*SCRIPTS, "cancel_one", "resume", "adopt", "beat", "leave"} - {"inspect"}
NAMED = ("store", "self.log", "_registry", "ground")  # what these are called on
# What the rule is not held to: where a person has said that restore is to wait, a pause is all it does; and `confirm`, called in
# three places, has its failpoints where it is sent.
BESIDES = {"mirror/restore.py": {"pause", "confirm", "cancel"}}
FAILPOINT = "failpoint"


def trees() -> Iterator[tuple[str, ast.Module]]:
    for path in sorted(PACKAGE.rglob("*.py")):
        yield str(path.relative_to(PACKAGE)), ast.parse(path.read_text())


def failpoints(tree: ast.AST) -> list[ast.Call]:
    return [
        node
        for node in ast.walk(tree)
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == FAILPOINT
    ]


def name(call: ast.Call) -> str:
    (argument,) = call.args
    assert isinstance(argument, ast.Constant), f"line {call.lineno}: the name of a failpoint stands there literally"
    return str(argument.value)


def to_redis(tree: ast.AST) -> list[ast.Call]:
    """Calls of scripts, and the others that change something in Redis, by the names of what they are called on."""
    return [
        node
        for node in ast.walk(tree)
        if isinstance(node, ast.Call)
        and isinstance(node.func, ast.Attribute)
        and node.func.attr in CALLS
        and any(word in ast.unparse(node.func.value) for word in NAMED)
    ]


def test_every_failpoint_is_reached_by_cases_and_every_case_has_a_failpoint() -> None:
    there = Counter(name(call) for _, tree in trees() for call in failpoints(tree))
    assert {point.name for point in POINTS} == there.keys()
    repeated = {name for name, count in there.items() if count > 1}
    # Of a whole run and of a step of one; of a transaction and of a single statement that commits itself.
    assert repeated == {"effects.commit", "effects.committed", "producer.commit"}


def test_failpoints_stand_before_and_after_every_call_that_changes_redis() -> None:
    found = 0
    for file, tree in trees():
        if not file.startswith(("worker/", "mirror/")):
            continue
        for function in (node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)):
            marks = [call.lineno for call in failpoints(function)]
            for call in to_redis(function):
                if call.func.attr in BESIDES.get(file, ()):
                    continue
                found += 1
                assert any(line < call.lineno for line in marks), f"{file}:{call.lineno} has no failpoint before it"
                assert any(line > (call.end_lineno or 0) for line in marks), f"{file}:{call.lineno} has none behind it"
    assert found >= 12


def test_producers_ask_redis_under_the_breaker_which_has_the_failpoints() -> None:
    found = 0
    for file, tree in trees():
        guarded = {
            call
            for block in ast.walk(tree)
            if isinstance(block, ast.With) and "stores.guarded()" in ast.unparse(block.items[0])
            for call in to_redis(block)
        }
        if file in ("producer.py", "changes.py", "notes.py"):
            found += len(guarded)
            assert guarded == set(to_redis(tree)), file
    assert found >= 8


def test_every_case_is_there_once() -> None:
    names = [case.name for case in cases()]
    assert (
        len(set(names))
        == len(names)
        == sum(len(point.kinds) * len(point.operations) * len(AFTER if point.reply else BEFORE) for point in POINTS)
    )
    assert {case.kind for case in cases()} == set(KINDS)
    for point in POINTS:
        assert point.kinds == KINDS or point.name.startswith("effects.")


def test_the_tenth_of_every_day_has_every_failpoint_kind_and_action() -> None:
    chosen = list(tenth())
    assert len(chosen) < len(list(cases())) / 8
    assert {case.point for case in chosen} == set(POINTS)
    assert {case.kind for case in chosen} == set(KINDS)
    assert {case.action for case in chosen} == set(AFTER)
