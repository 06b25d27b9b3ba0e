"""Processes of a worker: forks them, sends them commands, and fills a slot again when its process has died.

Runs in the supervisor, which has one thread, so a fork copies no locked lock. No two processes may share a connection, so none starts
while one is open.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import logging
import os
import signal
import socket
import stat
import sys
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final

from django_delayq import clock, signals
from django_delayq.failpoints import failpoint
from django_delayq.logger import Logger
from django_delayq.store.connection import connection_options
from django_delayq.worker.lease_table import LeaseSlot, LeaseTable
from django_delayq.worker.outcome import signal_name
from django_delayq.worker.process.task_process import ABORT, GAVE_UP, Ends
from django_delayq.worker.supervisor import os_signals
from django_delayq.worker.tally import LatestText, Tally

logger = Logger("django_delayq.worker")

_PR_SET_PDEATHSIG: Final = 1
FOLDERS = ("/proc/self/fd", "/dev/fd")  # on Linux, and on macOS
SHORT_LIFE: Final = 5.0  # seconds; if a process ends sooner, the cause is probably not one bad job
LONGEST_PAUSE: Final = 30.0
NO_ROOM_PAUSE: Final = 5.0


class Child:
    """A forked process, as the supervisor sees it."""

    def __init__(self, name: str, worker: str, pid: int, commands: int, leases: LeaseTable | None) -> None:
        self.lease_file: Path | None = None  # the file that is its lease table
        self.tally: Tally | None = None  # what it counts, if anybody measures
        self.circuits: LatestText | None = None  # its open circuits, if it writes them
        self.name = name
        self.worker = worker
        self.pid = pid
        self.leases = leases
        self.born = clock.monotonic()
        self.kill_at = float("inf")
        self.told_now = False
        self.killed = False
        self.look_at = float("inf")  # when to ask it again for its stacks
        self.hung_since: float | None = None  # since when a run here ignores that it must end
        self.hung: set[tuple[int, int]] = set()  # row and turn of such runs
        self.aborted: dict[tuple[int, int], float] = {}  # row and turn of aborted runs, and when they were aborted
        self.exit_code: int | None = None
        self._commands = commands

    @property
    def in_order(self) -> bool:
        """Whether it ended regularly. The exit code is not enough: a task may have called `os._exit(0)`."""
        return self.exit_code in (0, GAVE_UP) and (self.leases is None or self.leases.left())

    @property
    def claims(self) -> bool:
        """Whether it has begun to claim."""
        return self.leases is not None and self.leases.claims()

    def tell(self, command: bytes) -> None:
        """Sends a command. Does nothing if the child is gone already."""
        if self.exit_code is None:  # otherwise the pipe is closed, and its number may be reused
            with contextlib.suppress(OSError):
                os.write(self._commands, command)

    def abort(self, held: LeaseSlot, now: float) -> None:
        """Tells the process to end that run. Only once: a run that cleans up is not interrupted again."""
        if self.leases is not None and (held.row, held.turn) not in self.aborted:
            self.leases.abort(held)
            self.aborted[held.row, held.turn] = now
            self.tell(ABORT)

    def kill(self) -> None:
        """Kills it at once."""
        self.killed = True
        self.send(signal.SIGKILL)

    def show_stacks(self) -> None:
        """Makes it write the stacks of its threads, to show where it hangs."""
        self.look_at = clock.monotonic() + os_signals.PATIENCE
        self.send(signal.SIGQUIT)

    def look_again(self, now: float) -> None:
        """Asks a second time, some time after `show_stacks`, in case no Python code has run."""
        if self.look_at <= now:
            self.look_at = float("inf")
            self.send(os_signals.SECOND_LOOK)

    def send(self, sign: signal.Signals) -> None:
        """Sends a signal, unless the child has been reaped: its process id may belong to another process by then."""
        if self.exit_code is None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, sign)

    def forget(self) -> None:
        """Called in another child, to which the pipe of this one does not belong."""
        if self.exit_code is None:
            os.close(self._commands)

    def remove_lease_file(self) -> None:
        """Removes the file, because Redis knows what the process held."""
        if self.lease_file is not None:
            self.lease_file.unlink(missing_ok=True)
            self.lease_file = None

    def reap(self) -> bool:
        """Whether it has ended; `exit_code` has the reason (negative: by that signal)."""
        if self.exit_code is None:
            try:
                pid, status = os.waitpid(self.pid, os.WNOHANG)
            except ChildProcessError:  # other code has waited for it
                pid, status = self.pid, 0
            if pid:
                self.exit_code = os.waitstatus_to_exitcode(status)
                os.close(self._commands)
        return self.exit_code is not None


class Forker:
    """Makes children. Every child gets the reading end of one pipe. Only the supervisor has the writing end. When the supervisor dies
    in any way, the pipe closes, and each child sees it. On Linux the kernel kills the children, too.

    Args:
        before_fork: closes the connections of this process that the worker does not know; see `Hooks`. A child does not start if one
            of these connections, or of those to Redis, is still open in it: it would read the replies of others.
    """

    def __init__(self, before_fork: Callable[[], Mapping[int, str]]) -> None:
        self._before_fork = before_fork
        self._unclosed: dict[int, str] = {}  # sockets that were open here although they should have been closed
        self._alive_read, self._alive_write = os.pipe()
        self.to_close: list[Callable[[], None]] = []  # run in each child, to close what only the supervisor may keep open
        self._children: list[Child] = []

    def fork(self, name: str, worker: str, main: Callable[[Ends], int], leases: LeaseTable | None = None) -> Child:
        """Starts a process that runs `main` and ends with its result as exit code."""
        closed = {**self._unclosed, **self._close()}
        signals.before_fork.send_robust(sender=None, worker=worker, process=name)
        closed |= self._close()  # connections that a receiver has opened
        self._unclosed = still_open(closed)
        threads = ", ".join(one.name for one in threading.enumerate() if one is not threading.current_thread())  # not copied
        sys.stdout.flush()
        sys.stderr.flush()
        read, write = os.pipe()
        supervisor = os.getpid()
        failpoint("supervisor.fork")
        try:
            pid = os.fork()
        except OSError:
            os.close(read)
            os.close(write)
            raise
        if pid == 0:
            code = 1
            try:
                self._be_born(name, supervisor, write)
                failpoint("child.born")
                if _owns_its_connections(name, closed, threads):
                    signals.process_started.send_robust(sender=None, worker=worker, process=name)
                    code = main(Ends(read, self._alive_read))
                    signals.process_stopped.send_robust(sender=None, worker=worker, process=name)
            except BaseException:
                logger.exception("%s: ended with an error", name)
            finally:
                with contextlib.suppress(Exception):
                    logging.shutdown()
                    sys.stdout.flush()
                    sys.stderr.flush()
                os._exit(code)  # a child must not run the cleanup code of the supervisor
        os.close(read)
        child = Child(name, worker, pid, write, leases)
        self._children = [other for other in self._children if other.exit_code is None] + [child]
        failpoint("supervisor.forked")
        return child

    def close(self) -> None:
        """Closes the pipe that shows that the supervisor is alive."""
        os.close(self._alive_read)
        os.close(self._alive_write)

    def _close(self) -> dict[int, str]:
        return {**self._before_fork(), **connection_options.close_all()}

    def _be_born(self, name: str, supervisor: int, write: int) -> None:
        gc.freeze()  # objects loaded so far stay: a full collection would stop every job for 50 ms, and copy shared pages
        signal.set_wakeup_fd(-1)
        # Handlers that do nothing, not SIG_IGN, which the subprocesses of a task would inherit. Ctrl-C and service managers send
        # their signals to all processes, but only the supervisor decides.
        for sign in (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1):
            signal.signal(sign, lambda *_: None)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        os_signals.show_when_stuck()
        os.close(self._alive_write)
        os.close(write)
        for child in self._children:
            child.forget()
        for close in self.to_close:
            close()
        if sys.platform == "linux":
            ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != supervisor:
            os._exit(1)


def _owns_its_connections(name: str, closed: Mapping[int, str], threads: str) -> bool:
    """In a child: whether none of the sockets that the supervisor has closed is open here. `threads`: the threads of the supervisor."""
    for shared in still_open(closed).values():
        logger.error(
            "%s does not start: it has inherited %s, which is still open although the worker has closed it. Two processes that "
            "share a connection receive each other's replies. Close it in a receiver of django_delayq.signals.before_fork.",
            name,
            shared,
        )
        return False
    if logger.isEnabledFor(logging.DEBUG):
        logger.debug("%s inherits sockets: %s; threads of the supervisor: %s", name, described(), threads)
    return True


def still_open(closed: Mapping[int, str]) -> dict[int, str]:
    """Those of these sockets that this process has open: the name by the inode."""
    return {inode: closed[inode] for inode, _ in _sockets() if inode in closed} if closed else {}


def described() -> str:
    """All open sockets of this process, for the log: "fd 1 unix, fd 7 to 10.0.0.5:443"."""
    return ", ".join(f"fd {descriptor} {_peer(descriptor)}" for _, descriptor in _sockets())


def _sockets() -> list[tuple[int, int]]:
    """Inode and descriptor of each socket."""
    found = []
    for descriptor in _descriptors():
        try:
            facts = os.fstat(descriptor)
        except OSError:  # the descriptor that read the folder
            continue
        if stat.S_ISSOCK(facts.st_mode):
            found.append((facts.st_ino, descriptor))
    return found


def _descriptors() -> list[int]:
    for folder in FOLDERS:
        try:
            return sorted(map(int, os.listdir(folder)))
        except OSError:
            continue
    return []


def _peer(descriptor: int) -> str:
    try:
        with socket.socket(fileno=os.dup(descriptor)) as sock:
            if sock.family == socket.AF_UNIX:
                return f"unix {os.fsdecode(sock.getpeername() or b'')}".strip()
            host, port, *_ = sock.getpeername()
            return f"to {host}:{port}"
    except OSError:
        return "without a peer"


class Slot:
    """The place of one process of this name. A process that dies is replaced at once; if processes keep dying young, after a pause."""

    def __init__(self, name: str, fork: Callable[[str], Child]) -> None:
        self.name = name
        self.child: Child | None = None
        self.over = False  # it has finished its work, and gets no successor
        self._fork = fork
        self.died = self.replaced = 0  # how many of its processes died, and how many were replaced
        self._fill_at = 0.0
        self._young_deaths = 0

    def fill(self) -> None:
        """Starts a process if the slot is empty and the pause is over."""
        if self.child is not None or self.over or clock.monotonic() < self._fill_at:
            return
        try:
            self.child = self._fork(self.name)
        except OSError as error:  # no memory or no process left at the moment: not a reason to end the processes that work
            self._fill_at = clock.monotonic() + NO_ROOM_PAUSE
            logger.error("%s cannot be started. The next attempt is in %.0f s: %s", self.name, NO_ROOM_PAUSE, error)

    def leave(self, *, burst: bool, stopping: bool) -> Child:
        """Frees the slot, because its process has ended. Returns the process."""
        child = self.child
        assert child is not None
        self.child = None
        if stopping:
            return child
        if burst and child.in_order and child.leases is not None:
            self.over = True
            return child
        self.died += 1
        now = clock.monotonic()
        self._young_deaths = self._young_deaths + 1 if now - child.born < SHORT_LIFE else 0
        pause = min(0.25 * 2.0**self._young_deaths, LONGEST_PAUSE) if self._young_deaths > 1 else 0.0
        self._fill_at = now + pause
        code = child.exit_code or 0
        how = f"was killed by {signal_name(-code)}" if code < 0 else f"ended with exit code {code}"
        logger.error("%s (pid %d) %s; started again in %.1f s", child.name, child.pid, how, pause)
        return child
