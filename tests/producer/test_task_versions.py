"""Code that changes while jobs wait: other names of a task, and versions of its arguments."""

from __future__ import annotations

import json
from typing import Any

import pytest

import django_delayq as delayq
from django_delayq.exceptions import ConfigError, PayloadError, UnknownVersion
from django_delayq.job_meta import VERSION, version_in
from django_delayq.producer import task as tasks
from django_delayq.producer.options import Options
from django_delayq.producer.schedule import plan
from django_delayq.producer.task import Registry, Task, registry


@pytest.fixture(autouse=True)
def own_registry(monkeypatch) -> None:
    monkeypatch.setattr(registry, "_tasks", dict(registry._tasks))
    monkeypatch.setattr(registry, "duplicates", {})


def first(order_id: int, cents: int = 0) -> dict[str, Any]:
    return {"order": order_id, "amount": cents}


def second(order: int, amount: int) -> dict[str, Any]:
    return {"order": order, "amount": {"cents": amount}}


def task(version: int = 3, **options: Any) -> Task[..., Any]:
    options = {"upgrade": {1: first, 2: second}, **options}
    return delayq.task(name="shop.pay", version=version, queue="orders", **options)(lambda order, amount: None)


def meta_of(made: Task[..., Any], *args: Any, **kwargs: Any) -> Any:
    planned = plan(made, Options(), args, kwargs, None)
    return json.loads(planned.payload)[2:]


def test_a_job_has_the_version_of_its_task_and_of_the_first_version_there_is_no_trace(settings):
    assert meta_of(task(3), 1, 2) == [{"meta": {VERSION: 3}}]
    assert meta_of(task(1, upgrade={}), 1, 2) == []


@pytest.mark.parametrize(
    ("args", "kwargs", "meta"),
    [
        ((7, 5), {}, None),
        ((7,), {"cents": 5}, {}),
        ((7, 5), {}, {VERSION: 2}),
        ((), {"order": 7, "amount": {"cents": 5}}, {VERSION: 3, "by": "form"}),
    ],
)
def test_the_arguments_of_each_version_become_those_of_the_last(args, kwargs, meta):
    found, named = task().understood(args, kwargs, meta)
    assert (list(found), dict(named)) == ([], {"order": 7, "amount": {"cents": 5}})


@pytest.mark.parametrize(
    ("options", "args", "meta", "code"),
    [
        ({}, (1, 2), {VERSION: 4}, "task_version"),
        ({}, (1, 2), {VERSION: "3"}, "task_version"),
        ({}, (1, 2), {VERSION: True}, "task_version"),
        ({}, (1, 2), {VERSION: [1]}, "task_version"),
        ({"upgrade": {2: second}}, (1, 2), {}, "task_version"),
        ({"upgrade": {}}, (1, 2), {VERSION: 2}, "task_version"),
        ({}, (1, 2, 3), {}, "task_upgrade"),
        ({"upgrade": {2: lambda order, amount: None}}, (1, 2), {VERSION: 2}, "task_upgrade"),
    ],
)
def test_a_version_that_is_newer_or_has_no_upgrade_is_not_understood(options, args, meta, code):
    with pytest.raises(UnknownVersion) as found:
        task(**options).understood(args, {}, meta)
    assert found.value.code == code
    assert "shop.pay" in str(found.value)


def test_an_upgrade_is_followed_by_the_comparison_with_the_signature():
    with pytest.raises(PayloadError, match="cannot be called") as found:
        task(upgrade={2: lambda order, amount: {"wrong": order}}).understood((1, 2), {}, {VERSION: 2})
    assert not isinstance(found.value, UnknownVersion)


@pytest.mark.parametrize(("meta", "version"), [(None, 1), ({}, 1), ({VERSION: 2}, 2), ({VERSION: 0}, 0), ({VERSION: 1.0}, 0)])
def test_the_version_of_a_job(meta, version):
    assert version_in(meta) == version


async def coroutine(order: int) -> dict[str, Any]:
    return {}


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"version": 0}, "version must be at least 1"),
        ({"version": "2"}, "version must be a whole number"),
        ({"version": True}, "version must be a whole number"),
        ({"upgrade": [first]}, "upgrade must be a dict"),
        ({"upgrade": {"1": first}}, "upgrade must be a dict"),
        ({"version": 3, "upgrade": {1: first}}, "upgrade must have a function for each version up to 2"),
        ({"version": 2, "upgrade": {1: first, 2: second}}, "upgrade must have a function for each version up to 1"),
        ({"version": 2, "upgrade": {1: coroutine}}, "not a function without async"),
        ({"version": 2, "upgrade": {1: 5}}, "not a function without async"),
        ({"aliases": "shop.old"}, "aliases must be a list of names"),
        ({"aliases": ["shop old"]}, "1 to 200 printable characters without spaces"),
        ({"aliases": [5]}, "1 to 200 printable characters without spaces"),
    ],
)
def test_a_wrong_declaration_is_refused(options, message):
    with pytest.raises(ConfigError, match=message):
        delayq.task(name="shop.pay", **options)(lambda order: None)


def test_a_meta_with_a_version_is_refused():
    with pytest.raises(PayloadError, match="reserved for the version"):
        task().using(meta={VERSION: 1}).schedule(1, 2)


def test_a_task_is_found_by_each_of_its_names_and_listed_once():
    made = task(aliases=["shop.old", "shop.older"])
    assert [registry.get(name) for name in ("shop.pay", "shop.old", "shop.older")] == [made] * 3
    assert registry.find("shop.old") is made
    assert registry.spellings("shop.pay") == registry.spellings("shop.older") == ("shop.pay", "shop.old", "shop.older")
    assert registry.spellings("shop.gone") == ("shop.gone",)
    assert [one for one in registry if one is made] == [made]
    assert "shop.pay" in registry.names()
    assert "shop.old" not in registry.names()


def other(order: int) -> None: ...


def test_two_tasks_with_the_same_name_or_alias_are_duplicates():
    def by(name: str, *aliases: str, fn: Any = other) -> Task[..., Any]:
        return Task(fn, name=name, aliases=aliases)

    found = Registry()
    pay, ship = by("pay", "old", fn=first), by("ship", "old", "pay")
    for one in (pay, ship, by("old", fn=second)):
        found.add(one)
    assert [found.get(name) for name in ("pay", "old", "ship")] == [pay, pay, ship]
    assert sorted(found.duplicates) == ["old", "pay"]
    assert found.names() == ["pay", "ship"]
    again = by("pay", "old", fn=first)  # the same function, as after a reload
    found.add(again)
    assert found.get("old") is again


def test_the_options_of_the_decorator_have_their_defaults():
    assert tasks.DEFAULTS["version"] == 1
    assert (Task(other, name="t").aliases, Task(other, name="t").upgrade) == ((), {})
