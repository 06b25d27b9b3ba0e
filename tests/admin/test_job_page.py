"""The page of one job: what happened, what comes next, and why it has not run yet."""

from __future__ import annotations

import json
import re
from datetime import UTC, datetime, timedelta

import pytest
from django.contrib.admin.models import LogEntry
from django.db import transaction

import django_delayq as delayq
from django_delayq import clock, conf
from django_delayq.admin import job_page, tracebacks
from django_delayq.console import health, overview
from django_delayq.logger import class_name
from django_delayq.models import Attempt, Event, Job
from django_delayq.producer.stores import stores
from django_delayq.producer.task import registry
from django_delayq.states import FAIL_CLASS
from django_delayq.store.scripts.worker_registry import WorkerRegistry
from tests.admin.conftest import JOBS, QUEUES, act, beat, choose, lose_redis, page, said
from tests.management.test_doctor import only
from tests.tasks_for_tests import close_order, ping

TRACE = """Traceback (most recent call last):
  File "/srv/shop/tasks.py", line 12, in close_order
    order = Order.objects.get(pk=order_id)
            ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^
  File "/venv/lib/python3.12/site-packages/django/db/models/manager.py", line 87, in manager_method
    return getattr(self.get_queryset(), name)(*args, **kwargs)
  File "/srv/shop/models.py", line 99, in check
    raise ValueError("no")
ValueError: no
"""


def works(worker: str = "host:1:w", **facts) -> None:
    """A worker is alive and reports these values."""
    facts = {"queues": ["orders"], "processes": 1, "threads": 2, "busy": 0, "state": "working", **facts}
    WorkerRegistry(stores.link, prefix=conf.get().prefix).beat(worker, facts)


def moments(client, job: delayq.Job) -> list[str]:
    return [" ".join((moment.what, moment.text)).strip() for moment in client.get(page(job)).context["moments"]]


def why(client, job: delayq.Job) -> str:
    return client.get(page(job)).context["why"]


def test_the_page_bears_the_name_that_logs_have_and_opens_by_either(orders, staff):
    job = delayq.schedule(close_order, 7, delay="1h")
    for form in (job.short_id, job.id):
        text = staff().get(f"{JOBS}{form}/change/").content.decode()
        assert f"<code>{job.short_id}</code>" in text


def test_dates_say_how_far_off_they_are_and_in_which_zone(orders, staff, settings):
    settings.TIME_ZONE = "Europe/Berlin"
    job = delayq.schedule(close_order, 7, delay="3d1h30m", expires="5d1h30m")
    orders.fold()
    Job.objects.update(created_at=datetime(2026, 5, 1, 12, tzinfo=UTC))
    text = staff().get(page(job)).content.decode()
    dates = re.findall(r'<dt>([^<]+)</dt><dd><time [^>]*>(.+?)</time> <span class="delayq-soft">([^<]+)</span>', text)
    assert [name for name, *_ in dates] == ["run at", "created", "expires"]
    shown, far = zip(*(rest for _, *rest in dates), strict=True)
    assert shown[1] == "2026-05-01 14:00:00<wbr>+02:00"
    assert (far[0], far[2]) == ("in 3d1h", "in 5d1h")
    assert far[1].endswith(" ago")


# what happened, and what comes next


def test_the_timeline_begins_with_the_job_and_ends_with_what_lies_ahead(orders, staff):
    job = delayq.schedule(close_order, 7, delay="1h", max_attempts=3, backoff="10s 1m")
    orders.fold()
    shown = staff().get(page(job)).context["moments"]
    assert [moment.what for moment in shown] == [
        "accepted",
        "published",
        "due",
        "attempt 1",
        "attempt 2",
        "attempt 3",
        "failed",
    ]
    assert [moment.ahead for moment in shown] == [False, False, True, True, True, True, True]
    assert [moment.delta for moment in shown[4:6]] == ["+10s", "+1m"]
    assert shown[2].delta.startswith("in 59m") or shown[2].delta == "in 1h"


