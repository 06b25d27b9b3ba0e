"""Which declarations in code are the newest, while workers with older code still run: of schedules, and of the rates of tasks."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime, timedelta
from typing import Final

from django_delayq.models import SeenDeclaration

NOTED: Final = timedelta(seconds=15)  # a note of another worker that is younger needs no second one
ALIVE: Final = timedelta(minutes=2)  # a declaration that was not seen for so long counts as new when it is seen again
KEPT: Final = timedelta(days=1)
Seen = dict[tuple[str, str], SeenDeclaration]


def note(mine: Iterable[tuple[str, str]], now: datetime) -> Seen:
    """Notes these pairs of name and fingerprint. Returns all rows as they are then."""
    seen = {(one.name, one.fingerprint): one for one in SeenDeclaration.objects.all()}
    fresh, old, new = [], [], []
    for key in mine:
        seen_one = seen.get(key)
        if seen_one is None:
            seen_one = seen[key] = SeenDeclaration(name=key[0], fingerprint=key[1], first_seen=now, last_seen=now)
            fresh.append(seen_one)
        elif not alive(seen_one, now):
            seen_one.first_seen = seen_one.last_seen = now
            new.append(seen_one.pk)
        elif seen_one.last_seen < now - NOTED:
            seen_one.last_seen = now
            old.append(seen_one.pk)
    known = SeenDeclaration.objects
    known.bulk_create(fresh, ignore_conflicts=True)
    known.filter(pk__in=new).update(first_seen=now, last_seen=now)
    known.filter(pk__in=old).update(last_seen=now)
    return seen


def alive(seen_one: SeenDeclaration, now: datetime) -> bool:
    """Whether it was seen lately. A date in the future comes from before the database's clock was put back, and does not count."""
    return now - ALIVE <= seen_one.last_seen <= now + NOTED


def came_last(name: str, fingerprint: str, seen: Iterable[SeenDeclaration], now: datetime) -> bool:
    """Whether that declaration came last among those of its name."""
    rivals = [seen_one for seen_one in seen if seen_one.name == name and alive(seen_one, now)]
    last = max(rivals, key=lambda seen_one: (seen_one.first_seen, seen_one.fingerprint), default=None)
    return last is not None and last.fingerprint == fingerprint
