"""Jobs in Sentry: `sentry_sdk.init(dsn=…, integrations=[DelayqIntegration()])`.

May import all below, and sentry_sdk. No threads, no queries. A project's settings import it before any app is there, so nothing here
imports models.
"""

from __future__ import annotations

from django_delayq.contrib.sentry.integration import DelayqIntegration

__all__ = ["DelayqIntegration"]
