"""Tells systemd how the worker is (`Type=notify`), or whoever else listens at `$NOTIFY_SOCKET`."""

from __future__ import annotations

import contextlib
import os
import socket
from collections.abc import Callable, Mapping
from typing import Final

from django_delayq import clock
from django_delayq.logger import Logger

logger = Logger("django_delayq.worker")

LOOK: Final = 0.5  # seconds between looks whether the worker has begun


class Systemd:
    """1. Says READY=1 once the worker claims. 2. Says WATCHDOG=1, twice in the time that is allowed, from the supervisor's own loop:
    when that hangs, systemd ends the worker. 3. Says STOPPING=1 when the worker is leaving. A word that is not heard is said again by
    the next pass, or never; nobody waits for it.

    Args:
        address: a path, or with "@" in front the name of an abstract socket.
        watchdog: seconds within which a word is wanted; 0 for none.
        claims: whether the worker has begun to claim.
    """

    def __init__(self, address: str, watchdog: float, claims: Callable[[], bool]) -> None:
        self._address = "\0" + address[1:] if address.startswith("@") else address
        self._watchdog = watchdog
        self._claims = claims
        self._ready = False
        self._next_at = 0.0
        self._heard = True
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC | socket.SOCK_NONBLOCK)

    def poll(self) -> float:
        """One look, and one word if its time has come. Returns a pause that ends in time for the next one."""
        if not self._ready and self._claims():
            self._ready = self._say("READY=1")
        if self._watchdog and clock.monotonic() >= self._next_at:
            self._say("WATCHDOG=1")
            self._next_at = clock.monotonic() + self._watchdog / 2
        pause = self._watchdog / 4 if self._watchdog else 60.0
        return pause if self._ready else min(LOOK, pause)

    def stopping(self) -> None:
        """The worker is leaving."""
        self._say("STOPPING=1")

    def close(self) -> None:
        """The worker is over. In a forked child: the socket is the supervisor's."""
        self._socket.close()

    def _say(self, text: str) -> bool:
        try:
            self._socket.sendto(text.encode(), self._address)
        except OSError as error:
            if self._heard:
                logger.warning("systemd could not be notified of %s: %s", text, error)
            self._heard = False
            return False
        self._heard = True
        return True


def from_environment(claims: Callable[[], bool], environment: Mapping[str, str] = os.environ) -> Systemd | None:
    """None where nobody listens. A watchdog that was meant for another process is none of ours."""
    address = environment.get("NOTIFY_SOCKET", "")
    if not address.startswith(("/", "@")):
        return None
    watchdog = 0.0
    if environment.get("WATCHDOG_PID", str(os.getpid())) == str(os.getpid()):
        with contextlib.suppress(ValueError):
            watchdog = max(0.0, int(environment.get("WATCHDOG_USEC", "0")) / 1e6)
    return Systemd(address, watchdog, claims)
