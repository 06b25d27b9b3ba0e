"""Remembers the servers that do not answer, so that one pass over many partitions or queues does not call them again."""

from __future__ import annotations

from django_delayq.exceptions import StoreUnavailable
from django_delayq.store.connection.error_replies import StoreRefused
from django_delayq.store.connection.link import Link
from django_delayq.store.scripts.site import is_refusal


class Silent:
    """The links that one pass no longer calls: links of a server that did not answer, links that were refused, and all links of a
    server that refused two of them. A call waits for a refusal to pass, so each one costs time. The first refusal may concern only
    one slot of a Cluster, which is moving to another server, while the other slots work.

    `errors`: the last error of each server.
    """

    def __init__(self) -> None:
        self.errors: dict[Link, StoreUnavailable] = {}
        self._silent: set[Link] = set()

    def __contains__(self, link: Link) -> bool:
        return bool(self._silent) and (link in self._silent or link.server in self._silent)

    def error(self, link: Link) -> StoreUnavailable | None:
        """Why that link is left out; None if it is not."""
        return self.errors.get(link.server) if link in self else None

    def note(self, link: Link, server: Link, error: StoreUnavailable) -> None:
        """A call by that link has failed. `server`: to which it led before; by now it may lead to the successor."""
        if not is_refusal(error):  # which is about one queue: the server is well
            self._silent.add(server if server in self.errors or not isinstance(error, StoreRefused) else link)
        self.errors[server] = error
