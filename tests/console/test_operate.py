"""`delayq.operate` starts the operation that the admin would start, and refuses what nobody has confirmed."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from asgiref.sync import async_to_sync
from django.core.exceptions import SynchronousOnlyOperation
from django.db import transaction

import django_delayq as delayq
from django_delayq import clock, failpoints
from django_delayq.console import keyset, operations
from django_delayq.console.operation_loop import OperationLoop
from django_delayq.exceptions import ConfigError, TooManyJobs
from django_delayq.models import Event, Job, Operation
from django_delayq.states import EndingKind
from tests.admin.conftest import OPERATIONS
from tests.carriers import Tenant
from tests.tasks_for_tests import close_order

Stage = Operation.Stage
SEARCH = "meta:merchant=7 state:scheduled"


@pytest.fixture
def merchants(orders) -> list[delayq.Job]:
    """Three jobs of the merchant 7, and one of another."""
    jobs = [close_order.using(delay="1h", meta={"merchant": merchant}).schedule(merchant) for merchant in (7, 7, 8, 7)]
    orders.fold()
    return [job for job, merchant in zip(jobs, (7, 7, 8, 7), strict=True) if merchant == 7]


def work(loop: OperationLoop | None = None) -> None:
    loop = loop or OperationLoop()
    while loop.poll() == 0:
        pass


def cancelled(orders) -> set[Any]:
    orders.fold()
    return set(Job.objects.filter(state="cancelled").values_list("pk", flat=True))


def test_a_worker_applies_it_to_all_jobs_that_match(orders, merchants):
    operation = delayq.operate("cancel", SEARCH, reason="account closed", actor="billing")
    later = close_order.using(delay="1h", meta={"merchant": 7}).schedule(7)
    assert (operation.stage, operation.expected, operation.counts) == ("waiting", 3, {})
    assert cancelled(orders) == set()
    work()
    operation.refresh_from_db()
    assert (operation.stage, operation.counts) == ("finished", {"done": 3})
    assert cancelled(orders) == {job.id for job in merchants}
    assert later.state == "scheduled"
    [event] = Event.objects.filter(kind="operation_started")
    assert (event.actor, event.reason) == ("billing", "account closed")
    assert event.detail == {"operation": str(operation.pk), "verb": "cancel", "jobs": SEARCH}
    assert {event.reason for event in Event.objects.filter(kind="cancelled")} == {"account closed"}


def test_it_is_the_operation_that_the_admin_makes(orders, merchants, staff):
    form = {"q": SEARCH}
    start = f"{OPERATIONS}start/reschedule/?{'&'.join(f'{name}={value}' for name, value in form.items())}"
    preview = staff().get(start).context["preview"]
    staff().post(start, {"preview": preview, "reason": "stock", "delay": "2h", "over": "10m"})
    theirs = Operation.objects.get()
    ours = delayq.operate("reschedule", SEARCH, reason="stock", delay="2h", over="10m")
    same = ("verb", "stage", "options", "seconds", "expected", "frozen", "upto", "permission", "reason")
    assert {name: getattr(ours, name) for name in same} == {name: getattr(theirs, name) for name in same}
    assert ours.selection | {"at_ms": 0} == theirs.selection | {"at_ms": 0}
    assert (theirs.limit, ours.limit, ours.user) == (None, operations.LIMIT, "")


def test_a_preview_counts_and_writes_nothing(merchants):
    with transaction.atomic():
        preview = delayq.operate("cancel", SEARCH, reason="account closed", limit=1, dry_run=True)
    assert preview.expected == 3
    assert not Operation.objects.exists()
    assert not Event.objects.filter(kind="operation_started").exists()


def test_more_jobs_than_the_limit_are_refused(orders, merchants):
    with pytest.raises(TooManyJobs, match=r"At least 3 jobs match the search, and the limit is 2\. No job was changed\.") as refused:
        delayq.operate("cancel", SEARCH, reason="account closed", limit=2)
    assert refused.value.fields == {"count": 3, "limit": 2}
    assert not Operation.objects.exists()
    delayq.operate("cancel", SEARCH, reason="account closed", limit=3)
    work()
    assert len(cancelled(orders)) == 3


def test_without_a_limit_it_is_a_thousand(orders):
    [job] = orders.scheduled()
    row = {"queue": "orders", "task": close_order.name, "run_at": clock.now(), "created_at": clock.now(), "state": "scheduled"}
    Job.objects.bulk_create(Job(**row) for _ in range(1_000))
    with pytest.raises(TooManyJobs):
        delayq.operate("cancel", "state:scheduled", reason="test")
    assert delayq.operate("cancel", f"state:scheduled -id:{job.id}", reason="test").expected == 1_000


def test_a_change_that_a_rollback_could_not_undo_is_refused(merchants):
    with transaction.atomic(), pytest.raises(ConfigError, match=r"operate\(\): a transaction is open"):
        delayq.operate("cancel", SEARCH, reason="account closed")
    assert not Operation.objects.exists()


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"reason": " "}, "reason or search is empty"),
        ({"reason": 7}, "reason=7 must be text"),
        ({"limit": 0}, "limit=0 must be a whole number"),
        ({"limit": True}, "limit=True must be a whole number"),
        ({"verb": "cancle"}, r"unknown verb 'cancle' \(did you mean 'cancel'\?\)"),
        ({"search": ""}, "reason or search is empty"),
        ({"search": "order"}, "'order' is plain text"),
        ({"search": "state:scheduled order"}, "'order' is plain text"),
        ({"search": "state:scheduld"}, "Did you mean scheduled"),
        ({"search": "-meta:merchant=7"}, "An operation cannot exclude jobs by their arguments"),
        ({"delay": "1h"}, "cancel accepts neither delay nor run_at"),
        ({"verb": "reschedule"}, "reschedule needs either delay or run_at"),
        ({"verb": "reschedule", "delay": "1h", "run_at": clock.from_ms(1_900_000_000_000)}, "needs either delay or run_at"),
        ({"verb": "reschedule", "delay": "soon"}, "delay='soon'"),
        ({"over": "31d"}, "over='31d' is longer than 30 days"),
        ({"over": -1}, "over=-1 is negative"),
    ],
)
def test_what_it_cannot_use(merchants, given, said):
    with pytest.raises(ConfigError, match=f"^operate\\(\\): .*{said}"):
        delayq.operate(**{"verb": "cancel", "search": SEARCH, "reason": "account closed", **given})
    assert not Operation.objects.exists()


def test_a_requeue_without_a_state_is_for_failed_jobs(orders, merchants, monkeypatch):
    failed = orders.ended("fail")
    delayq.cancel(merchants[0], actor="clerk")
    orders.fold()
    operation = delayq.operate("requeue", "queue:orders", reason="the bank is open again")
    assert operation.expected == 1
    work()
    orders.fold()
    assert [job.state for job in (failed, merchants[0])] == ["scheduled", "cancelled"]


def test_unresolved_jobs_are_left_to_people(orders, monkeypatch):
    job = orders.unpublished(monkeypatch)
    Job.objects.filter(pk=job.id).update(ending=EndingKind.UNKNOWN)
    operation = delayq.operate("requeue", "state:unresolved", reason="test")
    work()
    operation.refresh_from_db()
    assert operation.counts == {"conflict": 1}


def test_if_too_many_rows_must_be_read_a_worker_counts_before_it_begins(orders, merchants, monkeypatch):
    monkeypatch.setattr(keyset, "WINDOW", 2)
    few = delayq.operate("run_now", "meta:merchant=8", reason="test", limit=1)
    many = delayq.operate("cancel", SEARCH, reason="test", limit=2)
    assert (few.expected, many.expected) == (None, None)
    work(loop := OperationLoop())
    few.refresh_from_db()
    many.refresh_from_db()
    assert (few.stage, few.counts) == ("finished", {"done": 1})
    assert (many.stage, many.expected, many.counts) == ("paused", 3, {})
    assert many.problem == {"code": "too_many_jobs", "fields": {"count": 3, "limit": 2}}
    assert cancelled(orders) == set()
    Operation.objects.filter(pk=many.pk).update(stage=Stage.RUNNING, paced_from=None)  # a person has seen it, and resumes it
    work(loop)
    assert len(cancelled(orders)) == 3


def test_rows_that_an_index_counts_are_counted_at_once(orders, merchants, monkeypatch):
    monkeypatch.setattr(keyset, "WINDOW", 2)
    with pytest.raises(TooManyJobs):
        delayq.operate("cancel", "state:scheduled", reason="test", limit=3)
    operation = delayq.operate("cancel", "state:scheduled", reason="test", limit=4)
    assert (operation.expected, operation.frozen) == (4, None)
    work()
    assert len(cancelled(orders)) == 4


def test_frozen_jobs_are_the_only_ones_that_it_changes(orders, merchants):
    delayq.operate("cancel", "meta:merchant=7 before:+2h", reason="test")
    Job.objects.exclude(pk__in=[job.id for job in merchants]).update(run_at=clock.now() + timedelta(minutes=1))
    work()
    assert cancelled(orders) == {job.id for job in merchants}


def test_the_holder_of_a_job_that_was_merged_is_not_cancelled_with_it(orders):
    holder = delayq.schedule(close_order, 7, key="order:7", delay="1h")
    with transaction.atomic():
        delayq.schedule(close_order, 8, key="order:7", on_conflict="keep", delay="1h")
    orders.fold()
    assert Job.objects.get(ending=EndingKind.MERGED).merged_into == holder.id
    operation = delayq.operate("cancel", "state:cancelled", reason="test")
    work()
    operation.refresh_from_db()
    assert (operation.counts, holder.state) == ({"finished": 1}, "scheduled")


@pytest.fixture
def tenants(orders, settings) -> dict[str, delayq.Job]:
    settings.DELAYQ = {**settings.DELAYQ, "CARRIERS": ["tests.carriers.Tenant"], "SCOPE": "Tenant"}
    found = {scope: delayq.schedule(close_order, 7, delay="1h", scope=scope) for scope in ("a", "b")}
    orders.fold()
    return found


def test_only_jobs_of_its_scope_are_changed(orders, tenants):
    search = "state:scheduled OR queue:orders"
    assert delayq.operate("cancel", search, reason="test", dry_run=True, scope="").expected == 2
    operation = delayq.operate("cancel", search, reason="test", scope="a")
    assert (operation.expected, operation.selection["text"]) == (1, "scope:a state:scheduled OR scope:a queue:orders")
    work()
    assert cancelled(orders) == {tenants["a"].id}
    with pytest.raises(ConfigError, match="cannot be limited to the scope 'a'"):
        delayq.operate("cancel", "scope:b", reason="test", scope="a")
    with pytest.raises(ConfigError, match="cannot be limited to the scope"):
        delayq.operate("cancel", "state:scheduled", reason="test", scope='b"')


def test_the_scope_of_a_call_is_the_current_one(tenants):
    with Tenant().wrap("b"):
        assert delayq.operate("cancel", "state:scheduled", reason="test").selection["text"] == "scope:b state:scheduled"


def test_the_row_and_its_event_are_written_together(merchants, monkeypatch):
    failpoints.arm("operations.start=raise:purpose")
    with pytest.raises(failpoints.FailpointError):
        delayq.operate("cancel", SEARCH, reason="test")
    failpoints.arm("")
    assert not Operation.objects.exists()
    assert not Event.objects.filter(kind="operation_started").exists()


def test_async_code_awaits_it(orders, merchants):
    async def call() -> Operation:
        with pytest.raises(SynchronousOnlyOperation, match=r"await delayq\.aoperate"):
            delayq.operate("cancel", SEARCH, reason="test")
        return await delayq.aoperate("cancel", SEARCH, reason="test")

    assert async_to_sync(call)().expected == 3
