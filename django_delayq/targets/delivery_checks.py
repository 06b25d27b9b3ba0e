"""System checks of deliveries."""

from __future__ import annotations

from importlib.util import find_spec
from typing import Any

from django.core.checks import CheckMessage, Tags, register

from django_delayq import conf
from django_delayq.findings import check_message
from django_delayq.targets.addresses import REFUSED

INSIDE = ("metadata", "this host", "loopback", "link-local")


@register(Tags.compatibility)
def check_delivery(**_: Any) -> list[CheckMessage]:
    """Whether this process could deliver."""
    if conf.problems() or conf.get().http is None or find_spec("urllib3") is not None:
        return []
    message = "DELAYQ['HTTP'] is set, and the package urllib3, which sends deliveries, is not installed."
    return [check_message("E037", message)]


@register(Tags.security, deploy=True)
def check_allowed(**_: Any) -> list[CheckMessage]:
    """Whether ALLOW opens what hardly anybody means."""
    http = None if conf.problems() else conf.get().http
    if http is None:
        return []
    return [
        check_message(
            "W021",
            f"DELAYQ['HTTP']['ALLOW'] lists {network}, so deliveries may reach addresses of the kind {kind!r}: anyone who can "
            f"choose a URL can call the servers there and read their answers.",
        )
        for network in http.allow
        if (
            kind := next(
                (kind for kind, one in REFUSED if kind in INSIDE and one.version == network.version and one.overlaps(network)), ""
            )
        )
    ]
