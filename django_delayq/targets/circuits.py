"""The circuit breaker: if a host fails repeatedly, deliveries to it pause. A host fails if it does not respond, or if at least three of
its URLs respond with an error. The module also limits the concurrent requests to a host. Threads share the state; processes do not.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from random import uniform
from typing import Final, Literal, NamedTuple

from django_delayq import clock, durations, under_test
from django_delayq.setting_readers import HttpConfig

LONGEST_PAUSE: Final = 600.0  # seconds; the pause doubles up to this
MOST: Final = 10_000  # hosts that it remembers; clients that choose URLs cannot fill the memory
FAILED_URLS: Final = 3  # so many URLs of a host must have failed before error responses open its circuit
BUSY_PAUSE: Final = 2.0  # about how many seconds a job waits for other requests to its host
MOST_REPORTED: Final = 20  # open circuits that a process reports

State = Literal["closed", "open", "probing"]


class Circuit(NamedTuple):
    """The state of a host: the number of `failures` in a row, the `seconds` until the next request (0 means now), and the number of
    `running` requests.
    """

    target: str
    state: State
    failures: int
    seconds: float
    running: int


class HostHeld(Exception):
    """No request may go to the host now. `seconds`: when to try again; `code`: "open" or "busy"."""

    def __init__(self, code: str, seconds: float) -> None:
        super().__init__(code, seconds)
        self.code, self.seconds = code, seconds


class Visit:
    """A request in progress. The caller sets `well` if the request shows whether the host works, and `failed_url` if the host has
    answered with an error, which can be a fault of this URL only.
    """

    well: bool | None = None
    failed_url: str | None = None


@dataclass(slots=True)
class _Host:
    failures: int = 0
    unanswered: int = 0  # how many of these failures had no response
    failed_urls: set[int] = field(default_factory=set)  # their hashes, at most FAILED_URLS
    opened: int = 0  # how often in a row
    pause: float = 0.0  # seconds
    until_ms: int = 0
    probe: Visit | None = None
    running: int = 0


class Circuits:
    """The hosts that have failures or running requests, at most `most` of them."""

    def __init__(self, most: int = MOST) -> None:
        self._most = most
        self._lock = threading.Lock()
        self._hosts: dict[str, _Host] = {}
        self._zero_ms = 0.0  # Redis' clock at monotonic 0, from the last request
        self._tell: Callable[[bytes], object] | None = None

    def tell_to(self, tell: Callable[[bytes], object]) -> None:
        """Calls `tell` when a circuit opens, stays open or closes, with the open circuits as a JSON list of objects with `target`,
        `failures` and `until` (ms since 1970): at most MOST_REPORTED, the longest first. There is one call at a time.
        """
        self._tell = tell

    @contextmanager
    def visit(self, target: str, config: HttpConfig, *, now_ms: int, forced: bool = False) -> Iterator[Visit]:
        """Surrounds a request to the host. `now_ms`: by Redis' clock. `forced`: also if the circuit is open.

        Raises:
            HostHeld: no request may go to the host now.
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
        """The hosts that fail or have requests, by name."""
        with self._lock:
            return [
                Circuit(target, _state(host), host.failures, self._left(host), host.running)
                for target, host in sorted(self._hosts.items())
            ]

    def clear(self) -> None:
        """Forgets all hosts."""
        with self._lock:
            self._hosts.clear()

    def _admit(self, host: _Host, visit: Visit, config: HttpConfig, forced: bool) -> None:
        if host.opened and not forced:
            if left := self._left(host):
                raise HostHeld("open", _jittered(left, config.pause))
            if host.probe is not None:
                raise HostHeld("open", _jittered(BUSY_PAUSE, config.pause))
        if config.per_host is not None and host.running >= config.per_host:
            raise HostHeld("busy", _jittered(BUSY_PAUSE, BUSY_PAUSE))
        if host.opened:
            host.probe = visit

    def _learn(self, host: _Host, visit: Visit, config: HttpConfig) -> None:
        if visit.well is None:
            return
        if visit.well:
            was_open = host.opened
            host.failures, host.unanswered, host.opened, host.until_ms = 0, 0, 0, 0
            host.failed_urls.clear()
            if was_open:
                self._report()
            return
        host.failures += 1
        if visit.failed_url is None:
            host.unanswered += 1
        elif len(host.failed_urls) < FAILED_URLS:
            host.failed_urls.add(hash(visit.failed_url))
        # Among concurrent requests, only the first failure opens the circuit.
        if config.breaker is not None and _fails(host, config.breaker) and not self._left(host):
            host.pause = min(config.pause * 2**host.opened, max(config.pause, LONGEST_PAUSE))
            host.until_ms = self._now_ms() + durations.milliseconds(host.pause)
            host.opened = min(host.opened + 1, 20)
            self._report()

    def _now_ms(self) -> int:
        return int(self._zero_ms + clock.monotonic() * 1000)

    def _left(self, host: _Host) -> float:
        """The remaining seconds of the pause. If the clock is set back, the pause does not get longer."""
        left = (host.until_ms - self._now_ms()) / 1000
        if left > host.pause:
            left, host.until_ms = host.pause, self._now_ms() + durations.milliseconds(host.pause)
        return max(0.0, left)

    def _report(self) -> None:
        if self._tell is None:
            return
        found = sorted(((host.until_ms, host.failures, target) for target, host in self._hosts.items() if host.opened), reverse=True)
        report = [{"target": target, "failures": failures, "until": until} for until, failures, target in found[:MOST_REPORTED]]
        self._tell(json.dumps(report).encode())

    def _forget(self, target: str, host: _Host) -> None:
        if self._hosts.get(target) is not host:
            return
        del self._hosts[target]
        if host.failures or host.running:
            self._hosts[target] = host  # as the latest
            if len(self._hosts) > self._most and (idle := next((name for name, one in self._hosts.items() if not one.running), None)):
                del self._hosts[idle]


def _fails(host: _Host, breaker: int) -> bool:
    """Whether the host itself fails. One broken URL does not keep the requests to the others waiting."""
    return host.opened > 0 or host.unanswered >= breaker or (host.failures >= breaker and len(host.failed_urls) >= FAILED_URLS)


def _state(host: _Host) -> State:
    return "closed" if not host.opened else "probing" if host.probe is not None else "open"


def _jittered(seconds: float, width: float) -> float:
    """Spreads the jobs that wait for the same host."""
    return seconds + uniform(0.0, width)


circuits: Final = Circuits()
under_test.FORGETS.append(circuits.clear)
