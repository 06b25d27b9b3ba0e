"""A project with nothing but the queue; the environment says which servers."""

from __future__ import annotations

import json
import os

SECRET_KEY = "only for benchmarks"
USE_TZ = True
DATABASES = {
    "default": json.loads(os.environ.get("BENCH_DATABASE", "null")) or {"ENGINE": "django.db.backends.sqlite3", "NAME": ":memory:"}
}
INSTALLED_APPS = ["django.contrib.auth", "django.contrib.contenttypes", "django_delayq", "benchmarks"]
DELAYQ = {
    "REDIS": os.environ.get("BENCH_REDIS", "redis://localhost:6379/9"),
    "DURABILITY": os.environ.get("BENCH_DURABILITY", "redis"),
    "QUEUES": json.loads(os.environ.get("BENCH_QUEUES", "null")) or {"default": {}},
}
