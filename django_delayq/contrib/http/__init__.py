"""Deliveries: requests that a worker sends until the host has said yes. `DELAYQ = {"HTTP": {…}}`, and `delayq.deliver(…)`.

May import all below, and in `client` urllib3, which is there once the first delivery is sent. Threads of the worker come through here;
locks, no threads of its own. No queries.
"""

from __future__ import annotations

from django_delayq.contrib.http.answers import DeliveryFailed
from django_delayq.contrib.http.circuits import Circuit, circuits
from django_delayq.contrib.http.delivery import header_secret
from django_delayq.contrib.http.webhook import SignatureRefused, Verified, verify

__all__ = [
    "Circuit",
    "DeliveryFailed",
    "SignatureRefused",
    "Verified",
    "circuits",
    "header_secret",
    "verify",
]
