"""System checks of the gateway, of `check --deploy`.

| id | about |
|---|---|
| delayq.W040 | tokens may travel without TLS |
| delayq.W041 | requests are counted per process |
"""

from __future__ import annotations

from typing import Any, Final

from django.core.cache import caches
from django.core.checks import CheckMessage, Tags, Warning, register

from django_delayq import conf

LOCAL: Final = ("LocMemCache", "DummyCache")


@register(Tags.security, deploy=True)
def check_gateway(**_: Any) -> list[CheckMessage]:
    """What surrounds it."""
    return [*_tls(), *_cache()]


def _tls() -> list[CheckMessage]:
    if conf.redirects_to_tls():
        return []
    return [
        Warning(
            "The gateway is installed, and nothing says that requests come by TLS only: tokens would travel in the clear.",
            hint="Set SECURE_SSL_REDIRECT, or SECURE_PROXY_SSL_HEADER where a proxy ends TLS and turns plain requests away.",
            id="delayq.W040",
        )
    ]


def _cache() -> list[CheckMessage]:
    kind = next((one.__name__ for one in type(caches["default"]).__mro__ if one.__name__ in LOCAL), "")
    if not kind:
        return []
    wrong = "counts nothing, so the gateway lets nobody in" if kind == "DummyCache" else "is each process's own memory"
    return [
        Warning(
            f"The gateway counts requests, and keeps what was settled, in the cache 'default', which {wrong}.",
            hint="Give CACHES['default'] a backend that all processes share, such as Redis; not the database of the jobs.",
            id="delayq.W041",
        )
    ]
