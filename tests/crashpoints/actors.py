"""The processes of a case. Each is forked from this one, which has Django loaded, so that a case costs no start of an interpreter."""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any
from uuid import UUID

from django.conf import settings
from django.core.management import call_command
from django.core.signals import setting_changed
from django.db import connections

from django_delayq import failpoints
from django_delayq.console import operation_loop
from django_delayq.mirror.relay import RelayLoop
from django_delayq.worker.supervisor import worker_beat

_PR_SET_PDEATHSIG = 1
READ = "read"  # the file that says that the relay has read rows to be published
YOUNG = 0.3  # seconds for which the relay leaves a row alone; five are too long here


class Actor:
    """A process in a new process group, with its output in the file of its case."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self.code: int | None = None

    @property
    def alive(self) -> bool:
        """Whether it runs."""
        if self.code is None:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            if pid:
                self.code = os.waitstatus_to_exitcode(status)
        return self.code is None

    def signal(self, sign: int) -> None:
        """To this process."""
        if self.alive:
            os.kill(self.pid, sign)

    def signal_group(self, sign: int) -> None:
        """To it and all it has started."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.pid, sign)

    def close(self) -> None:
        """Ends all of it."""
        self.signal_group(signal.SIGKILL)
        if self.code is None:
            _, status = os.waitpid(self.pid, 0)
            self.code = os.waitstatus_to_exitcode(status)


def target(prefix: str) -> dict[str, Any]:
    """The target of a case's offers."""
    return {"KEY": f"{prefix}-out", "KIND": "stream", "MAXLEN": 1000}


def fork(folder: Path, prefix: str, name: str, work: Callable[[], None], armed: str = "", once: str = "once") -> Actor:
    """Starts a process of the case of that folder and prefix."""
    sys.stdout.flush()
    sys.stderr.flush()
    pid = os.fork()
    if pid:
        return Actor(pid)
    code = 1
    try:
        os.setsid()
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        log = os.open(folder / f"{name}.log", os.O_WRONLY | os.O_APPEND | os.O_CREAT)
        for descriptor in (1, 2):
            os.dup2(log, descriptor)
        os.environ[failpoints.ONCE] = str(folder / once)
        _configure(folder, prefix)
        failpoints.arm(armed)
        work()
        code = 0
    except SystemExit as leaving:
        code = leaving.code if isinstance(leaving.code, int) else 1
    except BaseException:
        traceback.print_exc()
    finally:
        with contextlib.suppress(Exception):
            sys.stdout.flush()
            sys.stderr.flush()
        os._exit(code)


def _configure(folder: Path, prefix: str) -> None:
    settings.APP_FOLDER = str(folder)
    settings.DELAYQ = {**settings.DELAYQ, "PREFIX": prefix, "TARGETS": {"shipping": target(prefix)}}
    setting_changed.send(sender=None, setting="DELAYQ", value=settings.DELAYQ, enter=True)
    connections.databases["default"]["NAME"] = str(folder / "db.sqlite3")
    RelayLoop.__init__.__kwdefaults__["young"] = YOUNG
    give_up = RelayLoop._give_up

    def noting(relay: RelayLoop, unread: set[UUID]) -> None:
        (folder / READ).touch()
        give_up(relay, unread)

    RelayLoop._give_up = noting  # called when rows have been read
    worker_beat.TIDY_EVERY = 0.5
    operation_loop.LEASE = 1.0
    operation_loop.ORDERS = 0.3


def worker(roles: str = "move,mirror,relay") -> Callable[[], None]:
    """The options of a worker."""

    def work() -> None:
        call_command("delayq_worker", roles=roles, threads=2, grace=2.0, verbosity=1)

    return work
