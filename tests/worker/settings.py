"""A tiny project for workers that run as processes of their own. The addresses come from the environment."""

from __future__ import annotations

import json
import os

from django_delayq import conf
from django_delayq.worker.supervisor import beat
from tests.servers import as_package

conf.SHORTEST_LEASE = 1.0  # so that tests see many leases end
beat.EVERY = 1.0  # and need not wait to be heard
SECRET_KEY = "only for tests"
USE_TZ = True
DATABASES = {
    "default": {
        "ENGINE": "django.db.backends.sqlite3",
        "NAME": os.environ.get("SHOP_DATABASE", ":memory:"),
        "OPTIONS": {
            "timeout": float(os.environ.get("SHOP_PATIENCE", "20")),
            "transaction_mode": "IMMEDIATE",
            "init_command": "PRAGMA journal_mode=WAL;",
        },
    }
}
if "SHOP_DATABASE_SERVER" in os.environ:
    DATABASES["default"] = json.loads(os.environ["SHOP_DATABASE_SERVER"])
INSTALLED_APPS = [
    "django.contrib.auth",
    "django.contrib.contenttypes",
    "django_delayq",
    "tests.worker.shop",
    *os.environ.get("SHOP_APPS", "").split(),
]
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"
REDIS_URL = os.environ["SHOP_REDIS"]
DELAYQ = {
    "REDIS": as_package(REDIS_URL),
    "DURABILITY": "redis",
    "BACKOFF": "100ms",
    "QUEUES": {"default": {}, "slow": {}},
    **json.loads(os.environ.get("SHOP_DELAYQ", "{}")),
}
