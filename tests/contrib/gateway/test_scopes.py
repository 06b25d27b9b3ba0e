"""A token of one scope: its jobs have the scope, and jobs of other scopes do not exist for it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from django_delayq import ids
from django_delayq.contrib.gateway import tokens
from django_delayq.exceptions import ConfigError
from django_delayq.models import Job
from django_delayq.states import CARRIED
from tests.tasks_for_tests import close_order

pytestmark = pytest.mark.usefixtures("delayq_redis")
BY_KEY = {"key": "close:7", "queue": "orders"}


def test_two_tokens_with_the_same_key_have_a_job_each(make: Callable[..., Any]) -> None:
    mine, theirs = make("a", only_scope="a"), make("b", only_scope="b")
    first, second = mine.schedule(key="close:7"), theirs.schedule(key="close:7", on_conflict="replace")
    assert (first.status_code, second.status_code) == (201, 201)
    rows = {row.short_id: row.scope for row in Job.objects.all()}
    assert rows == {first.json()["id"]: "a", second.json()["id"]: "b"}
    again = mine.schedule(key="close:7", on_conflict="keep")
    assert (again.json()["id"], again.json()["created"]) == (first.json()["id"], False)
    assert theirs.get("jobs?key=close:7&queue=orders").json()["id"] == second.json()["id"]
    assert theirs.get("jobs?key=close:7&queue=orders").json()["job"]["scope"] == "b"


def test_a_job_of_a_token_runs_as_the_tenant_of_the_token(make: Callable[..., Any], settings: Any) -> None:
    settings.DELAYQ = {**settings.DELAYQ, "CARRIERS": ["tests.carriers.Tenant"], "SCOPE": "Tenant"}
    make("a", only_scope="a").schedule()
    row = Job.objects.get()
    assert (row.scope, row.options["meta"][CARRIED]) == ("a", {"Tenant": "a"})


def test_another_scope_does_not_exist_for_a_token(make: Callable[..., Any]) -> None:
    caller = make("a", only_scope="a")
    others = [close_order.using(delay="1h", key="close:7").schedule(7), make("b", only_scope="b").schedule(key="close:7").json()]
    for other in others:
        id = other["id"] if isinstance(other, dict) else other.short_id
        for answer in (
            caller.get(f"jobs/{id}"),
            caller.post(f"jobs/{id}/cancel"),
            caller.post(f"jobs/{id}/reschedule", {"delay": "2h"}),
        ):
            assert (answer.status_code, answer.json()["detail"]) == (404, caller.get(f"jobs/{ids.short(ids.new())}").json()["detail"])
    assert caller.get("jobs?key=close:7&queue=orders").status_code == 404
    assert caller.post("keys/cancel", BY_KEY).status_code == 404
    assert {row.state for row in Job.objects.all()} == {"scheduled"}


def test_a_change_by_key_is_made_in_the_scope(make: Callable[..., Any]) -> None:
    callers = {name: make(name, only_scope=name) for name in ("a", "b")}
    made = {name: caller.schedule(key="close:7").json()["id"] for name, caller in callers.items()}
    assert callers["b"].post("keys/cancel", BY_KEY).json()["change"] == "done"
    assert callers["a"].get(f"jobs/{made['a']}").json()["state"] == "scheduled"
    assert callers["b"].get("jobs?key=close:7&queue=orders").status_code == 404


def test_verbs_that_concern_whole_queues_are_refused(make: Callable[..., Any]) -> None:
    caller = make("a", only_scope="a")
    assert caller.get("queues").json()["type"] == make("none", verbs=["get"]).get("queues").json()["type"]
    with pytest.raises(ConfigError, match="has a scope, so it cannot have verbs that concern whole queues: ack, pull"):
        tokens.make("c", queues=["orders"], verbs=["get", "pull", "ack"], only_scope="a")
    with pytest.raises(ConfigError, match="scope of the token c"):
        tokens.make("c", queues=["orders"], verbs=["get"], only_scope="a b")


def test_a_rotated_token_keeps_the_scope(make: Callable[..., Any]) -> None:
    make("a", only_scope="a")
    assert tokens.rotate("a")[0].only_scope == "a"
