"""Tests the statements of docs/howto/test-your-tasks.md that the page's own tests do not cover, in the project that the page builds."""

import pytest
from asgiref.sync import sync_to_async
from orders.tasks import clean_up, close_order


def test_what_is_scheduled_is_listed(delayq):
    close_order.using(delay="1h", key="a").schedule(1)
    ((job),) = delayq.scheduled(close_order)
    assert (job.key, job.args) == ("a", [1])
    delayq.assert_not_scheduled(clean_up)
    with pytest.raises(AssertionError):
        delayq.assert_not_scheduled()


def test_drain_runs_one_tick(delayq):
    delayq.follow(clean_up)
    assert [run.task for run in delayq.drain()] == ["orders.tasks.clean_up"]


def test_an_async_test_moves_the_time(delayq, transactional_db):
    from asgiref.sync import async_to_sync

    close_order.using(delay="30m").schedule(1)

    async def advance():
        return await sync_to_async(delayq.advance)("30m")

    assert [run.outcome for run in async_to_sync(advance)()] == ["ack"]
