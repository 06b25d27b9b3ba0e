"""The test kit for users: the real scripts on a private server, the real executor in the caller's thread, and time that the test
moves.

May import everything except commands and pages. It has no threads, no processes and no loop: code runs when the test calls it. It
runs queries only through the mirror and the outbox, on the test's own connection. The package does not import the kit, so it costs
nothing in production. pytest loads the plugin before Django is set up, so this module imports nothing that needs the models.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any
from unittest import TestCase

if TYPE_CHECKING:
    from django_delayq.testing.kit import Kit


class DelayqMixin:
    """For unittest. Adds a kit to each test: `class OrderTests(DelayqMixin, TestCase)`. The mixin must come before Django's class."""

    delayq: Kit

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        order = cls.__mro__
        if TestCase in order and order.index(TestCase) < order.index(DelayqMixin):  # its setUp does not call the next one
            raise TypeError(f"{cls.__qualname__}: DelayqMixin must be the first base class: class {cls.__name__}(DelayqMixin, …)")

    def setUp(self) -> None:
        """Creates the kit. It is available after this call, including in the `setUp` methods of subclasses."""
        from django_delayq.testing.kit import one_kit  # there are no models when this module is imported

        super().setUp()  # type: ignore[misc]  # the setUp of the TestCase after the mixin
        self.delayq = one_kit()
        self.delayq.start()
        case: Any = self
        case.addCleanup(self.delayq.stop)


__all__ = ["DelayqMixin"]
