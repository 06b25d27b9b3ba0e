"""A delivery whose first request or first answer is lost, and `verify`, which gives a receiver the id that lets it act once."""

from __future__ import annotations

import socket
from typing import Any

import pytest

import django_delayq
from django_delayq.contrib.http import verify
from tests.targets.conftest import SECRET
from tests.targets.receivers import Host, answer, drop

pytestmark = pytest.mark.django_db


class FirstUnread(Host):
    """A host that closes its first connection before it reads anything."""

    def _serve(self, connection: socket.socket) -> None:
        if self.connections == 1:
            connection.close()
        else:
            super()._serve(connection)


class Receiver:
    """Books one order for each new id."""

    def __init__(self) -> None:
        self.booked: list[str] = []

    def take(self, host: Host) -> None:
        for request in host.requests:
            id = verify(request.headers, SECRET, body=request.body, tolerance="2d").id
            if id not in self.booked:
                self.booked.append(id)


def delivered(delayq: Any, host: Host) -> str:
    job = django_delayq.deliver(host.url(), json=1, secret="partner", backoff="3m")
    assert [ran.outcome for ran in delayq.run_due()] == ["retry"]
    assert [ran.outcome for ran in delayq.advance("3m")] == ["ack"]
    assert [ran.outcome for ran in delayq.advance("1d")] == [], "what was answered 2xx is not sent again"
    return job.short_id


def test_the_first_request_is_lost(delayq):
    host = FirstUnread([answer(200)])
    try:
        id = delivered(delayq, host)
        receiver = Receiver()
        receiver.take(host)
        assert (receiver.booked, len(host.requests)) == ([id], 1)
    finally:
        host.close()


def test_the_first_answer_is_lost(delayq, host):
    partner = host(drop, answer(200))
    id = delivered(delayq, partner)
    receiver = Receiver()
    receiver.take(partner)
    assert (receiver.booked, len(partner.requests)) == ([id], 2)


def test_the_repeat_comes_after_the_receiver_has_acted(delayq, host):
    receiver = Receiver()

    def act_and_drop(exchange: Any) -> str:
        receiver.take(partner)
        return drop(exchange)

    partner = host(act_and_drop, answer(200))
    id = delivered(delayq, partner)
    assert receiver.booked == [id]
    receiver.take(partner)
    assert receiver.booked == [id]
