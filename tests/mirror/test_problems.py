"""The description of an error, from the worker to the row of its attempt."""

from __future__ import annotations

import json

import pytest

import django_delayq as delayq
from django_delayq import codec
from django_delayq.exceptions import DelayqError
from django_delayq.mirror.fold import MOST_FIELDS, problem_of
from django_delayq.models import Attempt
from django_delayq.worker import outcome
from tests.tasks_for_tests import close_order


class Refused(DelayqError):
    code = "refused"


def test_code_and_fields_of_an_error_of_ours_and_the_pause_it_asked_for_travel_with_the_end():
    error = Refused("no", target="a:1", status=503, big=2**60, name=None, list=[1], text="x\0y" * 2000)
    detail = json.loads(outcome.failure_detail(error=error, wait_ms=1500))
    assert (detail["k"], detail["w"]) == ("refused", 1500)
    fields = detail["v"]
    assert (fields["target"], fields["status"], fields["big"], fields["name"], fields["list"]) == ("a:1", 503, str(2**60), None, "[1]")
    assert len(fields["text"]) <= outcome.MAX_FIELD
    assert "\0" not in fields["text"]
    assert problem_of(detail) == {"code": "refused", "fields": fields, "wait_ms": 1500}


@pytest.mark.parametrize("error", [ValueError("x"), Refused("no fields"), None])
def test_others_say_nothing_more(error):
    detail = json.loads(outcome.failure_detail(error=error))
    assert not {"k", "v", "w"} & set(detail)
    assert problem_of(detail) is None


@pytest.mark.parametrize(
    ("detail", "problem"),
    [
        ({"k": 7, "v": {}}, None),
        ({"k": "a", "v": [1]}, None),
        ({"k": "a", "v": {}, "w": True}, {"code": "a", "fields": {}}),
        ({"w": -1}, None),
        ({"w": 2**70}, None),
        ({"w": 0}, {"wait_ms": 0}),
        ({"k": "a", "v": {"b": {"c": 1}, "d": 1.5}}, {"code": "a", "fields": {"b": "{'c': 1}", "d": "1.5"}}),
    ],
)
def test_what_we_do_not_write_is_no_problem(detail, problem):
    assert problem_of(detail) == problem


def test_of_many_fields_some_are_kept():
    assert len(problem_of({"k": "a", "v": {str(n): n for n in range(100)}})["fields"]) == MOST_FIELDS


def test_the_row_of_an_attempt_has_it(orders):
    delayq.schedule(close_order, 7)
    [claimed] = orders.claim()
    orders.settle(claimed, "retry", detail=codec.dumps({"c": "E", "m": "m", "k": "answer", "v": {"status": 503}, "w": 60_000}))
    orders.fold()
    [claimed] = orders.claim()
    orders.settle(claimed, "ack")
    orders.fold()
    problems = list(Attempt.objects.order_by("number").values_list("problem", flat=True))
    assert problems == [{"code": "answer", "fields": {"status": 503}, "wait_ms": 60_000}, None]
