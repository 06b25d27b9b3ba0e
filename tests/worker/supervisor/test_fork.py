"""What a forked process does not do again."""

from __future__ import annotations

import os
import subprocess
import sys

from tests.stage import ROOT

BORN = """
import gc, os
from django_delayq.worker.supervisor.fork import Forker

loaded = [[] for _ in range(10_000)]

def main(ends):
    print(len(gc.get_objects()) < len(loaded), gc.get_freeze_count() > len(loaded), flush=True)
    return 0

child = Forker(lambda: None).fork("task 1", "w", main)
_, status = os.waitpid(child.pid, 0)
print(os.waitstatus_to_exitcode(status), gc.get_freeze_count())
"""


def test_no_process_looks_again_through_what_was_loaded_before_it_was_forked() -> None:
    """A full collection of all that Django loads holds up each thread for 50 ms."""
    environment = {**os.environ, "DJANGO_SETTINGS_MODULE": "tests.settings"}
    told = subprocess.run(
        [sys.executable, "-c", BORN], cwd=ROOT, env=environment, capture_output=True, text=True, check=True, timeout=60
    )
    assert told.stdout.splitlines() == ["True True", "0 0"]
