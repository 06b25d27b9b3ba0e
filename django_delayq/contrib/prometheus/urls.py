"""`path("metrics", include("django_delayq.contrib.prometheus.urls"))`."""

from __future__ import annotations

from django.urls import path

from django_delayq.contrib.prometheus.metrics_view import metrics

app_name = "delayq_prometheus"
urlpatterns = [path("", metrics, name="metrics")]
