"""The mirror reads as many events as a batch takes, a page at a time."""

from __future__ import annotations

import pytest

import django_delayq as delayq
from django_delayq.mirror import mirror_loop
from django_delayq.store.scripts.events import FIRST
from tests.tasks_for_tests import close_order

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.mark.parametrize(
    ("entries", "items", "page", "read"),
    [(200, 5000, 4, 10), (200, 5000, 5, 10), (200, 5000, 25, 10), (7, 5000, 4, 7), (200, 3, 4, 3), (200, 3, 1, 3)],
)
def test_a_batch_has_each_entry_once_and_no_more_than_it_takes(orders, monkeypatch, entries, items, page, read):
    for name, value in (("ENTRIES", entries), ("ITEMS", items), ("PAGE", page)):
        monkeypatch.setattr(mirror_loop, name, value)
    for number in range(10):
        delayq.schedule(close_order, number, delay="1h")
    found = [entry.id for entry in orders.mirror._read(FIRST, mirror_loop.ENTRIES)]
    assert found == [entry.id for entry in orders.mirror.log.read(FIRST, 100)][:read]
