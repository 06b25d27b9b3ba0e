"""The guard: to which addresses a delivery may go. A name is looked up here once, each address is judged, and the socket goes to that
address and no other, so that a second look-up cannot answer otherwise (DNS rebinding).
"""

from __future__ import annotations

import socket
from collections.abc import Sequence
from ipaddress import IPv4Address, IPv6Address, IPv6Network, ip_address, ip_network
from typing import Any, Final, NamedTuple

from django_delayq.exceptions import TargetRefused
from django_delayq.http_settings import Network
from django_delayq.targets import endpoint

Address = IPv4Address | IPv6Address

# Networks that no delivery leads to unless ALLOW says so, and what they are. The first that holds an address says its kind.
REFUSED: Final[tuple[tuple[str, Network], ...]] = tuple(
    (kind, ip_network(network))
    for kind, networks in {
        "metadata": "169.254.169.254 fd00:ec2::254 100.100.100.200 168.63.129.16 192.0.0.192",  # of clouds, whose answer holds keys
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
GLOBAL: Final = IPv6Network("2000::/3")  # all that is handed out of IPv6
# Networks of IPv6 whose addresses carry one of IPv4, and behind which bit it begins.
CARRIERS: Final = (
    (IPv6Network("::ffff:0:0/96"), 96),  # IPv4-mapped
    (IPv6Network("::ffff:0:0:0/96"), 96),  # IPv4-translated
    (IPv6Network("64:ff9b::/96"), 96),  # NAT64
    (IPv6Network("2002::/16"), 16),  # 6to4
    (IPv6Network("::/96"), 96),  # IPv4-compatible; but :: and ::1 are themselves
)
THEMSELVES: Final = (IPv6Address("::"), IPv6Address("::1"))
ANYWHERE: Final[tuple[Network, ...]] = (ip_network("0.0.0.0/0"), ip_network("::/0"))
TEXT: Final = (
    "{target} is the address {address} ({kind}), to which deliveries are not allowed. To allow it, list its network in "
    'DELAYQ["HTTP"]["ALLOW"].'
)


class Place(NamedTuple):
    """An address that was judged, as `socket.connect` wants it."""

    family: int
    sockaddr: tuple[Any, ...]


def carried(address: Address) -> Address:
    """The address of IPv4 that one of IPv6 stands for, as whoever forwards it will read it; else the address itself."""
    if isinstance(address, IPv6Address) and address not in THEMSELVES:
        for network, start in CARRIERS:
            if address in network:
                return IPv4Address((int(address) >> (96 - start)) & 0xFFFFFFFF)
    return address


def kind_of(address: Address, allowed: Sequence[Network] = ()) -> str:
    """Why nothing is delivered to an address: one word of `REFUSED`; "" if it may be."""
    meant = carried(address)
    if any(meant in network for network in allowed if meant.version == network.version):
        return ""
    for kind, network in REFUSED:
        if meant.version == network.version and meant in network:
            return kind
    if isinstance(meant, IPv6Address) and meant not in GLOBAL:
        return "reserved"
    return "" if meant.is_global else "reserved"


def places(host: str, port: int, allowed: Sequence[Network]) -> list[Place]:
    """Looks a host up, and judges what it finds.

    Raises:
        TargetRefused: one of its addresses is refused. A name with a good address and a bad one is an attempt to get past this.
        OSError: it has no address, or nobody could say.
    """
    found: list[Place] = []
    for family, _, _, _, sockaddr in socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, proto=socket.IPPROTO_TCP):
        address = ip_address(str(sockaddr[0]).partition("%")[0])
        if kind := kind_of(address, allowed):
            target = endpoint.place(host, port)
            text = TEXT.format(target=target, address=address, kind=kind)
            raise TargetRefused(text, code="address_refused", target=target, address=str(address), kind=kind)
        found.append(Place(family, sockaddr))
    return found
