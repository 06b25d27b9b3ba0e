"""A project of 500 tests, and the cost of the test kit's fixture. pytest runs it in another process, with and without the fixture."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Final

TESTS: Final = 500
ROUNDS: Final = 3  # of which the quickest counts: what else the machine does is not the kit's
SETTINGS: Final = """
SECRET_KEY = "only for benchmarks"
INSTALLED_APPS = ["django.contrib.auth", "django.contrib.contenttypes", "django_delayq"]
DATABASES = {"default": {"ENGINE": "django.db.backends.sqlite3", "NAME": ":memory:"}}
USE_TZ = True
"""
PARAMETERS: Final = """
import pytest

@pytest.mark.parametrize("number", range({count}))
def test_it({fixture}, number): ...
"""
SHAPES: Final = {"one test with 500 parameters": (1, PARAMETERS), "500 tests in 50 files": (50, "")}


def measured() -> Iterator[tuple[str, float, float]]:
    """The shape, and seconds without and with the fixture."""
    for shape, (files, text) in SHAPES.items():
        found = dict.fromkeys(("db", "delayq"), float("inf"))
        for _ in range(ROUNDS):
            for fixture, best in found.items():
                found[fixture] = min(best, _run(fixture, files, text))
        yield shape, found["db"], found["delayq"]


def _run(fixture: str, files: int, text: str) -> float:
    with tempfile.TemporaryDirectory(prefix="delayq-kit-") as name:
        folder = Path(name)
        (folder / "config.py").write_text(SETTINGS)
        (folder / "pytest.ini").write_text("[pytest]\nDJANGO_SETTINGS_MODULE = config\n")
        each = "".join(f"def test_{number}({fixture}): ...\n" for number in range(TESTS // files))
        for number in range(files):
            (folder / f"test_file_{number}.py").write_text(text.format(count=TESTS, fixture=fixture) or each)
        clean = {key: value for key, value in os.environ.items() if not key.startswith(("DELAYQ_", "DJANGO_", "PYTEST_", "BENCH_"))}
        path = os.pathsep.join([name, str(Path(__file__).parents[1])])
        began = time.perf_counter()
        done = subprocess.run(
            [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider"],
            cwd=folder,
            env={**clean, "PYTHONPATH": path},
            capture_output=True,
            text=True,
            check=False,
        )
        spent = time.perf_counter() - began
    if f"{TESTS} passed" not in done.stdout:
        raise SystemExit(done.stdout + done.stderr)
    return spent
