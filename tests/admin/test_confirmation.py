"""The confirmation before an action: which jobs, how many, and the link back. A page offers only actions that apply."""

from __future__ import annotations

import re

import pytest

from django_delayq import clock
from django_delayq.console.wording import second
from django_delayq.models import Job
from django_delayq.producer.stores import stores
from tests.admin.conftest import JOBS, OPERATIONS, act, choose, page, said


@pytest.mark.parametrize(
    ("verb", "button", "keep"), [("cancel", "Cancel 1 job", "Keep the job"), ("run_now", "Run 1 job now", "Back to the job")]
)
def test_the_page_of_a_job_asks_before_it_is_cancelled_or_run(orders, staff, verb, button, keep):
    job, client = orders.scheduled(key="order:7")[0], staff()
    before = orders.in_redis(job)
    asked = client.post(act(job, verb), {"reason": "the customer called"})
    text = asked.content.decode()
    assert asked.templates[0].name == "admin/delayq/job/ask.html"
    assert f'value="{button}"' in text
    assert f'href="{page(job)}" class="closelink">{keep}<' in text
    assert 'value="the customer called"' in text
    assert "order:7" in text
    assert ("delayq-danger" in text) == (verb == "cancel")
    assert orders.in_redis(job) == before
    assert said(client.post(act(job, verb), {"reason": "the customer called", "confirmed": "1"}, follow=True))


def test_jobs_are_told_apart_by_key_arguments_error_and_a_date_with_its_name(orders, staff, more_tasks):
    more_tasks("shop.pay", lambda order, pin: None, sensitive=["pin"])
    first = orders.ended("fail", detail=b'{"c":"shop.Down","m":"503 of the bank\\nsecond line"}', max_attempts=1)
    Job.objects.filter(pk=first.id).update(task="shop.pay", args=[7], kwargs={"pin": "1234"})
    client, other = staff(), staff("view_job", "requeue_job", "view_sensitive")  # `staff()` alone may not see it
    text = choose(client, "requeue", [first]).content.decode()
    assert "order=7, pin=" in text
    assert "1234" not in text
    assert "503 of the bank" in text
    assert "second line" not in text
    assert re.search(r"finished <time [^>]*>20\d\d-", text)
    assert "1234" in choose(other, "requeue", [first]).content.decode()


def test_what_is_cut_turns_no_direction_of_writing(orders, staff, settings):
    settings.LANGUAGE_CODE = "he"  # where Django's own way of cutting adds U+202E
    job = orders.ended("fail", detail=b'{"c":"shop.Down","m":"' + b"x" * 2500 + b'"}', max_attempts=1)
    Job.objects.filter(pk=job.id).update(args=["y" * 300])
    client = staff()
    for text in (choose(client, "requeue", [job]).content.decode(), client.get(page(job)).content.decode()):
        assert 'dir="rtl"' in text
        assert "…" in text
        assert "\u202e" not in text


def test_the_button_of_an_operation_says_the_act_and_the_number(orders, staff):
    orders.scheduled(3)
    text = staff().get(f"{OPERATIONS}start/cancel/?state=scheduled").content.decode()
    assert 'class="default delayq-danger" value="Cancel 3 jobs"' in text
    assert ">Keep them</a>" in text


@pytest.mark.parametrize(
    ("view", "offered"),
    [("failed", {"requeue"}), ("running", {"cancel"}), ("scheduled", {"cancel", "run_now", "reschedule"}), ("succeeded", set())],
)
def test_only_actions_that_apply_to_the_view_are_offered(orders, staff, view, offered):
    orders.ended("fail", max_attempts=1)
    orders.running()
    orders.scheduled()
    orders.ended("ack")
    form = staff().get(f"{JOBS}?state={view}").context.get("action_form")
    choices = {name for name, _ in form.fields["action"].choices if name} if form else set()
    assert choices == offered


def test_after_a_reschedule_page_and_list_say_the_new_date_at_once(orders, staff):
    job, client = orders.scheduled(delay="1h")[0], staff()
    orders.fold()
    job.reschedule(delay="3d")
    view = stores.inspector().job("orders", job.id)
    due = second(clock.from_ms(view.date_ms))
    Job.objects.filter(pk=job.id).update(run_at=clock.from_ms(view.date_ms - 86_400_000))  # a row that is not updated yet
    assert f">{due}</time>" in client.get(page(job)).content.decode()
    assert re.search(rf"field-run_at_and_late[^>]*>(<[^>]*>)*{due}<", client.get(JOBS).content.decode())


def test_a_crash_says_how_its_process_has_ended(orders, staff):
    job = orders.ended("crash", detail=b'{"d":"its process was killed by SIGKILL","k":"process_sigkill","v":{"signal":"SIGKILL"}}')
    text = staff().get(page(job)).content.decode()
    assert "Its process was killed by SIGKILL, perhaps because the machine was out of memory." in text
