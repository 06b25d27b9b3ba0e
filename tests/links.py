"""Connections of the package's Redis user to a server that the test controls by another connection."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from django_delayq.exceptions import StoreUnavailable
from django_delayq.store.connection.address import RedisSpec
from django_delayq.store.connection.link import Link, connect
from tests.servers import as_package

_opened: list[Link] = []


def package_link(link: Link) -> Link:
    """To the unix socket that the test's link leads to, with no more rights than docs/howto/run-redis.md gives."""
    return opened(as_package(f"unix://{link.where.removeprefix('unix:').partition(',')[0]}"))


def opened(spec: RedisSpec, *, timeout: float = 2.0) -> Link:
    """A link that is closed when the test ends."""
    link = connect(spec, name="package", timeout=timeout)
    _opened.append(link)
    return link


def close_all() -> None:
    """After each test."""
    while _opened:
        _opened.pop().close()


def losing(monkeypatch: pytest.MonkeyPatch, store: type) -> Callable[..., None]:
    """Loses the replies of the next calls of a script, which take effect; or the calls themselves, unless they are `sent`."""

    def lose_next(script: str, times: int, *, sent: bool = True) -> None:
        real, left = getattr(store, script), [times]

        def lossy(*args: Any, **kwargs: Any) -> Any:
            if not left[0]:
                return real(*args, **kwargs)
            left[0] -= 1
            if sent:
                real(*args, **kwargs)
            raise StoreUnavailable("the line broke")

        monkeypatch.setattr(store, script, lossy)

    return lose_next
