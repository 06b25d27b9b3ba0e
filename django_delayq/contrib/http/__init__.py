"""Deliveries: HTTP requests that workers retry until the host accepts them. Set `DELAYQ = {"HTTP": {…}}`, and call `delayq.deliver(…)`.

May import all below. It exports the public names of `targets/`. It starts no threads, and makes no queries.
"""

from __future__ import annotations

from django_delayq.targets.answers import DeliveryFailed
from django_delayq.targets.circuits import Circuit, circuits
from django_delayq.targets.delivery import header_secret
from django_delayq.targets.webhook import SignatureRefused, Verified, verify

__all__ = ["Circuit", "DeliveryFailed", "SignatureRefused", "Verified", "circuits", "header_secret", "verify"]
