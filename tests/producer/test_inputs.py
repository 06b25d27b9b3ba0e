"""Invalid input is rejected with an error that names it, the place, and the fix."""

from __future__ import annotations

import asyncio

import pytest

import django_delayq as delayq
from tests.partitioned import divide
from tests.tasks_for_tests import close_order, ping

__all__ = ["divide"]
pytestmark = pytest.mark.django_db(transaction=True)


@pytest.mark.parametrize("durability", ["outbox", "redis"])
@pytest.mark.parametrize("option", [{"queue": ["orders"]}, {"queue": 5}, {"using": "nope"}, {"using": 5}])
def test_a_name_that_is_none_is_refused(delayq_redis, option, durability):
    name = next(iter(option))
    with pytest.raises(delayq.DelayqError, match=f"schedule.*{name}="):
        delayq.schedule(close_order, 7, durability=durability, **option)


@pytest.mark.parametrize("partitions", [1, 3])
@pytest.mark.parametrize("key", [7, b"k", ("o", 7), None, "\ud800", "a\nb", "x" * 201], ids=ascii)
def test_a_key_that_is_none_is_refused_wherever_its_home_were(divide, partitions, key):
    divide(partitions)
    calls = (
        lambda: delayq.schedule(close_order, 7, key=key),
        lambda: delayq.schedule_many([close_order.using(key=key).bind(7)]),
        lambda: asyncio.run(delayq.aschedule(close_order, 7, key=key)),
    )
    for call in calls:
        with pytest.raises(delayq.PayloadError, match=r"the key .* (is not text|printable characters)"):
            call()


@pytest.mark.parametrize("given", [[ping], [5], [None], None, 5, ping.bind()], ids=repr)
def test_what_bind_has_not_made_is_refused(delayq_redis, given):
    with pytest.raises(delayq.ConfigError, match=r"schedule_many\(\) was given .*bind"):
        delayq.schedule_many(given)


@pytest.mark.parametrize("words", [{"actor": 5}, {"actor": None}, {"reason": ValueError("why")}])
@pytest.mark.parametrize("change", ["cancel", "requeue", "run_now"])
def test_who_and_why_are_text(delayq_redis, change, words):
    job = delayq.schedule(ping, delay="1h")
    with pytest.raises(delayq.ConfigError, match=f"{next(iter(words))}=.* must be text"):
        getattr(delayq, change)(job, **words)


@pytest.mark.parametrize("words", [{"actor": 5}, {"reason": None}])
@pytest.mark.parametrize("change", [delayq.pause, delayq.resume])
def test_who_stops_a_queue_is_text(delayq_redis, change, words):
    with pytest.raises(delayq.ConfigError, match="must be text"):
        change("orders", **words)
