"""The URL of a delivery, read once and strictly: whoever checks it and whoever connects see the same host."""

from __future__ import annotations

import re
from ipaddress import IPv6Address
from typing import Final, NamedTuple
from urllib.parse import quote, urljoin, urlsplit

from django_delayq.exceptions import TargetRefused

LONGEST: Final = 4000  # characters
PORTS: Final = {"http": 80, "https": 443}
_HOST: Final = re.compile(r"(?!-)[a-z0-9_-]+(\.[a-z0-9_-]+)*\.?")
_PLAIN: Final = "%/:?#[]@!$&'()*+,;=-._~"  # what may stand in path and query as it is
TEXTS: Final = {
    "url": "Deliveries cannot use this URL: {why}. Write a URL such as https://partner.example/hook.",
    "url_scheme": "A delivery goes to http:// or https://, not to {scheme!r}.",
    "url_userinfo": "The URL for {target} holds a user or a password, which logs on its way would show. Remove it, and name a "
    'secret of DELAYQ["HTTP"]["SECRETS"] in a header: headers={{"Authorization": header_secret(…)}}.',
}


class Endpoint(NamedTuple):
    """Where a request goes: `host` in lower case, an IPv6 address without brackets; `path` with the query."""

    scheme: str
    host: str
    port: int
    path: str

    @property
    def place(self) -> str:
        """`host:port`, as people read it."""
        return place(self.host, self.port)

    @property
    def origin(self) -> tuple[str, str, int]:
        """What must be the same for a secret to be sent along."""
        return self.scheme, self.host, self.port

    @property
    def site(self) -> str:
        """The origin, in one way to write it: `https://partner.example`."""
        name = self.place.removesuffix(f":{PORTS[self.scheme]}") if self.port == PORTS[self.scheme] else self.place
        return f"{self.scheme}://{name}"

    @property
    def url(self) -> str:
        """The whole, in one way to write it."""
        return f"{self.site}{self.path}"


def place(host: str, port: int) -> str:
    """`host:port`; an IPv6 address stands in brackets."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def refused(code: str, target: str = "", **fields: object) -> TargetRefused:
    """The error of that code."""
    return TargetRefused(TEXTS[code].format(target=target, **fields), code=code, target=target, **fields)


def read(url: str) -> Endpoint:
    """The parts of a URL.

    Raises:
        TargetRefused: it is no URL, not of http or https, or holds a user or a password. The text never quotes more than the host.
    """
    if not isinstance(url, str) or not url or len(url) > LONGEST:
        raise refused("url", why=f"it must be text of 1 to {LONGEST} characters")
    if re.search(r"[\x00-\x20\x7f\\\ud800-\udfff]", url):
        raise refused("url", why="it holds a space, a control character or a backslash, which programs read in different ways")
    try:
        parts = urlsplit(url)
        host, port = parts.hostname or "", parts.port
    except ValueError:  # its text may quote a password
        raise refused("url", why="its host or its port cannot be read") from None
    if parts.scheme not in PORTS:
        raise refused("url_scheme", scheme=parts.scheme[:20])
    if "@" in parts.netloc:
        raise refused("url_userinfo", target=host)
    path = quote(parts.path or "/", safe=_PLAIN) + (f"?{quote(parts.query, safe=_PLAIN)}" if parts.query else "")
    return Endpoint(parts.scheme, _host(host, parts.netloc), PORTS[parts.scheme] if port is None else port, path)


def joined(endpoint: Endpoint, location: str) -> Endpoint:
    """Where a redirect leads. Raises: see `read`."""
    try:
        return read(urljoin(endpoint.url, location))
    except ValueError:
        raise refused("url", why="the Location of a redirect is not a URL") from None


def _host(host: str, netloc: str) -> str:
    if netloc.startswith("["):
        try:
            if "%" not in host:  # the name of an interface, which is nobody's business
                return str(IPv6Address(host))
        except ValueError:
            pass
        raise refused("url", why="the text in brackets is not an IPv6 address")
    try:
        name = host.encode("idna").decode().lower()
    except UnicodeError:
        name = ""
    if not _HOST.fullmatch(name) or len(name) > 253:
        raise refused("url", why="it has no host")
    return name
