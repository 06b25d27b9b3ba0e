"""The test kit for users: the real scripts on a private server, the real executor in the caller's thread, and time that the test
moves.

May import everything except commands and pages. It has no threads, no processes and no loop: code runs when the test calls it. It
runs queries only through the mirror and the outbox, on the test's own connection. The package does not import the kit, so it costs
nothing in production. pytest loads the plugin before Django is set up, so this module imports nothing that needs the models.
"""

from __future__ import annotations

from django_delayq.testing.cases import DelayqMixin

__all__ = ["DelayqMixin"]
