"""Checks before the start of a worker that its queues belong to this site."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable
from typing import Final

from django.core.management.base import CommandError
from django.db import Error

from django_delayq import clock
from django_delayq.conf import Config
from django_delayq.exceptions import StoreUnavailable
from django_delayq.mirror.adoption import UNKNOWN, check_workers, refusals
from django_delayq.mirror.checkpoint import note_refused
from django_delayq.models import database
from django_delayq.store.connection.places import Places
from django_delayq.store.scripts import site
from django_delayq.store.scripts.site import SiteRefused
from django_delayq.text import visible

WAIT: Final = 1.0  # seconds between queries to a database that does not answer


def check_site(places: Places, config: Config, queues: Iterable[str], warn: Callable[[str], None], *, burst: bool) -> None:
    """Refuses queues of another site. If the database cannot be reached, the worker waits for it, and logs that once. With `burst`, it
    does not wait.

    Raises:
        CommandError: the worker does not start.
    """
    parts = [(name, partition) for name in queues for partition in config.queue(name).served]
    # Includes the other queues: a worker of this prefix also registers, and the site of those queues may not have registered yet.
    parts += [(name, 0) for name in config.queues if (name, 0) not in parts]
    waits = False
    while True:
        try:
            return _refuse(places, config.prefix, parts)
        except SiteRefused as error:
            if burst or error.code != UNKNOWN:
                with contextlib.suppress(Error):
                    note_refused(error)
                raise CommandError(visible(f"{error} The worker does not start.")) from error
            if not waits:
                warn(f"{error} The worker is waiting for the database.")
            waits = True
            database.connection().close()  # a broken connection stays broken
            clock.sleep(WAIT)


def _refuse(places: Places, prefix: str, parts: list[tuple[str, int]]) -> None:
    site.of(prefix)  # before any fork, even without Redis, because all processes of the worker inherit it
    for part in parts:
        with contextlib.suppress(StoreUnavailable):  # it has been reported, and the loops wait for the server
            for refusal in refusals(places, prefix, [part]):
                raise refusal
    with contextlib.suppress(StoreUnavailable):
        check_workers(places, prefix)
