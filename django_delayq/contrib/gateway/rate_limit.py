"""Counts the requests of each token per minute in Django's default cache. With a cache that is local to a process, each process has its
own limit. If the cache fails, the gateway rejects requests.
"""

from __future__ import annotations

from typing import Final

from django.core.cache import cache

from django_delayq import clock
from django_delayq.contrib.gateway.models import Token
from django_delayq.contrib.gateway.responses import GatewayProblem
from django_delayq.logger import Logger

logger: Final = Logger("django_delayq.gateway")
WINDOW_MS: Final = 60_000


def count(token: Token) -> None:
    """Counts a request.

    Raises:
        GatewayProblem: rate: too many requests in this minute; limit_away: the cache does not count.
    """
    minute, passed = divmod(clock.wall_ms(), WINDOW_MS)
    if _incremented(f"delayq-gateway:{token.name}:{minute}") > token.per_minute:
        wait = str(-((passed - WINDOW_MS) // 1000))
        raise GatewayProblem("rate", limit=token.per_minute, headers={"Retry-After": wait})


def _incremented(key: str) -> int:
    try:
        cache.add(key, 0, timeout=2 * WINDOW_MS // 1000)
        found = cache.incr(key)
    except Exception as error:  # each cache backend has its own errors
        logger.error("The gateway cannot count requests, so it rejects them: %s", error)
        raise GatewayProblem("limit_away", headers={"Retry-After": "5"}) from error
    if not isinstance(found, int):  # a cache that hides its errors
        raise GatewayProblem("limit_away", headers={"Retry-After": "5"})
    return found
