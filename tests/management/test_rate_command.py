"""delayq rate."""

from __future__ import annotations

import django_delayq as delayq
from tests.management.conftest import lose_redis
from tests.tasks_for_tests import pay_out


def test_a_rate_is_set_listed_and_reset(run, orders):
    assert run("rate").out == "No rate is set, and no job waits for one. The rates that tasks declare count.\n"
    for number in range(3):
        delayq.schedule(pay_out, 7, number)
    orders.claim()
    [waits] = run("rate", "--json").json
    assert (waits["name"], waits["rate"], waits["by"], waits["waiting"]) == ("bank:7", None, "", 2)
    answer = run("rate", "bank:7", "2/s", "--burst", "3", "--reason", "the bank asks for it")
    assert (answer.code, answer.out) == (0, "The rate of bank:7 is 2/s, burst 3. Waiting jobs: 2; the last one starts in 1 s.\n")
    assert run("rate", "bank:7", "2/s", "--burst", "3").out.startswith("The rate of bank:7 is already 2/s, burst 3.")
    [row] = run("rate", "--json").json
    assert (row["name"], row["rate"], row["burst"], row["reason"]) == ("bank:7", "2/s", 3, "the bank asks for it")
    assert (row["waiting"], row["oldest"], row["unconfirmed"]) == (2, waits["oldest"], [])
    assert "bank:7" in run("rate").out
    assert run("rate", "bank:7", "--reset").out == "The rate of bank:7 is the one that tasks declare. Waiting jobs: 2.\n"
    assert run("rate", "--json").json == [waits]


def test_a_dry_run_counts_and_changes_nothing(run, orders):
    answer = run("rate", "bank:7", "2/s", "--dry-run", "--json").json
    assert (answer["changed"], answer["waiting"], answer["rate"]) == (True, 0, "2/s")
    assert run("rate", "--json").json == []


def test_partitions_that_are_away_are_named_and_the_exit_code_is_1(run, orders, settings):
    lose_redis(settings)
    answer = run("rate", "bank:7", "2/s")
    assert answer.code == 1
    assert "Workers repeat this for partitions that cannot be reached: default, orders, redis." in answer.out


def test_a_rate_or_a_reset_is_required(run, orders):
    assert run("rate", "bank:7").code == 2
    assert run("rate", "bank:7", "2/s", "--reset").code == 2
    assert run("rate", "bank:7", "fast").code != 0
