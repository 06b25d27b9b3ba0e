"""Carriers pack what travels with a job, and wrap its runs."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest

import django_delayq as delayq
from django_delayq.models import Job
from django_delayq.producer import carriers
from django_delayq.states import CARRIED
from tests.carriers import TENANT, Tenant, seen
from tests.tasks_for_tests import close_order

pytestmark = pytest.mark.django_db(transaction=True)


class Unpackable(Tenant):
    def pack(self) -> object:
        return {1, 2}


@pytest.fixture
def tenant(settings) -> Iterator[None]:
    settings.DELAYQ = {**settings.DELAYQ, "CARRIERS": ["tests.carriers.Tenant"]}
    seen.clear()
    token = TENANT.set("acme")
    yield
    TENANT.reset(token)


def test_what_is_packed_travels_with_the_job_and_is_no_meta_of_the_users(delayq_redis, tenant):
    job = delayq.schedule(close_order, 7, meta={"by": "form"})
    row = Job.objects.get(pk=job.id)
    assert row.options == {"meta": {"by": "form", CARRIED: {"Tenant": "acme"}}}
    assert row.meta == {"by": "form"}


def test_nothing_packed_is_nothing_carried(delayq_redis, tenant):
    TENANT.set(None)
    job = delayq.schedule(close_order, 7)
    assert Job.objects.get(pk=job.id).options == {}


def test_what_json_does_not_hold_is_refused_with_its_place(delayq_redis, settings):
    settings.DELAYQ = {**settings.DELAYQ, "CARRIERS": [f"{__name__}.Unpackable"]}
    with pytest.raises(delayq.PayloadError, match=r"carried'\]\['Unpackable'\] is of type set"):
        delayq.schedule(close_order, 7)


def test_the_key_of_the_propagated_context_is_reserved(delayq_redis):
    with pytest.raises(delayq.PayloadError, match=r"meta has the key 'delayq\.carried'"):
        delayq.schedule(close_order, 7, meta={CARRIED: {}})


def test_a_run_happens_inside_its_carriers(tenant):
    def task(number: int) -> object:
        return TENANT.get(), number

    assert carriers.wrapped(task, {CARRIED: {"Tenant": "other"}}, False)(5) == ("other", 5)
    assert seen == [("in", "other"), ("out", "other")]
    assert TENANT.get() == "acme"


def test_a_coroutine_happens_inside_its_carriers(tenant):
    async def task(number: int) -> object:
        await asyncio.sleep(0)
        return TENANT.get(), number

    assert asyncio.run(carriers.wrapped(task, {CARRIED: {"Tenant": "other"}}, True)(5)) == ("other", 5)
    assert seen == [("in", "other"), ("out", "other")]


@pytest.mark.parametrize("meta", [{}, {CARRIED: {}}, {CARRIED: 5}, {CARRIED: {"Gone": 1}}])
def test_a_run_without_propagated_context_is_wrapped_too(tenant, meta):
    assert carriers.wrapped(lambda: TENANT.get(), meta, False)() is None


def test_a_run_that_fails_leaves_its_carriers(tenant):
    def task() -> None:
        raise ValueError

    with pytest.raises(ValueError):
        carriers.wrapped(task, {}, False)()
    assert seen == [("in", None), ("out", None)]


def test_without_carriers_the_function_is_called_itself(settings):
    assert carriers.wrapped(close_order.fn, {}, False) is close_order.fn
