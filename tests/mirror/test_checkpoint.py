"""Mirrors, relays and restores of a queue take turns."""

from __future__ import annotations

import threading

import pytest
from django.db import DatabaseError, connection

from django_delayq.mirror import checkpoint
from django_delayq.mirror.checkpoint import locked_checkpoint
from django_delayq.models import Checkpoint

pytestmark = pytest.mark.django_db(transaction=True)


def test_the_first_turn_makes_the_checkpoint_and_each_is_counted():
    for count in (1, 2):
        with locked_checkpoint("orders", 0) as (mine, held):
            assert (held.turns, mine.get().queue) == (count, "orders")
    assert Checkpoint.objects.count() == 1


def test_a_turn_that_has_fallen_asleep_is_over(monkeypatch):
    can_say_so = connection.vendor == "postgresql" or (connection.vendor == "mysql" and connection.mysql_is_mariadb)
    if not can_say_so:
        pytest.skip("this database cannot end a transaction that sleeps")
    monkeypatch.setattr(checkpoint, "FROZEN", 1)
    asleep, awake, trouble = threading.Event(), threading.Event(), []

    def sleeper() -> None:
        try:
            with locked_checkpoint("orders", 0) as (mine, _):
                asleep.set()
                awake.wait(60)
                mine.update(last_event="9-9")
        except DatabaseError as error:
            trouble.append(error)
        finally:
            connection.close()

    thread = threading.Thread(target=sleeper)
    thread.start()
    assert asleep.wait(60)
    with locked_checkpoint("orders", 0) as (mine, _):
        mine.update(last_event="1-1")
    awake.set()
    thread.join(60)
    assert trouble
    assert Checkpoint.objects.get().last_event == "1-1"
