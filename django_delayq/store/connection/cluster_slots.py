"""The slots of a Redis Cluster: the slot of a key, and the replies of nodes about slots. This module sends nothing."""

from __future__ import annotations

import re
from binascii import crc_hqx
from collections.abc import Sequence
from typing import Any, Final, NamedTuple

SLOTS: Final = 16_384
# Newer clients turn the code into a class and remove it from the text. A node that does not know the name of the other leaves it out,
# or writes "?".
REDIRECT: Final = re.compile(r"(?:(?P<kind>MOVED|ASK) )?(?P<slot>\d{1,5}) (?P<host>\S*):(?P<port>\d{1,5})")
KINDS: Final = {"MovedError": "MOVED", "AskError": "ASK"}
UNKNOWN: Final = ("", "?")

Address = tuple[str, int]  # host and port


class Redirect(NamedTuple):
    """The node that serves a key, according to another node. `moved`: True if all further commands must go there; False if only the
    redirected command must. `host`: "" for the host of the node that redirects.
    """

    moved: bool
    slot: int
    host: str
    port: int


def slot_of(key: str) -> int:
    """The slot of a key: computed from the text in its first braces if that is not empty, else from the whole key."""
    _, opened, rest = key.partition("{")
    tag, closed, _ = rest.partition("}")
    return crc_hqx((tag if opened and closed and tag else key).encode(), 0) % SLOTS


def redirect(error: Exception) -> Redirect | None:
    """The redirect in that reply of a node; None if it is another reply."""
    found = REDIRECT.fullmatch(str(error))
    kind = KINDS.get(type(error).__name__) or (found and found["kind"])
    if found is None or not kind:
        return None
    slot, port = int(found["slot"]), int(found["port"])
    if slot >= SLOTS or not 0 < port < 65_536:
        return None
    return Redirect(kind == "MOVED", slot, "" if found["host"] in UNKNOWN else found["host"], port)


class SlotRange(NamedTuple):
    """A range of slots that one master serves, with the addresses of the master and its replicas."""

    first: int
    last: int
    master: Address
    replicas: tuple[Address, ...]


def served(reply: Any, asked: str) -> list[SlotRange]:
    """Reads the answer to CLUSTER SLOTS of the node at the host `asked`.

    Raises:
        ValueError: the answer is not a valid list of slots.
    """
    try:
        found = [SlotRange(int(first), int(last), *_nodes(nodes, asked)) for first, last, *nodes in reply]
    except (TypeError, ValueError, IndexError, AttributeError) as error:
        raise ValueError(f"its list of slots has an unknown form: {error}") from None
    for one in found:
        if not 0 <= one.first <= one.last < SLOTS:
            raise ValueError(f"it lists slots {one.first} to {one.last}")
    return found


def _nodes(nodes: Sequence[Any], asked: str) -> tuple[Address, tuple[Address, ...]]:
    master, *replicas = (_address(node, asked) for node in nodes)
    return master, tuple(replicas)


def _address(node: Any, asked: str) -> Address:
    host = "" if node[0] is None else node[0].decode()
    return asked if host in UNKNOWN else host, int(node[1])
