"""System checks of the gateway, of `check --deploy`."""

from __future__ import annotations

from typing import Any, Final

from django.core.cache import caches
from django.core.checks import CheckMessage, Tags, register

from django_delayq import conf
from django_delayq.findings import check_message

LOCAL: Final = ("LocMemCache", "DummyCache")


@register(Tags.security, deploy=True)
def check_gateway(**_: Any) -> list[CheckMessage]:
    """What surrounds it."""
    return [*_tls(), *_cache()]


def _tls() -> list[CheckMessage]:
    if conf.redirects_to_tls():
        return []
    return [
        check_message(
            "W040", "The gateway is installed, but requests without TLS are not redirected, so tokens could be sent unencrypted."
        )
    ]


def _cache() -> list[CheckMessage]:
    kind = next((one.__name__ for one in type(caches["default"]).__mro__ if one.__name__ in LOCAL), "")
    if not kind:
        return []
    wrong = "stores nothing, so the gateway rejects all requests" if kind == "DummyCache" else "is not shared between processes"
    return [check_message("W041", f"The gateway counts requests and stores settled messages in the cache 'default', which {wrong}.")]
