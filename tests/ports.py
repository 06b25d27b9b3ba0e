"""Ports for servers of tests. The system lends ports from 32,768 on (Linux; 49,152 elsewhere) to connections that anybody opens, so
one of those that was free a moment ago may be taken when the server starts. These are below, and each is one process's as long as it
lives: it holds a lock on one byte of a file for it, which the system lets go when the process ends, however it ends.
"""

from __future__ import annotations

import contextlib
import fcntl
import functools
import itertools
import os
import socket
from typing import BinaryIO

BUS = 10_000  # a node of a Cluster adds this to its port, for what nodes say to each other
PORTS = range(10_000, 16_000)  # with their bus ports below 32,768, and different from those of example_project/cluster.py
_numbers = itertools.count()


def free_port() -> int:
    """A port of this process's own, for as long as it lives, whose bus is free as well.

    Raises RuntimeError where all of PORTS are taken.
    """
    for number in itertools.islice(_numbers, len(PORTS)):
        port = PORTS[number % len(PORTS)]
        if _is_own(port) and _is_free(port) and _is_free(port + BUS):
            return port
    raise RuntimeError(f"no port of {PORTS.start} to {PORTS.stop - 1} is free")


def _is_own(port: int) -> bool:
    with contextlib.suppress(BlockingIOError, PermissionError):  # which of them the system says is its own choice
        fcntl.lockf(_locks(os.getpid()), fcntl.LOCK_EX | fcntl.LOCK_NB, 1, port)
        return True
    return False


@functools.cache
def _locks(pid: int) -> BinaryIO:
    """The file of this process: a forked child holds no lock of its parent's. One place for all, whatever TMPDIR some of them have."""
    return open(f"/tmp/dq-ports-{os.geteuid()}", "ab")


def _is_free(port: int) -> bool:
    with contextlib.suppress(OSError), socket.socket() as probe:
        probe.bind(("127.0.0.1", port))
        return True
    return False
