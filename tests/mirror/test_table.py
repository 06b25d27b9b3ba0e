"""The table of answers in docs/topics/guarantees.md, cell by cell. For an old primary, see test_road.py and test_way_back.py."""

from __future__ import annotations

from contextlib import nullcontext

import pytest
from django.db import transaction

import django_delayq as delayq
from django_delayq import ids
from django_delayq.models import Job
from django_delayq.producer.stores import stores
from tests.mirror.restoring import bring_back, in_redis, settle_down, snapshot
from tests.tasks_for_tests import close_order

pytestmark = [
    pytest.mark.django_db(transaction=True),
    pytest.mark.parametrize("act", ["cancel", "reschedule", "run_now"]),
    pytest.mark.parametrize("durability", ["outbox", "redis"]),
    pytest.mark.parametrize("inside", [False, True], ids=["autocommit", "open transaction"]),
]
MINUTES = {"reschedule": 120, "run_now": 0}
BEFORE = 30  # the job's first date, in minutes


@pytest.fixture
def job(orders, loop, durability):
    made = delayq.schedule(close_order, 7, delay=f"{BEFORE}m", durability=durability)
    settle_down(orders, loop)
    return made


@pytest.fixture
def change(job, act, inside):
    """Carries it out; it is answered with done."""

    def carry_out():
        with transaction.atomic() if inside else nullcontext():
            answer = getattr(job, act)(**({"delay": "2h"} if act == "reschedule" else {}))
        assert answer is delayq.Change.DONE

    return carry_out


def date_of(job) -> int | None:
    """In how many minutes it is due, to ten, since some may pass; None if Redis does not have it."""
    view = stores.inspector().job("orders", job.id)
    return None if view is None or view.state != "scheduled" else max(0, 10 * round((view.date_ms - view.now_ms) / 600_000))


def something_later(orders, loop) -> None:
    """The data that an older copy lacks, so that it is recognized."""
    delayq.schedule(close_order, 8, delay="9h")
    settle_down(orders, loop)


def test_while_redis_is_up_it_holds(orders, job, change, act):
    change()
    assert date_of(job) == MINUTES.get(act)
    orders.fold()
    assert Job.objects.get(pk=job.id).state == ("cancelled" if act == "cancel" else "scheduled")


def test_while_redis_hangs_it_raises(job, change, lost_reply):
    lost_reply(9)
    with pytest.raises(delayq.StoreUnavailable):
        change()


def test_behind_a_wipe_it_holds_or_the_job_is_lost_too(orders, loop, wipe, job, change, act, durability):
    change()
    wipe()
    settle_down(orders, loop)
    assert date_of(job) == (MINUTES.get(act) if durability == "outbox" else None)


def test_an_older_copy_does_not_undo_it_unless_nothing_else_knows(orders, loop, redis_server, job, change, act, durability):
    copy = snapshot(redis_server.link)
    something_later(orders, loop)
    change()
    bring_back(redis_server.link, copy)
    settle_down(orders, loop)
    assert date_of(job) == (MINUTES.get(act) if durability == "outbox" else BEFORE)


def test_a_copy_that_is_younger_than_the_change_knows_it(orders, loop, redis_server, job, change, act):
    change()
    copy = snapshot(redis_server.link)
    something_later(orders, loop)
    bring_back(redis_server.link, copy)
    settle_down(orders, loop)
    assert date_of(job) == MINUTES.get(act)
    assert (ids.short(job.id) in in_redis(orders)) is (act != "cancel")
