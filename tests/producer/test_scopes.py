"""`SCOPE`: keys, serial names, locks and periods of two tenants never meet, and jobs under bare keys are still found."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest
from django.db import transaction

import django_delayq as delayq
from django_delayq import conf, ids
from django_delayq.exceptions import ConfigError, KeyTaken, LockTaken
from django_delayq.mirror.mirror_loop import MirrorLoop
from django_delayq.models import CommitRequest, Job
from django_delayq.producer import edit
from django_delayq.producer.stores import stores
from django_delayq.states import Change
from django_delayq.store.scripts.queue import Outcome
from django_delayq.store.scripts.record import ClaimedJob
from tests.carriers import TENANT
from tests.tasks_for_tests import close_order, ping, risky

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.usefixtures("delayq_redis")]
ON_ORDERS = {"key": "close:7", "queue": "orders"}


def current() -> object:
    """The function of `SCOPE` in these tests."""
    return TENANT.get()


@contextmanager
def tenant(name: str | None) -> Iterator[None]:
    token = TENANT.set(name)
    try:
        yield
    finally:
        TENANT.reset(token)


@pytest.fixture(autouse=True)
def scoped(settings) -> None:
    settings.DELAYQ = {**settings.DELAYQ, "CARRIERS": ["tests.carriers.Tenant"], "SCOPE": "Tenant"}


@pytest.fixture
def unscoped(settings) -> Callable[..., None]:
    """Sets other settings in place of SCOPE."""

    def change(**others: object) -> None:
        settings.DELAYQ = {**{name: value for name, value in settings.DELAYQ.items() if name != "SCOPE"}, **others}

    return change


def close(order: int = 7, **options: object) -> delayq.Job:
    return close_order.using(**{"delay": "1h", "key": f"close:{order}", **options}).schedule(order)  # type: ignore[arg-type]


def claim(nonce: str = "n") -> list[ClaimedJob]:
    return list(stores.queue("orders", 0).claim("w", nonce, want=10, lease_ms=30_000, max_crashes=3).jobs)


def fold(queue: str = "orders") -> None:
    MirrorLoop(stores.places, conf.get().queue(queue), prefix=conf.get().prefix).poll()


@pytest.mark.parametrize("durability", ["outbox", "redis"])
@pytest.mark.parametrize("atomic", [False, True])
def test_two_tenants_with_the_same_key_have_a_job_each(durability, atomic):
    made = {}
    for name in ("a", "b"):
        with tenant(name):
            if atomic:
                with transaction.atomic():
                    made[name] = close(durability=durability)
            else:
                made[name] = close(durability=durability)
    assert [job.created for job in made.values()] == [True, True]
    assert {job.scope: job.key for job in made.values()} == {"a": "close:7", "b": "close:7"}
    with tenant("b"):
        assert close(durability=durability).id == made["b"].id
        with pytest.raises(KeyTaken, match="'b/close:7'"):
            close(durability=durability, on_conflict="error")
        assert delayq.get(**ON_ORDERS).id == made["b"].id
        assert delayq.cancel(**ON_ORDERS) is Change.DONE
        assert delayq.get(**ON_ORDERS) is None
        assert delayq.cancel(**ON_ORDERS) in (Change.DONE, Change.UNKNOWN)  # a repeat
    with tenant("a"):
        assert delayq.get(**ON_ORDERS).id == made["a"].id
        assert delayq.reschedule(**ON_ORDERS, delay="2h") is Change.DONE
    fold()
    assert {row.scope: (row.key, row.state) for row in Job.objects.all()} == {
        "a": ("close:7", "scheduled"),
        "b": ("close:7", "cancelled"),
    }


def test_a_call_without_a_tenant_and_one_with_another_are_told_apart():
    with tenant("a"):
        mine = close()
    bare = close()
    assert (mine.created, bare.created, bare.scope) == (True, True, "")
    assert delayq.get(**ON_ORDERS).id == bare.id
    assert delayq.get(**ON_ORDERS, scope="a").id == mine.id
    assert delayq.cancel(**ON_ORDERS, scope="a") is Change.DONE
    assert delayq.get(bare.id).state == "scheduled"
    with pytest.raises(ConfigError, match="scope='a' belongs to a key"):
        delayq.cancel(bare, scope="a")


def test_a_scope_cannot_be_forged_by_a_key():
    with tenant("a"):
        close()
    with pytest.raises(delayq.PayloadError, match="control character"):
        delayq.get(key="a\u2028close:7", queue="orders")


@pytest.mark.parametrize("value", ["a b", "a/b", "a@b", "x" * 64, 7])
def test_what_cannot_be_a_scope_is_refused_before_anything_is_written(value):
    with tenant(value), pytest.raises(ConfigError, match=r"DELAYQ\['SCOPE'\]: the scope"):
        close()
    assert not Job.objects.exists()


def test_a_function_gives_the_scope(settings):
    settings.DELAYQ = {**settings.DELAYQ, "CARRIERS": [], "SCOPE": f"{__name__}.current"}
    with tenant("a"):
        assert close().scope == "a"


@pytest.mark.parametrize("path", ["Nobody", "tests.carriers.nothing", "tests.carriers.Tenant"])
def test_a_setting_that_names_no_function_is_refused(settings, path):
    settings.DELAYQ = {**settings.DELAYQ, "SCOPE": path}
    with pytest.raises(ConfigError, match=r'DELAYQ\["SCOPE"\]'):
        close()


@pytest.mark.parametrize("durability", ["outbox", "redis"])
def test_jobs_of_one_call_belong_to_the_scope_of_the_call(durability):
    made = {}
    for name in ("a", "b", None):
        with tenant(name):
            bound = close_order.using(delay="1h", key="close:7", durability=durability)
            made[name], again = delayq.schedule_many([bound.bind(7), bound.bind(8)])
            assert again.id == made[name].id
    assert [(job.scope, job.created) for job in made.values()] == [("a", True), ("b", True), ("", True)]
    fold()
    assert {row.scope: row.pk for row in Job.objects.filter(state="scheduled")} == {job.scope: job.id for job in made.values()}


def in_sync_code() -> object:
    """A function of `SCOPE` that reads the database, as it seems."""
    with pytest.raises(RuntimeError):
        asyncio.get_running_loop()
    return TENANT.get()


@pytest.mark.parametrize("durability", ["outbox", "redis"])
def test_async_calls_have_the_scope_of_sync_code_in_each_partition(settings, durability):
    queues = {**settings.DELAYQ["QUEUES"], "orders": {"PARTITIONS": 3}}
    settings.DELAYQ = {**settings.DELAYQ, "QUEUES": queues, "SCOPE": f"{__name__}.in_sync_code"}

    async def both() -> list[delayq.Job]:
        one = await delayq.aschedule(close_order, 7, key="close:7", delay="1h", durability=durability)
        bound = close_order.using(key="close:7", delay="1h", durability=durability)
        return [one, *await delayq.aschedule_many([bound.bind(7)])]

    for name in ("a", "b"):
        with tenant(name):
            first, second = asyncio.run(both())
            assert (first.scope, first.created, second.id) == (name, True, first.id)
            assert delayq.get(**ON_ORDERS).id == first.id


def test_serial_names_are_of_the_scope_and_concurrency_names_only_if_their_format_says_so():
    names = {}
    for name in ("a", "b"):
        with tenant(name):
            for form, options in {
                "serial": {"serial": "order:{order_id}"},
                "global": {"concurrency": ("partner", 5)},
                "own": {"concurrency": ("own:{scope}", 5)},
            }.items():
                job = close_order.using(**options).schedule(7)
                names[name, form] = stores.inspector().job("orders", job.id).name
    assert names == {
        ("a", "serial"): "a\u2028order:7",
        ("b", "serial"): "b\u2028order:7",
        ("a", "global"): "partner",
        ("b", "global"): "partner",
        ("a", "own"): "own:a",
        ("b", "own"): "own:b",
    }


def test_an_argument_cannot_name_another_scope():
    with pytest.raises(delayq.PayloadError, match="control character"):
        close_order.using(concurrency=("{note}", 1)).schedule(7, note="a\u2028order:7")


def test_a_copy_keeps_a_serial_name_that_its_task_does_not_make():
    with tenant("a"):
        job = close_order.using(serial="order:{order_id}").schedule(7)
    copied = edit.schedule_copy(Job.objects.get(pk=job.id), (8,), {}, id=ids.new())
    assert stores.inspector().job("orders", copied.id).name == "a\u2028order:7"


def test_a_paused_scope_holds_the_jobs_of_its_tenant_alone():
    made = {}
    for name in ("a", "b", None):
        with tenant(name):
            made[name] = close_order.schedule(7)
    assert delayq.pause(scope="a")
    assert {job.id for job in claim()} == {made["b"].short_id, made[None].short_id}
    assert delayq.resume(scope="a")
    assert [job.id for job in claim("n2")] == [made["a"].short_id]


def test_the_serial_name_of_a_scope_can_be_paused():
    made = {}
    for name in ("a", "b"):
        with tenant(name):
            made[name] = close_order.using(serial="order:{order_id}").schedule(7)
    assert delayq.pause(name="order:7", scope="a")
    assert [job.id for job in claim()] == [made["b"].short_id]


@pytest.mark.parametrize("given", [{"scope": ""}, {"scope": "a b"}, {"scope": "a", "task": "x"}])
def test_a_pause_needs_a_valid_scope_and_nothing_else(given):
    with pytest.raises(ConfigError):
        delayq.pause(**given)


def test_serial_jobs_of_two_tenants_run_at_once_and_those_of_one_do_not():
    for name in ("a", "b", "a"):
        with tenant(name):
            close_order.using(serial="order:{order_id}").schedule(7)
    assert len(claim()) == 2


def test_locks_of_two_tenants_are_two_locks():
    with tenant("a"), delayq.lock("order:7"):
        with tenant("b"), delayq.lock("order:7"):
            pass
        with pytest.raises(LockTaken, match="order:7"), delayq.lock("order:7"):
            pass
        with delayq.lock("order:7", scope=""):
            pass


def test_a_period_is_of_the_scope():
    for name in ("a", "b"):
        with tenant(name):
            assert close(once_for="1d").created
            assert not close(once_for="1d").created
    with tenant("a"):
        assert delayq.forget(**ON_ORDERS, force=True) is Change.DONE
        assert delayq.forget(**ON_ORDERS, force=True) is Change.UNKNOWN
    assert delayq.forget(**ON_ORDERS, scope="b", force=True) is Change.DONE


def test_a_change_at_the_commit_belongs_to_the_tenant_that_made_it():
    made = {}
    for name in ("a", "b"):
        with tenant(name):
            made[name] = close()
    with tenant("b"), transaction.atomic():
        assert delayq.cancel(**ON_ORDERS, at_commit=True) is Change.PENDING
        assert [(row.scope, row.key) for row in CommitRequest.objects.all()] == [("b", "close:7")]
    fold()
    assert [made[name].state for name in made] == ["scheduled", "cancelled"]


def test_a_change_within_the_transaction_that_schedules_belongs_to_the_tenant():
    with transaction.atomic():
        made = []
        for name in ("a", "b"):
            with tenant(name):
                made.append(close())
        with tenant("a"):
            delayq.cancel(**ON_ORDERS)
    fold()
    assert [job.state for job in made] == ["cancelled", "scheduled"]


def test_a_follow_up_and_a_copy_inherit_the_scope():
    with tenant("a"):
        job = risky.using(key="risky").schedule(1)
    store = stores.queue("orders", 0)
    [claimed] = claim()
    store.settle([Outcome(claimed.id, claimed.attempt, claimed.fence, "fail", detail=b"{}")], worker="w", max_crashes=3)
    fold()
    assert Job.objects.get(task__endswith="look_after").scope == "a"
    copied = edit.schedule_copy(Job.objects.get(pk=job.id), (2,), {}, id=ids.new())
    assert (copied.scope, Job.objects.get(pk=copied.id).scope) == ("a", "a")


def test_far_jobs_of_two_tenants_have_a_key_each(settings):
    queues = {**settings.DELAYQ["QUEUES"], "orders": {"HORIZON": "1h"}}
    settings.DELAYQ = {**settings.DELAYQ, "QUEUES": queues}
    made = {}
    for name in ("a", "b", "b"):
        with tenant(name):
            made[name, len(made)] = close(delay="2d")
    first, second, again = made.values()
    assert (first.created, second.created, again.id) == (True, True, second.id)
    assert {row.scope: (row.key, row.far) for row in Job.objects.all()} == dict.fromkeys(("a", "b"), ("close:7", True))
    with tenant("b"):
        assert delayq.get(**ON_ORDERS).id == second.id
        assert delayq.reschedule(**ON_ORDERS, delay="1m") is Change.DONE
        assert close(delay="1m").id == second.id
        assert delayq.cancel(**ON_ORDERS) is Change.DONE
    with tenant("a"):
        assert delayq.get(**ON_ORDERS).id == first.id
    assert first.state == "scheduled"


def test_a_row_restores_its_job_under_the_key_of_its_scope(delayq_redis):
    with tenant("a"):
        job = close()
    delayq_redis.link.execute("FLUSHALL")
    stores.reset()
    with tenant("a"):
        assert close().id == job.id
    with tenant("b"):
        assert close().id != job.id


# Jobs that were scheduled before SCOPE was set.


def before(unscoped, scoped_again: dict[str, object], durability: str) -> delayq.Job:
    unscoped()
    with tenant("a"):
        job = close(durability=durability)
    unscoped(SCOPE="Tenant", **scoped_again)
    return job


@pytest.mark.parametrize("durability", ["outbox", "redis"])
@pytest.mark.parametrize("mirrored", [False, True])
def test_the_job_of_a_bare_key_is_found_by_its_own_tenant_alone(unscoped, durability, mirrored):
    old = before(unscoped, {}, durability)
    if mirrored:
        fold()
    with tenant("b"):
        assert delayq.get(**ON_ORDERS) is None
        assert delayq.cancel(**ON_ORDERS) is Change.UNKNOWN
        assert close(durability=durability).created
    with tenant("a"):
        assert delayq.get(**ON_ORDERS).id == old.id
        assert delayq.reschedule(**ON_ORDERS, delay="2h") is Change.DONE
        kept = close(durability=durability)
        assert (kept.id, kept.created) == (old.id, False)
        assert delayq.cancel(**ON_ORDERS) is Change.DONE
        fresh = close(durability=durability)
        assert (fresh.created, fresh.scope) == (True, "a")


def test_a_bare_job_can_be_replaced_and_requeued_by_its_tenant(unscoped):
    old = before(unscoped, {}, "outbox")
    with tenant("a"):
        new = close(on_conflict="replace")
        assert (new.created, new.scope) == (True, "")  # it takes the place under the bare key
    fold()
    assert Job.objects.get(pk=old.id).merged_into == new.id
    with tenant("a"):
        assert delayq.cancel(**ON_ORDERS) is Change.DONE
        fold()
        assert delayq.requeue(**ON_ORDERS) is Change.DONE
    with tenant("b"):
        assert delayq.requeue(**ON_ORDERS) is Change.UNKNOWN


def test_with_scope_only_no_bare_key_is_asked_about(unscoped, delayq_redis):
    old = before(unscoped, {"SCOPE_ONLY": True}, "outbox")
    with tenant("a"):
        assert delayq.get(**ON_ORDERS) is None
        assert close().id != old.id


def test_the_setting_costs_no_call_without_a_key_and_with_scope_only(unscoped, delayq_redis):
    def calls(act: Callable[[], object]) -> int:
        delayq_redis.link.execute("CONFIG", "RESETSTAT")
        act()
        lines = delayq_redis.link.execute("INFO", "commandstats").decode().splitlines()
        return sum(int(line.split("calls=")[1].split(",")[0]) for line in lines if "calls=" in line)

    unscoped()
    with tenant("a"):
        ping.schedule()
        close(1, durability="redis")
        plain, keyed = calls(ping.schedule), calls(lambda: close(1, durability="redis"))
        unscoped(SCOPE="Tenant", SCOPE_ONLY=True)
        ping.schedule()
        close(1, durability="redis")
        assert calls(ping.schedule) == plain
        assert calls(lambda: close(1, durability="redis")) == keyed
