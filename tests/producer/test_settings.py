"""The settings of a single queue."""

from __future__ import annotations

import pytest

from django_delayq import conf

DAY = 86_400.0


def test_a_queues_retention_leaves_what_it_does_not_name_to_the_project(settings):
    settings.DELAYQ = {
        **settings.DELAYQ,
        "RETENTION": {"succeeded": "2d", "failed": "90d"},
        "QUEUES": {"default": {}, "orders": {"RETENTION": {"succeeded": "1d"}}},
    }
    config = conf.get()
    assert dict(config.queue("default").retention) == {
        "succeeded": 2 * DAY,
        "cancelled": 30 * DAY,
        "failed": 90 * DAY,
        "set_aside": None,
    }
    assert dict(config.queue("orders").retention) == {
        "succeeded": DAY,
        "cancelled": 30 * DAY,
        "failed": 90 * DAY,
        "set_aside": None,
    }


def test_no_policy_promises_to_drop_events(settings):
    settings.DELAYQ = {**settings.DELAYQ, "MIRROR_FULL": "drop"}
    [problem] = conf.problems()
    assert '"block" or "grow"' in problem.message


@pytest.mark.parametrize("twin", ["Orders", "ordérs"])
def test_two_queues_that_a_database_may_take_for_one_are_refused(settings, twin):
    settings.DELAYQ = {**settings.DELAYQ, "QUEUES": {"orders": {}, twin: {}}}
    [problem] = conf.problems()
    assert problem.where == f'DELAYQ["QUEUES"]["{twin}"]'
    assert "'orders' only by case" in problem.message


def test_a_wrong_list_of_names_is_a_problem_and_no_crash(settings):
    settings.DELAYQ = {**settings.DELAYQ, "SENSITIVE": 5}
    assert [problem.where for problem in conf.problems()] == ['DELAYQ["SENSITIVE"]']


@pytest.mark.parametrize(
    ("horizon", "place", "words"),
    [
        ({"HORIZON": "4m"}, 'DELAYQ["HORIZON"]', "at least 5 minutes"),
        ({"QUEUES": {"orders": {"HORIZON": 299}}}, 'DELAYQ["QUEUES"]["orders"]["HORIZON"]', "at least 5 minutes"),
        (
            {"QUEUES": {"orders": {"HORIZON": "1h", "DURABILITY": "redis"}}},
            'DELAYQ["QUEUES"]["orders"]["HORIZON"]',
            "DURABILITY 'redis'",
        ),
        ({"HORIZON": "1h", "DURABILITY": "redis"}, 'DELAYQ["QUEUES"]["default"]["HORIZON"]', "DURABILITY 'redis'"),
        ({"REPLICAS": -1, "DURABILITY": "redis"}, 'DELAYQ["REPLICAS"]', "at least 0"),
        ({"REPLICAS": 1}, 'DELAYQ["QUEUES"]["default"]["REPLICAS"]', "DURABILITY 'redis' only"),
        ({"QUEUES": {"orders": {"REPLICAS": 1}}}, 'DELAYQ["QUEUES"]["orders"]["REPLICAS"]', "DURABILITY 'redis' only"),
    ],
)
def test_a_horizon_or_replicas_that_cannot_be_are_refused_with_their_place(settings, horizon, place, words):
    settings.DELAYQ = {"QUEUES": {"default": {}}, **horizon}
    [problem] = conf.problems()
    assert problem.where == place
    assert words in problem.message
    assert problem.hint


def test_a_queue_may_have_its_own_horizon_or_none(settings):
    settings.DELAYQ = {"HORIZON": "1h", "QUEUES": {"a": {}, "b": {"HORIZON": "6h"}, "c": {"HORIZON": None, "DURABILITY": "redis"}}}
    assert [conf.get().queue(name).horizon_ms for name in "abc"] == [3_600_000, 21_600_000, 0]


def test_a_queue_may_have_its_own_number_of_replicas(settings):
    queues = {"a": {}, "b": {"REPLICAS": 0}, "c": {"REPLICAS": 0, "DURABILITY": "outbox"}}
    settings.DELAYQ = {"REPLICAS": 2, "DURABILITY": "redis", "QUEUES": queues}
    assert [conf.get().queue(name).replicas for name in "abc"] == [2, 0, 0]
