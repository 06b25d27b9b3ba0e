"""Tasks that ask, and hear "not yet"."""

from __future__ import annotations

import pytest

import django_delayq
from django_delayq.exceptions import GaveUp
from django_delayq.models import Attempt, Job
from tests.testing.shop import SEEN, ask_bank

schedule = django_delayq.schedule


def test_it_asks_along_its_ladder_and_that_is_no_attempt(delayq):
    job = schedule(ask_bank, 7)
    assert [ran.outcome for ran in delayq.run_due()] == ["ask"]
    assert delayq.advance("14s") == []
    assert [ran.outcome for ran in delayq.advance("1s")] == ["ask"]
    assert [ran.outcome for ran in delayq.advance("3m")] == ["ask"]
    assert SEEN == [("ask_bank", 1, 0), ("ask_bank", 1, 1), ("ask_bank", 1, 2)]
    row = Job.objects.get(pk=job.id)
    assert (row.state, row.attempts, row.asked, row.error) == ("scheduled", 0, 3, "")
    runs = Attempt.objects.order_by("id").values_list("outcome", "error_class", "message")
    assert list(runs) == [("asked", "", "the bank has not booked it")] * 3


def test_at_the_ladders_end_it_gives_up_and_a_requeue_begins_anew(delayq):
    job = schedule(ask_bank, 7)
    *_, last = delayq.advance("1d")
    assert isinstance(last.error, GaveUp)
    assert last.error.fields == {"steps": 3, "reason": "the bank has not booked it"}
    row = Job.objects.get(pk=job.id)
    assert (row.state, row.asked) == ("failed", 3)
    assert row.error.startswith("django_delayq.exceptions.GaveUp: 3 times it has asked and waited")
    assert job.requeue() == "done"
    SEEN.clear()
    assert [ran.outcome for ran in delayq.advance("15s")] == ["ask", "ask"]
    assert SEEN == [("ask_bank", 1, 0), ("ask_bank", 1, 1)]
    assert job.asked == 2


def test_who_performs_a_task_sees_what_it_raises(delayq):
    with pytest.raises(django_delayq.NotYet, match="the bank has not booked it"):
        delayq.perform(ask_bank, 7)
    with pytest.raises(GaveUp):
        delayq.perform(ask_bank, 7, asked=3)
