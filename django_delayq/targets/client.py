"""Sends one request to an address that the guard has checked. It knows nothing about jobs, and needs urllib3.

Threads of the worker share a client. Its sockets end at a set time, however slowly the other side sends."""

from __future__ import annotations

import logging
import socket
import ssl
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from http.client import BadStatusLine, HTTPResponse
from pathlib import Path
from typing import Any, Final, NamedTuple
from urllib.parse import unquote

import urllib3
from urllib3.connection import HTTPConnection, HTTPSConnection
from urllib3.exceptions import HTTPError, ProxyError
from urllib3.exceptions import TimeoutError as TimedOut
from urllib3.util import parse_url

from django_delayq import clock, durations
from django_delayq.exceptions import TargetRefused
from django_delayq.setting_readers import HttpConfig, Network
from django_delayq.targets import addresses
from django_delayq.targets.addresses import CheckedAddress, Endpoint
from django_delayq.targets.answers import KEPT, REDIRECTED, DeliveryFailed, Reply

HOSTS: Final = 200  # with open connections; for more, it closes those of the least recently used host
KEPT_OPEN: Final = 10  # connections per host
CHUNK: Final = 65_536
SWITCHING: Final = 101
FOLLOWED: Final = (307, 308)  # these keep method and body
HeadersFor = Callable[[bool], Mapping[str, str]]


class Client:
    """Sends requests with the settings `config`. Threads may share it; processes may not."""

    def __init__(self, config: HttpConfig) -> None:
        self._config = config
        context = ssl.create_default_context()
        if config.ca:
            context.load_verify_locations(**{"capath" if Path(config.ca).is_dir() else "cafile": config.ca})
        context.sslsocket_class = TimedTls
        options: dict[str, Any] = {"num_pools": HOSTS, "maxsize": KEPT_OPEN, "ssl_context": context, "retries": False}
        if config.proxy:
            options["proxy_ssl_context"] = context  # the default of urllib3 has neither our CA nor our limits
            if user := parse_url(config.proxy).auth:
                options["proxy_headers"] = urllib3.make_headers(proxy_basic_auth=unquote(user))
        # Ignores proxies of the environment, because they would bypass the guard.
        manager = urllib3.ProxyManager(config.proxy, **options) if config.proxy else urllib3.PoolManager(**options)
        manager.pool_classes_by_scheme = _pools(config.allow, guarded=not config.proxy)
        self._manager = manager

    def send(
        self, to: Endpoint, method: str, body: bytes, headers: HeadersFor, *, within: float, redirects: int, withholds: bool = False
    ) -> Reply:
        """Sends a request, and returns the answer with any status. `headers(same)`: the headers for the host, or for another host to
        which a redirect leads; `within`: the timeout in seconds; `redirects`: how many it follows; `withholds`: errors do not contain
        the target of a redirect, because a Location may repeat a secret.

        Raises:
            DeliveryFailed: there is no answer.
            TargetRefused: the guard refuses the address.
        """
        began, here, same, followed = clock.uptime(), to, True, 0
        try:
            with limited(Limits(began + within, self._config.connect, self._config.read)):
                while True:
                    answer = self._ask(here, method, body, headers(same), began, within)
                    if answer.status not in FOLLOWED or not answer.location or followed == redirects:
                        return answer
                    followed += 1
                    here = addresses.joined(here, answer.location)
                    same = same and here.origin == to.origin  # after another host, the headers with secrets stay out
                    if (to.scheme, here.scheme) == ("https", "http"):
                        return answer  # never send without TLS what began with it
        except (DeliveryFailed, TargetRefused) as error:
            if not (withholds and followed):
                raise
            raise type(error)(REDIRECTED.format(target=to.place, code=error.code), code=error.code, target=to.place) from None

    def close(self) -> None:
        """Closes idle connections."""
        self._manager.clear()

    def _ask(self, to: Endpoint, method: str, body: bytes, headers: Mapping[str, str], began: float, within: float) -> Reply:
        pool = self._manager.connection_from_host(to.host, to.port, to.scheme)
        through = self._config.proxy and to.scheme == "http"
        try:
            response = pool.urlopen(
                method,
                to.url if through else to.path,
                body=body,
                headers=dict(headers),
                retries=False,
                redirect=False,
                assert_same_host=False,
                preload_content=False,
                decode_content=False,
            )
        except (HTTPError, OSError) as error:
            raise _failure(error, to, within) from None
        try:
            return self._read(response, began)
        finally:
            response.close()  # after a complete read, the connection is already in its pool

    def _read(self, response: Any, began: float) -> Reply:
        """Reads the body. Errors do not matter any more, because the status decides."""
        kept, complete, size = b"", False, 0
        try:
            while chunk := response.read1(CHUNK, decode_content=False):  # what has arrived, also if the host sends slowly
                kept += chunk[: KEPT - len(kept)]
                size += len(chunk)
                if size > self._config.max_answer:
                    break
            else:
                complete = size <= KEPT
                response.release_conn()
        except (HTTPError, OSError):
            pass
        return Reply(
            status=response.status,
            body=kept,
            size=size,
            complete=complete,
            ms=round((clock.uptime() - began) * 1000),
            retry_after=response.headers.get("Retry-After", ""),
            date=response.headers.get("Date", ""),
            location=response.headers.get("Location", ""),
        )


