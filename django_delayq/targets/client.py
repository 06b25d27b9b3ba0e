"""The client: one request to a checked address, with redirects only where they are allowed. Knows nothing of jobs. Needs urllib3."""

from __future__ import annotations

import socket
import ssl
from collections.abc import Callable, Mapping
from http.client import BadStatusLine, HTTPResponse
from pathlib import Path
from typing import Any, Final
from urllib.parse import unquote

import urllib3
from urllib3.connection import HTTPConnection, HTTPSConnection
from urllib3.exceptions import HTTPError, ProxyError
from urllib3.exceptions import TimeoutError as TimedOut
from urllib3.util import parse_url

from django_delayq import clock
from django_delayq.exceptions import TargetRefused
from django_delayq.http_settings import HttpConfig, Network
from django_delayq.targets import addresses, endpoint
from django_delayq.targets.answers import KEPT, REDIRECTED, DeliveryFailed, Reply, failure
from django_delayq.targets.endpoint import Endpoint
from django_delayq.targets.sockets import Limits, TimedTls, connected, limited

HOSTS: Final = 200  # with open connections; beyond, those of the host that was used least recently are closed
KEPT_OPEN: Final = 10  # connections per host
CHUNK: Final = 65_536
SWITCHING: Final = 101
FOLLOWED: Final = (307, 308)  # these keep method and body

HeadersFor = Callable[[bool], Mapping[str, str]]


class Client:
    """Sends requests by the settings `config`. Threads may share it; processes may not."""

    def __init__(self, config: HttpConfig) -> None:
        self._config = config
        context = ssl.create_default_context()
        if config.ca:
            context.load_verify_locations(**{"capath" if Path(config.ca).is_dir() else "cafile": config.ca})
        context.sslsocket_class = TimedTls
        options: dict[str, Any] = {"num_pools": HOSTS, "maxsize": KEPT_OPEN, "ssl_context": context, "retries": False}
        if config.proxy:
            options["proxy_ssl_context"] = context  # else one of urllib3's own, which knows neither CA nor limits
            if user := parse_url(config.proxy).auth:
                options["proxy_headers"] = urllib3.make_headers(proxy_basic_auth=unquote(user))
        # A proxy of the environment is not looked at: it would be asked in place of the guard.
        manager = urllib3.ProxyManager(config.proxy, **options) if config.proxy else urllib3.PoolManager(**options)
        manager.pool_classes_by_scheme = _pools(config.allow, guarded=not config.proxy)
        self._manager = manager

    def send(
        self, to: Endpoint, method: str, body: bytes, headers: HeadersFor, *, within: float, redirects: int, withholds: bool = False
    ) -> Reply:
        """One request, and its answer, whatever its status. `headers(same)` gives those for the host itself, or for another one to
        which it leads; `within`: seconds for all of it; `redirects`: how many are followed; `withholds`: errors say nothing of where a
        redirect led, since its Location may repeat a secret.

        Raises:
            DeliveryFailed: there is no answer.
            TargetRefused: an address to which nothing may go.
        """
        began, here, same, followed = clock.uptime(), to, True, 0
        try:
            with limited(Limits(began + within, self._config.connect, self._config.read)):
                while True:
                    answer = self._ask(here, method, body, headers(same), began, within)
                    if answer.status not in FOLLOWED or not answer.location or followed == redirects:
                        return answer
                    followed += 1
                    here = endpoint.joined(here, answer.location)
                    same = same and here.origin == to.origin  # another host that leads back here chooses what is asked
                    if (to.scheme, here.scheme) == ("https", "http"):
                        return answer  # what was to travel sealed does not travel open
        except (DeliveryFailed, TargetRefused) as error:
            if not (withholds and followed):
                raise
            raise type(error)(REDIRECTED.format(target=to.place, code=error.code), code=error.code, target=to.place) from None

    def close(self) -> None:
        """Closes what is open and not in use."""
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
            response.close()  # of what was read to its end, the connection is back in its pool

    def _read(self, response: Any, began: float) -> Reply:
        """Once the status is there, the host has said what it has to say: whatever else comes, or does not, changes nothing."""
        kept, complete, size = b"", False, 0
        try:
            while chunk := response.read1(CHUNK, decode_content=False):  # what is there, so that what is kept of a drip is
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
    """The answer itself. What a host says ahead of it (1xx, such as 103 Early Hints) is read over. http.client does so with 100 alone:
    it takes any other for the answer, and then the answer for that to the next request of the connection.
    """

    def begin(self) -> None:
        """Reads up to the body."""
        super().begin()
        while 100 <= self.status < 200:
            if self.status == SWITCHING:  # nobody has asked for another protocol, and it is that from here on
                raise BadStatusLine(str(self.status))
            self.headers = None  # type: ignore[assignment]  # so it looks before it has begun
            super().begin()
        # urllib3 logs header lines that it cannot parse, and a host may put a secret there that it was sent.
        self.headers.defects.clear()
        self.headers.set_payload("")


def _pools(allow: tuple[Network, ...], *, guarded: bool) -> dict[str, Any]:
    """The pools of urllib3, whose connections go to addresses that were judged. What is made of the name (the header Host, the name
    in the handshake and in the certificate) stays of the name. Behind a proxy, the proxy is the guard.
    """

    class Guarded(HTTPConnection):
        response_class = FinalAnswer

        def _new_conn(self) -> socket.socket:
            return _reached(self._dns_host.strip("[]"), self.port, allow if guarded else addresses.ANYWHERE)

    class GuardedTls(Guarded, HTTPSConnection):
        pass

    class Plain(urllib3.HTTPConnectionPool):
        ConnectionCls = Guarded

    class Sealed(urllib3.HTTPSConnectionPool):
        ConnectionCls = GuardedTls

    return {"http": Plain, "https": Sealed}


def _reached(host: str, port: int, allow: tuple[Network, ...]) -> socket.socket:
    # What is raised here passes urllib3 as it is.
    target = endpoint.place(host, port)
    try:
        return connected(addresses.places(host, port, allow))
    except socket.gaierror as error:
        raise failure("name", target, cause=_said(error)) from None
    except OSError as error:
        raise failure("connect", target, cause=_said(error)) from None


def _failure(error: BaseException, to: Endpoint, within: float) -> DeliveryFailed:
    while isinstance(error, ProxyError):
        error = error.original_error
    inner = next((one for one in error.args if isinstance(one, BaseException)), error)
    if isinstance(error, TimedOut) or isinstance(inner, TimeoutError):
        return failure("timeout", to.place, limit=clock.text(within))
    return failure("tls" if isinstance(inner, ssl.SSLError) else "broken", to.place, cause=_said(inner))


def _said(error: BaseException) -> str:
    """What the system says, which does not repeat what was sent."""
    said = getattr(error, "verify_message", "") or getattr(error, "strerror", "") or ""
    return f"{type(error).__name__}: {said}" if said else type(error).__name__
