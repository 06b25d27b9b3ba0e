"""What a paid order sets off, in the transaction of the payment: the partner is told by a signed webhook, and the
warehouse finds a message in its queue.
"""

from django.conf import settings

import django_delayq as delayq
from shop.tasks import write_to_partner

PARTNERS, WAREHOUSE = "partners", "warehouse"  # queues


def partner_key(order_id):
    """The business key of the delivery that tells the partner."""
    return f"notify-partner:{order_id}"


def pack_key(order_id):
    """That of the message which asks the warehouse to pack it."""
    return f"pack:{order_id}"


def set_off(order_id, *, partner=None):
    """Call it in a transaction: then all of it comes to be, or nothing. `partner`: where that one is, if not where the settings say."""
    delayq.deliver(
        f"{partner or settings.PARTNER_URL}/orders/",
        json={"order": order_id},
        secret="partner",  # the name of a secret in the settings; the secret itself travels with no job
        key=partner_key(order_id),
        meta={"order": order_id},
        on_failure=write_to_partner,
    )
    delayq.push(WAREHOUSE, {"order": order_id}, key=pack_key(order_id), meta={"order": order_id})


def call_off(order_id, *, actor, reason):
    """Takes back what has not been done yet. Call it in a transaction, as `set_off`."""
    delayq.cancel(key=partner_key(order_id), queue=PARTNERS, actor=actor, reason=reason, at_commit=True)
    delayq.cancel(key=pack_key(order_id), queue=WAREHOUSE, actor=actor, reason=reason, at_commit=True)
