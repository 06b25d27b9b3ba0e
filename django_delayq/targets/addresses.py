"""URLs and addresses of deliveries. The guard looks a name up once and checks each address; the socket then connects to that address,
so a second lookup cannot return another one (DNS rebinding).
"""

from __future__ import annotations

import re
import socket
from collections.abc import Sequence
from ipaddress import IPv4Address, IPv6Address, IPv6Network, ip_address, ip_network
from typing import Any, Final, NamedTuple
from urllib.parse import quote, urljoin, urlsplit

from django_delayq.exceptions import TargetRefused
from django_delayq.setting_readers import Network

LONGEST: Final = 4000  # characters
PORTS: Final = {"http": 80, "https": 443}
_HOST: Final = re.compile(r"(?!-)[a-z0-9_-]+(\.[a-z0-9_-]+)*\.?")
_PLAIN: Final = "%/:?#[]@!$&'()*+,;=-._~"  # characters that path and query may contain unquoted
Address = IPv4Address | IPv6Address
# Networks that deliveries cannot reach unless ALLOW contains them, by kind. The first network that contains an address decides.
REFUSED: Final[tuple[tuple[str, Network], ...]] = tuple(
    (kind, ip_network(network))
    for kind, networks in {
        "metadata": "169.254.169.254 fd00:ec2::254 100.100.100.200 168.63.129.16 192.0.0.192",  # return credentials
        "this host": "0.0.0.0/8 ::/128",
        "loopback": "127.0.0.0/8 ::1/128",
        "link-local": "169.254.0.0/16 fe80::/10",
        "private": "10.0.0.0/8 172.16.0.0/12 192.168.0.0/16 100.64.0.0/10 fc00::/7 fec0::/10",
        "multicast": "224.0.0.0/4 ff00::/8",
        "reserved": "192.0.0.0/24 192.0.2.0/24 192.88.99.0/24 198.18.0.0/15 198.51.100.0/24 203.0.113.0/24 240.0.0.0/4 100::/64 "
        "64:ff9b:1::/48 2001::/23 2001:db8::/32 3fff::/20",
    }.items()
    for network in networks.split()
)
GLOBAL: Final = IPv6Network("2000::/3")  # all allocated IPv6 addresses
# IPv6 networks whose addresses contain an IPv4 address, and the bit after which it starts.
CARRIERS: Final = (
    (IPv6Network("::ffff:0:0/96"), 96),  # IPv4-mapped
    (IPv6Network("::ffff:0:0:0/96"), 96),  # IPv4-translated
    (IPv6Network("64:ff9b::/96"), 96),  # NAT64
    (IPv6Network("2002::/16"), 16),  # 6to4
    (IPv6Network("::/96"), 96),  # IPv4-compatible, except :: and ::1
)
NOT_EMBEDDED: Final = (IPv6Address("::"), IPv6Address("::1"))
ANYWHERE: Final[tuple[Network, ...]] = (ip_network("0.0.0.0/0"), ip_network("::/0"))


class Endpoint(NamedTuple):
    """The parts of a URL: `host` in lower case, IPv6 addresses without brackets; `path` with the query."""

    scheme: str
    host: str
    port: int
    path: str

    @property
    def place(self) -> str:
        """`host:port`, for people."""
        return place(self.host, self.port)

    @property
    def origin(self) -> tuple[str, str, int]:
        """A redirect to another origin gets no secrets."""
        return self.scheme, self.host, self.port

    @property
    def site(self) -> str:
        """The origin in normal form: `https://partner.example`."""
        name = self.place.removesuffix(f":{PORTS[self.scheme]}") if self.port == PORTS[self.scheme] else self.place
        return f"{self.scheme}://{name}"

    @property
    def url(self) -> str:
        """The URL in normal form."""
        return f"{self.site}{self.path}"


