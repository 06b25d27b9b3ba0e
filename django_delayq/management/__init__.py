"""The management commands and the subcommands of `delayq`.

May import everything except the admin. No threads. Jobs change only through the producer.
"""

from __future__ import annotations

from argparse import ArgumentTypeError
from collections.abc import Callable
from typing import Final

from django.core.management.base import CommandError

from django_delayq import durations

USAGE: Final = 2


class UsageError(CommandError):
    """The command line is not valid."""

    def __init__(self, text: str) -> None:
        super().__init__(text, returncode=USAGE)


def parse_duration(text: str) -> float:
    """A type of argparse: a number of seconds, or text such as 1h30m."""
    try:
        return durations.seconds(float(text) if text.replace(".", "", 1).isdigit() else text)
    except ValueError as error:
        raise ArgumentTypeError(str(error)) from error


def at_least(least: int) -> Callable[[str], int]:
    """A type of argparse: whole numbers from this one on."""

    def read(text: str) -> int:
        if not text.isdecimal() or int(text) < least:
            raise ArgumentTypeError(f"{text!r} is not a whole number of at least {least}")
        return int(text)

    return read