def test_a_job_on_its_ladder_shows_the_steps_that_are_left(orders, staff):
    job = delayq.schedule(close_order, 7, max_attempts=4, backoff="10s 1m 1h")
    [claimed] = orders.claim()
    orders.settle(claimed, "retry", delay=10_000, detail=b'{"c":"ValueError","m":"no"}')
    orders.fold()
    shown = staff().get(page(job)).context["moments"]
    ahead = [(moment.what, moment.delta) for moment in shown if moment.ahead]
    assert [what for what, _ in ahead] == ["due", "attempt 2", "attempt 3", "attempt 4", "failed"]
    assert [delta for _, delta in ahead[2:4]] == ["+1m", "+1h"]


def test_many_steps_are_counted_and_not_listed(orders, staff):
    job = delayq.schedule(close_order, 7, delay="1h", max_attempts=100)
    orders.fold()
    assert "and 91 more attempts" in moments(staff(), job)


def test_a_job_that_has_ended_has_nothing_ahead(orders, staff):
    client = staff()
    failed = orders.ended("fail", max_attempts=1)
    assert moments(client, failed)[-1] == "failed no attempts left"
    succeeded = orders.ended("ack")
    assert moments(client, succeeded)[-1] == "succeeded"
    [cancelled] = orders.scheduled()
    cancelled.cancel(actor="clerk", reason="paid")
    orders.fold()
    assert moments(client, cancelled)[-1].startswith("cancelled paid")


def test_an_abort_is_told_from_a_request_to_cancel(staff, orders):
    job = orders.running()
    job.cancel(reason="not needed")
    job.cancel(abort=True, reason="runs wild")
    told = moments(staff(), job)
    assert told.index("cancel requested not needed") < told.index("abort requested runs wild")


def test_a_job_that_was_asked_to_stop_has_no_ladder_ahead_and_is_not_asked_again(staff, orders):
    job, client = orders.running(), staff()
    assert "../cancel/" in client.get(page(job)).content.decode()
    client.post(act(job, "cancel"), {"confirmed": "1"})
    for _ in range(2):  # by Redis, and then by the row as well
        shown = client.get(page(job))
        assert [(moment.what, moment.text) for moment in shown.context["moments"] if moment.ahead] == [
            ("cancelled", "unless attempt 1 succeeds")
        ]
        assert "../cancel/" not in shown.content.decode()
        assert "A cancellation was requested" in shown.content.decode()
        orders.fold()


def test_what_a_function_decides_is_not_foretold(orders):
    job = Job(queue="orders", task="gone", max_attempts=3)
    assert [step.wait for step in job_page.attempts_ahead(job, 1)[0]] == job_page.conf.get().queue("orders").backoff.steps(2)
    job.options = {"backoff": "not a ladder"}
    assert len(job_page.attempts_ahead(job, 1)[0]) == 2


def test_a_running_job_shows_its_lease_and_how_far_it_is(orders, staff):
    job = orders.running()
    view = stores.inspector().job("orders", job.id)
    orders.store.extend([(orders_id(view), view.fence)], worker="w", lease_ms=30_000, progress={orders_id(view): "3/8"})
    text = staff().get(page(job)).content.decode()
    assert '<progress max="8" value="3"' in text
    assert "leased until" in text
    assert "3 / 8" in text


def orders_id(view) -> str:
    from django_delayq import ids

    return ids.short(view.id)


@pytest.mark.parametrize("said", ["", "half", "1/0", "x/3", "9/3"])
def test_progress_that_makes_no_sense_breaks_no_page(orders, staff, said):
    job = orders.running()
    view = stores.inspector().job("orders", job.id)
    orders.store.extend([(orders_id(view), view.fence)], worker="w", lease_ms=30_000, progress={orders_id(view): said})
    assert staff().get(page(job)).status_code == 200


def test_a_page_keeps_itself_fresh_until_the_job_has_succeeded(orders, staff):
    client, job = staff(), orders.running()
    text = client.get(page(job)).content.decode()
    assert "delayq/refresh.js" in text
    part = client.get(f"{page(job)}?live=1").content.decode()
    assert "<html" not in part
    assert "<h1>" in part
    assert "live=1" not in part
    done = orders.ended("ack")
    assert "delayq/refresh.js" not in client.get(page(done)).content.decode()
    assert "data-ended" in client.get(f"{page(done)}?live=1").content.decode()


