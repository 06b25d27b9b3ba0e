"""A hot key: calls that move its holder leave no trail that grows with every call."""

from __future__ import annotations

from contextlib import nullcontext

import pytest
from django.db import transaction

import django_delayq as delayq
from django_delayq.models import Event
from tests.mirror.restoring import in_redis
from tests.tasks_for_tests import close_order

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.mark.parametrize("policy", ["latest", "earliest"])
@pytest.mark.parametrize("inside", [False, True], ids=["alone", "in a transaction"])
def test_a_debounce_leaves_one_event_row_at_most(orders, policy, inside):
    sign = 1 if policy == "latest" else -1
    for number in range(5):
        with transaction.atomic() if inside else nullcontext():
            delayq.schedule(close_order, number, key="o:7", delay=f"{100 + sign * number}m", on_conflict=policy)
        orders.fold()
    assert len(in_redis(orders)) == 1
    assert [event.actor for event in Event.objects.all()] == ([] if inside else ["schedule"])
