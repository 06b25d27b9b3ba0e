"""A small web shop on django-delayq. The environment may choose other servers than the ones it brings along:

DELAYQ_REDIS    a URL; default: an embedded Valkey, its data in .demo/
DATABASE_URL    postgresql://user@host/name; default: SQLite in .demo/
PAY_WITHIN      seconds a customer has to pay; default 60
"""

import os
from pathlib import Path
from urllib.parse import unquote, urlparse

BASE_DIR = Path(__file__).resolve().parent
HOME = Path(os.environ.get("DEMO_HOME", BASE_DIR / ".demo"))
HOME.mkdir(exist_ok=True)

SECRET_KEY = "an example's key is no secret"
DEBUG = os.environ.get("DEBUG", "1") == "1"
ALLOWED_HOSTS = ["127.0.0.1", "localhost", "[::1]"]
ROOT_URLCONF = "urls"
USE_TZ = True
TIME_ZONE = "UTC"
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"
STATIC_URL = "static/"
LOGIN_URL = "admin:login"

INSTALLED_APPS = [
    "django.contrib.admin",
    "django.contrib.auth",
    "django.contrib.contenttypes",
    "django.contrib.sessions",
    "django.contrib.messages",
    "django.contrib.staticfiles",
    "django_delayq",
    "shop",
]
MIDDLEWARE = [
    "django.middleware.security.SecurityMiddleware",
    "django.contrib.sessions.middleware.SessionMiddleware",
    "django.middleware.common.CommonMiddleware",
    "django.middleware.csrf.CsrfViewMiddleware",
    "django.contrib.auth.middleware.AuthenticationMiddleware",
    "django.contrib.messages.middleware.MessageMiddleware",
    "shop.middleware.strict_content_security_policy",
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


def _database():
    url = os.environ.get("DATABASE_URL")
    if not url:
        # WAL and IMMEDIATE let web and worker write side by side: a writer waits for its turn instead of failing.
        options = {"timeout": 20, "transaction_mode": "IMMEDIATE", "init_command": "PRAGMA journal_mode=WAL;"}
        return {"ENGINE": "django.db.backends.sqlite3", "NAME": HOME / "shop.sqlite3", "OPTIONS": options}
    parts = urlparse(url)
    return {
        "ENGINE": "django.db.backends.postgresql",
        "NAME": parts.path.lstrip("/"),
        "USER": unquote(parts.username or ""),
        "PASSWORD": unquote(parts.password or ""),
        "HOST": parts.hostname or "",
        "PORT": parts.port or "",
    }


DATABASES = {"default": _database()}

DELAYQ = {
    "REDIS": os.environ.get("DELAYQ_REDIS") or {"EMBEDDED": str(HOME / "valkey")},
    "QUEUES": {"default": {}, "orders": {}, "partners": {"BACKOFF": "1s 2s 4s 8s 15s"}},
}

PAY_WITHIN = int(os.environ.get("PAY_WITHIN", "60"))
SHOP_URL = os.environ.get("SHOP_URL", "http://127.0.0.1:8000")
