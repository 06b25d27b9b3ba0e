"""Effects that must happen once: `delayq.once()`, and what the worker asks of the database for it, as a protocol: it knows no models.
The mirror's package implements that, and the app installs it when it is ready.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any, Protocol
from uuid import UUID

from django_delayq.exceptions import ConfigError
from django_delayq.worker.current import running


class AtomicRun(Protocol):
    """The run on whose behalf an effect happens."""

    @property
    def id(self) -> UUID:
        """The job."""

    @property
    def task(self) -> str:
        """The name of its task."""

    @property
    def queue(self) -> str:
        """Where it came from."""

    @property
    def attempt(self) -> int:
        """Its number."""

    @property
    def nonce(self) -> str:
        """What proves its claim; the fence by which Redis and the rows of this job know the run."""

    def check_lease(self) -> None:
        """Raises LeaseLost if the run no longer owns its job."""


class Effects(Protocol):
    """The database side, installed by the mirror's package when the app is ready."""

    def run(self, run: AtomicRun, call: Callable[[], Any]) -> Any:
        """Calls `call` in a transaction that also notes that it is done, unless that was done before. Returns its result."""

    def once(self, run: AtomicRun, name: str) -> AbstractContextManager[bool]:
        """A transaction whose effects are kept the first time only. Gives whether this is the first time."""


_installed: Effects | None = None


def install(effects: Effects | None) -> None:
    """Gives the worker its database side; None takes it away."""
    global _installed
    _installed = effects


def need() -> Effects:
    """The database side.

    Raises:
        ConfigError: the app is not installed.
    """
    if _installed is None:
        raise ConfigError('delayq.once() needs the database. Add "django_delayq" to INSTALLED_APPS, and migrate.')
    return _installed


def once(name: str) -> AbstractContextManager[bool]:
    """A part of a task whose writes to the database are kept once per job, however often the job runs:

        with delayq.once("charge") as first:
            if first:
                Payment.objects.create(...)

    The block is a transaction on `DELAYQ["DATABASE"]`, committed together with the note that it is done. In a later run `first` is
    False, and whatever the block writes all the same is rolled back. What the block does elsewhere, a mail or a call over the
    network, is not covered: do that only if `first`, and expect it more than once.

    Raises:
        RuntimeError: no task is running here (see `current`).
        LeaseLost: when the block ends, and another worker has the job, or another run of it has done this part meanwhile; nothing is
            kept. Let it pass, and write nothing more: that other run goes on with the job.
        ValueError: the name is empty or longer than 100 characters.
    """
    return need().once(running("delayq.once()"), name)
