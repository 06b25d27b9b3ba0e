"""Every connection to Redis that the package has opened is closed before a fork, and may be used again."""

from __future__ import annotations

import os
import stat

from django_delayq.store.connection import connection_options
from django_delayq.store.connection.link import Link, connect
from django_delayq.store.connection.wake import WakeLine
from django_delayq.store.keys import Keys
from tests.servers import as_package


def open_sockets() -> set[int]:
    """The inodes of the sockets of this process."""
    facts = []
    for name in os.listdir("/proc/self/fd"):
        try:
            facts.append(os.fstat(int(name)))
        except OSError:  # the one by which the folder was read
            continue
    return {one.st_ino for one in facts if stat.S_ISSOCK(one.st_mode)}


def test_links_and_lines_are_closed_and_named_and_go_on(redis_server) -> None:
    before = open_sockets()
    link = connect(as_package(redis_server.url))
    link.execute("PING")
    line = WakeLine(Link(link.factory, link.where), [Keys("delayq", "default")])
    line.arm()
    mine = open_sockets() - before
    assert len(mine) == 2
    closed = connection_options.close_all()
    assert mine <= set(closed)
    assert all(name.startswith("a connection of delayq to Redis at ") for name in closed.values())
    assert not mine & open_sockets()
    assert not set(closed) & open_sockets()
    assert link.execute("PING") == b"PONG"
    line.close()
    link.close()


def test_nothing_is_left_to_close_where_nothing_is_open(redis_server) -> None:
    connection_options.close_all()
    assert connection_options.close_all() == {}
