"""delayq pause, resume and pauses."""

from __future__ import annotations

import django_delayq as delayq
from tests.management.conftest import lose_redis
from tests.tasks_for_tests import close_order

TASK = close_order.name


def test_a_task_is_paused_listed_and_resumed(run, orders):
    delayq.schedule(close_order, 1)
    orders.claim()
    answer = run("pause", "--task", TASK, "--reason", "strike", "--until", "2031-05-01 12:00")
    until = "until 2031-05-01 12:00:00-05:00"
    assert (answer.code, answer.out) == (0, f"The task {TASK} is paused {until}. Jobs that are still running: 1.\n")
    assert run("pause", "--task", TASK, "--until", "2031-05-01 12:00").out.startswith(f"The task {TASK} is already paused {until}.")
    [row] = run("pauses", "--json").json
    assert (row["task"], row["reason"], row["unconfirmed"]) == (TASK, "strike", [])
    assert f"task {TASK}" in run("pauses").out
    assert run("resume", "--task", TASK, "--pace", "100/m").out == f"The task {TASK} is resumed.\n"
    assert run("pauses").out == "Nothing is paused.\n"


def test_a_scope_and_its_serial_name_are_paused_listed_and_resumed(run, orders):
    assert run("pause", "--scope", "a").out == "The scope a is paused.\n"
    named = ("--name", "order:7", "--scope", "a")
    assert run("pause", *named).out == "The name order:7 of the scope a is paused.\n"
    rows = run("pauses", "--json").json
    assert [(row.get("name"), row["scope"]) for row in rows] == [("order:7", "a"), (None, "a")]
    assert [line[:20].strip() for line in run("pauses").lines[1:]] == ["name order:7 scope a", "scope a"]
    assert (run("resume", *named).code, run("resume", "--scope", "a").code) == (0, 0)
    assert run("pauses").out == "Nothing is paused.\n"


def test_a_queue_is_listed_with_the_others(run, orders):
    run("pause", "orders")
    run("pause", "--name", "partner:7")
    assert [*map(sorted, run("pauses", "--json").json)] == [
        ["by", "name", "reason", "since", "unconfirmed", "until"],
        ["by", "queue", "reason", "since", "unconfirmed", "until"],
    ]


def test_a_dry_run_counts_and_changes_nothing(run, orders):
    delayq.schedule(close_order, 1)
    orders.fold()
    assert run("pause", "--task", TASK, "--dry-run").out == f"The task {TASK} would be paused. Running jobs: 0. Scheduled jobs: 1.\n"
    assert run("pauses").out == "Nothing is paused.\n"


def test_partitions_that_are_away_are_named_and_the_exit_code_is_1(run, orders, settings):
    lose_redis(settings)
    answer = run("pause", "--task", TASK)
    assert answer.code == 1
    assert "Workers repeat this for partitions that cannot be reached: default, orders, redis." in answer.out


def test_only_one_thing_is_paused_by_a_call(run, orders):
    assert run("pause", "orders", "--task", TASK).code == 2
    assert run("resume").code == 2
