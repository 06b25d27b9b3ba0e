"""Links of the package's own user to a server that a test knows by a link of its own."""

from __future__ import annotations

from django_delayq.store.connection import Link, connect
from tests.servers import as_package

_opened: list[Link] = []


def package_link(link: Link) -> Link:
    """To the unix socket that the test's link leads to, with no more rights than docs/operations.md asks for."""
    return opened(as_package(f"unix://{link.where.removeprefix('unix:').partition(',')[0]}"))


def opened(url: str) -> Link:
    """A link that is closed when the test ends."""
    link = connect(url, name="package")
    _opened.append(link)
    return link


def close_all() -> None:
    """After each test."""
    while _opened:
        _opened.pop().close()
