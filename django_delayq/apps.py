"""The app: finds the projects' tasks and gives the producer its database side."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from importlib import import_module
from typing import Any, Final

from django.apps import AppConfig
from django.core import checks
from django.utils.module_loading import autodiscover_modules, import_string
from django.utils.translation import gettext_lazy as _

# The system checks: module, function, tag and how it is registered. A web process runs none, so they are loaded when they run.
CHECKS: Final[tuple[tuple[str, str, str, dict[str, bool]], ...]] = (
    ("checks", "check_settings", checks.Tags.compatibility, {}),
    ("checks", "check_tasks", checks.Tags.compatibility, {}),
    ("checks", "check_inline", checks.Tags.security, {"deploy": True}),
    ("checks", "check_server", checks.Tags.security, {"deploy": True}),
    ("checks", "check_rights", checks.Tags.database, {"deploy": True}),
    ("periodic.declarations", "check_declarations", checks.Tags.compatibility, {}),
)


class DelayqConfig(AppConfig):
    """`"django_delayq"` in INSTALLED_APPS."""

    name = "django_delayq"
    label = "delayq"
    verbose_name = _("Delay queue")
    default_auto_field = "django.db.models.BigAutoField"

    def ready(self) -> None:
        """Imports the `tasks` module of every installed app and `TASK_MODULES`, the system checks, and what tasks may call of what the
        settings have: a process that loaded it only later might find the files of another release.
        """
        from django_delayq import conf, logger, signals  # models must be loaded before these
        from django_delayq.mirror import atomic_runs
        from django_delayq.mirror.site_row import DatabaseSite
        from django_delayq.producer import commit, outbox, worker_modules
        from django_delayq.store.scripts import site
        from django_delayq.worker import current

        for module, name, tag, options in CHECKS:
            checks.register(partial(_check, module, name), tag, **options)
        outbox.load()
        site.install(DatabaseSite())
        current.install_effects(current.Effects(atomic_runs.run_atomic, atomic_runs.once, _batch_of))
        commit.install_inline(_run_at_once)
        signals.command_refused.connect(logger.log_refused)
        autodiscover_modules("tasks")
        worker_modules.load()
        if conf.given("HTTP") is not None:
            from django_delayq.targets import delivery  # noqa: F401  # registers its task and checks
        if conf.given("TARGETS"):
            from django_delayq.targets import offering  # noqa: F401  # loaded, and its task registered
        queues = conf.given("QUEUES")
        if isinstance(queues, Mapping) and any(isinstance(one, Mapping) and one.get("CONSUMER") == "pull" for one in queues.values()):
            from django_delayq.messages import pull, push  # noqa: F401  # loaded; `__init__` lends their names
        for path in conf.task_backends():
            _register_tasks_of_django(path)


def _check(module: str, name: str, **given: Any) -> Any:
    return getattr(import_module(f"django_delayq.{module}"), name)(**given)


def _batch_of(*given: Any) -> Any:
    """Loads the module on use: most processes have no batches."""
    return import_module("django_delayq.producer.batch").of_member(*given)


def _register_tasks_of_django(backend: str) -> None:
    """Registers the tasks of a backend that is ours or a subclass of ours: workers must know all tasks that it can enqueue."""
    if backend.startswith("django."):
        return
    try:
        found = import_string(backend)
    except ImportError:  # Django reports it
        return
    if hasattr(found, "register_found"):
        found.register_found()


def _run_at_once(plan: Any) -> None:
    from django_delayq.testing import calling_thread  # only projects with INLINE need it

    calling_thread.run_inline(plan)
