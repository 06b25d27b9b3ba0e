"""A queue with a horizon, for tests of far rows."""

from __future__ import annotations

from datetime import timedelta
from uuid import UUID

import django_delayq as delayq
from django_delayq import clock
from django_delayq.mirror.bring_in import BringInLoop
from django_delayq.producer.stores import stores


class Horizon:
    """The loop that brings in, and a clock for it."""

    def __init__(self, orders) -> None:
        self.loop = BringInLoop(stores.link, orders.config, prefix="delayq", young=-3600)
        self.loop.poll()

    def later(self, **passed: float) -> list[UUID]:
        """Brings in what is due within the horizon when so much time has passed."""
        return self.loop.bring_in(clock.now() + timedelta(**passed))


def near(job: delayq.Job) -> bool:
    """Whether Redis has it."""
    return stores.inspector().job(job.queue, job.id) is not None
