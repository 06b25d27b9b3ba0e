"""How the hosts are doing, by what this process has seen: who fails again and again is left alone for a while, and no host gets more
requests at once than is set. Nothing here is shared between processes.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from random import uniform
from typing import Final, Literal, NamedTuple

from django_delayq import clock, under_test
from django_delayq.http_settings import HttpConfig

LONGEST_PAUSE: Final = 600.0  # seconds; the pause doubles up to that
MOST: Final = 10_000  # hosts that are remembered: who chooses URLs shall not fill the memory with hosts that fail
BUSY_PAUSE: Final = 2.0  # seconds, about which a job waits for others of its host
MOST_TOLD: Final = 20  # open circuits that a process tells of

State = Literal["closed", "open", "probing"]


class Circuit(NamedTuple):
    """The state of one host: `failures` in a row, `seconds` until the next try (0: now), `running` requests."""

    target: str
    state: State
    failures: int
    seconds: float
    running: int


class HostHeld(Exception):
    """No request may go to the host now; `seconds` is when to ask again, `code` is "open" or "busy"."""

    def __init__(self, code: str, seconds: float) -> None:
        super().__init__(code, seconds)
        self.code, self.seconds = code, seconds


class Visit:
    """A request under way. Who makes it says whether the host did `well`; unsaid, nothing is learnt of it."""

    well: bool | None = None


@dataclass(slots=True)
class _Host:
    failures: int = 0
    opened: int = 0  # how often in a row
    pause: float = 0.0  # seconds
    until_ms: int = 0
    probe: Visit | None = None
    running: int = 0


class Circuits:
    """All hosts of which there is something to say, `most` at most. Threads share it."""

    def __init__(self, most: int = MOST) -> None:
        self._most = most
        self._lock = threading.Lock()
        self._hosts: dict[str, _Host] = {}
        self._zero_ms = 0.0  # what Redis' clock showed at monotonic 0, as the last request knew it
        self._tell: Callable[[bytes], object] | None = None

    def tell_to(self, tell: Callable[[bytes], object]) -> None:
        """From now on, whenever a circuit opens, opens for longer or closes, `tell` is given those that are open, as a JSON list of
        objects with `target`, `failures` and `until` (ms since 1970): MOST_TOLD of them, the longest first. One call at a time.
        """
        self._tell = tell

    @contextmanager
    def visit(self, target: str, config: HttpConfig, *, now_ms: int, forced: bool = False) -> Iterator[Visit]:
        """Surrounds a request to the host. `now_ms`: by Redis' clock. `forced`: it goes, whatever the host did before.

        Raises:
            HostHeld: it may not go now.
        """
        visit = Visit()
        with self._lock:
            self._zero_ms = now_ms - clock.monotonic() * 1000
            host = self._hosts.setdefault(target, _Host())
            try:
                self._admit(host, visit, config, forced)
            except HostHeld:
                self._forget(target, host)
                raise
            host.running += 1
        try:
            yield visit
        finally:
            with self._lock:
                host.running -= 1
                if host.probe is visit:
                    host.probe = None
                self._learn(host, visit, config)
                self._forget(target, host)

    def snapshot(self) -> list[Circuit]:
        """How the hosts are doing that are asked now, or fail, in order of their names."""
        with self._lock:
            return [
                Circuit(target, _state(host), host.failures, self._left(host), host.running)
                for target, host in sorted(self._hosts.items())
            ]

    def clear(self) -> None:
        """Knows nothing any more."""
        with self._lock:
            self._hosts.clear()

    def _admit(self, host: _Host, visit: Visit, config: HttpConfig, forced: bool) -> None:
        if host.opened and not forced:
            if left := self._left(host):
                raise HostHeld("open", _scattered(left, config.pause))
            if host.probe is not None:
                raise HostHeld("open", _scattered(BUSY_PAUSE, config.pause))
        if config.per_host is not None and host.running >= config.per_host:
            raise HostHeld("busy", _scattered(BUSY_PAUSE, BUSY_PAUSE))
        if host.opened:
            host.probe = visit

    def _learn(self, host: _Host, visit: Visit, config: HttpConfig) -> None:
        if visit.well is None:
            return
        if visit.well:
            was_open = host.opened
            host.failures, host.opened, host.until_ms = 0, 0, 0
            if was_open:
                self._told()
            return
        host.failures += 1
        # Of requests that began together, the first that fails opens it; the others tell nothing new.
        if config.breaker is not None and host.failures >= config.breaker and not self._left(host):
            host.pause = min(config.pause * 2**host.opened, max(config.pause, LONGEST_PAUSE))
            host.until_ms = self._now_ms() + clock.milliseconds(host.pause)
            host.opened = min(host.opened + 1, 20)
            self._told()

    def _now_ms(self) -> int:
        return int(self._zero_ms + clock.monotonic() * 1000)

    def _left(self, host: _Host) -> float:
        """Seconds of its pause. A clock that is put back makes no pause longer than it is."""
        left = (host.until_ms - self._now_ms()) / 1000
        if left > host.pause:
            left, host.until_ms = host.pause, self._now_ms() + clock.milliseconds(host.pause)
        return max(0.0, left)

    def _told(self) -> None:
        if self._tell is None:
            return
        found = sorted(((host.until_ms, host.failures, target) for target, host in self._hosts.items() if host.opened), reverse=True)
        told = [{"target": target, "failures": failures, "until": until} for until, failures, target in found[:MOST_TOLD]]
        self._tell(json.dumps(told).encode())

    def _forget(self, target: str, host: _Host) -> None:
        if self._hosts.get(target) is not host:
            return
        del self._hosts[target]
        if host.failures or host.running:
            self._hosts[target] = host  # as the latest
            if len(self._hosts) > self._most and (idle := next((name for name, one in self._hosts.items() if not one.running), None)):
                del self._hosts[idle]


def _state(host: _Host) -> State:
    return "closed" if not host.opened else "probing" if host.probe is not None else "open"


def _scattered(seconds: float, width: float) -> float:
    """So that those who wait do not all come at one moment."""
    return seconds + uniform(0.0, width)


circuits: Final = Circuits()
under_test.FORGETS.append(circuits.clear)
