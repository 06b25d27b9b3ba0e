"""The errors of public calls for a queue of another site."""

from __future__ import annotations

import pytest

import django_delayq as delayq
from django_delayq.exceptions import StoreUnavailable
from django_delayq.producer.queues import purge
from django_delayq.producer.stores import stores
from tests.partitioned import divide
from tests.tasks_for_tests import close_order

__all__ = ["divide"]

pytestmark = pytest.mark.django_db(transaction=True)
BY_KEY = {
    "cancel": lambda **named: delayq.cancel(**named),
    "reschedule": lambda **named: delayq.reschedule(delay="1h", **named),
    "run_now": lambda **named: delayq.run_now(**named),
    "requeue": lambda **named: delayq.requeue(**named),
}
WHOLE = {"pause": delayq.pause, "resume": delayq.resume, "purge": lambda queue: list(purge(queue))}


def give_away(partition: int = 0) -> None:
    store = stores.queue("orders", partition)
    store.link.execute("HSET", store.keys["meta"], "site", "another")


@pytest.mark.parametrize("verb", sorted(BY_KEY))
def test_a_key_that_is_not_in_the_queue_of_another_site_is_refused_and_not_unknown(delayq_redis, verb):
    give_away()
    with pytest.raises(StoreUnavailable, match="belongs to site another") as caught:
        BY_KEY[verb](key="k", queue="orders")
    assert caught.value.code == "site_other"


@pytest.mark.parametrize("verb", sorted(WHOLE))
def test_a_whole_queue_with_partitions_says_the_refusal(delayq_redis, divide, verb):
    divide(3)
    give_away()
    with pytest.raises(StoreUnavailable) as caught:
        WHOLE[verb]("orders")
    assert caught.value.code == "site_other"


def test_a_refusal_of_one_queue_keeps_no_other_one_on_that_server_from_being_asked(delayq_redis):
    """Nobody but Redis knows the job, and its queue comes after that of the other site."""
    job = close_order.using(queue="redis", delay="1h").schedule(1)
    give_away()
    assert delayq.cancel(job.id) == "done"
