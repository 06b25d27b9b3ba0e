"""The health views, for load balancers, monitoring and people, and their URLs.

Include them by `path("health/",
include("django_delayq.contrib.health.urls"))`.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any, Final

from django.contrib.auth.decorators import login_not_required
from django.db import Error as DriverError
from django.db import connections, transaction
from django.http import HttpRequest, HttpResponse, JsonResponse
from django.urls import path
from django.utils.crypto import constant_time_compare
from django.views.decorators.cache import never_cache
from django.views.decorators.http import require_safe

from django_delayq import conf
from django_delayq.console import overview
from django_delayq.console.health import Sign, redis_signs, row_signs
from django_delayq.console.overview import DOWN
from django_delayq.models import Job
from django_delayq.producer.stores import TIMEOUT, stores
from django_delayq.store.connection.link import Link
from django_delayq.worker import hanging_calls

PERMISSION: Final = "delayq.view_queue"
View = Callable[[HttpRequest], HttpResponse]
BAD: Final = 503


def open_to_all(view: View) -> View:
    """A view without login and transaction, which caches do not store."""
    return transaction.non_atomic_requests(login_not_required(never_cache(require_safe(view))))


def for_watchers(view: View) -> View:
    """A view for staff who may see queues, and for clients with the token. 401: not authenticated; 403: no permission."""

    @wraps(view)
    def guarded(request: HttpRequest) -> HttpResponse:
        return _rejection(request) or view(request)

    return open_to_all(guarded)


@open_to_all
def live(request: HttpRequest) -> HttpResponse:
    """The process answers. It asks neither Redis nor the database."""
    return JsonResponse({"live": True})


@open_to_all
def ready(request: HttpRequest) -> HttpResponse:
    """Whether this process can schedule jobs. Jobs of outbox durability need the database; those of redis durability need the Redis of
    their queue. It does not check the health of the queues, because a load balancer cannot improve it.
    """
    durabilities = {queue.durability for queue in conf.get().queues.values()}
    database, redis = hanging_calls.answers(TIMEOUT, _database_reached, _redis_reached, behind=connections.close_all)
    can_schedule = (bool(database) or "outbox" not in durabilities) and (bool(redis) or "redis" not in durabilities)
    facts = {"ready": can_schedule, "database": bool(database), "redis": bool(redis)}
    return JsonResponse(facts, status=200 if can_schedule else BAD)


@for_watchers
def health(request: HttpRequest) -> HttpResponse:
    """The signs of the dashboard in the admin. 503 if one is bad, or if Redis or the database does not answer."""
    redis, rows = hanging_calls.answers(TIMEOUT, lambda: redis_signs(overview.look()), _row_signs, behind=connections.close_all)
    down = {name: [Sign(name=name, value="cannot be reached", level="bad")] for name in ("redis", "database")}
    signs = [*(redis or down["redis"]), *(rows or down["database"])]
    bad = any(sign.level == "bad" for sign in signs)
    shown = [{"name": sign.name, "level": sign.level, "value": sign.value} for sign in signs]
    return JsonResponse({"well": not bad, "signs": shown}, status=BAD if bad else 200)


def _row_signs() -> list[Sign]:
    try:
        return row_signs(overview.count_unpublished())
    except DriverError:
        return []


def _database_reached() -> bool:
    try:
        Job.objects.order_by("id").values_list("pk").first()  # not SELECT 1: the table must exist
    except DriverError:
        return False
    return True


def _redis_reached() -> bool:
    """Whether all servers answer that hold jobs of redis durability; without such jobs, the shared server."""
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


def _rejection(request: HttpRequest) -> HttpResponse | None:
    scheme, _, sent = request.headers.get("Authorization", "").partition(" ")
    if scheme.lower() == "bearer":  # another scheme is for a proxy
        token = conf.get().metrics_token
        if token is not None and constant_time_compare(sent.strip(), token):
            return None
        return _text_response(401, "The token is not DELAYQ['METRICS_TOKEN'].", **{"WWW-Authenticate": 'Bearer error="invalid_token"'})
    try:
        user: Any = getattr(request, "user", None)
        if user is None or not user.is_authenticated:
            remedy = "Send DELAYQ['METRICS_TOKEN'] as Authorization: Bearer, or log in as staff who may see queues."
            return _text_response(401, remedy, **{"WWW-Authenticate": "Bearer"})
        if user.is_active and user.is_staff and user.has_perm(PERMISSION):
            return None
    except DriverError:
        return _text_response(503, "The database is not available, so users cannot log in. Send the token instead.")
    return _text_response(403, f"Staff with the permission {PERMISSION} can see this page.")


def _text_response(status: int, text: str, **headers: str) -> HttpResponse:
    return HttpResponse(f"{text}\n", status=status, content_type="text/plain; charset=utf-8", headers=headers)


app_name = "delayq_health"
urlpatterns = [path("", health, name="health"), path("live", live, name="live"), path("ready", ready, name="ready")]
