"""The URLs of the gateway only."""

from __future__ import annotations

from django.urls import include, path

urlpatterns = [path("queue/v1/", include("django_delayq.contrib.gateway.urls"))]
