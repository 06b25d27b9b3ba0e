"""Wipes and rollbacks, and the content of Redis after them."""

from __future__ import annotations

from dataclasses import dataclass
from uuid import UUID

from django.db.models import QuerySet

from django_delayq import clock, ids
from django_delayq.mirror import restore
from django_delayq.mirror.restore import RestoreLoop, needs_restore
from django_delayq.models import Checkpoint, Job
from django_delayq.producer.stores import stores


@dataclass
class Committing:
    """The run of an atomic task, as the worker gives it."""

    id: UUID
    nonce: str
    task: str = "shop.charge"
    queue: str = "orders"
    attempt: int = 1

    def check_lease(self) -> None:
        pass


def settle_down(orders, loop: RestoreLoop) -> None:
    """Lets mirror and restore take turns until there is nothing to do, as the service does."""
    for _ in range(200):
        orders.fold()
        pause = loop.poll()
        if pause == restore.IDLE and not needs_restore(*loop.look()):
            orders.fold()
            return
        clock.sleep(min(pause, 0.005))
    raise AssertionError("restore does not come to an end")


def end_what_is_lost(orders, loop: RestoreLoop) -> None:
    """Lets a lease pass, and the loop end rows of what Redis has lost for good."""
    for _ in range(500):
        if not loop.look()[1].way_back:
            return
        orders.fold()
        loop.poll()
        clock.sleep(0.005)
    raise AssertionError("what is lost is not looked for")


def in_redis(orders) -> dict[str, str]:
    """Short id -> state of all jobs that Redis has."""
    found = [id for some in orders.mirror.log.jobs() for id, _ in some]
    views = stores.inspector().jobs("orders", [ids.full(id) for id in found]) if found else []
    return {ids.short(view.id): view.state for view in views if view}


def snapshot(link) -> dict[bytes, bytes]:
    """All that Redis holds."""
    return {key: link.execute("DUMP", key) for key in link.execute("KEYS", "*")}


def bring_back(link, copy: dict[bytes, bytes]) -> None:
    """Rolls Redis back to it."""
    link.execute("FLUSHALL")
    for key, value in copy.items():
        link.execute("RESTORE", key, 0, value)


def put_ahead(rows: QuerySet[Job]) -> None:
    """The database has seen events of an hour from now: since then the clock of Redis went back."""
    ahead = f"{clock.wall_ms() + 3_600_000}-0"
    Checkpoint.objects.filter(queue="orders").update(last_event=ahead)
    rows.update(last_event=ahead)