class FinalAnswer(HTTPResponse):
    """The final answer. It skips informational responses (1xx, such as 103 Early Hints). http.client skips only 100: it would take
    another one for the answer, and the answer for that to the next request of the connection.
    """

    def begin(self) -> None:
        """Reads up to the body."""
        super().begin()
        while 100 <= self.status < 200:
            if self.status == SWITCHING:  # the rest of the connection would be another protocol
                raise BadStatusLine(str(self.status))
            self.headers = None  # type: ignore[assignment]  # as before begin()
            super().begin()
        # urllib3 logs invalid header lines, in which a host may repeat a secret.
        self.headers.defects.clear()
        self.headers.set_payload("")


def _pools(allow: tuple[Network, ...], *, guarded: bool) -> dict[str, Any]:
    """Pools of urllib3 that connect only to checked addresses. The header Host, the handshake and the certificate still use the name.
    With a proxy, the proxy is the guard.
    """

    class Guarded(HTTPConnection):
        response_class = FinalAnswer

        def _new_conn(self) -> socket.socket:
            return _connect(self._dns_host.strip("[]"), self.port, allow if guarded else addresses.ANYWHERE)

    class GuardedTls(Guarded, HTTPSConnection):
        pass

    class Plain(urllib3.HTTPConnectionPool):
        ConnectionCls = Guarded

    class Sealed(urllib3.HTTPSConnectionPool):
        ConnectionCls = GuardedTls

    return {"http": Plain, "https": Sealed}


def _connect(host: str, port: int, allow: tuple[Network, ...]) -> socket.socket:
    # urllib3 does not wrap these errors.
    target = addresses.place(host, port)
    try:
        return connect(addresses.resolve(host, port, allow))
    except socket.gaierror as error:
        raise DeliveryFailed(code="name", target=target, cause=_cause(error)) from None
    except OSError as error:
        raise DeliveryFailed(code="connect", target=target, cause=_cause(error)) from None


def _failure(error: BaseException, to: Endpoint, within: float) -> DeliveryFailed:
    while isinstance(error, ProxyError):
        error = error.original_error
    inner = next((one for one in error.args if isinstance(one, BaseException)), error)
    if isinstance(error, TimedOut) or isinstance(inner, TimeoutError):
        return DeliveryFailed(code="timeout", target=to.place, limit=durations.text(within))
    return DeliveryFailed(code="tls" if isinstance(inner, ssl.SSLError) else "broken", target=to.place, cause=_cause(inner))


def _cause(error: BaseException) -> str:
    """The message of the system, which cannot contain data of the request."""
    text = getattr(error, "verify_message", "") or getattr(error, "strerror", "") or ""
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


class Limits(NamedTuple):
    """`end`: when the whole request ends (`clock.uptime`); `connect`, `read`: how long one call may take."""

    end: float
    connect: float
    read: float


_LIMITS: Final[ContextVar[Limits]] = ContextVar("django_delayq.http.limits")


class DeliveryFilter(logging.Filter):
    """Drops the records of urllib3 about deliveries: they contain the query string and targets of redirects, which may have secrets."""

    def filter(self, _record: logging.LogRecord) -> bool:
        """Whether the record is about another request."""
        return _LIMITS.get(None) is None


logging.getLogger("urllib3.connectionpool").addFilter(DeliveryFilter())


@contextmanager
def limited(limits: Limits) -> Iterator[None]:
    """Applies limits to the sockets of this thread."""
    token = _LIMITS.set(limits)
    try:
        yield
    finally:
        _LIMITS.reset(token)


def remaining(most: float) -> float:
    """How many seconds a call may take now.

    Raises:
        TimeoutError: the time is over.
    """
    seconds = _LIMITS.get().end - clock.uptime()
    if seconds <= 0:
        raise TimeoutError("the time limit of the delivery has passed")
    return min(seconds, most)


def _timed(base: type, name: str, limit: str = "read") -> Any:
    """A method of a socket class with a limit."""
    method = getattr(base, name)

    def call(self: Any, *args: Any, **kwargs: Any) -> Any:
        self.settimeout(remaining(getattr(_LIMITS.get(), limit)))
        return method(self, *args, **kwargs)

    return call


class TimedSocket(socket.socket):
    """A socket with limits."""

    recv_into, recv, sendall = (_timed(socket.socket, name) for name in ("recv_into", "recv", "sendall"))


class TimedTls(ssl.SSLSocket):
    """A TLS socket with limits, for `SSLContext.sslsocket_class`. `sendall` uses `send`; TLS inside a connection to an https proxy uses
    `recv`.
    """

    do_handshake = _timed(ssl.SSLSocket, "do_handshake", "connect")
    recv_into, recv, send = (_timed(ssl.SSLSocket, name) for name in ("recv_into", "recv", "send"))


def connect(found: Iterable[CheckedAddress]) -> TimedSocket:
    """A socket that is connected to the first address that answers.

    Raises:
        OSError: none answers; TimeoutError if the last one did not answer in time.
    """
    error: OSError = OSError("it has no address")
    for one in found:
        made = TimedSocket(one.family, socket.SOCK_STREAM)
        try:
            made.settimeout(remaining(_LIMITS.get().connect))
            made.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            made.connect(one.sockaddr)
            return made
        except BaseException as failed:
            made.close()
            if not isinstance(failed, OSError):
                raise
            error = failed
    raise error
