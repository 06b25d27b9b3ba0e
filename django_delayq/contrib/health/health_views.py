"""Three answers in JSON: whether the process lives, whether it can take jobs in, and how well the queues are."""

from __future__ import annotations

from typing import Final

from django.db import Error as DriverError
from django.db import connections
from django.http import HttpRequest, HttpResponse, JsonResponse

from django_delayq import conf
from django_delayq.console import far_jobs, overview, schedule_views, vitals
from django_delayq.console.overview import DOWN
from django_delayq.console.vitals import Vital
from django_delayq.contrib.health.access import for_watchers, open_to_all
from django_delayq.models import Job
from django_delayq.producer.stores import TIMEOUT, stores
from django_delayq.store.connection import Link
from django_delayq.worker import hanging_calls

BAD: Final = 503
Sign = dict[str, str]


@open_to_all
def live(request: HttpRequest) -> HttpResponse:
    """The process answers; nobody is asked. 200 always."""
    return JsonResponse({"live": True})


@open_to_all
def ready(request: HttpRequest) -> HttpResponse:
    """Whether what this process schedules now is kept: 200, else 503. Jobs of outbox durability need the database, and no Redis; those
    of redis durability need the Redis of their queue. It does not judge the queues: no load balancer can help them.
    """
    durabilities = {queue.durability for queue in conf.get().queues.values()}
    database, redis = hanging_calls.answers(TIMEOUT, _database_reached, _redis_reached, behind=connections.close_all)
    well = (bool(database) or "outbox" not in durabilities) and (bool(redis) or "redis" not in durabilities)
    facts = {"ready": well, "database": bool(database), "redis": bool(redis)}
    return JsonResponse(facts, status=200 if well else BAD)


@for_watchers
def health(request: HttpRequest) -> HttpResponse:
    """The signs of the admin's dashboard, each judged: 503 if one is bad. What cannot be asked is bad, too."""
    queues, rows = hanging_calls.answers(TIMEOUT, _queues, _rows, behind=connections.close_all)
    signs = [*(queues or [_away("redis")]), *(rows or [_away("database")])]
    bad = any(sign["level"] == "bad" for sign in signs)
    return JsonResponse({"well": not bad, "signs": signs}, status=BAD if bad else 200)


def _queues() -> list[Sign]:
    return list(map(_sign, vitals.of_redis(overview.look())))


def _rows() -> list[Sign]:
    try:
        schedules = schedule_views.signs(conf.get().database)
        rows = [vitals.outbox(overview.count_unpublished()), *vitals.exceptional()]
        rows += vitals.far(far_jobs.far_queues())
        return [*map(_sign, rows), *map(_sign, schedules)]
    except DriverError:
        return []


def _sign(vital: Vital) -> Sign:
    return {"name": vital.name, "level": vital.level, "value": vital.value}


def _away(name: str) -> Sign:
    return {"name": name, "level": "bad", "value": "cannot be reached"}


def _database_reached() -> bool:
    try:
        Job.objects.using(conf.get().database).order_by("id").values_list("pk").first()  # not SELECT 1: the table has to be there
    except DriverError:
        return False
    return True


def _redis_reached() -> bool:
    """Every server on which jobs are in Redis alone; the shared one where none are."""
    config = conf.get()
    places, needed = stores.places, dict[Link, tuple[Link, str, int]]()
    for name, queue in config.queues.items():
        for partition in queue.served if queue.durability == "redis" else ():
            link = places.of(name, partition)
            needed.setdefault(link.server, (link, name, partition))
    try:
        for link, name, partition in needed.values() or [(stores.link, "", 0)]:
            with stores.guarded(name, partition):
                link.execute("TIME")
    except DOWN:
        return False
    return True
