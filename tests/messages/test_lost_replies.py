"""Redis has made the change, and its reply is lost."""

from __future__ import annotations

from collections.abc import Callable

import pytest

import django_delayq as delayq
from django_delayq.producer.stores import stores
from django_delayq.store.scripts.queue import QueueStore
from tests.depths import queue_depth
from tests.links import losing
from tests.worker.conftest import eventually

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture
def lose(monkeypatch) -> Callable[..., None]:
    return losing(monkeypatch, QueueStore)


def test_a_pull_whose_reply_was_lost_is_asked_again_and_takes_nothing_twice(lose):
    for number in range(4):
        delayq.push("quick", number)
    lose("claim", 1)
    batch = delayq.pull("quick", 3)
    assert sorted(message.body for message in batch) == [0, 1, 2]
    assert queue_depth("quick").running == 3
    batch.ack()


def test_what_was_taken_for_a_pull_that_never_heard_of_it_goes_to_the_next_one(lose):
    for number in range(3):
        delayq.push("quick", number)
    lose("claim", 2)
    with pytest.raises(delayq.StoreUnavailable):
        delayq.pull("quick", 3)
    batch = delayq.pull("quick", 3)
    assert sorted(message.body for message in batch) == [0, 1, 2]
    assert [message.attempt for message in batch] == [1, 1, 1]


def test_a_next_pull_that_wants_less_gives_the_rest_back(lose):
    for number in range(3):
        delayq.push("quick", number)
    lose("claim", 2)
    with pytest.raises(delayq.StoreUnavailable):
        delayq.pull("quick", 3)
    assert len(delayq.pull("quick", 1)) == 1
    assert [message.attempt for message in delayq.pull("quick", 3)] == [1, 1]


@pytest.mark.parametrize("lost", [1, 2])
def test_what_was_taken_for_a_pull_whose_reply_was_lost_comes_with_a_whole_lease(lose, monkeypatch, lost):
    job = delayq.push("quick", 1)
    lose("claim", lost)
    real, ended = QueueStore.claim, []

    def over() -> bool:
        view = stores.inspector().job("quick", job.id)
        ended[:] = [view.date_ms]
        return view.state == "running" and view.date_ms < view.now_ms

    def late(*args, **kwargs):
        try:
            return real(*args, **kwargs)
        except delayq.StoreUnavailable:
            eventually(over)
            raise

    monkeypatch.setattr(QueueStore, "claim", late)
    if lost == 2:
        with pytest.raises(delayq.StoreUnavailable):
            delayq.pull("quick", lease="100ms")
    (message,) = delayq.pull("quick", lease="100ms")
    assert stores.inspector().job("quick", job.id).date_ms > ended[0]
    message.ack()
    assert stores.inspector().job("quick", job.id).state == "finished"


def test_an_end_whose_reply_was_lost_counts_once(lose):
    delayq.push("quick", 1)
    (message,) = delayq.pull("quick")
    lose("settle", 1)
    message.ack()
    assert len(delayq.pull("quick")) == 0


def test_an_end_of_which_nothing_is_known_may_be_told_again(lose):
    job = delayq.push("quick", 1)
    (message,) = delayq.pull("quick")
    lose("settle", 2)
    with pytest.raises(delayq.StoreUnavailable):
        message.ack()
    message.ack()
    assert stores.inspector().job("quick", job.id).state == "finished"


def test_an_ack_that_never_arrived_before_the_lease_was_lost_does_not_pass_for_done(lose):
    delayq.push("quick", 1, backoff="1ms")
    (first,) = delayq.pull("quick", lease="50ms")
    lose("settle", 2, sent=False)
    with pytest.raises(delayq.StoreUnavailable):
        first.ack()
    (second,) = delayq.pull("quick", wait="60s")
    second.retry("1h")
    with pytest.raises(delayq.LeaseLost):
        first.ack()


def test_nor_does_it_where_the_next_consumer_has_failed_the_message(lose):
    job = delayq.push("quick", 1, backoff="1ms")
    (first,) = delayq.pull("quick", lease="50ms")
    lose("settle", 2, sent=False)
    with pytest.raises(delayq.StoreUnavailable):
        first.ack()
    (second,) = delayq.pull("quick", wait="60s")
    second.fail()
    with pytest.raises(delayq.LeaseLost):
        first.ack()
    assert stores.inspector().job("quick", job.id).state == "failed"


def test_in_a_batch_those_that_were_too_late_are_named_and_the_others_count():
    late, held = delayq.push("quick", "late", backoff="1h"), delayq.push("quick", "held")
    with pytest.raises(delayq.LeaseLost) as told, delayq.pull("quick", 2, lease="2s") as batch:
        next(message for message in batch if message.id == held.id).extend("10s")
        for _ in range(1200):
            delayq.pull("quick", wait="50ms")
            if stores.inspector().job("quick", late.id).state == "scheduled":
                break
        for message in batch:
            message.ack()
    assert told.value.fields["messages"] == (late.short_id,)
    assert stores.inspector().job("quick", held.id).state == "finished"


def test_an_error_in_the_block_is_not_hidden_and_what_was_decided_before_counts():
    delayq.push("quick", 1)
    delayq.push("quick", 2)
    with pytest.raises(ZeroDivisionError), delayq.pull("quick", 2) as batch:
        batch[0].ack()
        raise ZeroDivisionError
    assert queue_depth("quick").running == 1


def test_after_a_wipe_an_end_is_refused(redis_server):
    delayq.push("quick", 1)
    (message,) = delayq.pull("quick")
    redis_server.link.execute("FLUSHALL")
    with pytest.raises(delayq.LeaseLost):
        message.ack()
