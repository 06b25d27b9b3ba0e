"""Settings of the sample project. The environment has the values that differ between processes and tests:

- APP_REDIS: the server's URL. APP_DATABASE: the default database, as JSON
- APP_DELAYQ: DELAYQ without the URL, as JSON
- APP_SECRET: the SECRET_KEY of another site
- APP_SERVERS: the URLs of queues on other servers, as JSON by queue
- APP_HORIZON: the HORIZON of the queues of outbox durability, in seconds; longer than the one second between passes
- APP_PARTITIONS: the PARTITIONS of all queues, followed by their FORMER_PARTITIONS, as in "16 4"
- APP_REPLICAS: the REPLICAS of the queues of redis durability
- APP_CALLS_FROM: the address from which it calls, see tests/wires.py
- APP_CACHE: the URL of the default cache, if it is in Redis
- APP_CLOCK: the seconds by which the clock of its host is ahead
- APP_FOLDER: where tasks record their runs
- APP_COUNTS: the URL where tasks of the shop count, if it is another server
- APP_TASKS: TASKS, as JSON. APP_APPS: more apps. APP_WITHOUT: the task that this version of the project lacks
- APP_SITE: "own": the site has the ID of its database; otherwise that of its prefix, as in tests that write to Redis themselves
- APP_LOGGING: LOGGING, as JSON
- APP_CALENDAR: its schedules, see tests/app/schedules.py
"""

from __future__ import annotations

import json
import os

from django_delayq import setting_readers, under_test
from django_delayq.worker.supervisor import worker_beat
from tests.app.record import CLOCK, sleep_without_libfaketime
from tests.wires import call_from

if CLOCK:
    sleep_without_libfaketime()
setting_readers.SHORTEST_LEASE = 1.0  # so that tests see many leases end
setting_readers.SHORTEST_HORIZON = 1.0  # and many far jobs come in
worker_beat.EVERY = 1.0  # and need not wait to be heard
under_test.DERIVES = os.environ.get("APP_SITE") != "own"
SECRET_KEY = os.environ.get("APP_SECRET", "only for tests")
USE_TZ = True
DATABASES = {"default": json.loads(os.environ["APP_DATABASE"])}
INSTALLED_APPS = [
    "django.contrib.auth",
    "django.contrib.contenttypes",
    "django_delayq",
    "tests.app",
    "tests.app.shop",
    *os.environ.get("APP_APPS", "").split(),
]
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"
LOGGING = json.loads(os.environ.get("APP_LOGGING", "{}"))
APP_FOLDER = os.environ["APP_FOLDER"]
APP_WITHOUT = os.environ.get("APP_WITHOUT", "")
APP_CALENDAR = os.environ.get("APP_CALENDAR", "")
DELAYQ = {"REDIS": os.environ["APP_REDIS"], **json.loads(os.environ["APP_DELAYQ"])}
for queue, url in json.loads(os.environ.get("APP_SERVERS", "{}")).items():
    DELAYQ["QUEUES"][queue] = {**DELAYQ["QUEUES"][queue], "REDIS": url}
for options in DELAYQ["QUEUES"].values() if "APP_HORIZON" in os.environ else ():
    if options.get("DURABILITY") != "redis":
        options["HORIZON"] = float(os.environ["APP_HORIZON"])
if "APP_PARTITIONS" in os.environ:
    partitions, *former = map(int, os.environ["APP_PARTITIONS"].split())
    for options in DELAYQ["QUEUES"].values():
        options |= {"PARTITIONS": partitions, "FORMER_PARTITIONS": former}
for options in DELAYQ["QUEUES"].values() if "APP_REPLICAS" in os.environ else ():
    if options.get("DURABILITY") == "redis":
        options["REPLICAS"] = int(os.environ["APP_REPLICAS"])
if "APP_CALLS_FROM" in os.environ:
    call_from(os.environ["APP_CALLS_FROM"])
if "APP_CACHE" in os.environ:
    CACHES = {"default": {"BACKEND": "django.core.cache.backends.redis.RedisCache", "LOCATION": os.environ["APP_CACHE"]}}
REDIS_URL = os.environ.get("APP_COUNTS", DELAYQ["REDIS"])
if "APP_TASKS" in os.environ:
    TASKS = json.loads(os.environ["APP_TASKS"])
