"""Where jobs go in Django's test environment: never to the project's own servers. Always on after `setup_test_environment()`, for
every project, even if its tests do not use the kit.
"""

from __future__ import annotations

import os
import re
import sys
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final

from django.core import mail
from django.db import connections

URL: Final = "DELAYQ_TEST_REDIS_URL"
FOLDER: Final = "DELAYQ_TEST_DIR"
RUN: Final = "DELAYQ_TEST_RUN"  # the process that has started the others of a run, where they do not know it
ISOLATES = True  # the tests of this package, which start their servers, turn it off
DERIVES = False  # whether the id of the site is made of the prefix; processes that tests of this package start turn it on
FORGETS: Final[list[Callable[[], None]]] = []  # what a process learns of others, which a test shall not know of the one before it

MAIL: Final = vars(mail)
SIGN: Final = "outbox"  # `setup_test_environment` gives mails one: asked first, since that costs next to nothing


def place(alias: str) -> str:
    """The prefix of tests: the name of the test database, so that parallel test runs have different ones. A database in memory
    has no name of its own, so that the process is named beside it. "" as long as `setup_test_environment` has not been called.
    """
    if SIGN not in MAIL or not ISOLATES or not _in_force():
        return ""
    name = str(connections.settings[alias]["NAME"]) if alias in connections.settings else ""
    own = f"-{os.getpid()}" if not name or ":memory:" in name or "mode=memory" in name else ""
    return "delayq-test:" + re.sub(r"[^\w.-]+", "-", name).strip("-") + own


def derives_site() -> bool:
    """Whether the id of the site is made of the prefix, and not read from the database, which tests truncate, clone and keep."""
    return DERIVES or (SIGN in MAIL and _in_force())


def _in_force() -> bool:
    """Whether it has been called, and not taken back. A project that keeps its mails in memory has an outbox, too."""
    state = getattr(sys.modules.get("django.test.utils"), "_TestState", None)
    return hasattr(state, "saved_data")


def own(given: Mapping[str, Any], prefix: str) -> dict[str, Any]:
    """The settings of tests, which replace those of the project. All queues use the server in TEST_REDIS, else in the environment,
    else one of this run, which ends with it.
    """
    queues = given.get("QUEUES")
    types = given.get("CHECK_TYPES")  # tests find what a type checker would, also where DEBUG is off, as it is in them
    return {
        "PREFIX": prefix,
        "REDIS": given.get("TEST_REDIS") or os.environ.get(URL) or _server(),
        "CHECK_TYPES": True if types is None else types,
        **({"ARCHIVE": None} if str(given.get("ARCHIVE")).startswith("/") else {}),
        **({"QUEUES": {name: _moved(one) for name, one in queues.items()}} if isinstance(queues, Mapping) else {}),
    }


def _moved(options: Any) -> Any:
    """The settings of a queue, without its server."""
    return {key: value for key, value in options.items() if key != "REDIS"} if isinstance(options, Mapping) else options


def _server() -> dict[str, Any]:
    if named := os.environ.get(FOLDER):
        return {"EMBEDDED": named}
    pool = sys.modules.get("multiprocessing")  # by which Django's runner goes with --parallel
    parent = pool.parent_process() if pool is not None else None
    first = int(os.environ.get(RUN) or (os.getpid() if parent is None else parent.pid))
    return {"EMBEDDED": str(Path(tempfile.gettempdir(), f"delayq-test-{os.getuid()}-{first}")), "WITH": first}
