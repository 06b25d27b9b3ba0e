"""The app of the gateway, and its checks for `check --deploy`."""

from __future__ import annotations

from typing import Any, Final

from django.apps import AppConfig
from django.core.cache import caches
from django.core.checks import CheckMessage, Tags, register
from django.utils.translation import gettext_lazy as _

from django_delayq import conf
from django_delayq.findings import check_message

LOCAL_CACHES: Final = ("LocMemCache", "DummyCache")


class GatewayConfig(AppConfig):
    """`"django_delayq.contrib.gateway"` in INSTALLED_APPS."""

    name = "django_delayq.contrib.gateway"
    label = "delayq_gateway"
    verbose_name = _("Delay queue gateway")
    default_auto_field = "django.db.models.BigAutoField"

    def ready(self) -> None:
        """Registers the system checks."""
        register(check_gateway, Tags.security, deploy=True)


def check_gateway(**_: Any) -> list[CheckMessage]:
    """Checks TLS and the cache."""
    found = []
    if not conf.redirects_to_tls():
        wrong = "The gateway is installed, but requests without TLS are not redirected, so tokens could be sent unencrypted."
        found.append(check_message("W040", wrong))
    kind = next((one.__name__ for one in type(caches["default"]).__mro__ if one.__name__ in LOCAL_CACHES), "")
    if kind:
        wrong = "stores nothing, so the gateway rejects all requests" if kind == "DummyCache" else "is not shared between processes"
        text = f"The gateway counts requests and stores settled messages in the cache 'default', which {wrong}."
        found.append(check_message("W041", text))
    return found
