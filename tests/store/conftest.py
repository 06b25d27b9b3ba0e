from __future__ import annotations

from collections.abc import Iterator

import pytest

from django_delayq.store.connection.link import Link, connect
from tests.store.board import Board
from tests.topologies import ToldNode


@pytest.fixture
def link(redis_server) -> Iterator[Link]:
    link = connect(redis_server.url, name="test")
    link.execute("FLUSHALL")
    yield link
    link.close()


@pytest.fixture
def board(link: Link) -> Board:
    return Board(link)


@pytest.fixture
def node(own_redis) -> Iterator[ToldNode]:
    node = ToldNode(own_redis())
    yield node
    node.close()
