"""How many requests a token may send: so many in each minute of the clock, counted in Django's default cache. Where that is each
process's own memory, each process counts for itself. If it cannot count, nobody is let in.
"""

from __future__ import annotations

from typing import Final

from django.core.cache import cache

from django_delayq import clock
from django_delayq.contrib.gateway.models import Token
from django_delayq.contrib.gateway.problems import GatewayProblem
from django_delayq.logger import Logger

logger: Final = Logger("django_delayq.gateway")
WINDOW_MS: Final = 60_000


def count(token: Token) -> None:
    """Counts one request.

    Raises:
        GatewayProblem: rate: there were too many in this minute; limit_away: the cache does not count.
    """
    minute, passed = divmod(clock.wall_ms(), WINDOW_MS)
    if _counted(f"delayq-gateway:{token.name}:{minute}") > token.per_minute:
        wait = str(-((passed - WINDOW_MS) // 1000))
        raise GatewayProblem("rate", limit=token.per_minute, headers={"Retry-After": wait})


def _counted(key: str) -> int:
    try:
        cache.add(key, 0, timeout=2 * WINDOW_MS // 1000)
        found = cache.incr(key)
    except Exception as error:  # what a cache raises when it is away is its own
        logger.error("The requests of a token cannot be counted, so it is not let in: %s", error)
        raise GatewayProblem("limit_away", headers={"Retry-After": "5"}) from error
    if not isinstance(found, int):  # a cache that keeps silent about its errors
        raise GatewayProblem("limit_away", headers={"Retry-After": "5"})
    return found
