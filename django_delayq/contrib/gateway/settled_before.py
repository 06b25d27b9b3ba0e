"""What callers were answered when they settled messages: kept for an hour in Django's default cache, so that the same settle gets the
same answer when it is sent again. Redis alone cannot tell a repeat from somebody who comes behind the next holder.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from django.core.cache import cache

from django_delayq.contrib.gateway.problems import GatewayProblem
from django_delayq.logger import Logger
from django_delayq.messages.settling import Holder
from django_delayq.store.queue import Outcome

logger: Final = Logger("django_delayq.gateway")
KEPT: Final = 3600  # seconds; for as long Redis knows what has ended
UNDER_WAY: Final = "?"
DONE: Final = "done"
LOST: Final = "lost"


def settle(holder: Holder, verb: str, ends: Sequence[Outcome], *, again: bool) -> list[str]:
    """Tells Redis of these ends, but for those that have their answer. One answer per end, in order: done or lost. `again`: it may have
    been told of all of them before.

    Raises:
        StoreUnavailable: whether they count is not known; the same call, sent again, tells.
        GatewayProblem: limit_away: the cache does not answer, and Redis was told nothing.
    """
    keys = [f"delayq-gateway-settled:{holder.queue.name}:{end.id}:{end.attempt}:{end.fence}" for end in ends]
    notes = _notes(keys)
    answers: dict[str, str] = {}
    fresh: list[tuple[str, Outcome]] = []
    unsure: list[tuple[str, Outcome]] = []
    for key, end in zip(keys, ends, strict=True):
        said, _, answer = notes.get(key, "").partition(" ")
        if answer in (DONE, LOST):
            answers[key] = answer if said == verb else LOST  # it was settled otherwise
        else:
            (unsure if again or (answer and said == verb) else fresh).append((key, end))
    _note({key: f"{verb} {UNDER_WAY}" for key, _ in (*fresh, *unsure)}, must=True)
    found = {**_told(holder, fresh, unsure=False), **_told(holder, unsure, unsure=True)}
    if late := [key for key, _ in fresh if found[key] == LOST]:  # or the same request was under way, and has ended since
        found |= {key: DONE for key, note in _notes(late).items() if note == f"{verb} {DONE}"}
    _note({key: f"{verb} {answer}" for key, answer in found.items()})
    answers |= found
    return [answers[key] for key in keys]


def _told(holder: Holder, ends: Sequence[tuple[str, Outcome]], *, unsure: bool) -> dict[str, str]:
    counts = holder.settle([end for _, end in ends], unsure=unsure)
    return {key: DONE if counted else LOST for (key, _), counted in zip(ends, counts, strict=True)}


def _notes(keys: Sequence[str]) -> dict[str, str]:
    try:
        return {key: str(note) for key, note in cache.get_many(keys).items()}
    except Exception as error:  # what a cache raises when it is away is its own
        raise _away(error) from error


def _note(notes: dict[str, str], *, must: bool = False) -> None:
    """Where this fails after the ends were told, the same request is told once more, and answered by what Redis knows."""
    try:
        if notes:
            cache.set_many(notes, timeout=KEPT)
    except Exception as error:
        if must:
            raise _away(error) from error
        logger.warning("The answers to a consumer could not be kept: %s", error)


def _away(error: Exception) -> GatewayProblem:
    logger.error("The answers to consumers cannot be kept, so none is taken: %s", error)
    return GatewayProblem("limit_away", headers={"Retry-After": "5"})
