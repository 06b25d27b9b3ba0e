"""The jobs of an order, for its page: their purpose, state and admin page."""

from dataclasses import dataclass

from django.urls import reverse

from django_delayq.models import Job
from shop.fulfilment import PARTNERS, WAREHOUSE, pack_key, partner_key


@dataclass(frozen=True)
class OrderJob:
    """One line. `why`: the last error, or empty."""

    purpose: str
    state: str
    attempts: int
    why: str
    url: str

    @property
    def stand(self):
        """Text that changes with the job."""
        return f"{self.state}:{self.attempts}"


def jobs_of(order):
    """The jobs with the keys of the order, oldest first. A key may have several jobs, one after the other."""
    purposes = {
        ("orders", order.close_key): "closes the order, unless it is paid",
        ("orders", f"payment:transfer:{order.pk}"): "charges the transfer",
        (PARTNERS, partner_key(order.pk)): "delivery: tells the partner, signed",
        (WAREHOUSE, pack_key(order.pk)): "message: asks the warehouse to pack it",
        ("orders", order.refund_key): "asks the provider for the refund",
    }
    queues, keys = zip(*purposes, strict=True)
    rows = Job.objects.filter(queue__in=set(queues), key__in=keys).order_by("id")
    return [
        OrderJob(
            purpose=purposes[row.queue, row.key],
            state="retrying" if row.state == "scheduled" and row.attempts else row.state,
            attempts=row.attempts,
            why=row.error if row.state in ("scheduled", "failed") else "",
            url=reverse("admin:delayq_job_change", args=[row.pk]),
        )
        for row in rows
    ]
