"""Processes that a task forks from its own, as multiprocessing does, and what turns itself into a daemon.

Such a fork is no worker: it has one thread, the task's, but it shares the lease table and has the buffer of the original. So it ends
where the task returns, and would else run jobs which the original runs too.
"""

from __future__ import annotations

import os
import signal
import sys

from django_delayq.logger import Logger

logger = Logger("django_delayq.worker")

_is_fork = False


def expect() -> None:
    """Called once by a task process, before it starts threads: what is forked from here on is a task's fork."""
    os.register_at_fork(after_in_child=_become_a_fork)


def end(error: BaseException | None) -> None:
    """The task has come back, with that error. Ends the process if it is such a fork; else does nothing."""
    if not _is_fork:
        return
    code = 0
    try:
        if isinstance(error, SystemExit):
            code = error.code if isinstance(error.code, int) else int(error.code is not None)
        elif error is not None:
            code = 1
            logger.error("a process that a task forked ended with an error", exc_info=error)
        sys.stdout.flush()
        sys.stderr.flush()
    finally:
        os._exit(code)


def _become_a_fork() -> None:
    global _is_fork
    _is_fork = True
    # A task process leaves signals to its supervisor. A fork has none: `Process.terminate()` sends this one, and then waits.
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
