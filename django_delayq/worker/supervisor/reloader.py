"""`--reload`: sees that a file of the project has changed."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable

from django_delayq.logger import Logger

logger = Logger("django_delayq.worker")

PASS = 1.0


class Reloader:
    """Looks every second at the times of all modules that are loaded, and calls `changed` when one has been written anew.

    A file that does not compile is waited for: a worker that started again with it would only end.
    """

    def __init__(self, changed: Callable[[str], None]) -> None:
        self._changed = changed
        self._times = {path: _written(path) for path in _paths()}  # a change before the first pass counts, too

    def poll(self) -> float:
        """One look."""
        for path in _paths():
            written = _written(path)
            before = self._times.setdefault(path, written)
            if written != before and written:
                self._times[path] = written
                if _compiles(path):
                    self._changed(path)
        return PASS


def _paths() -> list[str]:
    paths = {getattr(module, "__file__", None) for module in list(sys.modules.values())}
    return [path for path in paths if isinstance(path, str) and path.endswith(".py")]


def _written(path: str) -> int:
    try:
        return os.stat(path).st_mtime_ns
    except OSError:
        return 0


def _compiles(path: str) -> bool:
    try:
        with open(path, "rb") as file:
            compile(file.read(), path, "exec")
    except (OSError, SyntaxError, ValueError) as error:
        logger.warning("%s has changed but cannot be loaded, so the worker keeps running the old code: %s", path, error)
        return False
    return True
