"""Runs Django's own tests of tasks against this backend: `make test-django-tasks DJANGO=django-6.1.3.tar.gz`.

The tests stay in Django's source distribution. Django wrote them for its immediate and its dummy backend. This module replaces those
with two backends of ours that behave in the same way: one runs tasks when they are enqueued, the other stores them. All other changes
are changes of names.
"""

from __future__ import annotations

import os
import re
import sys
import tarfile
import tempfile
from pathlib import Path
from typing import Any

import django

BACKPORTED = django.VERSION < (6, 0)  # there the package django-tasks has the tested code
# Each of these says what the immediate or the dummy backend lacks, or where it keeps things.
NOT_OURS = {
    "test_cannot_get_result": "results can be found",
    "test_cannot_refresh_result": "results can be refreshed",
    "test_cannot_pass_run_after": "dates are supported",
    "test_throws_keyboard_interrupt": "nobody presses keys in a worker: there it is an error like others",
    "test_doesnt_wait_until_transaction_commit_by_default and Immediate": "what is enqueued runs after the commit",
    "test_refresh_result and Dummy": "the news is written into the memory of the dummy backend",
    "test_refresh_result_async and Dummy": "likewise",
}
NOT_OF_BACKPORT = {
    "test_validate_disallowed_async_task": "django-tasks words it otherwise",
    "test_run_after_in_decorator": "likewise",
    "pickle": "django-tasks lacks it",
}
NAMES = [
    (r"django\.tasks\.backends\.immediate\.ImmediateBackend", "tests.contrib.stand_ins.AtOnce"),
    (r"django\.tasks\.backends\.dummy\.DummyBackend", "tests.contrib.stand_ins.Remembering"),
    (
        r"from django\.tasks\.backends\.immediate import ImmediateBackend",
        "from tests.contrib.stand_ins import AtOnce as ImmediateBackend",
    ),
    (r"from django\.tasks\.backends\.dummy import DummyBackend", "from tests.contrib.stand_ins import Remembering as DummyBackend"),
    (r"\bSimpleTestCase\b", "Case"),
    (r"\bTransactionTestCase\b", "TransactionCase"),
    (
        r"from django\.test import .*",
        "from tests.contrib.stand_ins import Case, TransactionCase\nfrom django.test import override_settings",
    ),
    (r"available_apps = \[\]", "available_apps = None"),
]
BACKPORT = [
    (r"\bdjango\.tasks\b", "django_tasks"),
    (r"\bInvalidTask\b", "InvalidTaskError"),
    (r"\bInvalidTaskBackend\b", "InvalidTaskBackendError"),
    (r"from django_tasks import TaskContext, task", "from django_tasks import task\nfrom django_tasks.base import TaskContext"),
]


def main(source: str) -> int:
    """Runs the tests. Returns pytest's exit code."""
    import pytest

    # One of them refreshes a result in async code without await. The backends of Django ask no database.
    os.environ["DJANGO_ALLOW_ASYNC_UNSAFE"] = "1"
    with tempfile.TemporaryDirectory() as folder:
        package = Path(folder) / "tasks"
        package.mkdir()
        for name, text in _files(Path(source)):
            (package / name).write_text(_changed(text))
        sys.path.insert(0, folder)
        unwanted = " or ".join(f"({name})" for name in _unwanted())
        options = ["-q", "-n", "0", "-p", "no:cacheprovider", "-k", f"not ({unwanted})", "--rootdir", folder, "-c", os.devnull]
        return int(pytest.main([*options, "--ds", "tests.settings", *sys.argv[2:], str(package)]))


def _unwanted() -> list[str]:
    return [*NOT_OURS, *(NOT_OF_BACKPORT if BACKPORTED else ())]


def _files(source: Path) -> Any:
    wanted = ("__init__.py", "tasks.py", "test_tasks.py", "test_immediate_backend.py", "test_dummy_backend.py")
    if source.is_dir():
        yield from ((name, (source / "tests" / "tasks" / name).read_text()) for name in wanted)
        return
    with tarfile.open(source) as archive:
        for member in archive:
            path = Path(member.name)
            if path.parts[1:3] == ("tests", "tasks") and path.name in wanted:
                opened = archive.extractfile(member)
                assert opened is not None
                yield path.name, opened.read().decode()


def _changed(text: str) -> str:
    for pattern, name in [*NAMES, *(BACKPORT if BACKPORTED else [])]:
        text = re.sub(pattern, name, text)
    return text


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
