"""For unittest: provides the kit as `self.delayq`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any
from unittest import TestCase

if TYPE_CHECKING:
    from django_delayq.testing.kit import Kit


class DelayqMixin:
    """Gives each test a new kit: `class OrderTests(DelayqMixin, TestCase)`. The mixin must come before Django's class."""

    delayq: Kit

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        order = cls.__mro__
        if TestCase in order and order.index(TestCase) < order.index(DelayqMixin):  # its setUp does not call the next one
            raise TypeError(f"{cls.__qualname__}: DelayqMixin must be the first base class: class {cls.__name__}(DelayqMixin, …)")

    def setUp(self) -> None:
        """Makes the kit. It is available after this call, also in `setUp` of subclasses."""
        from django_delayq.testing.kit import one_kit  # there are no models when this module is imported

        super().setUp()  # type: ignore[misc]  # the setUp of the TestCase after the mixin
        self.delayq = one_kit()
        self.delayq.start()
        case: Any = self
        case.addCleanup(self.delayq.stop)
