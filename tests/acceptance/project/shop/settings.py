"""Settings as a project writes them. The environment gives the addresses of database and Redis, as in a deployment."""

import json
import os
from pathlib import Path

BASE_DIR = Path(__file__).resolve().parent.parent
SECRET_KEY = "only for the sample shop"
ALLOWED_HOSTS = ["*"]
ROOT_URLCONF = "shop.urls"
ASGI_APPLICATION = "shop.asgi.application"
USE_TZ = True
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"
INSTALLED_APPS = [
    "django.contrib.admin",
    "django.contrib.auth",
    "django.contrib.contenttypes",
    "django.contrib.messages",
    "django.contrib.sessions",
    "django_delayq",
    "orders",
]
MIDDLEWARE = [
    "django.contrib.sessions.middleware.SessionMiddleware",
    "django.contrib.auth.middleware.AuthenticationMiddleware",
    "django.contrib.messages.middleware.MessageMiddleware",
    "orders.middleware.surroundings",
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
STATIC_URL = "static/"
SQLITE = {
    "ENGINE": "django.db.backends.sqlite3",
    "NAME": os.environ.get("SHOP_SQLITE", str(BASE_DIR / "db.sqlite3")),
    "OPTIONS": {"timeout": 20, "transaction_mode": "IMMEDIATE", "init_command": "PRAGMA journal_mode=WAL;"},
}
DATABASES = {"default": json.loads(os.environ["SHOP_DATABASE"]) if "SHOP_DATABASE" in os.environ else SQLITE}
LOGGING = {
    "version": 1,
    "disable_existing_loggers": False,
    "handlers": {"console": {"class": "logging.StreamHandler"}},
    "loggers": {"orders": {"handlers": ["console"], "level": "INFO"}},
}
DELAYQ = {
    "REDIS": os.environ.get("SHOP_REDIS", "embedded"),
    "PREFIX": os.environ.get("SHOP_PREFIX", "shop"),
    "METRICS_TOKEN": os.environ.get("SHOP_METRICS_TOKEN", "only-for-the-sample-shop"),
    "CARRIERS": ["orders.carriers.TenantCarrier", "orders.carriers.LanguageCarrier", "orders.carriers.RequestCarrier"],
    "QUEUES": {
        "default": {},
        "orders": {"TIMEOUT": "30s"},
        "payments": {"BACKOFF": "15s 3m 10m", "MAX_ATTEMPTS": 4},
        "stock": {"MAX_ATTEMPTS": 1},
        "labels": {"MAX_CRASHES": 0},
        "mail": {},
        "reports": {},
    },
}
COUNT_EVERY = os.environ.get("SHOP_COUNT_EVERY", "10m")
TASKS = {"default": {"BACKEND": "django_delayq.contrib.tasks.DelayqBackend", "QUEUES": ["default", "mail"]}}
