"""`path("health/", include("django_delayq.contrib.health.urls"))`."""

from __future__ import annotations

from django.urls import path

from django_delayq.contrib.health.health_views import health, live, ready

app_name = "delayq_health"
urlpatterns = [path("", health, name="health"), path("live", live, name="live"), path("ready", ready, name="ready")]
