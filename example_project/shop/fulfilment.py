"""The jobs of a paid order, scheduled in the transaction of the payment: a signed webhook for the partner, and a message for the
warehouse.
"""

from django.conf import settings

import django_delayq as delayq
from shop.tasks import write_to_partner

PARTNERS, WAREHOUSE = "partners", "warehouse"  # queues


def partner_key(order_id):
    """The key of the delivery to the partner."""
    return f"notify-partner:{order_id}"


def pack_key(order_id):
    """The key of the message to the warehouse."""
    return f"pack:{order_id}"


def set_off(order_id, *, partner=None):
    """Call it in a transaction, so that all jobs are scheduled or none. `partner`: the URL of the partner; by default that of the
    settings.
    """
    delayq.deliver(
        f"{partner or settings.PARTNER_URL}/orders/",
        json={"order": order_id},
        secret="partner",  # the name of a secret in the settings; the job does not contain the secret
        key=partner_key(order_id),
        meta={"order": order_id},
        on_failure=write_to_partner,
    )
    delayq.push(WAREHOUSE, {"order": order_id}, key=pack_key(order_id), meta={"order": order_id})


def call_off(order_id, *, actor, reason):
    """Cancels what has not been done yet. Call it in a transaction, like `set_off`."""
    delayq.cancel(key=partner_key(order_id), queue=PARTNERS, actor=actor, reason=reason, at_commit=True)
    delayq.cancel(key=pack_key(order_id), queue=WAREHOUSE, actor=actor, reason=reason, at_commit=True)
