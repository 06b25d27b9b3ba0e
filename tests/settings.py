"""Settings of the test suite.

DELAYQ_TEST_DB chooses the database: sqlite (default), postgres or mysql, on a server started for the tests. The servers start here
because Django reads its settings once; they end with the process. Subprocesses of tests get the addresses from the environment.
"""

from __future__ import annotations

import atexit
import json
import os
import shutil

from django_delayq import under_test
from tests import servers

under_test.DERIVES = True  # in the processes that tests start as well
under_test.ISOLATES = False  # these tests say themselves where their jobs go; those of the kit turn it on

DB = os.environ.get("DELAYQ_TEST_DB", "sqlite")
MISSING = ""  # why the tests cannot run here; see conftest.py

# Each process of pytest-xdist has separate servers, which differ from those of the controlling process.
SHARE = os.environ.get("PYTEST_XDIST_WORKER", "")
if os.environ.get("DELAYQ_TEST_SHARE", "") != SHARE:
    os.environ.pop("DELAYQ_TEST_URL", None)
    os.environ.pop("DELAYQ_TEST_DATABASE", None)
    os.environ["DELAYQ_TEST_SHARE"] = SHARE

if "DELAYQ_TEST_URL" not in os.environ:
    try:
        redis = servers.RedisServer()
        redis.start()
        os.environ["DELAYQ_TEST_URL"] = redis.url
    except servers.ServerMissing as error:
        MISSING = str(error)

if "DELAYQ_TEST_DATABASE" not in os.environ:
    if DB == "sqlite":
        folder = servers.folder()
        atexit.register(shutil.rmtree, folder, ignore_errors=True)
        database: dict[str, object] = {
            "ENGINE": "django.db.backends.sqlite3",
            "NAME": f"{folder}/db.sqlite3",
            # Processes die in tests, machines do not: nothing waits for the disk.
            "OPTIONS": {
                "timeout": 20,
                "transaction_mode": "IMMEDIATE",
                "init_command": "PRAGMA journal_mode=WAL; PRAGMA synchronous=OFF;",
            },
            "TEST": {"NAME": f"{folder}/test.sqlite3"},
        }
    else:
        try:
            server = servers.PostgresServer() if DB == "postgres" else servers.MariaDBServer()
            server.start()
            database = server.database()
        except servers.ServerMissing as error:
            MISSING, database = str(error), {}
    os.environ["DELAYQ_TEST_DATABASE"] = json.dumps(database)

REDIS_URL = os.environ.get("DELAYQ_TEST_URL", "unix:///nowhere")
DATABASES = {"default": json.loads(os.environ["DELAYQ_TEST_DATABASE"])}

SECRET_KEY = "only for tests"
ALLOWED_HOSTS = ["*"]
DEBUG = False
USE_TZ = True
PASSWORD_HASHERS = ["django.contrib.auth.hashers.MD5PasswordHasher"]  # a slow one would take half of the admin's tests
ROOT_URLCONF = "tests.urls"
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"
STATIC_URL = "/static/"
INSTALLED_APPS = [
    "django.contrib.admin",
    "django.contrib.auth",
    "django.contrib.contenttypes",
    "django.contrib.messages",
    "django.contrib.sessions",
    "django.contrib.staticfiles",
    "django_delayq",
    "django_delayq.contrib.gateway",
]
MIDDLEWARE = [
    "django.middleware.security.SecurityMiddleware",
    "django.contrib.sessions.middleware.SessionMiddleware",
    "django.middleware.common.CommonMiddleware",
    "django.middleware.csrf.CsrfViewMiddleware",
    "django.contrib.auth.middleware.AuthenticationMiddleware",
    "django.contrib.messages.middleware.MessageMiddleware",
]
TEMPLATES = [
    {
        "BACKEND": "django.template.backends.django.DjangoTemplates",
        "APP_DIRS": True,
        "OPTIONS": {
            "context_processors": [
                "django.template.context_processors.request",
                "django.contrib.auth.context_processors.auth",
                "django.contrib.messages.context_processors.messages",
            ]
        },
    }
]
DELAYQ = {
    "REDIS": servers.as_package(REDIS_URL),
    "QUEUES": {"default": {}, "orders": {}, "redis": {"DURABILITY": "redis"}},
}
