"""URLs as a project writes them."""

from __future__ import annotations

from django.contrib import admin
from django.urls import include, path

urlpatterns = [
    path("admin/", admin.site.urls),
    path("queue/v1/", include("django_delayq.contrib.gateway.urls")),
]