def test_a_form_with_a_mistake_is_not_taken_away(orders, staff):
    [job] = orders.scheduled()
    answer = staff().post(act(job, "reschedule"), {"delay": "soon"})
    assert answer.status_code == 400
    assert "delayq/refresh.js" not in answer.content.decode()


# tracebacks


def test_the_frames_of_the_project_come_first():
    trace = tracebacks.read_traceback(TRACE)
    assert [frame.place for frame in trace.frames] == [
        "/srv/shop/models.py:99 check",
        "/srv/shop/tasks.py:12 close_order",
    ]
    assert trace.frames[0].code == 'raise ValueError("no")'
    assert trace.text == TRACE


def test_of_errors_that_caused_one_another_the_last_counts():
    first = TRACE.replace("/srv/shop/models.py", "/srv/shop/first.py")
    both = f"{first}\nDuring handling of the above exception, another exception occurred:\n\n{TRACE}"
    assert tracebacks.read_traceback(both).frames[0].place == "/srv/shop/models.py:99 check"


@pytest.mark.parametrize("text", ["", "no traceback at all", "Traceback (most recent call last)", '  File "x", line 1, in y'])
def test_what_is_no_traceback_is_shown_as_it_is(text):
    assert tracebacks.read_traceback(text).text == text


def test_a_traceback_stands_folded_under_its_attempt(orders, staff):
    job = orders.ended(detail=json.dumps({"c": "ValueError", "m": "no", "t": TRACE}).encode(), max_attempts=1)
    text = staff().get(page(job)).content.decode()
    assert re.search(r'<details id="trace-\d+" class="delayq-trace"><summary>Traceback', text)
    assert text.index("/srv/shop/models.py:99 check") < text.index("site-packages")


# why it has not run yet


def test_a_job_is_due_later(orders, staff):
    works()
    [job] = orders.scheduled()
    assert why(staff(), job).startswith("The job is due in ")


def test_a_job_waits_for_its_next_attempt(orders, staff):
    works()
    job = delayq.schedule(close_order, 7)
    [claimed] = orders.claim()
    orders.settle(claimed, "retry", delay=60_000)
    orders.fold()
    assert why(staff(), job).startswith("Attempt 2 is due in ")


def test_who_has_put_a_job_off_is_named_with_the_reason(orders, staff):
    works()
    job = delayq.schedule(close_order, 7)
    [claimed] = orders.claim()
    orders.settle(claimed, "snooze", delay=60_000, detail=b'{"d":"partner.example:443 has failed <5> times"}')
    orders.fold()
    said = why(staff(), job)
    assert said.startswith("The job is due in ")
    assert said.endswith("has postponed it: partner.example:443 has failed <5> times")


def test_a_paused_queue_holds_a_job(orders, staff):
    works()
    [job] = orders.scheduled(1, delay=0)
    delayq.pause("orders", actor="admin:clerk", reason="stock taking")
    said = why(staff(), job)
    assert said.startswith("The queue orders has been paused by admin:clerk since ")
    assert said.endswith("Reason: stock taking")


def test_nobody_serves_its_queue(orders, staff):
    [job] = orders.scheduled(1, delay=0)
    client = staff()
    assert why(client, job) == "No worker serves the queue orders. Start one."
    beat("default")
    assert why(client, job).startswith("No worker serves")
    works(state="quiet")
    assert "quiet or shutting down" in why(client, job)


@pytest.mark.parametrize("facts", [{"state": "quiet"}, {"state": "leaving"}, {"processes": 0}])
def test_who_claims_nothing_is_no_capacity(orders, staff, facts):
    [job] = orders.scheduled(1, delay=0)
    works()
    works("host:2:w", **facts)
    queue = next(queue for queue in overview.look().queues if queue.name == "orders")
    assert (queue.workers, queue.slots) == (1, 2)
    works(busy=2)
    assert "All 2 slots are busy" in why(staff(), job)
    works(**facts)
    queue = next(queue for queue in overview.look().queues if queue.name == "orders")
    assert (queue.workers, queue.slots) == (0, 0)


