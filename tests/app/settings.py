"""Settings of the sample project. What differs comes from the environment, since each of its processes may have other addresses:

- APP_REDIS: the server's URL. APP_DATABASE: the default database, as JSON
- APP_DELAYQ: DELAYQ without the URL, as JSON
- APP_FOLDER: where tasks record their runs
- APP_WITHOUT: the task that this version of the project lacks
"""

from __future__ import annotations

import json
import os

from django_delayq import conf

conf.SHORTEST_LEASE = 1.0  # so that tests see many leases end
SECRET_KEY = "only for tests"
USE_TZ = True
DATABASES = {"default": json.loads(os.environ["APP_DATABASE"])}
INSTALLED_APPS = ["django.contrib.auth", "django.contrib.contenttypes", "django_delayq", "tests.app"]
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"
APP_FOLDER = os.environ.get("APP_FOLDER", "")
APP_WITHOUT = os.environ.get("APP_WITHOUT", "")
DELAYQ = {"REDIS": os.environ["APP_REDIS"], **json.loads(os.environ["APP_DELAYQ"])}
