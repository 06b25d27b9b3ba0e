"""`serial` and `concurrency`: what they refuse, what name they make, and that it travels."""

from __future__ import annotations

import pytest

import django_delayq as delayq
from django_delayq import conf
from django_delayq.exceptions import ConfigError, PayloadError
from django_delayq.job_meta import NAMED, SharedName
from django_delayq.mirror.mirror_loop import MirrorLoop
from django_delayq.models import Job
from django_delayq.producer import edit
from django_delayq.producer.stores import stores
from django_delayq.producer.task import registry

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.usefixtures("delayq_redis")]


@pytest.fixture(autouse=True)
def tasks(monkeypatch):
    monkeypatch.setattr(registry, "_tasks", dict(registry._tasks))


def pay(order_id: int, *, tenant: str = "none", **rest: object) -> None:
    pass


def task(**options):
    return delayq.task(name="shop.pay", **options)(pay)


def name_of(job) -> str:
    return stores.inspector().job(job.queue, job.id).name


@pytest.mark.parametrize(
    ("options", "args", "kwargs", "name"),
    [
        ({"serial": "order:{order_id}"}, (7,), {}, "order:7"),
        ({"serial": "order:{order_id}"}, (), {"order_id": 8}, "order:8"),
        ({"serial": "{tenant}/{order_id}"}, (7,), {}, "none/7"),
        ({"serial": "{tenant}/{order_id}"}, (7,), {"tenant": "ä 1"}, "ä 1/7"),
        ({"serial": "{{{order_id}}}"}, (7,), {}, "{7}"),
        ({"serial": "all"}, (7,), {}, "all"),
        ({"concurrency": ("tenant:{tenant}", 5)}, (7,), {"tenant": "t"}, "tenant:t"),
    ],
)
def test_a_name_is_a_format_over_the_arguments_by_name(options, args, kwargs, name):
    job = task(**options).schedule(*args, **kwargs)
    view = stores.inspector().job("default", job.id)
    assert (view.name, view.most) == (name, 5 if "concurrency" in options else 1)
    row = Job.objects.get(pk=job.id)
    assert row.shared_name == SharedName(name, view.most)
    assert row.meta == {}


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"serial": "order:{ordr_id}"}, ["serial='order:{ordr_id}'", "'ordr_id'", "order_id", "pay"]),
        ({"serial": "order:{rest}"}, ["'rest'", "not a parameter"]),
        ({"serial": "order:{}"}, ["not a parameter"]),
        ({"serial": "order:{order_id.real}"}, ["not just the name of a parameter"]),
        ({"serial": "order:{order_id!r}"}, ["not just the name of a parameter"]),
        ({"serial": "order:{order_id:>9}"}, ["not just the name of a parameter"]),
        ({"serial": "order:{order_id"}, ["not a valid format", "double it"]),
        ({"serial": ""}, ["such as 'order:{order_id}'"]),
        ({"serial": 7}, ["such as 'order:{order_id}'"]),
        ({"serial": "x" * 201}, ["more than 200"]),
        ({"serial": "a\nb"}, ["control"]),
        ({"concurrency": "tenant"}, ["('tenant:{tenant}', 5)"]),
        ({"concurrency": ("tenant", 0)}, ["from 1 to 1,000"]),
        ({"concurrency": ("tenant", 1001)}, ["from 1 to 1,000"]),
        ({"concurrency": ("tenant", True)}, ["from 1 to 1,000"]),
        ({"serial": "a", "concurrency": ("b", 2)}, ["not both"]),
        ({"serial": "{tenant}", "sensitive": ["tenant"]}, ["sensitive", "displayed"]),
    ],
)
def test_what_cannot_work_is_refused_at_decoration_and_as_an_option(options, words):
    with pytest.raises(ConfigError) as refused:
        task(**options)
    assert all(word in str(refused.value) for word in words)
    if "sensitive" not in options:
        with pytest.raises(ConfigError) as refused:
            task().using(**options).schedule(7)
        assert all(word in str(refused.value) for word in words)


@pytest.mark.parametrize(
    ("format", "tenant", "words"),
    [
        ("{tenant}", "", ["is empty", "'{tenant}'"]),
        ("{tenant}", "x" * 201, ["has 201 characters", "200"]),
        ("{tenant}", "a\nb", ["control character"]),
        ("{tenant}", None, ["tenant", "None", "text and numbers"]),
        ("{tenant}", [1], ["tenant", "[1]"]),
    ],
)
def test_arguments_that_make_no_name_are_refused_and_nothing_is_scheduled(format, tenant, words):
    paid = task(serial=format)
    with pytest.raises(PayloadError) as refused:
        paid.schedule(7, tenant=tenant)
    assert all(word in str(refused.value) for word in ["schedule(shop.pay)", *words])
    assert not Job.objects.exists()


def test_an_option_stands_over_the_task_and_many_jobs_have_a_name_each():
    paid = task(serial="order:{order_id}")
    assert name_of(delayq.schedule(paid, 1, serial="tenant:{tenant}")) == "tenant:none"
    assert name_of(paid.using(concurrency=("all", 3)).schedule(1)) == "all"
    assert name_of(task().using(serial="x:{order_id}").schedule(1)) == "x:1"
    jobs = delayq.schedule_many(paid.bind(number) for number in range(3))
    assert [name_of(job) for job in jobs] == ["order:0", "order:1", "order:2"]


def test_meta_stays_beside_the_name_and_cannot_say_one():
    job = task(serial="order:{order_id}").using(meta={"a": 1}).schedule(7)
    assert Job.objects.get(pk=job.id).meta == {"a": 1}
    with pytest.raises(PayloadError, match="serial="):
        task().using(meta={NAMED: ["x", 1]}).schedule(7)


@pytest.mark.parametrize("durability", ["outbox", "redis"])
def test_a_requeue_keeps_the_name(durability):
    job = task(serial="order:{order_id}").using(durability=durability, delay="1h").schedule(7)
    assert job.cancel() == "done"
    if durability == "redis":
        MirrorLoop(stores.link, conf.get().queue("default"), prefix=conf.get().prefix).drain()
    assert stores.queue("default", 0).link.execute("HLEN", stores.queue("default", 0).keys["names"]) == 0
    assert delayq.requeue(job.id) == "done"
    assert name_of(job) == "order:7"


def test_other_arguments_make_another_name_unless_the_job_had_one_of_its_own():
    paid = task(serial="order:{order_id}")
    mine, own = paid.using(delay="1h").schedule(7), paid.using(delay="1h", serial="tenant:{tenant}").schedule(7)
    for job in (mine, own):
        job.cancel()
        assert edit.edit_and_requeue(job.id, [8], {}) == "done"
    assert [name_of(job) for job in (mine, own)] == ["order:8", "tenant:none"]
    assert [Job.objects.get(pk=job.id).shared_name for job in (mine, own)] == [SharedName("order:8"), SharedName("tenant:none")]
    mine.cancel()
    with pytest.raises(PayloadError, match="order_id"):
        edit.edit_and_requeue(mine.id, [None], {})