def place(host: str, port: int) -> str:
    """`host:port`, with brackets around an IPv6 address."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def read_url(url: str) -> Endpoint:
    """Parses a URL strictly, so that the check and the connection use the same host.

    Raises:
        TargetRefused: it is not a valid http or https URL, or contains a user or a password. The message contains at most the host.
    """
    if not isinstance(url, str) or not url or len(url) > LONGEST:
        raise TargetRefused(code="url", target="", why=f"it must have 1 to {LONGEST} characters")
    if re.search(r"[\x00-\x20\x7f\\\ud800-\udfff]", url):
        raise TargetRefused(
            code="url",
            target="",
            why="it contains a space, a control character or a backslash",
        )
    try:
        parts = urlsplit(url)
        host, port = parts.hostname or "", parts.port
    except ValueError:  # the message may contain a password
        raise TargetRefused(code="url", target="", why="its host or its port cannot be read") from None
    if parts.scheme not in PORTS:
        raise TargetRefused(code="url_scheme", target="", scheme=parts.scheme[:20])
    if "@" in parts.netloc:
        raise TargetRefused(code="url_userinfo", target=host)
    path = quote(parts.path or "/", safe=_PLAIN) + (f"?{quote(parts.query, safe=_PLAIN)}" if parts.query else "")
    return Endpoint(parts.scheme, _host(host, parts.netloc), PORTS[parts.scheme] if port is None else port, path)


def joined(endpoint: Endpoint, location: str) -> Endpoint:
    """The endpoint to which a redirect leads. Raises: see `read_url`."""
    try:
        return read_url(urljoin(endpoint.url, location))
    except ValueError:
        raise TargetRefused(code="url", target="", why="the Location of a redirect is not a URL") from None


def _host(host: str, netloc: str) -> str:
    if netloc.startswith("["):
        try:
            if "%" not in host:  # the name of a network interface
                return str(IPv6Address(host))
        except ValueError:
            pass
        raise TargetRefused(code="url", target="", why="the text in brackets is not an IPv6 address")
    try:
        name = host.encode("idna").decode().lower()
    except UnicodeError:
        name = ""
    if not _HOST.fullmatch(name) or len(name) > 253:
        raise TargetRefused(code="url", target="", why="it has no host")
    return name


class CheckedAddress(NamedTuple):
    """A checked address, for `socket.connect`."""

    family: int
    sockaddr: tuple[Any, ...]


def embedded(address: Address) -> Address:
    """The IPv4 address that an IPv6 address contains, to which a router may forward it; otherwise the address itself."""
    if isinstance(address, IPv6Address) and address not in NOT_EMBEDDED:
        for network, start in CARRIERS:
            if address in network:
                return IPv4Address((int(address) >> (96 - start)) & 0xFFFFFFFF)
    return address


def kind_of(address: Address, allowed: Sequence[Network] = ()) -> str:
    """The kind of a refused address, see `REFUSED`; empty if the address is allowed."""
    meant = embedded(address)
    if any(meant in network for network in allowed if meant.version == network.version):
        return ""
    for kind, network in REFUSED:
        if meant.version == network.version and meant in network:
            return kind
    if isinstance(meant, IPv6Address) and meant not in GLOBAL:
        return "reserved"
    return "" if meant.is_global else "reserved"


def resolve(host: str, port: int, allowed: Sequence[Network]) -> list[CheckedAddress]:
    """Looks up a host, and checks all its addresses.

    Raises:
        TargetRefused: one of its addresses is refused. A name with an allowed and a refused address is an attack.
        OSError: it has no address, or the lookup failed.
    """
    found: list[CheckedAddress] = []
    for family, _, _, _, sockaddr in socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, proto=socket.IPPROTO_TCP):
        address = ip_address(str(sockaddr[0]).partition("%")[0])
        if kind := kind_of(address, allowed):
            target = place(host, port)
            raise TargetRefused(code="address_refused", target=target, address=str(address), kind=kind)
        found.append(CheckedAddress(family, sockaddr))
    return found
