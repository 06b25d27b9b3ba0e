"""`path("metrics", include("django_delayq.contrib.prometheus.urls"))`."""

from __future__ import annotations

from django.db import connections
from django.http import HttpRequest, HttpResponse
from django.urls import path

from django_delayq.console import health
from django_delayq.contrib.health.urls import for_watchers
from django_delayq.contrib.prometheus.metrics import queues_page
from django_delayq.producer.stores import TIMEOUT
from django_delayq.worker import hanging_calls
from django_delayq.worker.supervisor.probe import TEXT


@for_watchers
def metrics(request: HttpRequest) -> HttpResponse:
    """The metrics of the queues. The status is always 200; `delayq_up` is 0 for what does not answer within TIMEOUT."""
    redis, database = hanging_calls.answers(TIMEOUT, health.redis_samples, health.database_samples, behind=connections.close_all)
    found = [*(redis or health.down_sample("redis")), *(database or health.down_sample("database"))]
    return HttpResponse(queues_page(found), content_type=TEXT)


app_name = "delayq_prometheus"
urlpatterns = [path("", metrics, name="metrics")]