@pytest.mark.parametrize("most", [1, 2])
def test_a_job_waits_for_its_name(orders, staff, most):
    jobs = [delayq.schedule(close_order, 7, concurrency=("order:{order_id}", most)) for _ in range(most + 1)]
    store = stores.queue("orders", 0)
    claimed = {job.id for job in store.claim("w", "n1", want=9, lease_ms=30_000, max_crashes=3).jobs}
    [waits] = [job for job in jobs if job.short_id not in claimed]
    works()
    orders.fold()
    client = staff()
    said = why(client, waits)
    assert said.startswith("The job is due and is waiting for the name order:7. " + ("At most 2 jobs" if most > 1 else "The job"))
    assert any(id in said for id in claimed)
    assert overview.look().queues[0].depth.blocked + overview.look().queues[1].depth.blocked == 1
    assert "1 waiting for a name" in client.get("/admin/delayq/queue/").content.decode()


def test_all_slots_are_taken(orders, staff):
    [job] = orders.scheduled(1, delay=0)
    works(threads=2, busy=2)
    client = staff()
    assert "All 2 slots are busy. Jobs due: 1." in why(client, job)
    works(threads=2, busy=1)
    assert why(client, job) == "The job is due. A worker will claim it at any moment."


def test_a_row_is_not_in_redis(orders, staff, monkeypatch, settings):
    job = orders.unpublished(monkeypatch)
    client = staff()
    assert "The relay of a worker will publish it" in why(client, job)
    lose_redis(settings)
    assert "because Redis cannot be reached" in why(client, job)


def test_without_redis_the_date_is_the_one_of_the_row(orders, staff, settings):
    [job] = orders.scheduled()
    client = staff()
    lose_redis(settings)
    assert why(client, job).startswith("Redis cannot be reached. According to the database, the job is due at ")


def test_its_queue_is_no_longer_listed(orders, staff):
    [job] = orders.scheduled()
    Job.objects.update(queue="old")
    assert "is not listed in the settings" in why(staff(), job)


def test_what_runs_or_has_ended_needs_no_reason(orders, staff):
    client = staff()
    assert why(client, orders.running()) == ""
    assert why(client, orders.ended("ack")) == ""


# related jobs


def test_jobs_of_the_same_key_are_linked(orders, staff):
    first = orders.ended("ack", key="k")
    second = delayq.schedule(close_order, 8, key="k", delay="1h")
    delayq.schedule(ping, 1, key="k", delay="1h")  # the same key in another queue is another thing
    orders.fold()
    found = staff().get(page(second)).context["related"]
    assert [(job.pk, note) for job, _, note in found] == [(first.id, "")]


def test_the_record_in_redis_is_for_superusers(orders, staff, admin_client):
    [job] = orders.scheduled(key="fragile")
    assert "The record in Redis" not in staff().get(page(job)).content.decode()
    text = admin_client.get(page(job)).content.decode()
    assert "The record in Redis" in text
    assert "1no tests.tasks_for_tests.close_order" in text


def test_large_numbers_are_shown_exactly(orders, staff):
    job = delayq.schedule(close_order, 2**63 + 1, delay="1h")
    orders.fold()
    assert str(2**63 + 1) in staff().get(page(job)).content.decode()


def test_a_page_with_hundreds_of_attempts_shows_the_latest(orders, staff):
    [job] = orders.scheduled()
    then = clock.now() - timedelta(hours=1)
    Attempt.objects.bulk_create(
        Attempt(job_id=job.id, number=n, fence=str(n), started_at=then, outcome="snoozed", worker="w") for n in range(250)
    )
    text = staff().get(page(job)).content.decode()
    assert "Only the latest entries are shown" in text
    assert "attempt 249" in text
    assert "attempt 49 " not in text


