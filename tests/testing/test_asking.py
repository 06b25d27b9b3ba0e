"""Tasks that poll and get "not yet"."""

from __future__ import annotations

import pytest
from django.contrib.auth.models import User

import django_delayq
from django_delayq.exceptions import GaveUp
from django_delayq.models import Attempt, Job
from tests.testing.shop import SEEN, ask_bank, book_or_wait, fail_always

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
    assert row.error.startswith("django_delayq.exceptions.GaveUp: The task still raised NotYet after its last poll delay (number 3)")
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


def test_a_job_without_a_limit_is_tried_until_its_date_and_the_last_step_repeats(delayq):
    job = schedule(fail_always, 1, max_attempts=0, expires="30m")
    ran = delayq.advance("1h")
    assert [one.outcome for one in ran] == ["retry"] * 5  # at 0 s, 15 s, 3 min 15 s, 13 min 15 s, 23 min 15 s
    assert [("fail_always", attempt, 0, False) for attempt in range(1, 6)] == SEEN
    row = Job.objects.get(pk=job.id)
    assert (row.state, row.attempts) == ("failed", 5)
    assert row.error.endswith("Its last error: RuntimeError: the bank is closed")


def test_a_job_that_has_only_asked_before_it_expires_has_failed_too(delayq):
    job = schedule(ask_bank, 7, expires="2m")
    assert [ran.outcome for ran in delayq.advance("1h")] == ["ask", "ask"]
    row = Job.objects.get(pk=job.id)
    assert (row.state, row.attempts, row.asked, row.ending) == ("failed", 0, 2, None)
    assert row.error.startswith("Expired: ")


def test_what_an_atomic_run_has_written_before_it_asks_is_rolled_back(delayq):
    schedule(book_or_wait, "ada")
    assert [ran.outcome for ran in delayq.advance("15s")] == ["ask", "ask"]
    assert User.objects.count() == 0
    assert [ran.outcome for ran in delayq.advance("3m")] == ["ack"]
    assert User.objects.count() == 1
    assert Job.objects.get().asked == 2
