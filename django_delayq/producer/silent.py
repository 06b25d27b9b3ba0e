"""What one round over many partitions, or queues, does not ask again."""

from __future__ import annotations

from django_delayq.exceptions import StoreUnavailable
from django_delayq.store.connection.error_replies import StoreRefused
from django_delayq.store.connection.link import Link
from django_delayq.store.scripts.site import is_refusal


class Silent:
    """Links by which nobody answers: those of a server that has not, those that have been refused, and those of a server that has
    refused two of them, since a call waits for a refusal to pass. The first one may be about one slot of a Cluster, which is half-way
    to another server, while its neighbours are well.

    `errors`: the last one of each server.
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
