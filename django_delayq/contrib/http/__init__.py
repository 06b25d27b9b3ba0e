"""Deliveries: requests that a worker sends until the host has said yes. `DELAYQ = {"HTTP": {…}}`, and `delayq.deliver(…)`.

May import all below. It is what projects import of `targets/`, which does the work. No threads, no queries.
"""

from __future__ import annotations

from django_delayq.targets.answers import DeliveryFailed
from django_delayq.targets.circuits import Circuit, circuits
from django_delayq.targets.delivery import header_secret
from django_delayq.targets.webhook import SignatureRefused, Verified, verify

__all__ = [
    "Circuit",
    "DeliveryFailed",
    "SignatureRefused",
    "Verified",
    "circuits",
    "header_secret",
    "verify",
]
