"""The gateway of the sample project for uvicorn: `uvicorn tests.contrib.gateway.asgi:application`. Several servers share the cache,
so `GATEWAY_CACHE` names it.
"""

from __future__ import annotations

import os

from django.conf import settings
from django.core.asgi import get_asgi_application

settings.ROOT_URLCONF = "tests.contrib.gateway.served_urls"
settings.ALLOWED_HOSTS = ["*"]
settings.CACHES = {"default": {"BACKEND": "django.core.cache.backends.redis.RedisCache", "LOCATION": os.environ["GATEWAY_CACHE"]}}
application = get_asgi_application()
