"""What the errors mean with which Redis answers: passing trouble, or a wrong call."""

from __future__ import annotations

import re

from redis.exceptions import ResponseError

from django_delayq.exceptions import DelayqError, StoreUnavailable
from django_delayq.store.cluster_slots import Redirect, redirect

# Replies that say "not now, perhaps later": to the caller the same as a server that cannot be reached. The client turns some
# codes into classes and cuts them off the text; Redis 6.2 puts the code of an error inside a script into the middle of it.
PASSING_CODES = re.compile(r"\b(OOM|READONLY|LOADING|MASTERDOWN|CLUSTERDOWN|MISCONF|NOREPLICAS|TRYAGAIN|BUSY)\b")
CODED = re.compile(r"[A-Z]{3,} ")  # an error with a code of its own, which has a wording of its own; the client cuts off ERR
PASSING_CLASSES = frozenset({"OutOfMemoryError", "ReadOnlyError", "MasterDownError"})
# What only a node of a Redis Cluster says, of where keys lie. No answer about a job: whoever took it for one would give the job up.
# Older clients leave it as it is.
CLUSTER_CODES = re.compile(r"(MOVED|ASK|TRYAGAIN|CLUSTERDOWN|CROSSSLOT) ")
CLUSTER_CLASSES = frozenset({"MovedError", "AskError", "TryAgainError", "ClusterDownError", "ClusterCrossSlotError"})
# What passes by itself, within seconds, while a master is replaced or a slot moves.
SOON_CODES = re.compile(r"(TRYAGAIN|CLUSTERDOWN|READONLY|NOREPLICAS|MASTERDOWN) ")
SOON_CLASSES = frozenset({"TryAgainError", "ClusterDownError", "ReadOnlyError", "MasterDownError"})


class StoreError(DelayqError):
    """Redis answered with an error that is no passing trouble: a wrong type, a refused command, a broken script. `reply`: its code
    and what follows, as it came; "" for an error of ours.
    """

    code = "store_error"
    reply = ""


class StoreRefused(StoreUnavailable):
    """Redis answered, at once, that it will not do this now: no memory (`full`), loading, a replica. It can be reached. `redirect`: a
    node of a Cluster says where that is done; `soon`: it may be done there in a moment; `unserved`: nobody does it now, since the slot
    has no master, or the Cluster is down.
    """

    replica = False
    full = False
    soon = False
    unserved = False
    redirect: Redirect | None = None


def answered(error: ResponseError, where: str, misplaced: str = "redis_cluster") -> StoreRefused | StoreError:
    """What an error stands for that the server at `where` has answered with. `misplaced`: see `Link`."""
    kind, cause = type(error).__name__, cause_of(error)
    soon = kind in SOON_CLASSES or SOON_CODES.match(str(error)) is not None
    if kind in CLUSTER_CLASSES or CLUSTER_CODES.match(str(error)):
        refused = StoreRefused(code=misplaced, where=where, cause=cause)
        refused.redirect, refused.soon = redirect(error), soon
        refused.unserved = kind == "ClusterDownError" or str(error).startswith("CLUSTERDOWN ")
        return refused
    if kind in PASSING_CLASSES or PASSING_CODES.search(str(error)):
        refused = StoreRefused(code="redis_away", where=where, cause=cause)
        refused.soon = soon
        refused.replica = kind == "ReadOnlyError" or "READONLY" in str(error)
        refused.full = kind == "OutOfMemoryError" or "OOM" in str(error)
        return refused
    wrong = StoreError(code="redis_answered", where=where, cause=str(error))
    wrong.reply = str(error)
    return wrong


def cause_of(error: BaseException) -> str:
    """Its text, without the full stop that a sentence around it has."""
    text = str(error).strip().rstrip(".")
    return text or type(error).__name__
