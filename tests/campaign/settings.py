"""The campaign's project. The addresses come from the environment: workers and web processes may have different ones."""

from __future__ import annotations

import json
import os

from django_delayq import conf

conf.SHORTEST_LEASE = 1.0  # so that tests see many leases end
SECRET_KEY = "only for tests"
USE_TZ = True
DATABASES = {"default": json.loads(os.environ["CAMPAIGN_DATABASE"])}
INSTALLED_APPS = ["django.contrib.auth", "django.contrib.contenttypes", "django_delayq", "tests.campaign.app"]
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"
CAMPAIGN_FOLDER = os.environ["CAMPAIGN_FOLDER"]
CAMPAIGN_WITHOUT = os.environ.get("CAMPAIGN_WITHOUT", "")  # the task that this version of the project lacks
LEASE = int(os.environ.get("CAMPAIGN_LEASE", "4"))
DELAYQ = {
    "REDIS": os.environ["CAMPAIGN_REDIS"],
    "LEASE": LEASE,
    "MAX_ATTEMPTS": 5,
    "BACKOFF": "100ms 200ms",
    "QUEUES": {"default": {}, "orders": {"LEASE": min(3, LEASE)}, "redis": {"DURABILITY": "redis"}},
}
