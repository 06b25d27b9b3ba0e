"""A small web shop on django-delayq. These environment variables replace its defaults:

DELAYQ_REDIS    a URL; default: an embedded Valkey, its data in .demo/
PARTITIONS      partitions of the queue of the orders; default 1. More partitions need a server or a Cluster
DATABASE_URL    postgresql://user@host/name; default: SQLite in .demo/
ONCE_FOR        how long an event of the payment provider is not charged again; default 7d
PAY_WITHIN      seconds a customer has to pay; default 60
SHOP_URL        the URL of the shop; default http://127.0.0.1:8000
PARTNER_URL     the URL of the partner, who receives paid orders; default http://127.0.0.1:8001
"""

import os
from pathlib import Path
from urllib.parse import unquote, urlparse

BASE_DIR = Path(__file__).resolve().parent
HOME = Path(os.environ.get("DEMO_HOME", BASE_DIR / ".demo"))
HOME.mkdir(exist_ok=True)

SECRET_KEY = "an example's key is not secret"
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
    "django_delayq.contrib.gateway",
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

PARTNER_URL = os.environ.get("PARTNER_URL", "http://127.0.0.1:8001")
PARTNER_SECRET = "whsec_YW4gZXhhbXBsZSdzIHNlY3JldCBpcyBub25l"  # not secret either; a real one comes from the environment
PROVIDER_SECRET = "whsec_bm90IHNlY3JldCBlaXRoZXIsIGFuIGV4YW1wbGU="  # signs the webhooks of the payment provider
PARTNER_LEDGER = HOME / "partner.sqlite3"  # the ledger of the partner; `simulate` reads it at the end
WAREHOUSE_LEDGER = HOME / "warehouse.sqlite3"  # the ledger of the warehouse; `simulate` reads it, too

DELAYQ = {
    "REDIS": os.environ.get("DELAYQ_REDIS") or {"EMBEDDED": str(HOME / "valkey")},
    "OBJECT_URL": "shop.links.object_url",  # in the admin, the page of a job leads to its order, as that leads to its jobs
    "QUEUES": {
        "default": {},
        "orders": {"PARTITIONS": int(os.environ.get("PARTITIONS", "1"))},
        "partners": {"BACKOFF": "1s 2s 2s 4s 8s 15s"},
        "payouts": {},
        "warehouse": {"CONSUMER": "pull", "LEASE": "5s", "BACKOFF": "1s 2s 4s 8s 15s"},  # warehouse.py pulls from it over the gateway
    },
    "HTTP": {
        # Deliveries go to no loopback or private address, since a URL may come from outside and lead inside. The partner of this
        # example is a process beside this one, so its network is listed. A shop whose partners are elsewhere leaves ALLOW out.
        "ALLOW": ["127.0.0.0/8"],
        "SECRETS": {"partner": PARTNER_SECRET, "provider": PROVIDER_SECRET},
        "QUEUE": "partners",
        "TIMEOUT": "5s",
        # This partner rejects each order twice. By default, deliveries to a host pause after five failures in a row.
        "BREAKER": None,
    },
}

# The terminal shows the requests of people, without those that pages and the warehouse make on their own.
LOGGING = {
    "version": 1,
    "disable_existing_loggers": False,
    "filters": {"visits": {"()": "shop.visits.Visits"}},
    "formatters": {"visits": {"()": "django.utils.log.ServerFormatter", "format": "{message}", "style": "{"}},
    "handlers": {"visits": {"class": "logging.StreamHandler", "filters": ["visits"], "formatter": "visits"}},
    "loggers": {"django.server": {"handlers": ["visits"], "level": "INFO", "propagate": False}},
}

ONCE_FOR = os.environ.get("ONCE_FOR", "7d")
PAY_WITHIN = int(os.environ.get("PAY_WITHIN", "60"))
SHOP_URL = os.environ.get("SHOP_URL", "http://127.0.0.1:8000")
