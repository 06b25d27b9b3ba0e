"""The loop of batches: ends those whose members have ended without a mirror, and cancels members."""

from __future__ import annotations

from typing import Final

from django_delayq.mirror.mirror_loop import HandOver
from django_delayq.models import Batch
from django_delayq.models.database import ExistsQuery
from django_delayq.producer import batch
from django_delayq.producer.outbox import batches

IDLE: Final = 2.0  # seconds between looks


class BatchLoop:
    """The mirror ends batches right after it has written the ends of members. This loop ends the others: a person or another call ended
    the last member, a mirror died in between, or a batch has no members. It cancels the members of cancelled batches, 200 of each in a
    pass, until none is left. Any number of loops may run at once.
    """

    def __init__(self, hand_over: HandOver = list) -> None:
        self._hand_over = hand_over
        self._any = ExistsQuery(Batch.objects.filter(over_at=None))

    def poll(self) -> float:
        """One pass. Returns seconds to sleep: 0 when there may be more to cancel.

        Raises:
            StoreUnavailable, DatabaseError: call again later.
        """
        if not self._any.found():
            return IDLE
        more = batch.cancel_members()
        self._hand_over(batches.end())
        return 0.0 if more else IDLE
