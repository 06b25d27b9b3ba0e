"""Messages have rates, too: consumers pull those with the same rate name no faster than the queue allows."""

from __future__ import annotations

import pytest

import django_delayq as delayq
from django_delayq.exceptions import ConfigError
from django_delayq.mirror.declared_rates import DeclaredRates
from django_delayq.mirror.pause_loop import PauseLoop
from django_delayq.models import Job
from django_delayq.producer.outbox import pauses
from django_delayq.producer.stores import stores
from django_delayq.store.scripts.limits import LimitStore
from tests.worker.conftest import eventually

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture(autouse=True)
def rated(settings, messages) -> None:
    own = settings.DELAYQ["QUEUES"]
    settings.DELAYQ = {**settings.DELAYQ, "QUEUES": {**own, "mail": {**own["mail"], "RATE": "1/h"}}}


def pull_two() -> None:
    """Pulls the two that wait. A new rate counts from the first look on."""
    found: list[delayq.Message] = []

    def look() -> bool:
        found.extend(delayq.pull("mail", 10))
        return len(found) == 2

    eventually(look)


def test_consumers_pull_no_more_messages_with_a_rate_name_than_the_queue_allows():
    for body in (1, 2, 3):
        delayq.push("mail", body, rate="bank:7")
    delayq.push("mail", 4, rate="bank:8")
    delayq.push("mail", 5)
    assert [message.body for message in delayq.pull("mail", 10)] == [1, 4, 5]
    assert [message.body for message in delayq.pull("mail", 10)] == []
    assert Job.objects.filter(queue="mail").count() == 5


def test_a_person_changes_the_rate_of_messages_that_wait():
    for body in (1, 2, 3):
        delayq.push("mail", body, rate="bank:7")
    assert len(delayq.pull("mail", 10)) == 1
    assert delayq.set_rate("bank:7", "100/s", burst=10).waiting == 2
    pull_two()


def test_messages_that_wait_follow_a_new_rate_of_their_queue(settings):
    for body in (1, 2, 3):
        delayq.push("mail", body, rate="bank:7")
    assert len(delayq.pull("mail", 10)) == 1
    own = settings.DELAYQ["QUEUES"]
    settings.DELAYQ = {**settings.DELAYQ, "QUEUES": {**own, "mail": {**own["mail"], "RATE": ("100/s", 10)}}}
    DeclaredRates().poll()
    PauseLoop().poll()
    assert LimitStore(stores.queue("mail", 0)).rates()["\1django_delayq.message"] == "100:1000:10"
    assert "\1django_delayq.message" not in LimitStore(stores.queue("quick", 0)).rates()
    pull_two()
    PauseLoop().poll()  # the rows and Redis agree
    assert not any(row.missing for row in pauses.of_words())


def test_a_rate_name_needs_the_rate_of_the_queue():
    with pytest.raises(ConfigError, match=r"rate= requires the rate of the queue.*\['quick'\]\['RATE'\]"):
        delayq.push("quick", 1, rate="bank:7")


def test_a_message_with_a_rate_name_can_have_a_fair_word():
    name = Job.objects.get(pk=delayq.push("mail", 1, rate="bank:7", fair="tenant:a").id).shared_name
    assert (name.rate.text, name.fair) == ("bank:7", "tenant:a")


@pytest.mark.parametrize("option", ["rate", "fair"])
@pytest.mark.parametrize("text", [7, "a\nb", "x" * 201])
def test_a_name_that_is_not_valid_is_refused(option, text):
    with pytest.raises(ConfigError, match=rf"push\(\): {option}="):
        delayq.push("mail", 1, **{option: text})