@pytest.mark.parametrize(
    ("ending", "note"),
    [("merged", "this job was merged into it because both have the same key"), ("replaced", "it replaced this job")],
)
def test_a_displaced_job_names_the_one_that_displaced_it_however_many_came_since(orders, staff, ending, note):
    first = delayq.schedule(close_order, 7, delay="1h", key="one")
    orders.fold()
    displaced = Job.objects.create(
        queue="orders",
        task=first.task,
        key="one",
        state="cancelled",
        ending=ending,
        merged_into=first.id,
        run_at=clock.now(),
        created_at=clock.now(),
        finished_at=clock.now(),
        max_attempts=1,
    )
    for _ in range(12):
        Job.objects.create(
            queue="orders",
            task=first.task,
            key="one",
            state="succeeded",
            run_at=clock.now(),
            created_at=clock.now(),
            finished_at=clock.now(),
            max_attempts=1,
        )
    answer = staff().get(f"{JOBS}{displaced.pk}/change/")
    related = answer.context["related"]
    assert (related[0][0].pk, related[0][2]) == (first.id, note)
    assert note in answer.content.decode()
    assert len(related) == 11
    assert not any(note for *_, note in related[1:])
    assert not any(note for *_, note in staff().get(page(first)).context["related"])


@pytest.mark.parametrize("error", ["key held by nobody", "key held by ", "the key held by somebody", ""])
def test_a_reason_that_only_looks_like_a_merge_breaks_no_page(orders, staff, error):
    [job] = orders.scheduled(key="one")
    orders.fold()
    Job.objects.filter(pk=job.id).update(state="cancelled", error=error, finished_at=clock.now())
    assert staff().get(page(job)).context["related"] == []


def test_the_end_of_a_job_says_which_worker_brought_it(orders, staff):
    moment = staff().get(page(orders.ended("ack"))).context["moments"][-1]
    assert moment.what == "succeeded"
    assert moment.who == Job.objects.get().worker != ""


def test_arguments_nested_deep_make_no_page_of_megabytes(orders, staff):
    deep = 7
    for _ in range(60):
        deep = [deep]
    job = delayq.schedule(close_order, [deep] * 400, meta={"deep": [deep] * 100})
    [claimed] = orders.claim()
    orders.settle(claimed, "fail")
    orders.fold()
    client = staff("view_job", "edit_job")
    assert len(client.get(page(job)).content) < 600_000
    edit = client.get(f"{JOBS}{job.id}/edit/")
    assert edit.status_code == 200
    assert len(edit.content) < 600_000


def test_of_long_arguments_the_page_shows_the_beginning_and_says_how_much_is_left(orders, staff):
    job = delayq.schedule(close_order, "x" * 60_000)
    orders.fold()
    text = staff("view_job").get(page(job)).content.decode()
    assert text.count("x" * 1000) < 60
    assert "more characters" in text


# arguments and results, line by line


def lines(client, job, name: str = "arguments") -> list[tuple[str, str, str]]:
    return [(line.name, line.kind, line.text) for line in client.get(page(job)).context[name]]


def test_arguments_bear_the_names_and_the_types_of_the_task(orders, staff, more_tasks):
    def pay(order_id: int, amount: float | None, *items: str, note="", **more: bool) -> None: ...

    more_tasks("pay", pay)
    job = delayq.schedule(registry.get("pay"), 7, None, "a", "坏主题", note="x", gift=True)
    orders.fold()
    assert lines(staff(), job) == [
        ("order_id", "int", "7"),
        ("amount", "float | None", "null"),
        ("items[0]", "str", '"a"'),
        ("items[1]", "str", '"坏主题"'),
        ("note", "str", '"x"'),
        ("gift", "bool", "true"),
    ]


def test_of_a_task_that_is_gone_arguments_have_numbers_and_the_types_of_their_values(orders, staff):
    [job] = orders.scheduled()
    Job.objects.update(task="gone", args=[7, {"a": 1}], kwargs={"note": None})
    assert lines(staff(), job) == [("1", "int", "7"), ("2", "dict", '{"a": 1}'), ("note", "NoneType", "null")]


def test_what_is_masked_tells_no_type_but_that_of_the_annotation(orders, staff, settings, more_tasks):
    more_tasks("pay", lambda order_id, pin: None, sensitive=["pin"])
    more_tasks("typed", with_pin, sensitive=["pin"])
    jobs = [delayq.schedule(registry.get(name), 7, 1234) for name in ("pay", "typed")]
    orders.fold()
    client = staff("view_job")
    assert [lines(client, job)[1] for job in jobs] == [("pin", "", "***"), ("pin", "int", "***")]


def with_pin(order_id: int, pin: int) -> None: ...


