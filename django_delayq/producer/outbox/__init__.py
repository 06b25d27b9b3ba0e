"""The outbox: jobs as rows in the caller's transaction, which are then published to Redis.

May import the nouns, the settings, the store, the models and the ORM. No threads. The modules that need the models are loaded when
the apps are ready, and are attributes of this package from then on.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from django_delayq.exceptions import ConfigError

if TYPE_CHECKING:
    from django_delayq.producer.outbox import far_rows as far_rows
    from django_delayq.producer.outbox import follow_ups as follow_ups
    from django_delayq.producer.outbox import jobs as jobs
    from django_delayq.producer.outbox import pauses as pauses
    from django_delayq.producer.outbox import period_keys as period_keys
    from django_delayq.producer.outbox import requests as requests

installed = False  # whether the app is installed


def load() -> None:
    """Loads the modules that need the models. The app calls this when it is ready."""
    global installed
    from django_delayq.producer.outbox import far_rows, follow_ups, jobs, pauses, period_keys, requests  # noqa: F401

    installed = True


def check_installed() -> None:
    """
    Raises:
        ConfigError: the app is not installed.
    """
    if not installed:
        raise ConfigError('The outbox is not installed. Add "django_delayq" to INSTALLED_APPS, and run manage.py migrate.')
