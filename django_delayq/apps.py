"""The app: finds the projects' tasks and gives the producer its database side."""

from __future__ import annotations

from typing import Any

from django.apps import AppConfig
from django.utils.module_loading import autodiscover_modules
from django.utils.translation import gettext_lazy as _


class DelayqConfig(AppConfig):
    """`"django_delayq"` in INSTALLED_APPS."""

    name = "django_delayq"
    label = "delayq"
    verbose_name = _("Delay queue")
    default_auto_field = "django.db.models.BigAutoField"

    def ready(self) -> None:
        """Imports the `tasks` module of every installed app, and the system checks."""
        from django_delayq import checks  # noqa: F401  # models must be loaded before these
        from django_delayq.mirror.atomic_runs import DatabaseEffects
        from django_delayq.mirror.outbox import DatabaseOutbox
        from django_delayq.producer import database, inline
        from django_delayq.worker import once

        database.install(DatabaseOutbox())
        once.install(DatabaseEffects())
        inline.install(_run_at_once)
        autodiscover_modules("tasks")


def _run_at_once(plan: Any) -> None:
    from django_delayq.testing import inline_runs  # not where nobody asks for it

    inline_runs.run(plan)
