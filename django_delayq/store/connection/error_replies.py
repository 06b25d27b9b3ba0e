"""The meaning of the error replies of Redis, in one table by the code of the reply. Only this table decides whether a command was
refused or may have been executed.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final, NamedTuple

from redis.exceptions import RedisError, ResponseError

from django_delayq.exceptions import DelayqError, StoreUnavailable

CODED = re.compile(r"[A-Z]{3,} ")  # an error with a code and a text of its own; the client removes ERR


class CertainReply(NamedTuple):
    """A reply that proves that the command has changed nothing.

    `text`: the code of the error that callers get, "" for `Link.misplaced`. `passes`: the problem is temporary, so another call may
    succeed. `soon`: it ends within seconds, while a master is replaced or a slot moves.
    """

    text: str
    passes: bool = True
    soon: bool = False


# Redis refuses all of these before the first write: it looks at memory, disk and role again before each write of a script, but no
# longer after one. Our own scripts give theirs before any write. A code that is not in this table leaves open what has happened:
# WRONGTYPE, for example, may come from the middle of a script.
REFUSALS: Final[Mapping[str, CertainReply]] = {
    # redirects by nodes of a Cluster
    "MOVED": CertainReply(""),
    "ASK": CertainReply(""),
    "TRYAGAIN": CertainReply("", soon=True),
    "CLUSTERDOWN": CertainReply("", soon=True),
    "CROSSSLOT": CertainReply(""),
    # temporary problems
    "LOADING": CertainReply("redis_loading"),
    "MASTERDOWN": CertainReply("redis_readonly", soon=True),
    "READONLY": CertainReply("redis_readonly", soon=True),
    "NOREPLICAS": CertainReply("redis_replicas", soon=True),
    "OOM": CertainReply("redis_full"),
    "MISCONF": CertainReply("redis_disk"),
    "BUSY": CertainReply("redis_busy"),
    # problems that stay until a person acts
    "NOAUTH": CertainReply("redis_login", passes=False),
    "WRONGPASS": CertainReply("redis_login", passes=False),
    "NOPERM": CertainReply("redis_rights", passes=False),
    # errors of our scripts
    "EVENTSFULL": CertainReply("events_full", passes=False),
    "BADRECORD": CertainReply("bad_record", passes=False),
    "RESTORING": CertainReply("restoring", passes=False),
    "SITE": CertainReply("redis_answered", passes=False),  # see `loader._again`
    "FORMAT": CertainReply("redis_answered", passes=False),  # see `loader._again`
}
# The client turns some codes into classes, and removes them from the text.
CODES_OF_CLASSES: Final[Mapping[str, str]] = {
    "MovedError": "MOVED",
    "AskError": "ASK",
    "TryAgainError": "TRYAGAIN",
    "ClusterDownError": "CLUSTERDOWN",
    "ClusterCrossSlotError": "CROSSSLOT",
    "BusyLoadingError": "LOADING",
    "MasterDownError": "MASTERDOWN",
    "ReadOnlyError": "READONLY",
    "OutOfMemoryError": "OOM",
    "AuthenticationError": "NOAUTH",
    "NoPermissionError": "NOPERM",
}
# Redis 6.2 puts the place in a script, and what it was called by, before the code of an error; Redis 7 appends the place.
CODE: Final = re.compile(r"(?:(?:Error running script .*?|@user_script: ?\d+): -?)?([A-Z]{3,}) ")
PLACE: Final = re.compile(r"\.? script: [0-9a-f]{40}, on @user_script:\d+\.?$")

# Newer clients turn the code of a redirect into a class and remove it from the text. A node that does not know the name of the other
# leaves it out, or writes "?".
REDIRECT: Final = re.compile(r"(?:(?P<kind>MOVED|ASK) )?(?P<slot>\d{1,5}) (?P<host>\S*):(?P<port>\d{1,5})")
SLOTS: Final = 16_384  # of a Cluster
UNKNOWN: Final = ("", "?")  # host names


class Redirect(NamedTuple):
    """The node that serves a key, according to another node. `moved`: True if all further commands must go there; False if only the
    redirected command must. `host`: "" for the host of the node that redirects.
    """

    moved: bool
    slot: int
    host: str
    port: int


class StoreError(DelayqError):
    """Redis answered with an error that is not temporary: a wrong type, a refused command, a broken script. `reply`: the whole reply
    with its code; "" for an error of this package.
    """

    code = "store_error"
    reply = ""
    nothing_done = False  # whether it is certain that nothing was done, see `REFUSALS`


class StoreRefused(StoreUnavailable):
    """Redis answered at once that it does not do this now: no memory (`full`), or it is a replica. It can be reached, and nothing was
    done. `redirect`: the node of a Cluster that serves the key; `soon`: another call may succeed in a moment; `unserved`: no server
    serves the key now, since the slot has no master, or the Cluster is down.
    """

    nothing_done = True
    replica = False
    full = False
    soon = False
    unserved = False
    redirect: Redirect | None = None


def code_of(error: RedisError) -> str:
    """The code of an error reply; "" for one without a code, whose text is for people."""
    found = CODE.match(str(error))
    return CODES_OF_CLASSES.get(type(error).__name__, found[1] if found else "")


def redirect(error: RedisError) -> Redirect | None:
    """The redirect in that reply of a node; None if it is another reply."""
    found = REDIRECT.fullmatch(str(error))
    kind = CODES_OF_CLASSES.get(type(error).__name__) or (found and found["kind"])
    if found is None or kind not in ("MOVED", "ASK"):
        return None
    slot, port = int(found["slot"]), int(found["port"])
    if slot >= SLOTS or not 0 < port < 65_536:
        return None
    return Redirect(kind == "MOVED", slot, "" if found["host"] in UNKNOWN else found["host"], port)


def answered(error: ResponseError, where: str, misplaced: str = "redis_cluster") -> StoreRefused | StoreError:
    """The exception for an error reply of the server at `where`. `misplaced`: see `Link`."""
    code = code_of(error)
    found = REFUSALS.get(code)
    if found is None or not found.passes:
        wrong = StoreError(code=found.text if found else "redis_answered", where=where, cause=cause_of(error))
        wrong.reply, wrong.nothing_done = str(error), found is not None
        return wrong
    refused = StoreRefused(code=found.text or misplaced, where=where, cause=cause_of(error))
    refused.soon = found.soon
    refused.redirect = redirect(error)
    refused.unserved = code == "CLUSTERDOWN"
    refused.replica = code == "READONLY"
    refused.full = code == "OOM"
    return refused


def is_refusal(error: DelayqError) -> bool:
    """Whether the queue of a call is of another site: `SiteRefused`, or the error that a producer raises instead. The server works."""
    return error.code.startswith("site_")


def for_callers(error: StoreError) -> StoreUnavailable:
    """The exception for callers of the package: the call was refused, or its outcome is not known."""
    kind = StoreRefused if error.nothing_done else StoreUnavailable
    return kind(*error.args, code=error.code, **error.fields)


def cause_of(error: BaseException) -> str:
    """The text of an error, without its full stop, and without the place in a script that raised it."""
    text = str(error).strip()
    if isinstance(error, RedisError) and code_of(error) in REFUSALS:
        text = PLACE.sub("", text)
    return text.strip().rstrip(".") or type(error).__name__
