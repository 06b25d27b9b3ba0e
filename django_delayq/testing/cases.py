"""For unittest: the kit as `self.delayq`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from django_delayq.testing.kit import Kit


class DelayqMixin:
    """Gives each test the kit, fresh: `class OrderTests(DelayqMixin, TestCase)`. It goes in front of Django's class."""

    delayq: Kit

    def setUp(self) -> None:
        """Behind this, in `setUp` of subclasses too, the kit is there."""
        from django_delayq.testing.kit import one_kit  # there are no models when this module is imported

        super().setUp()  # type: ignore[misc]  # of the TestCase that stands behind the mixin
        self.delayq = one_kit()
        self.delayq.start()
        case: Any = self
        case.addCleanup(self.delayq.stop)
