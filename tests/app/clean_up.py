"""An app of the sample project that cleans up before a fork and begins anew after it, as docs/howto/run-workers.md shows."""

from __future__ import annotations

import os
from typing import Any

from django.apps import AppConfig
from django.conf import settings
from django.core.cache import caches

from django_delayq import signals
from django_delayq.store.connection.link import Link, connect

_links: dict[int, Link] = {}


class CleanUp(AppConfig):
    name = "tests.app.clean_up"
    label = "clean_up"

    def ready(self) -> None:
        signals.before_fork.connect(_before)
        signals.process_started.connect(_after)


def _note(*words: object) -> None:
    link = _links.setdefault(os.getpid(), connect(settings.REDIS_URL, name="forks"))
    link.execute("RPUSH", "forks", " ".join(map(str, words)))


def _before(process: str, **_: Any) -> None:
    caches["default"].set("warm", process)  # opens a connection in the supervisor
    _note("before", process, os.getpid())


def _after(process: str, **_: Any) -> None:
    _note("after", process, os.getpid())
