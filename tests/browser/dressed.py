"""The example project as other sites have it: in the language of the browser, with more queues, with places outside where jobs end,
under a theme for the admin.

DRESS     unfold, jazzmin or grappelli; default: the admin as Django brings it
QUEUES    how many queues there are besides those of the example
SENSITIVE names of arguments that are masked, with commas between them
"""

import os

from settings import *  # noqa: F403  # the example's own
from settings import DELAYQ, INSTALLED_APPS, MIDDLEWARE

DRESS = os.environ.get("DRESS", "")
QUEUES = int(os.environ.get("QUEUES", "0"))

INSTALLED_APPS = [*INSTALLED_APPS, "tests.browser.every_kind"]
ROOT_URLCONF = "tests.browser.dressed_urls"
MIDDLEWARE = [*MIDDLEWARE]
MIDDLEWARE.insert(2, "django.middleware.locale.LocaleMiddleware")  # after the session, before what answers
DELAYQ["QUEUES"] |= {f"queue-{number:02}": {} for number in range(QUEUES)}
DELAYQ["QUEUES"] |= {"mail": {"CONSUMER": "pull"}}
DELAYQ["HTTP"] |= {"ALLOW": ["127.0.0.0/8"], "BREAKER": 1, "PAUSE": "10m"}
DELAYQ["TARGETS"] = {
    "shipping": {"KEY": "shipping-out", "KIND": "stream", "MAXLEN": 100_000},
    "invoices": {"KEY": "invoices-out", "KIND": "list", "MAXLEN": None},
}
DELAYQ["SENSITIVE"] = list(filter(None, os.environ.get("SENSITIVE", "").split(",")))

if DRESS:
    # Before Django's admin, whose templates they replace. All three write code and styles into their pages.
    INSTALLED_APPS = [DRESS, *INSTALLED_APPS]
    MIDDLEWARE.remove("shop.middleware.strict_content_security_policy")
    X_FRAME_OPTIONS = "SAMEORIGIN"
    JAZZMIN_SETTINGS = {"site_title": "Shop", "use_google_fonts_cdn": False}
