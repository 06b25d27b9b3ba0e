"""The metrics of the queues at an address of the project."""

from __future__ import annotations

from django.db import connections
from django.http import HttpRequest, HttpResponse

from django_delayq.console import samples
from django_delayq.contrib.health.access import for_watchers
from django_delayq.contrib.prometheus.exposition import queues_page
from django_delayq.producer.stores import TIMEOUT
from django_delayq.worker import hanging_calls
from django_delayq.worker.supervisor.probe import TEXT


@for_watchers
def metrics(request: HttpRequest) -> HttpResponse:
    """What Redis and the database say of the queues. 200 also without them: what cannot be asked within TIMEOUT is told as not up."""
    redis, database = hanging_calls.answers(TIMEOUT, samples.of_redis, samples.of_database, behind=connections.close_all)
    found = [*(redis or samples.down("redis")), *(database or samples.down("database"))]
    return HttpResponse(queues_page(found), content_type=TEXT)
