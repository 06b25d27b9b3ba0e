"""The addresses of the gateway alone."""

from __future__ import annotations

from django.urls import include, path

urlpatterns = [path("queue/v1/", include("django_delayq.contrib.gateway.urls"))]
