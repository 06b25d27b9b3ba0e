"""The URL of a list may use only the look-ups that its filters use."""

from __future__ import annotations

import logging
import re
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import product
from typing import Any

import pytest
from django.contrib import admin
from django.contrib.auth.models import User
from django.core.handlers.exception import convert_exception_to_response
from django.db import connection
from django.db.models import Field, Model
from django.http import HttpResponse
from django.test import RequestFactory

import django_delayq as delayq
from django_delayq.models import Job, Operation, Periodic, Queue, SetAside, Target, Worker
from tests.admin.conftest import JOBS, beat, orders, staff
from tests.tasks_for_tests import close_order

__all__ = ["orders", "staff"]
ALLOWED = {
    Job: {"queue", "task"},
    Queue: set(),
    Worker: set(),
    Target: set(),
    Operation: {"stage__exact", "stage__isnull"},
    SetAside: {"queue", "queue__isnull", "code", "code__isnull"},
    Periodic: {"owner"},
}
# Parameters that are not look-ups: Django's names for pages and order, and our names for the list of jobs.
WORDS = {
    "q",
    "p",
    "o",
    "e",
    "all",
    "_popup",
    "_facets",
    "_to_field",
    "_changelist_filters",
    "state",
    "behind",
    "ahead",
    "live",
}


@contextmanager
def values() -> Iterator[list[tuple[str, Any]]]:
    """Collects the SQL that is sent to the database inside the block, with its values."""
    sent: list[tuple[str, Any]] = []

    def note(execute, sql, params, many, context):
        sent.append((sql, params))
        return execute(sql, params, many, context)

    with connection.execute_wrapper(note):
        yield sent


@pytest.fixture(autouse=True)
def _quiet(caplog):
    caplog.set_level(logging.CRITICAL, logger="django")


def lookups(field: Field[Any, Any]) -> list[str]:
    """Returns every way to filter by a field: all registered look-ups and transforms, and look-ups that follow transforms."""
    found = list(field.get_lookups())
    return ["", *found, *(f"{part}__{verb}" for part in ("year", "length", "0") for verb in ("exact", "regex"))]


def names(model: type[Model]) -> Iterator[str]:
    fields = [field for field in model._meta.get_fields() if isinstance(field, Field)]
    for field in fields:
        yield from (f"{field.attname}__{verb}".rstrip("_") for verb in lookups(field))
    for related, field in product(("attempt_set", "event_set", "job", "pk"), ("", "message", "detail", "traceback")):
        for verb in ("", "contains", "regex", "isnull", "in"):
            yield "__".join(filter(None, (related, field, verb)))


def test_no_look_up_but_those_of_the_filters_reaches_the_database(orders, staff):
    delayq.schedule(close_order, 1, delay="1h")
    orders.fold()
    beat("orders")
    asked = 0
    assert {model for model in admin.site._registry if model._meta.app_label == "delayq"} == set(ALLOWED)
    for model, allowed in ALLOWED.items():
        name = model._meta.model_name
        client, user = staff(f"view_{name}"), User.objects.latest("pk")
        wanted = sorted({*names(model), *allowed} - WORDS)
        rowless = model in (Queue, Worker, Target)  # their pages look at no look-up at all: a few addresses say as much as all
        for number, lookup in enumerate(wanted[:: 20 if rowless else 1]):
            with values() as sent:
                # Most without the ways around the admin, which take the most time of a request.
                answer = client.get(f"/admin/delayq/{name}/", {lookup: "needle"}) if number % 40 == 0 else direct(user, model, lookup)
            asked += 1
            assert lookup in allowed or "needle" not in str(sent), (name, lookup)
            assert answer.status_code == (200 if rowless or lookup in allowed else 400), (name, lookup)
        if rowless:
            assert not any(admin.site.get_model_admin(model).lookup_allowed(lookup, "1") for lookup in wanted)
    assert asked > 2000


def direct(user: User, model: type[Model], lookup: str) -> HttpResponse:
    """Returns the response that this user gets from the list of this model."""
    request = RequestFactory().get("/", {lookup: "needle"})
    request.user = user
    return convert_exception_to_response(admin.site.get_model_admin(model).changelist_view)(request)


@pytest.mark.parametrize("field", ["args", "kwargs", "result", "options"])
@pytest.mark.parametrize("verb", ["startswith", "contains", "regex", "gt", "isnull"])
def test_nothing_that_may_be_masked_is_asked_for_by_an_address(orders, staff, settings, field, verb):
    settings.DELAYQ = {**settings.DELAYQ, "SENSITIVE": ["note"]}
    delayq.schedule(close_order, 1, note="needle-4711", delay="1h")
    orders.fold()
    client = staff("view_job")
    with values() as sent:
        assert client.get(JOBS, {f"{field}__{verb}": '{"note":"needle'}).status_code == 400
    assert "needle" not in str(sent)


def test_no_pattern_of_a_person_is_run_by_the_database(orders, staff):
    orders.scheduled(1)
    client = staff("view_job")
    for query in ({"id__regex": "("}, {"args__regex": "(a+)+b"}, {"task__iregex": "("}, {"queue__regex": "("}):
        assert client.get(JOBS, query).status_code == 400
    for text in ("(a+)+b", "error:(a+)+b", "task:(a+)+b", "key:(a+)+b", "arg:note=(a+)+b", "queue:(a+)+b"):
        with values() as sent:
            assert client.get(JOBS, {"q": text}).status_code == 200
        assert not [sql for sql, _ in sent if re.search("REGEXP|~", sql)]
