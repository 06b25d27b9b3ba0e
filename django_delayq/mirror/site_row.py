"""Reads the id of the site from the database, and the last addresses of its queues; see `store/scripts/site.py`."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from functools import partial
from typing import Any, Final, TypeVar

from django.core.exceptions import SynchronousOnlyOperation
from django.core.signals import setting_changed
from django.db import Error, connections
from django.dispatch import receiver

from django_delayq import under_test
from django_delayq.models import Checkpoint, Site, database
from django_delayq.setting_readers import SETTING
from django_delayq.store.scripts import site
from django_delayq.store.scripts.site import NO_FACTS, Facts, SiteRefused

T = TypeVar("T")
FACTS: Final = "queue", "partition", "address", "last_event", "mirror_tokens", "format"


class DatabaseSite(site.Database):
    """Asks the database. A process that knows the id keeps it, even if the database fails later."""

    def __init__(self) -> None:
        self._first: dict[tuple[str, int], str] = {}  # the addresses at the time when the id was read

    def id(self, prefix: str) -> str:
        """See `site.Database`. In tests the row is truncated, cloned or left over, so the id is derived from the prefix."""
        if under_test.derives_site():
            return super().id(prefix)
        try:
            found, known = _read(lambda: (Site.objects.values_list("site", flat=True).first(), _checkpoints()))
        except Error as error:
            raise SiteRefused(code="site_unknown", cause=str(error).strip().rstrip(".")) from error
        if found is None:
            raise SiteRefused(code="site_unknown", cause="the table delayq_site is empty. To create an id, run manage.py delayq adopt")
        self._first = {part: facts.address for part, facts in known.items()}
        return found

    def partition_facts(self, queue: str, partition: int, *, apart: bool = False) -> Facts | None:
        """See `site.Database`. If the database is unavailable, returns the address that was known when the id was read."""
        if under_test.derives_site():
            return None
        read = partial(_checkpoint, queue, partition)
        try:
            return _apart(read) if apart else _read(read)
        except Error:
            return Facts(self._first.get((queue, partition), ""), "")

    def all_partition_facts(self) -> dict[tuple[str, int], Facts] | None:
        """See `site.Database`."""
        if under_test.derives_site():
            return None
        try:
            return _apart(_checkpoints)
        except Error:
            return None


def _checkpoints(**wanted: Any) -> dict[tuple[str, int], Facts]:
    rows = Checkpoint.objects.filter(**wanted).values_list(*FACTS)
    return {
        (queue, partition): Facts(address or "", last, tokens or "", format) for queue, partition, address, last, tokens, format in rows
    }


def _checkpoint(queue: str, partition: int) -> Facts:
    return _checkpoints(queue=queue, partition=partition).get((queue, partition), NO_FACTS)


def _read(read: Callable[[], T]) -> T:
    """Reads over the caller's open connection, so that a pool needs no second one for this thread. It reads over a separate
    connection if that fails (the transaction or the connection may be broken, or an event loop allows no query). It also does so if
    no connection is open: a supervisor, which forks, must keep no connection. The savepoint keeps an error of the query out of the
    caller's transaction.
    """
    caller = database.connection()
    if caller.connection is not None:
        try:
            with database.atomic() if caller.in_atomic_block else nullcontext():
                return read()
        except (Error, SynchronousOnlyOperation):
            pass
    return _apart(read)


def _apart(read: Callable[[], T]) -> T:
    """Reads over a separate connection, which is closed afterwards. The caller's transaction may see an older state."""

    def read_and_close() -> T:
        try:
            return read()
        finally:
            connections.close_all()

    with ThreadPoolExecutor(1, "delayq-site") as apart:
        return apart.submit(read_and_close).result()


@receiver(setting_changed, dispatch_uid="delayq.site")
def _forget(*, setting: str, **_: Any) -> None:
    if setting in (SETTING, "DATABASES"):
        site.forget()
