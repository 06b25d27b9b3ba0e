"""The users' test kit: the real scripts on a private server, the real executor in the caller's thread, and time that the test moves.

May import everything but commands and pages. No threads, no processes, no loop: what runs, runs where the test calls. Queries only
through the mirror and the outbox, on the test's own connection. Nothing of the package imports it: in production it costs nothing.
pytest loads the plugin before Django is set up, so here stands only what needs no models.
"""

from __future__ import annotations

from django_delayq.testing.cases import DelayqMixin

__all__ = ["DelayqMixin"]
