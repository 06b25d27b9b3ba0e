"""The steps that a forked process does not repeat."""

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

child = Forker(dict).fork("task 1", "w", main)
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


LEFT_OPEN = """
import os, socket, sys
import django
django.setup()
from django_delayq import signals
from django_delayq.worker.supervisor.fork import Forker

mine, other = socket.socketpair()
inode = os.fstat(mine.fileno()).st_ino
claimed = [{inode: "a connection to the database 'default'"}, {}, {}]
forker = Forker(lambda: claimed.pop(0) if claimed else {})

def clean_up(process, **_):
    if process == "task 3":
        mine.close()

signals.before_fork.connect(clean_up)
for name in ("task 1", "task 2", "task 3"):
    child = forker.fork(name, "w", lambda ends: print(ends is not None, flush=True) or 0)
    _, status = os.waitpid(child.pid, 0)
    print(name, os.waitstatus_to_exitcode(status), flush=True)
"""


def test_no_process_starts_with_a_connection_that_was_to_be_closed_before_the_fork() -> None:
    """Nor does a later one, as long as the worker itself has it open; a receiver of `before_fork` can close it."""
    environment = {**os.environ, "DJANGO_SETTINGS_MODULE": "tests.settings"}
    told = subprocess.run(
        [sys.executable, "-c", LEFT_OPEN], cwd=ROOT, env=environment, capture_output=True, text=True, check=True, timeout=60
    )
    assert told.stdout.splitlines() == ["task 1 1", "task 2 1", "True", "task 3 0"]
    said = [line for line in told.stderr.splitlines() if "does not start" in line]
    assert len(said) == 2
    assert "task 1 does not start: it has inherited a connection to the database 'default'" in said[0]
    assert "django_delayq.signals.before_fork" in said[0]
