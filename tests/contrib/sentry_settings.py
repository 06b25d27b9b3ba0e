"""The sample project with Sentry set up in its settings, as its documentation shows; the environment has SENTRY_DSN."""

from __future__ import annotations

import sentry_sdk

from django_delayq.contrib.sentry import DelayqIntegration
from tests.app.settings import *  # noqa: F403

sentry_sdk.init(traces_sample_rate=1.0, integrations=[DelayqIntegration()])
