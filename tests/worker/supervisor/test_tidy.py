"""Tidy, of lines on several servers of which one is away, or refuses a slot."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import pytest

from django_delayq import clock
from django_delayq.exceptions import StoreUnavailable
from django_delayq.store.connection.error_replies import StoreRefused
from django_delayq.worker.supervisor.worker_beat import TIDY_EVERY, Tidy


class Lines:
    """Six lines, of which each other is on another server. `troubles`: with what a call of that line ends."""

    def __init__(self) -> None:
        self.calls: list[int] = []
        self.troubles: dict[int, StoreUnavailable] = {}
        links = [Mock(), Mock()]
        for link in links:
            link.server = link
        self.all: list[Any] = [self._line(n, links[n % 2]) for n in range(6)]

    def _line(self, number: int, link: Any) -> Any:
        def tidy(cursor: str) -> Any:
            self.calls.append(number)
            if number in self.troubles:
                raise self.troubles[number]
            return SimpleNamespace(cursor="0")

        return Mock(link=link, tidy=tidy)


@pytest.fixture
def lines() -> Lines:
    return Lines()


@pytest.fixture
def now(monkeypatch) -> list[float]:
    """The time of the clock, in seconds."""
    found = [1000.0]
    monkeypatch.setattr(clock, "monotonic", lambda: found[0])
    return found


def begun(lines: Lines) -> Tidy:
    tidy = Tidy(lines.all, rand=lambda: 0.5)
    assert tidy.poll() == TIDY_EVERY / 2
    assert not lines.calls
    return tidy


def test_while_a_server_is_away_the_lines_of_the_other_are_called_once_a_minute(lines: Lines, now: list[float]) -> None:
    lines.troubles = {n: StoreUnavailable(code="redis_away", where="there", cause="gone") for n in (0, 2, 4)}
    tidy = begun(lines)
    for second in range(int(TIDY_EVERY)):
        now[0] = 1000.0 + second
        with pytest.raises(StoreUnavailable):
            tidy.poll()
    assert [lines.calls.count(n) for n in (1, 3, 5)] == [1, 1, 1]
    assert [n for n in lines.calls if n % 2 == 0] == [0] * int(TIDY_EVERY), "one of its lines is enough to see it"
    now[0] += 1.0
    with pytest.raises(StoreUnavailable):
        tidy.poll()
    assert lines.calls.count(1) == 2
    lines.troubles = {}
    lines.calls.clear()
    assert tidy.poll() == TIDY_EVERY
    assert sorted(lines.calls) == [0, 2, 4]


def test_a_line_that_is_refused_keeps_no_other_one_of_its_server_from_being_tidied(lines: Lines) -> None:
    lines.troubles = {0: StoreRefused(code="redis_slot", where="there", cause="TRYAGAIN")}
    with pytest.raises(StoreRefused):
        begun(lines).poll()
    assert lines.calls == [0, 1, 2, 3, 4, 5]
