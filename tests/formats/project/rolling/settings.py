"""The environment has the addresses of Redis and the database."""

import json
import os

DATABASES = {"default": json.loads(os.environ["ROLLING_DATABASE"])}
SECRET_KEY = "only for tests"
USE_TZ = True
INSTALLED_APPS = ["django.contrib.auth", "django.contrib.contenttypes", "django_delayq", "rolling"]
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"
DELAYQ = {
    "REDIS": os.environ["ROLLING_REDIS"],
    "LEASE": 5,
    "BACKOFF": "200ms",
    "QUEUES": {"orders": {}, "bank": {}, "quick": {"DURABILITY": "redis"}},
}
