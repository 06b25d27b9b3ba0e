"""`Idempotency-Key`: a request that is sent again is not carried out again; it gets the answer that was given."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable
from contextlib import suppress
from datetime import datetime, timedelta
from typing import Any, Final
from uuid import UUID

from django.db import Error as DriverError
from django.db import IntegrityError, connections, transaction
from django.db.models import QuerySet

from django_delayq import conf, ids
from django_delayq.contrib.gateway.exchange import GatewayAnswer
from django_delayq.contrib.gateway.models import KeptAnswer, Token
from django_delayq.contrib.gateway.problems import GatewayProblem
from django_delayq.exceptions import StoreUnavailable
from django_delayq.logger import Logger
from django_delayq.mirror import agreed_clock, database_clock
from django_delayq.mirror.agreed_clock import ClocksDiffer
from django_delayq.producer.stores import stores

logger: Final = Logger("django_delayq.gateway")
HEADER: Final = "Idempotency-Key"
REPLAYED: Final = "Idempotency-Replayed"
KEPT: Final = timedelta(hours=24)
# How long a request holds its key if nothing is heard of it: its process may have died. Longer than a request takes that waits for
# Redis and the database up to their time-outs; and should it live after all, the other one schedules the same job, not a second one.
HOLD: Final = timedelta(seconds=60)
PRUNED: Final = 100  # old answers per new one
WORN: Final = re.compile(r"[\x20-\x7e]{1,255}")


def rows() -> QuerySet[KeptAnswer]:
    """All kept answers, in the database of the jobs."""
    return KeptAnswer.objects.using(conf.get().database)


def read(given: str | None) -> str | None:
    """The key of a request; None without one.

    Raises:
        GatewayProblem: it is none.
    """
    if given is not None and not WORN.fullmatch(given):
        raise GatewayProblem("idempotency_key")
    return given


def fingerprint(method: str, path: str, body: bytes) -> str:
    """What tells one request from another."""
    found = hashlib.sha256()
    for part in (method.encode(), path.encode("utf-8", "surrogatepass"), body):
        found.update(len(part).to_bytes(8, "big") + part)
    return found.hexdigest()


def once(
    token: Token, key: str, request: str, carry_out: Callable[[UUID, bool], GatewayAnswer], permit: Callable[[], object]
) -> GatewayAnswer:
    """Carries a request out unless it has its answer. `carry_out` is given the id for a job, and whether another may have begun before.
    If it raises (a server is away), no answer is kept, and the same request goes on with the same id. `permit` raises unless the token
    may get an answer that was given before.

    Raises:
        GatewayProblem: idempotency_reused, in_progress, and what `permit` raises.
    """
    held, again = _hold(_digest(token, key), request)
    if held.status is not None:
        permit()
        return GatewayAnswer(status=held.status, body=held.body, headers={**held.headers, REPLAYED: "true"})
    mine = rows().filter(pk=held.pk, status=None, held_until=held.held_until)
    try:
        answer = carry_out(held.job, again).settled()
    except BaseException:
        _note(mine, held_until=held.held_until - HOLD)
        raise
    _note(mine, status=answer.status, body=answer.body, headers=dict(answer.headers))
    return answer


def _note(mine: QuerySet[KeptAnswer], **fields: Any) -> None:
    """Where this fails the answer is given all the same, or the error raised: the key is held until its time is over, and then whoever
    sends the request again goes on with the same job.
    """
    try:
        mine.update(**fields)
    except DriverError as error:
        logger.warning("The answer to a request could not be kept: %s", error)


def prune(limit: int | None = None, digest: str = "") -> int:
    """Deletes answers that were kept long enough, at most so many, and the one of that digest. How many.

    Raises:
        ClocksDiffer: the clocks of the database and of Redis differ, so it is not known which answers are old.
        StoreUnavailable: Redis cannot be asked.
    """
    old = rows().filter(created_at__lt=_now() - KEPT).order_by("created_at").values_list("pk", flat=True)
    gone = [*old[:limit], *old.filter(digest=digest)]
    if not gone:
        return 0
    agreed_clock.now(conf.get().database, [stores.places.shared])
    return rows().filter(pk__in=gone).delete()[0]


def _now() -> datetime:
    """By the database's clock."""
    return database_clock.now(connections[conf.get().database])


def _hold(digest: str, request: str) -> tuple[KeptAnswer, bool]:
    """The row of the request, held or answered; and whether another has held it before."""
    with suppress(ClocksDiffer, StoreUnavailable):
        prune(PRUNED, digest)
    now = _now()
    fresh = KeptAnswer(digest=digest, request=request, job=ids.new(), created_at=now, held_until=now + HOLD)
    if _inserted(fresh):
        return fresh, False
    found = rows().filter(digest=digest).first()
    if found is None:  # another was faster
        raise _under_way(HOLD)
    if found.request != request:
        raise GatewayProblem("idempotency_reused")
    if found.status is None:
        _take_over(found, now)
    return found, True


def _take_over(found: KeptAnswer, now: datetime) -> None:
    """Of who has held it, and has not answered in time."""
    if found.held_until > now:
        raise _under_way(found.held_until - now)
    until = now + HOLD
    if not rows().filter(pk=found.pk, status=None, held_until=found.held_until).update(held_until=until):
        raise _under_way(HOLD)
    found.held_until = until


def _inserted(fresh: KeptAnswer) -> bool:
    using = conf.get().database
    try:
        with transaction.atomic(using=using):
            fresh.save(using=using, force_insert=True)
    except IntegrityError:
        return False
    return True


def _under_way(left: timedelta) -> GatewayProblem:
    return GatewayProblem("in_progress", headers={"Retry-After": str(max(1, int(left.total_seconds()) + 1))})


def _digest(token: Token, key: str) -> str:
    return hashlib.sha256(f"{token.scope}\n{key}".encode()).hexdigest()
