"""The project of the crash points. Every case has a prefix and a database of its own, set in its processes after the fork."""

from __future__ import annotations

import os

from django_delayq import conf

conf.SHORTEST_LEASE = 1.0  # so that tests see many leases end
SECRET_KEY = "only for tests"
USE_TZ = True
DATABASES = {
    "default": {
        "ENGINE": "django.db.backends.sqlite3",
        "NAME": os.environ.get("CRASHPOINTS_DATABASE", "/nowhere"),
        # Processes are killed here, hosts are not: what the system has been given is as good as on disk.
        "OPTIONS": {
            "timeout": 20,
            "transaction_mode": "IMMEDIATE",
            "init_command": "PRAGMA journal_mode=WAL;PRAGMA synchronous=OFF;",
        },
    }
}
INSTALLED_APPS = ["django.contrib.contenttypes", "django_delayq", "tests.crashpoints.app"]
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"
LEASE = 3
DELAYQ = {
    "REDIS": os.environ.get("CRASHPOINTS_REDIS", "unix:///nowhere"),
    "LEASE": LEASE,
    "BACKOFF": "200ms",
    "MAX_CRASHES": 50,
    "RETENTION": {"set_aside": "30d"},
}
