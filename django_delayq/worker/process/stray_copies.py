"""Processes that a task forks from its process, as multiprocessing and daemons do. Such a fork is not a worker: it has only the
thread of the task, but it shares the lease table and has a copy of the buffer. So it ends when the task returns. Otherwise it would
run jobs that the original process runs, too.
"""

from __future__ import annotations

import os
import signal
import sys

from django_delayq.logger import Logger

logger = Logger("django_delayq.worker")

_is_fork = False


def expect() -> None:
    """Called once by a task process, before it starts threads: later forks are forks of a task."""
    os.register_at_fork(after_in_child=_become_a_fork)


def end(error: BaseException | None) -> None:
    """Called when the task has ended, with its error. Ends the process if it is a fork of a task."""
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
    # A task process leaves signals to its supervisor. A fork has no supervisor: `Process.terminate()` sends this signal, and then
    # waits.
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