def test_a_thousand_arguments_are_counted_and_not_listed(orders, staff, more_tasks):
    more_tasks("many", lambda *rest: None)
    job = delayq.schedule(registry.get("many"), *range(1000))
    orders.fold()
    shown = lines(staff(), job)
    assert len(shown) == 101
    assert shown[-1] == ("", "", "… and 900 more arguments")


@pytest.mark.parametrize(
    ("result", "shown"),
    [
        ({"paid": True, "lines": [1]}, [("paid", "bool", "true"), ("lines", "list", "[1]")]),
        ({}, [("", "dict", "{}")]),
        (7, [("", "int", "7")]),
        (None, []),
    ],
)
def test_a_result_stands_line_by_line(orders, staff, result, shown):
    job = orders.ended("ack")
    Job.objects.update(result=result)
    assert lines(staff(), job, "result") == shown


# what lies ahead


def test_what_lies_ahead_is_folded_behind_three_lines_and_says_about_when(orders, staff):
    job = delayq.schedule(close_order, 7, delay="1h", max_attempts=6, backoff="10s 1m 1h")
    orders.fold()
    context = staff().get(page(job)).context
    near = [moment for moment in context["near"] if moment.ahead]
    assert [moment.what for moment in near] == ["due", "attempt 1", "attempt 2"]
    assert [moment.what for moment in context["later"]] == ["attempt 3", "attempt 4", "attempt 5", "attempt 6", "failed"]
    date = near[0].at
    assert [moment.about - date for moment in (near[2], *context["later"][:2])] == [
        timedelta(seconds=10),
        timedelta(seconds=70),
        timedelta(seconds=3670),
    ]


def test_what_nobody_can_foresee_has_no_date(orders, staff, more_tasks):
    more_tasks("asks", max_attempts=3, backoff=lambda attempt, error: 1)
    job = delayq.schedule(registry.get("asks"), delay="1h")
    orders.fold()
    context = staff().get(page(job)).context
    assert [moment.about for moment in context["moments"] if moment.ahead] == [None] * 5
    assert "later" in context


# links


def of_key(job):
    kind, _, pk = job.key.partition(":")
    return f"/shop/{kind}/{pk}/" if pk else None


def broken(job):
    Job.objects.raw("SELECT nothing FROM nowhere")[0]


def links(client, job):
    return client.get(page(job)).context["links"]


def test_a_job_leads_to_what_it_is_about(orders, staff, settings):
    settings.DELAYQ = {**settings.DELAYQ, "OBJECT_URL": f"{__name__}.of_key"}
    job, other = orders.ended("ack", key="order:7"), orders.ended("ack", key="none")
    client = staff("view_job")
    assert '<a href="/shop/order/7/" rel="noreferrer">Open the object</a>' in client.get(page(job)).content.decode()
    assert links(client, other).object == ""
    assert "Open the object" not in client.get(page(other)).content.decode()


def test_what_the_task_says_of_its_object_comes_first(orders, staff, settings, more_tasks):
    settings.DELAYQ = {**settings.DELAYQ, "OBJECT_URL": f"{__name__}.of_key"}
    more_tasks("pay", lambda order_id: None, object_url=lambda job: f"https://shop.example/orders/{job.args[0]}")
    job = delayq.schedule(registry.get("pay"), 7, key="order:8")
    orders.fold()
    assert links(staff(), job).object == "https://shop.example/orders/7"


@pytest.mark.parametrize("path", ["broken", "missing"])
def test_a_function_that_fails_breaks_no_page_and_is_named(orders, staff, settings, caplog, path):
    settings.DELAYQ = {**settings.DELAYQ, "OBJECT_URL": f"{__name__}.{path}", "LOG_URL": "/logs/{id}"}
    job = orders.ended("ack", key="order:7")
    with transaction.atomic():  # as a request is, under ATOMIC_REQUESTS
        answer = staff("view_job").get(page(job))
        assert Job.objects.count() == 1
    assert answer.status_code == 200
    assert (answer.context["links"].object, answer.context["links"].log) == ("", f"/logs/{job.short_id}")
    assert "The function that creates the link raised" in answer.content.decode()
    assert f"the link to the object of job {job.short_id} could not be created" in caplog.text


