"""Mistakes that people make with settings and commands. Each answer names the mistake, where it is, and what to do."""

from __future__ import annotations

from typing import Any

import pytest
from django.core.checks import run_checks

from tests.management.conftest import Shop

SETTINGS: dict[str, tuple[dict[str, Any], tuple[str, ...]]] = {
    "a setting with a typing error": ({"REDSI": "redis://localhost"}, ('DELAYQ["REDSI"]', "did you mean 'REDIS'")),
    "a URL without a scheme": ({"REDIS": "localhost:6379/1"}, ('DELAYQ["REDIS"]', "redis://")),
    "a URL of a web page": ({"REDIS": "http://localhost:6379"}, ('DELAYQ["REDIS"]', "redis://")),
    "a password that is not escaped": ({"REDIS": "redis://:p#ss@localhost/1"}, ('DELAYQ["REDIS"]', "Percent-encode")),
    "an option of a connection with a typing error": (
        {"REDIS": {"URL": "redis://localhost", "OPTIONS": {"socket_timeuot": 1}}},
        ("socket_timeuot", "socket_timeout"),
    ),
    "queues in a list": ({"QUEUES": ["orders"]}, ('DELAYQ["QUEUES"]', '{"orders": {}}')),
    "a name of another library in a queue": (
        {"QUEUES": {"orders": {"RETRIES": 4}}},
        ('DELAYQ["QUEUES"]["orders"]["RETRIES"]', "MAX_ATTEMPTS"),
    ),
    "a duration with a space": ({"LEASE": "30 sec"}, ('DELAYQ["LEASE"]', "30s")),
    "a negative duration": ({"TIMEOUT": "-5m"}, ('DELAYQ["TIMEOUT"]', "5m")),
    "a state with a typing error": ({"RETENTION": {"suceeded": "7d"}}, ('DELAYQ["RETENTION"]', "succeeded")),
    "an audit level with a typing error": ({"AUDIT": "failure"}, ('DELAYQ["AUDIT"]', "failures")),
    "a durability that does not exist": ({"DURABILITY": "postgres"}, ('DELAYQ["DURABILITY"]', "outbox")),
    "a module in a string": ({"TASK_MODULES": "shop.jobs"}, ('DELAYQ["TASK_MODULES"]', "['shop.mail']")),
    "a module that does not exist": ({"TASK_MODULES": ["shop.jbos"]}, ("DELAYQ['TASK_MODULES']", "shop.jbos", "Correct the name")),
    "an alias that does not exist": ({"DATABASE": "replcia"}, ('DELAYQ["DATABASE"]', "default")),
    "a setting of a queue for all queues": ({"PARTITIONS": 4}, ('DELAYQ["PARTITIONS"]', 'DELAYQ["QUEUES"]["default"]["PARTITIONS"]')),
    "a prefix with braces": ({"PREFIX": "shop:{eu}"}, ('DELAYQ["PREFIX"]', "without spaces or braces")),
    "a carrier that does not exist": ({"CARRIERS": ["shop.carriers.Tenant"]}, ('DELAYQ["CARRIERS"]', "shop.carriers")),
    "a size as text": ({"MAX_PAYLOAD": "64kB"}, ('DELAYQ["MAX_PAYLOAD"]', "whole number", "delayq settings MAX_PAYLOAD")),
}
COMMANDS: dict[tuple[str, ...], tuple[str, ...]] = {
    ("list", "--state", "faild"): ("faild", "did you mean 'failed'"),
    ("list", "--search", "stat:failed"): ("stat:", "Did you mean state:?"),
    ("list", "--search", "state:faild"): ("faild", "Did you mean failed?"),
    ("list", "--queue", "order"): ("order", "did you mean 'orders'", "Available queues"),
    ("list", "--task", "close_ordr"): ("close_ordr", "did you mean 'tests.tasks_for_tests.close_order'"),
    ("cancel",): ("--key", "--search"),
    ("cancel", "close-order:91"): ("close-order:91", "delayq list --search key:close-order:91"),
    ("inspect", "--key", "close-order:91"): ("close-order:91", "--queue"),
    ("schedule", "tests.tasks_for_tests.close_order", "5"): ("--args '[5]'",),
    ("schedule", "close_ordr"): ("close_ordr", "did you mean 'tests.tasks_for_tests.close_order'"),
    ("schedule", "tests.tasks_for_tests.close_order", "--args", "5"): ("--args must be a list", "'[1, 2]'"),
    ("schedule", "tests.tasks_for_tests.close_order", "--args", "['a']"): ("--args", "quotation marks"),
    ("reschedule", "abc", "--delay", "5 min"): ("--delay", "5m"),
    ("reschedule", "abc"): ("--delay", "--run-at"),
    ("reschedule", "abc", "--run-at", "tomorow"): ("--run-at tomorow", "2030-01-31"),
    ("pause", "order"): ("order", "did you mean 'orders'"),
    ("purge", "orders"): ("--yes", "--dry-run"),
    ("settings", "REDSI"): ("REDSI", "did you mean 'REDIS'"),
    ("periodic", "nightli"): ("nightli", "role relay"),
    ("doctor", "--fix"): ("--deep",),
    ("erase", "--yes"): ("--search",),
}


@pytest.mark.parametrize(("delayq", "parts"), SETTINGS.values(), ids=SETTINGS)
def test_a_mistake_in_the_settings_is_named_with_its_place_and_the_next_step(settings, delayq, parts):
    settings.DELAYQ = {**settings.DELAYQ, **delayq}
    said = " ".join(f"{message.msg} {message.hint}" for message in run_checks() if (message.id or "").startswith("delayq"))
    assert [part for part in parts if part not in said] == [], said


@pytest.mark.parametrize(("words", "parts"), COMMANDS.items(), ids=map(" ".join, COMMANDS))
def test_a_mistake_in_a_command_is_named_with_the_next_step(orders: Shop, run, words, parts):
    orders.scheduled()
    answer = run(*words)
    assert answer.code in (1, 2)
    assert [part for part in parts if part not in answer.error] == [], answer.error
