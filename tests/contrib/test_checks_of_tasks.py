"""System checks of what TASKS says, one test per id."""

from __future__ import annotations

import pytest
from django.test import override_settings

from tests.contrib.conftest import TASKS


def said(**changes):
    from django_delayq.contrib.tasks import api

    with override_settings(TASKS={"default": {**TASKS["default"], **changes}}):
        return {one.id: f"{one.msg} {one.hint}" for one in api.task_backends["default"].check()}


def test_right_options_pass():
    assert said() == {}
    assert said(OPTIONS={"max_attempts": 3, "backoff": "15s 3m", "timeout": "1m", "durability": "redis"}) == {}
    assert said(QUEUES=[]) == {}


def test_e030_an_unknown_option_names_the_nearest_one():
    (text,) = said(OPTIONS={"max_attempt": 3}).values()
    assert "TASKS[\"default\"][\"OPTIONS\"] has an unknown option 'max_attempt' (did you mean 'max_attempts'?)" in text
    assert set(said(OPTIONS={"retries": 3})) == {"delayq.E030"}


@pytest.mark.parametrize(
    ("name", "value"),
    [("max_attempts", 0), ("max_attempts", "3"), ("backoff", "soon"), ("timeout", -1), ("durability", "disk")],
)
def test_e031_a_value_that_cannot_work_names_its_place(name, value):
    (text,) = said(OPTIONS={name: value}).values()
    assert 'TASKS["default"]["OPTIONS"]' in text
    assert set(said(OPTIONS={name: value})) == {"delayq.E031"}


@pytest.mark.parametrize("options", [None, [1], "max_attempts"])
def test_e031_options_that_are_no_dict(options):
    (text,) = said(OPTIONS=options).values()
    assert f'TASKS["default"]["OPTIONS"] must be a dict, not {options!r}.' in text
    assert set(said(OPTIONS=options)) == {"delayq.E031"}


def test_e032_a_queue_that_nobody_serves():
    (text,) = said(QUEUES=["default", "mails"]).values()
    assert "'mails'" in text
    assert set(said(QUEUES=["default", "mails"])) == {"delayq.E032"}
    assert set(said(QUEUES=["default", None, "mails"])) == {"delayq.E032"}