@pytest.mark.parametrize(
    "url", ["javascript:alert(1)", "//elsewhere.example/", "/\\elsewhere.example", "data:text/html,x", "a b", "x" * 5000, 7]
)
def test_no_address_but_that_of_a_page_becomes_a_link(orders, staff, more_tasks, url):
    more_tasks("pay", object_url=lambda job: url)
    job = delayq.schedule(registry.get("pay"))
    orders.fold()
    found = links(staff(), job)
    assert found.object == ""
    assert "did not return a valid URL" in found.trouble


def test_a_job_leads_to_its_lines_in_the_log(orders, staff, settings):
    settings.DELAYQ = {**settings.DELAYQ, "LOG_URL": "https://logs.example/{queue}?q={id}&t={task}&from={from}&to={to}"}
    client, job = staff(), orders.ended("ack", queue="orders")
    Job.objects.update(
        task="a b/ü&x", created_at=datetime(2026, 5, 1, 18, 30, tzinfo=UTC), finished_at=datetime(2026, 5, 1, 18, 31, tzinfo=UTC)
    )
    assert links(client, job).log == (
        f"https://logs.example/orders?q={job.short_id}&t=a%20b%2F%C3%BC%26x&from=2026-05-01T18%3A29%3A00Z&to=2026-05-01T18%3A32%3A00Z"
    )
    Job.objects.update(state="failed", finished_at=None)
    first = links(client, job).log
    assert first == links(client, job).log  # it changes every hour, so a page that refreshes itself is not sent again because of it


def test_what_a_task_says_by_fail_is_no_error_of_a_program(orders, staff):
    failed = orders.ended(detail=b'{"c":"django_delayq.exceptions.Fail","m":"the account is closed","p":"x"}', max_attempts=1)
    assert class_name(delayq.Fail("x")) == FAIL_CLASS
    assert Job.objects.get().error == "the account is closed"
    assert "attempt 1 the account is closed" in moments(staff(), failed)
    orders.ended(detail=b'{"c":"django_delayq.exceptions.Fail"}', key="b", max_attempts=1)
    assert Job.objects.get(key="b").error == FAIL_CLASS


@pytest.fixture
def unresolved(orders) -> delayq.Job:
    job = orders.scheduled(key="o:7")[0]
    orders.scheduled()
    Job.objects.filter(pk=job.id).update(published=None, ending="unknown", error="how it ended is not known")
    return job


def test_staff_finds_it_in_a_view_of_its_own_and_by_a_search(unresolved, staff):
    client = staff()
    for address in ("?q=state:unresolved", "?state=unresolved"):
        found = client.get(f"{JOBS}{address}").context_data["cl"]
        assert [job.pk for job in found.result_list] == [unresolved.id], address
    assert "Unresolved" in [str(tab["label"]) for tab in found.tabs]
    assert Job.objects.filter(pk=unresolved.id, ending="unknown").exists()
    assert unresolved.id not in [job.pk for job in client.get(f"{JOBS}?state=unpublished").context_data["cl"].result_list]


def test_its_page_says_what_is_known_and_what_a_person_can_do(unresolved, staff):
    text = staff().get(page(unresolved)).content.decode()
    assert "How did it end?" in text
    assert "The outcome of this job is unknown" in text
    assert "Why has it not run yet?" not in text
    for button in ("mark_succeeded", "mark_failed", "requeue"):
        assert f'formaction="../{button}/"' in text
    for button in ("cancel", "run_now"):
        assert f'formaction="../{button}/"' not in text


def test_other_jobs_have_no_such_buttons(orders, staff):
    text = staff().get(page(orders.scheduled()[0])).content.decode()
    assert "mark_succeeded" not in text


@pytest.mark.parametrize(("verb", "state"), [("mark_succeeded", "succeeded"), ("mark_failed", "failed")])
def test_a_person_marks_it_from_its_page(unresolved, staff, verb, state):
    client = staff()
    assert "No event shows how it ended" in client.post(act(unresolved, verb)).content.decode(), "it asks first"
    client.post(act(unresolved, verb), {"confirmed": "1", "reason": "the bank has it"})
    assert Job.objects.get(pk=unresolved.id).state == state
    assert Event.objects.get(job=unresolved.id, kind="resolved").reason == "the bank has it"
    assert LogEntry.objects.count() == 1


