"""Sockets that end at a moment, however slowly the other side drips: each call gets what is left until then, and no call waits for
silence longer than is allowed.
"""

from __future__ import annotations

import socket
import ssl
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, Final, NamedTuple

from django_delayq import clock
from django_delayq.targets.addresses import Place


class Limits(NamedTuple):
    """`end`: the moment (`clock.uptime`) at which all of it ends; `connect`, `read`: how long one such call may take."""

    end: float
    connect: float
    read: float


_LIMITS: Final[ContextVar[Limits]] = ContextVar("django_delayq.http.limits")


@contextmanager
def limited(limits: Limits) -> Iterator[None]:
    """Within it, the sockets of this thread keep to these limits."""
    token = _LIMITS.set(limits)
    try:
        yield
    finally:
        _LIMITS.reset(token)


def left(most: float) -> float:
    """Seconds that a call may take now.

    Raises:
        TimeoutError: none are left.
    """
    seconds = _LIMITS.get().end - clock.uptime()
    if seconds <= 0:
        raise TimeoutError("the time limit of the delivery has passed")
    return min(seconds, most)


class TimedSocket(socket.socket):
    """A plain one."""

    def recv_into(self, *args: Any, **kwargs: Any) -> int:
        """As of a socket, within the limits."""
        self.settimeout(left(_LIMITS.get().read))
        return super().recv_into(*args, **kwargs)

    def recv(self, *args: Any, **kwargs: Any) -> bytes:
        """Likewise."""
        self.settimeout(left(_LIMITS.get().read))
        return super().recv(*args, **kwargs)

    def sendall(self, *args: Any, **kwargs: Any) -> None:
        """Likewise."""
        self.settimeout(left(_LIMITS.get().read))
        super().sendall(*args, **kwargs)


class TimedTls(ssl.SSLSocket):
    """One under TLS; a context makes it by its `sslsocket_class`."""

    def do_handshake(self, block: bool = False) -> None:
        """As of a TLS socket, within the limits."""
        self.settimeout(left(_LIMITS.get().connect))
        super().do_handshake(block)

    def recv_into(self, *args: Any, **kwargs: Any) -> int:
        """Likewise."""
        self.settimeout(left(_LIMITS.get().read))
        return super().recv_into(*args, **kwargs)

    def recv(self, *args: Any, **kwargs: Any) -> bytes:
        """Likewise; TLS within it, through a proxy of https, reads so."""
        self.settimeout(left(_LIMITS.get().read))
        return super().recv(*args, **kwargs)

    def send(self, *args: Any, **kwargs: Any) -> int:
        """Likewise; `sendall` comes here, too."""
        self.settimeout(left(_LIMITS.get().read))
        return super().send(*args, **kwargs)


def connected(places: Iterable[Place]) -> TimedSocket:
    """A socket to the first of the places that answers.

    Raises:
        OSError: none does; TimeoutError if the last one did not in time.
    """
    error: OSError = OSError("it has no address")
    for place in places:
        made = TimedSocket(place.family, socket.SOCK_STREAM)
        try:
            made.settimeout(left(_LIMITS.get().connect))
            made.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            made.connect(place.sockaddr)
            return made
        except OSError as failed:
            made.close()
            error = failed
        except BaseException:
            made.close()
            raise
    raise error
