"""The settings of a project before the page changes them."""

import json
import os

SECRET_KEY = "only for tests"
USE_TZ = True
ROOT_URLCONF = "shop.urls"
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"
DJANGO = ("admin", "auth", "contenttypes", "messages", "sessions")
INSTALLED_APPS = [*(f"django.contrib.{name}" for name in DJANGO), "django_delayq", "orders"]
DATABASES = {"default": json.loads(os.environ["SHOP_DATABASE"])}
DELAYQ = {"REDIS": "redis://127.0.0.1:1/0", "QUEUES": {"default": {}, "orders": {}, "reports": {}}}
TEMPLATES = [{"BACKEND": "django.template.backends.django.DjangoTemplates", "APP_DIRS": True}]
