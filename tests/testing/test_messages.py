"""Messages in the time of a test."""

from __future__ import annotations

import pytest

import django_delayq
from django_delayq.models import Attempt, Job


@pytest.fixture
def mail(settings) -> None:
    settings.DELAYQ = {**settings.DELAYQ, "QUEUES": {**settings.DELAYQ["QUEUES"], "mail": {"CONSUMER": "pull", "BACKOFF": "10m"}}}


def test_what_falls_due_is_pulled_by_the_test_and_run_by_nobody(mail, delayq):
    job = django_delayq.push("mail", {"to": "anna"}, delay="30m")
    assert len(django_delayq.pull("mail", wait="10s")) == 0
    assert delayq.advance("30m") == []
    (message,) = django_delayq.pull("mail")
    assert message.body == {"to": "anna"}
    message.ack()
    delayq.advance(0)
    assert Job.objects.get(pk=job.id).state == "succeeded"


def test_a_lease_ends_in_the_time_of_the_test(mail, delayq):
    job = django_delayq.push("mail", 1)
    django_delayq.pull("mail", lease="1m")
    delayq.advance("1m1s")
    assert len(django_delayq.pull("mail")) == 0  # the lost lease counts as an attempt; the next one is ten minutes after its end
    delayq.advance("10m")
    (message,) = django_delayq.pull("mail")
    assert (message.id, message.attempt) == (job.id, 2)
    delayq.advance(0)
    assert [run.outcome for run in Attempt.objects.filter(job_id=job.id).order_by("number")] == ["retried", "running"]
