"""Reports the state of the worker to systemd (`Type=notify`), or to another listener at `$NOTIFY_SOCKET`."""

from __future__ import annotations

import contextlib
import os
import socket
from collections.abc import Callable, Mapping
from typing import Final

from django_delayq import clock
from django_delayq.logger import Logger

logger = Logger("django_delayq.worker")

LOOK: Final = 0.5  # seconds between checks whether the worker has begun to claim


class Systemd:
    """Sends the messages of `sd_notify`.

    1. It sends READY=1 once the worker claims.
    2. It sends WATCHDOG=1 twice per watchdog time, from the supervisor's own loop: if the loop hangs, systemd ends the worker.
    3. It sends STOPPING=1 when the worker leaves.

    If a message is not delivered, the next pass sends it again, or it is lost. The worker never waits for it.

    Args:
        address: a path, or the name of an abstract socket after "@".
        watchdog: the watchdog time in seconds; 0 for none.
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
        """Does one pass, and sends a message if it is due. Returns a pause that ends in time for the next message."""
        if not self._ready and self._claims():
            self._ready = self._say("READY=1")
        if self._watchdog and clock.monotonic() >= self._next_at:
            self._say("WATCHDOG=1")
            self._next_at = clock.monotonic() + self._watchdog / 2
        pause = self._watchdog / 4 if self._watchdog else 60.0
        return pause if self._ready else min(LOOK, pause)

    def stopping(self) -> None:
        """Reports that the worker is leaving."""
        self._say("STOPPING=1")

    def close(self) -> None:
        """Closes the socket at the end of the worker. In a forked child, the socket belongs to the supervisor."""
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
    """None if the environment names no socket. A watchdog for another process is ignored."""
    address = environment.get("NOTIFY_SOCKET", "")
    if not address.startswith(("/", "@")):
        return None
    watchdog = 0.0
    if environment.get("WATCHDOG_PID", str(os.getpid())) == str(os.getpid()):
        with contextlib.suppress(ValueError):
            watchdog = max(0.0, int(environment.get("WATCHDOG_USEC", "0")) / 1e6)
    return Systemd(address, watchdog, claims)
