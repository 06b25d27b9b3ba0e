"""The app of the gateway."""

from __future__ import annotations

from django.apps import AppConfig
from django.utils.translation import gettext_lazy as _


class GatewayConfig(AppConfig):
    """`"django_delayq.contrib.gateway"` in INSTALLED_APPS."""

    name = "django_delayq.contrib.gateway"
    label = "delayq_gateway"
    verbose_name = _("Delay queue gateway")
    default_auto_field = "django.db.models.BigAutoField"

    def ready(self) -> None:
        """Registers the system checks."""
        from django_delayq.contrib.gateway import gateway_checks  # noqa: F401  # models must be loaded before these
