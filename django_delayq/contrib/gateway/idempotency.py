"""A repeated request gets the response of the first. `once` does this for requests with an `Idempotency-Key`, with a table;
`settle_once` does it for settled messages, with Django's default cache.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Sequence
from contextlib import suppress
from datetime import timedelta
from typing import Any, Final
from uuid import UUID

from django.core.cache import cache
from django.db import Error as DriverError
from django.db import IntegrityError
from django.db.models import QuerySet

from django_delayq import ids
from django_delayq.contrib.gateway.models import KeptAnswer, Token
from django_delayq.contrib.gateway.responses import GatewayAnswer, GatewayProblem
from django_delayq.exceptions import StoreUnavailable
from django_delayq.logger import Logger
from django_delayq.messages.message import Holder
from django_delayq.models import database
from django_delayq.producer.outbox import agreed_clock
from django_delayq.producer.outbox.agreed_clock import ClocksDiffer
from django_delayq.producer.stores import stores
from django_delayq.store.scripts.queue import Outcome

logger: Final = Logger("django_delayq.gateway")
HEADER: Final = "Idempotency-Key"
REPLAYED: Final = "Idempotency-Replayed"
KEPT: Final = timedelta(hours=24)
# How long a request holds its key if its process dies. A request that waits for the timeouts of Redis and the database ends earlier.
# If it still runs, the second request schedules the same job, not another one.
HOLD: Final = timedelta(seconds=60)
PRUNED: Final = 100  # old answers that are deleted for each new one
VALID_KEY: Final = re.compile(r"[\x20-\x7e]{1,255}")
SETTLED_SECONDS: Final = 3600  # how long the cache keeps settled messages; Redis knows an ended job equally long
IN_PROGRESS: Final = "?"
DONE: Final = "done"
LOST: Final = "lost"


def valid_key(given: str | None) -> str | None:
    """The key of a request, or None.

    Raises:
        GatewayProblem: it is not a valid key.
    """
    if given is not None and not VALID_KEY.fullmatch(given):
        raise GatewayProblem("idempotency_key")
    return given


def fingerprint(method: str, path: str, body: bytes) -> str:
    """A hash that is the same for equal requests."""
    found = hashlib.sha256()
    for part in (method.encode(), path.encode("utf-8", "surrogatepass"), body):
        found.update(len(part).to_bytes(8, "big") + part)
    return found.hexdigest()


def once(
    token: Token, key: str, request: str, carry_out: Callable[[UUID, bool], GatewayAnswer], check: Callable[[], object]
) -> GatewayAnswer:
    """Carries out a request, or returns its stored answer. `carry_out` gets the id for a job, and whether another process may have
    begun the request. If it raises, no answer is stored, and a repeated request continues with the same id. `check` raises if the
    token may not get the stored answer.

    Raises:
        GatewayProblem: idempotency_reused, in_progress, and what `check` raises.
    """
    held, again = _hold(_digest(token, key), request)
    if held.status is not None:
        check()
        return GatewayAnswer(status=held.status, body=held.body, headers={**held.headers, REPLAYED: "true"})
    mine = KeptAnswer.objects.filter(pk=held.pk, status=None, held_until=held.held_until)
    try:
        answer = carry_out(held.job, again).as_json()
    except BaseException:
        _update(mine, held_until=held.held_until - HOLD)
        raise
    _update(mine, status=answer.status, body=answer.body, headers=dict(answer.headers))
    return answer


def _update(mine: QuerySet[KeptAnswer], **fields: Any) -> None:
    """If this fails, the client gets its answer or error nevertheless. The key stays held until its time is over; after that, a
    repeated request continues with the same job.
    """
    try:
        mine.update(**fields)
    except DriverError as error:
        logger.warning("The response to a request could not be stored: %s", error)


def prune(limit: int | None = None, digest: str = "") -> int:
    """Deletes expired answers, `limit` at most, and the expired answer with the digest. Returns how many.

    Raises:
        ClocksDiffer: the clocks of the database and of Redis differ, so the age of the answers is not known.
        StoreUnavailable: Redis does not answer.
    """
    old = KeptAnswer.objects.filter(created_at__lt=database.now() - KEPT).order_by("created_at").values_list("pk", flat=True)
    gone = [*old[:limit], *old.filter(digest=digest)]
    if not gone:
        return 0
    agreed_clock.now([stores.places.shared])
    return KeptAnswer.objects.filter(pk__in=gone).delete()[0]


def _hold(digest: str, request: str) -> tuple[KeptAnswer, bool]:
    """The row of the request, held or answered, and whether another process held it before."""
    with suppress(ClocksDiffer, StoreUnavailable):
        prune(PRUNED, digest)
    now = database.now()
    fresh = KeptAnswer(digest=digest, request=request, job=ids.new(), created_at=now, held_until=now + HOLD)
    try:
        with database.atomic():
            fresh.save(using=database.alias(), force_insert=True)
        return fresh, False
    except IntegrityError:
        pass
    found = KeptAnswer.objects.filter(digest=digest).first()
    if found is None:  # another process has deleted it
        raise _in_progress(HOLD)
    if found.request != request:
        raise GatewayProblem("idempotency_reused")
    if found.status is None:  # takes the row from a process that has not answered in time
        if found.held_until > now:
            raise _in_progress(found.held_until - now)
        if not KeptAnswer.objects.filter(pk=found.pk, status=None, held_until=found.held_until).update(held_until=fresh.held_until):
            raise _in_progress(HOLD)
        found.held_until = fresh.held_until
    return found, True


def _in_progress(left: timedelta) -> GatewayProblem:
    return GatewayProblem("in_progress", headers={"Retry-After": str(max(1, int(left.total_seconds()) + 1))})


def _digest(token: Token, key: str) -> str:
    return hashlib.sha256(f"{token.scope}\n{key}".encode()).hexdigest()


def settle_once(holder: Holder, verb: str, outcomes: Sequence[Outcome], *, again: bool) -> list[str]:
    """Settles the messages that were not settled before. Returns done or lost for each, in order. `again`: an earlier request may have
    settled them. Redis alone cannot tell a repeated request from one of a consumer that lost its lease.

    Raises:
        StoreUnavailable: whether the messages are settled is not known. Repeat the same call.
        GatewayProblem: limit_away: the cache does not answer, and no message was settled.
    """
    keys = [f"delayq-gateway-settled:{holder.queue.name}:{one.id}:{one.attempt}:{one.fence}" for one in outcomes]
    known = _read_cache(keys)
    answers: dict[str, str] = {}
    fresh: list[tuple[str, Outcome]] = []
    unsure: list[tuple[str, Outcome]] = []
    for key, one in zip(keys, outcomes, strict=True):
        earlier, _, answer = known.get(key, "").partition(" ")
        if answer in (DONE, LOST):
            answers[key] = answer if earlier == verb else LOST  # settled by another verb
        else:
            (unsure if again or (answer and earlier == verb) else fresh).append((key, one))
    _write_cache({key: f"{verb} {IN_PROGRESS}" for key, _ in (*fresh, *unsure)}, must=True)
    found = {**_settle(holder, fresh, unsure=False), **_settle(holder, unsure, unsure=True)}
    if late := [key for key, _ in fresh if found[key] == LOST]:  # the same request may have ended meanwhile in another process
        found |= {key: DONE for key, value in _read_cache(late).items() if value == f"{verb} {DONE}"}
    _write_cache({key: f"{verb} {answer}" for key, answer in found.items()})
    answers |= found
    return [answers[key] for key in keys]


def _settle(holder: Holder, outcomes: Sequence[tuple[str, Outcome]], *, unsure: bool) -> dict[str, str]:
    counts = holder.settle([one for _, one in outcomes], unsure=unsure)
    return {key: DONE if counted else LOST for (key, _), counted in zip(outcomes, counts, strict=True)}


def _read_cache(keys: Sequence[str]) -> dict[str, str]:
    try:
        return {key: str(value) for key, value in cache.get_many(keys).items()}
    except Exception as error:  # each cache backend has its own errors
        raise _cache_away(error) from error


def _write_cache(values: dict[str, str], *, must: bool = False) -> None:
    """If this fails after the messages were settled, a repeated request settles them again, and Redis decides."""
    try:
        if values:
            cache.set_many(values, timeout=SETTLED_SECONDS)
    except Exception as error:
        if must:
            raise _cache_away(error) from error
        logger.warning("The responses to a consumer could not be stored: %s", error)


def _cache_away(error: Exception) -> GatewayProblem:
    logger.error("The gateway cannot store its responses to consumers, so it rejects their requests: %s", error)
    return GatewayProblem("limit_away", headers={"Retry-After": "5"})
