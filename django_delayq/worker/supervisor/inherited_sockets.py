"""The sockets that a forked process inherits. Two processes that share a connection read each other's answers."""

from __future__ import annotations

import os
import socket
import stat
import threading
from collections.abc import Mapping

FOLDERS = ("/proc/self/fd", "/dev/fd")  # on Linux, and on macOS


def still_open(closed: Mapping[int, str]) -> dict[int, str]:
    """The sockets that this process has open, among these: the name by the inode."""
    return {inode: closed[inode] for inode, _ in _sockets() if inode in closed} if closed else {}


def described() -> str:
    """All open sockets of this process, for the log: "fd 1 unix, fd 7 to 10.0.0.5:443"."""
    return ", ".join(f"fd {descriptor} {_peer(descriptor)}" for _, descriptor in _sockets())


def other_threads() -> str:
    """The names of the threads beside this one, which a fork does not copy."""
    return ", ".join(thread.name for thread in threading.enumerate() if thread is not threading.current_thread())


def _sockets() -> list[tuple[int, int]]:
    """Inode and descriptor of each."""
    found = []
    for descriptor in _descriptors():
        try:
            facts = os.fstat(descriptor)
        except OSError:  # the one by which the folder was read
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
