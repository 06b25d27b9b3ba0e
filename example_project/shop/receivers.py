"""Receivers of `job_ended`, which the worker sends after the row is in the database."""

from django.dispatch import receiver

from django_delayq.signals import job_ended
from shop.fulfilment import PARTNERS, WAREHOUSE
from shop.models import Ledger, Order

NOTED = {PARTNERS: "partner told", WAREHOUSE: "packed"}


@receiver(job_ended)
def note_what_is_done(sender, job, row, state, **more):
    """The signal is sent at least once, so this adds a line only if it does not exist."""
    order_id = row.meta.get("order") if row is not None else None
    if state == "succeeded" and job.queue in NOTED and Order.objects.filter(pk=order_id).exists():
        Ledger.objects.get_or_create(order_id=order_id, what=NOTED[job.queue])
