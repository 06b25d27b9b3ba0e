"""The management commands and the subcommands of `delayq`.

May import everything except the admin. No threads. Jobs change only through the producer.
"""

from __future__ import annotations

from typing import Final

from django.core.management.base import CommandError

USAGE: Final = 2


class UsageError(CommandError):
    """The command line is not valid."""

    def __init__(self, text: str) -> None:
        super().__init__(text, returncode=USAGE)