def test_a_person_requeues_it_from_its_page(unresolved, staff, redis_server):
    redis_server.link.execute("FLUSHALL")
    staff().post(act(unresolved, "requeue"), {"reason": "the bank does not have it"})
    assert stores.inspector().job("orders", unresolved.id).state == "scheduled"


def test_a_person_marks_several_from_the_list(unresolved, staff):
    client = staff()
    asked = choose(client, "mark_succeeded", [unresolved], query="?state=unresolved")
    assert "Mark 1 job as succeeded" in asked.content.decode()
    done = choose(client, "mark_succeeded", [unresolved], query="?state=unresolved", confirmed="1")
    assert said(done) == ["1 marked as succeeded."]


def test_without_the_permission_nobody_marks_it(unresolved, staff):
    client = staff("view_job", "requeue_job", "cancel_job")
    assert "mark_succeeded" not in client.get(page(unresolved)).content.decode()
    assert client.post(act(unresolved, "mark_succeeded"), {"confirmed": "1"}).status_code == 403


def test_the_dashboard_the_figures_and_the_commands_count_it(unresolved, staff, run):
    [sign] = health.row_signs(0)[1:]
    assert (sign.level, sign.value) == ("bad", "1")
    assert f"{JOBS}?state=unresolved" in staff().get(QUEUES).content.decode()
    assert ("delayq_unresolved_jobs", {"queue": "orders"}, 1) in health.database_samples()
    assert "unresolved" in run("status").out
    found = only(run, "D033")
    assert found["level"] == "error"
    assert "mark-succeeded" in found["hint"]
    assert overview.count_unpublished() == 0


def test_the_command_marks_and_answers_for_others(unresolved, orders, run):
    other = delayq.schedule(close_order, 1, delay="1h")
    assert run("list", "--state", "unresolved", "--json").json[0]["derived"] == "unresolved"
    assert "how did it end?" in run("inspect", unresolved.id).out
    assert run("mark-failed", other.id).code == 1
    answer = run("mark-succeeded", "--queue", "orders", "--yes")
    assert (answer.code, answer.out) == (0, "mark-succeeded: 1 done.\n")
    assert Job.objects.get(pk=unresolved.id).state == "succeeded"


def test_a_person_frees_the_key_of_a_period_from_the_page_of_its_job(orders, staff):
    job = orders.scheduled(key="o:7", once_for="24h")[0]
    other = orders.scheduled(key="o:8")[0]
    client = staff()
    assert 'formaction="../forget/"' in client.get(page(job)).content.decode()
    assert 'formaction="../forget/"' not in client.get(page(other)).content.decode()
    assert "The next call with this key" in client.post(act(job, "forget")).content.decode(), "it asks first"
    done = client.post(act(job, "forget"), {"confirmed": "1", "reason": "it bounced"}, follow=True)
    assert said(done) == ["1 freed."]
    assert Event.objects.get(job=job.id, kind="forgot").reason == "it bounced"
    assert "key freed" in client.get(page(job)).content.decode()
    assert 'formaction="../forget/"' not in client.get(page(job)).content.decode()


@pytest.mark.parametrize("durability", ["outbox", "redis"])
def test_the_page_says_until_when_calls_can_move_a_job(orders, staff, durability):
    options = {"key": "o:7", "on_conflict": "latest", "durability": durability}
    job, other = (delayq.schedule(close_order, 7, delay="4m", **{**options, **more}) for more in ({"at_most": "10m"}, {"key": "o:8"}))
    orders.fold()
    assert "<dt>at most</dt><dd>10m after the first call</dd>" in staff().get(page(job)).content.decode()
    assert "<dt>at most</dt>" not in staff().get(page(other)).content.decode()


def test_without_the_permission_nobody_frees_a_key(orders, staff):
    job = orders.scheduled(key="o:7", once_for="24h")[0]
    client = staff("view_job", "cancel_job")
    assert 'formaction="../forget/"' not in client.get(page(job)).content.decode()
    assert client.post(act(job, "forget"), {"confirmed": "1"}).status_code == 403
