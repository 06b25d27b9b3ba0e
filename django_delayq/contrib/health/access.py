"""Who may read what the queues say of themselves: staff who may see queues, or who has the token of the settings."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any, Final

from django.contrib.auth.decorators import login_not_required
from django.db import Error as DriverError
from django.db import transaction
from django.http import HttpRequest, HttpResponse
from django.utils.crypto import constant_time_compare
from django.views.decorators.cache import never_cache
from django.views.decorators.http import require_safe

from django_delayq import conf

PERMISSION: Final = "delayq.view_queue"
View = Callable[[HttpRequest], HttpResponse]


def open_to_all(view: View) -> View:
    """A view that anybody may read, also where the project asks for a login. It opens no transaction, and nobody keeps a copy."""
    return transaction.non_atomic_requests(login_not_required(never_cache(require_safe(view))))


def for_watchers(view: View) -> View:
    """A view for staff who may see queues, and for whoever sends the token. 401: nobody is known; 403: somebody, who may not."""

    @wraps(view)
    def guarded(request: HttpRequest) -> HttpResponse:
        return _refusal(request) or view(request)

    return open_to_all(guarded)


def _refusal(request: HttpRequest) -> HttpResponse | None:
    scheme, _, sent = request.headers.get("Authorization", "").partition(" ")
    if scheme.lower() == "bearer":  # of another one a proxy in front has made use
        token = conf.get().metrics_token
        if token is not None and constant_time_compare(sent.strip(), token):
            return None
        return _told(401, "The token is not that of DELAYQ['METRICS_TOKEN'].", **{"WWW-Authenticate": 'Bearer error="invalid_token"'})
    try:
        user: Any = getattr(request, "user", None)
        if user is None or not user.is_authenticated:
            wanted = "Send DELAYQ['METRICS_TOKEN'] as Authorization: Bearer, or log in as staff who may see queues."
            return _told(401, wanted, **{"WWW-Authenticate": "Bearer"})
        if user.is_active and user.is_staff and user.has_perm(PERMISSION):
            return None
    except DriverError:
        return _told(503, "The database does not say who you are. The token needs no database.")
    return _told(403, f"This is for staff with the permission {PERMISSION}.")


def _told(status: int, text: str, **headers: str) -> HttpResponse:
    return HttpResponse(f"{text}\n", status=status, content_type="text/plain; charset=utf-8", headers=headers)
