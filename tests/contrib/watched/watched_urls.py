"""URLs as a project writes them."""

from __future__ import annotations

from django.contrib import admin
from django.urls import include, path

urlpatterns = [
    path("admin/", admin.site.urls),
    path("metrics", include("django_delayq.contrib.prometheus.urls")),
    path("health/", include("django_delayq.contrib.health.urls")),
]
