"""The laws of scopes find every kind of wrong in made-up histories, and nothing in a good one."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from django_delayq.job_meta import scoped
from tests.laws import of_scopes
from tests.laws.dump import Dump
from tests.laws.history import History, Look, Row
from tests.laws.law import LAWS
from tests.laws.made_up import add, broken, good, op, run, scheduled
from tests.store.board import record

APART, OWN = "scopes never meet", "a scope has only its own jobs"


def two_tenants() -> History:
    """Two tenants with the same key: a job of each runs at the same time, and a waiting one of "b" is cancelled by its key."""
    history = good()
    for scope in ("a", "b"):
        add(history, scheduled(scope, key=scoped(scope, "k"), scope=scope, policy="keep"))
        history.final.rows[scope] = Row(id=scope, op=f"op-{scope}", task="keyed", key=scoped(scope, "k"), scope=scope)
        history.runs.append(run(scope, start=1.0, end=1.5))
        history.ledger.append(("end", scope, "f", ""))
    add(history, scheduled("waits", key="b\u2028k2", scope="b", policy="keep", delay=9.0))
    add(history, op("c", "cancel_key", start=2, end=2.1, reply="done", given={"key": "b\u2028k2", "scope": "b", "queue": "default"}))
    history.final.rows["waits"] = Row(id="waits", op="op-waits", task="keyed", key="b\u2028k2", scope="b", state="cancelled")
    history.final.acts.append(("cancelled", "waits", "c"))
    return history


def test_two_tenants_with_the_same_key_break_nothing() -> None:
    assert broken(two_tenants()) & {APART, OWN} == set()


def has_the_scope_of_another(history: History) -> None:
    history.final.rows["a"].scope = "b"


def is_the_answer_to_another_tenant(history: History) -> None:
    add(history, op("d", given={"key": "b\u2028k", "scope": "b"}, jobs=[("a", False, None)]))


def gives_way_to_the_job_of_another_tenant(history: History) -> None:
    history.final.rows["waits"].holder = "a"


def is_cancelled_by_another_tenant(history: History) -> None:
    history.ops["c"].given["scope"] = "a"


def is_cancelled_by_a_call_without_a_tenant(history: History) -> None:
    del history.ops["c"].given["scope"]


@pytest.mark.parametrize(
    "spoil",
    [
        has_the_scope_of_another,
        is_the_answer_to_another_tenant,
        gives_way_to_the_job_of_another_tenant,
        is_cancelled_by_another_tenant,
        is_cancelled_by_a_call_without_a_tenant,
    ],
    ids=lambda spoil: spoil.__name__,
)
def test_a_job_that_meets_another_scope_is_found(spoil: Callable[[History], None]) -> None:
    history = two_tenants()
    spoil(history)
    assert broken(history) & {APART} == {APART}


PLACES = {
    "key": {"keys": {"a\u2028k": "x"}},
    "holder": {"holders": ["a\u2028order:1\0x".encode()]},
    "waits for a name": {"waiters": ["a\u2028order:1\x001000000000000001\0x".encode()]},
    "held by the pause of a scope": {"waiters": [b"\1scope:a\x001000000000000001\0x"]},
    "held by the pause of a name": {"waiters": ["\1name:a\u2028order:1\x001000000000000001\0x".encode()]},
}


@pytest.mark.parametrize("scope", ["a", "b", ""])
@pytest.mark.parametrize("place", PLACES.values(), ids=PLACES)
def test_a_job_in_a_place_of_another_scope_is_found(place: dict[str, object], scope: str) -> None:
    history = good()
    history.looks = [Look(after=Dump(jobs={"x": record(1, scope=scope).encode()}, **place))]
    assert (OWN in broken(history)) is (scope != "a")


def test_both_laws_are_judged() -> None:
    assert {one.name for one in LAWS if one.find.__module__ == of_scopes.__name__} == {APART, OWN}
