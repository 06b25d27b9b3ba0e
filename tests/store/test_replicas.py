"""Which calls of a batch the replicas must have."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

import pytest

from django_delayq.store.connection.error_replies import StoreError
from django_delayq.store.scripts import loader
from django_delayq.store.scripts.replicas import Replicas

REFUSED = StoreError("the record cannot be read")


@pytest.fixture
def answers(monkeypatch: pytest.MonkeyPatch) -> Callable[..., list[list[Any]]]:
    """Sends two calls. Redis answers each time with these replies, and with a number of replicas."""

    def send(*replies: list[Any]) -> list[list[Any]]:
        each = iter(replies)
        monkeypatch.setattr(loader, "start_each", lambda *_: lambda: list(next(each)))
        nothing = cast(Any, None)
        return Replicas(1, 60).start(nothing, nothing, nothing, [("",), ("",)])()

    return send


def test_a_call_that_is_always_refused_does_not_hold_up_the_others(answers):
    assert answers([REFUSED, b"ok", 0], [REFUSED, b"ok", 1]) == [[REFUSED, b"ok"]] * 2


def test_a_call_that_was_carried_out_and_is_refused_now_is_sent_again(answers):
    assert answers([b"ok", b"ok", 0], [b"ok", REFUSED, 1], [b"ok", b"ok", 1]) == [[b"ok", b"ok"]] * 2
