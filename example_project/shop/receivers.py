"""What the shop notes when a job has ended: the worker tells it, once the job's row is in the database."""

from django.dispatch import receiver

from django_delayq.signals import job_ended
from shop.fulfilment import PARTNERS, WAREHOUSE
from shop.models import Ledger, Order

NOTED = {PARTNERS: "partner told", WAREHOUSE: "packed"}


@receiver(job_ended)
def note_what_is_done(sender, job, row, state, **more):
    """The signal comes once at least, so the line is written unless it is there."""
    order_id = row.meta.get("order") if row is not None else None
    if state == "succeeded" and job.queue in NOTED and Order.objects.filter(pk=order_id).exists():
        Ledger.objects.get_or_create(order_id=order_id, what=NOTED[job.queue])
