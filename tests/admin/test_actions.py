"""Actions on jobs, from the list and from the page: permissions, answers and records."""

from __future__ import annotations

import re

import pytest
from django.contrib.admin.models import LogEntry
from django.test import Client

import django_delayq as delayq
from django_delayq import clock
from django_delayq.console.wording import second
from django_delayq.models import Event, Job
from django_delayq.producer.stores import stores
from tests.admin.conftest import JOBS, OPERATIONS, act, choose, lose_redis, page, said
from tests.tasks_for_tests import close_order

VERBS = ("cancel", "run_now", "reschedule", "requeue")


def fields(verb: str) -> dict[str, str]:
    return {"confirmed": "1", **({"delay": "10m"} if verb == "reschedule" else {})}


def job_for(orders, verb: str) -> delayq.Job:
    return orders.ended("fail") if verb == "requeue" else orders.scheduled()[0]


@pytest.mark.parametrize("verb", VERBS)
def test_an_action_from_the_list_asks_first_and_then_says_what_it_did(orders, staff, verb):
    job, client = job_for(orders, verb), staff()
    before = orders.in_redis(job)
    asked = choose(client, verb, [job])
    label = {"cancel": "Cancel 1 job", "run_now": "Run 1 job now", "reschedule": "Reschedule 1 job", "requeue": "Requeue 1 job"}[verb]
    assert f'value="{label}"' in asked.content.decode()
    assert asked.templates[0].name == "admin/delayq/job/ask.html"
    assert orders.in_redis(job) == before
    done = choose(client, verb, [job], reason="the customer called", **fields(verb))
    words = {"cancel": "cancelled", "run_now": "made due now", "reschedule": "rescheduled", "requeue": "requeued"}
    assert said(done) == [f"1 {words[verb]}."]


@pytest.mark.parametrize("verb", VERBS)
def test_an_action_leaves_a_log_entry_and_an_event_with_actor_and_reason(orders, staff, verb):
    job, client = job_for(orders, verb), staff()
    response = client.post(act(job, verb), {"reason": "the customer called", **fields(verb)}, follow=True)
    assert response.redirect_chain == [(page(job), 302)]
    orders.fold()
    entry = LogEntry.objects.get()
    assert (entry.object_id, entry.user.username) == (str(job.id), "clerk0")
    assert entry.change_message.endswith(": the customer called")
    event = Event.objects.filter(job_id=job.id).latest("id")
    assert (event.actor, event.reason) == ("admin:clerk0", "the customer called")
    expected = {"cancel": "cancelled", "run_now": "rescheduled", "reschedule": "rescheduled", "requeue": "requeued"}
    assert event.kind == expected[verb]
    assert "the customer called" in client.get(page(job)).content.decode()


@pytest.mark.parametrize("verb", VERBS)
def test_every_action_needs_its_own_permission(orders, staff, verb):
    job = job_for(orders, verb)
    others = ["view_job", *(f"{other}_job" for other in VERBS if other != verb)]
    client = staff(*others)
    before = orders.in_redis(job)
    assert client.post(act(job, verb), fields(verb)).status_code == 403
    assert f'formaction="../{verb}/"' not in client.get(page(job)).content.decode()
    choose(client, verb, [job], **fields(verb))
    assert orders.in_redis(job) == before
    assert not LogEntry.objects.exists()


@pytest.mark.parametrize("verb", VERBS)
def test_an_action_is_posted_with_a_token(orders, staff, verb):
    job, client = job_for(orders, verb), staff()
    assert client.get(act(job, verb)).status_code == 405
    strict = Client(enforce_csrf_checks=True)
    strict.cookies = client.cookies
    assert strict.post(act(job, verb), fields(verb)).status_code == 403


def test_the_answer_is_honest_about_every_job(orders, staff):
    scheduled = orders.scheduled(2)
    running, ended = orders.running(), orders.ended("ack")
    done = choose(staff(), "cancel", [*scheduled, running, ended], confirmed="1")
    assert said(done) == ["2 cancelled, 1 already running (asked to stop), 1 already finished."]
    assert LogEntry.objects.count() == 3  # the finished job did not change


def test_the_question_says_how_many_of_the_ticked_jobs_the_action_can_change(orders, staff):
    failed, ended, [starts] = orders.ended("fail"), orders.ended("ack"), orders.scheduled(1, delay=0)
    orders.claim()  # the row is still scheduled, but Redis decides
    waiting = orders.scheduled(2)
    Job.objects.filter(pk=starts.id).update(state="scheduled", started_at=None)
    client = staff()
    text = choose(client, "run_now", [*waiting, starts, failed, ended]).content.decode()
    assert "2 of these 5 jobs are in a state that allows this." in text
    assert 'value="Run 2 jobs now"' in text
    text = choose(client, "requeue", [ended]).content.decode()
    assert "The state of this job does not allow this." in text
    assert '<input type="submit"' not in text
    assert "in a state that allows" not in choose(client, "requeue", [failed]).content.decode()


def test_a_job_whose_key_is_held_is_not_requeued(orders, staff):
    failed = orders.ended("fail", key="k")
    orders.scheduled(key="k")
    done = staff().post(act(failed, "requeue"), follow=True)
    assert "1 not requeued" in said(done)[0]


def test_all_jobs_that_match_lead_to_an_operation(orders, staff):
    jobs = orders.scheduled(3)
    asked = choose(staff(), "cancel", jobs[:1], query="?state=scheduled&q=key:a*", select_across="1")
    assert asked.redirect_chain == [("/admin/delayq/operation/start/cancel/?state=scheduled&q=key%3Aa%2A", 302)]
    refused = choose(staff("view_job", "cancel_job"), "cancel", jobs[:1], query="?state=scheduled", select_across="1")
    assert "Select the jobs individually" in said(refused)[0]
    assert {orders.in_redis(job) for job in jobs} == {"scheduled"}


@pytest.mark.parametrize("across", ["1", "2", "true", "on", "-1", "00"])
@pytest.mark.parametrize("confirmed", [{}, {"confirmed": "1"}])
def test_all_that_match_are_never_meant_by_an_action_however_the_form_says_so(orders, staff, across, confirmed):
    jobs = orders.scheduled(3)
    client = staff("view_job", "cancel_job")
    refused = choose(client, "cancel", jobs[:1], query="?state=scheduled", select_across=across, **confirmed)
    assert {orders.in_redis(job) for job in jobs} == {"scheduled"}
    assert "Select the jobs individually" in said(refused)[0]


@pytest.mark.parametrize("across", ["0", "", "false", "False"])
def test_without_all_that_match_the_ticked_ones_are_meant(orders, staff, across):
    jobs = orders.scheduled(3)
    choose(staff(), "cancel", jobs[:1], select_across=across, confirmed="1")
    assert [orders.in_redis(job) for job in jobs] == ["finished", "scheduled", "scheduled"]


def test_a_ticked_job_that_the_search_only_nearly_means_is_left_alone(orders, staff):
    jobs = [delayq.schedule(close_order, number, delay="1h", key=key) for number, key in ((1, "k"), (77, "K"))]
    orders.fold()
    choose(staff(), "cancel", jobs, query="?q=arg:order_id=7", confirmed="1")
    choose(staff(), "cancel", jobs, query="?q=key:k*", confirmed="1")
    assert [orders.in_redis(job) for job in jobs] == ["finished", "scheduled"]


@pytest.mark.parametrize("ticked", ["x", "7", "' or 1=1", "\x00"])
def test_what_is_ticked_by_hand_and_is_no_id_is_said(orders, staff, ticked):
    orders.scheduled(1)
    form = {"action": "cancel", "_selected_action": [ticked], "index": "0", "confirmed": "1"}
    assert "Select the jobs again" in said(staff().post(JOBS, form, follow=True))[0]


def test_without_redis_nothing_is_done_and_that_is_said(orders, staff, settings):
    jobs = orders.scheduled(3)
    client = staff()
    lose_redis(settings)
    done = choose(client, "cancel", jobs, confirmed="1")
    assert said(done)[0].startswith(f"3 jobs were not changed ({', '.join(job.short_id for job in jobs)}): ")
    assert not LogEntry.objects.exists()


def test_after_a_lost_reply_the_result_is_unknown_and_that_is_said(orders, staff, lost_cancel):
    jobs = orders.scheduled(2)
    done = choose(staff(), "cancel", jobs, confirmed="1")
    text = said(done)[0]
    assert text.startswith(f"The result for 2 jobs is unknown ({', '.join(job.short_id for job in jobs)}): ")
    assert text.endswith(" Look at them again before you repeat the action.")
    assert [orders.in_redis(job) for job in jobs] == ["finished"] * 2


def test_jobs_of_a_queue_that_is_no_longer_listed_do_not_stop_the_others(orders, staff, settings):
    gone = orders.scheduled(1)[0]
    Job.objects.update(queue="old")
    [fine] = orders.scheduled(1)
    done = choose(staff(), "cancel", [gone, fine], confirmed="1")
    assert said(done)[0] == "1 cancelled."
    assert said(done)[1].startswith(f"1 job was not changed ({gone.short_id}): ")
    assert "queue old" in said(done)[1]


@pytest.mark.parametrize(
    ("given", "complaint"),
    [
        ({}, "Enter either a delay or a date"),
        ({"delay": "soon"}, "soon"),
        ({"delay": "10m", "run_at": "2030-01-01T10:00"}, "Enter either a delay or a date"),
        ({"run_at": "yesterday"}, "yesterday is not a valid date"),
        ({"run_at": "today"}, "today is not a valid date"),
        ({"run_at": "-2h"}, "This date is in the past"),
        ({"run_at": "2020-01-01T10:00"}, "This date is in the past"),
        ({"run_at": "9999-12-31T23:59"}, "is not a valid date"),
    ],
)
def test_a_reschedule_without_a_clear_date_says_what_is_wrong(orders, staff, given, complaint):
    [job] = orders.scheduled()
    client = staff()
    before = Job.objects.get().run_at
    response = client.post(act(job, "reschedule"), given)
    assert response.status_code == 400
    assert complaint in response.content.decode()
    assert complaint in choose(client, "reschedule", [job], confirmed="1", **given).content.decode()
    orders.fold()
    assert Job.objects.get().run_at == before


@pytest.mark.parametrize("text", ["2031-01-31 18:00", "2031-01-31T18:00", "2031-01-31 18:00+01:00"])
def test_a_reschedule_takes_a_date_in_the_time_zone_of_the_admin(orders, staff, settings, text):
    settings.TIME_ZONE = "Europe/Berlin"
    [job] = orders.scheduled()
    staff().post(act(job, "reschedule"), {"run_at": text})
    orders.fold()
    assert clock.to_ms(Job.objects.get().run_at) == 1_927_645_200_000  # 17:00 UTC


def test_an_unknown_job_leads_back_with_a_word(staff, orders):
    response = staff().post(f"{JOBS}nonsense/cancel/", follow=True)
    assert response.status_code == 200
    assert "nonsense" in said(response)[0]


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
    shown, listed = (client.get(url).content.decode().replace("<wbr>", "") for url in (page(job), JOBS))
    assert f">{due}</time>" in shown
    assert re.search(rf"field-run_at_and_late[^>]*>(<[^>]*>)*{due}<", listed)


def test_a_crash_says_how_its_process_has_ended(orders, staff):
    job = orders.ended("crash", detail=b'{"d":"its process was killed by SIGKILL","k":"process_sigkill","v":{"signal":"SIGKILL"}}')
    text = staff().get(page(job)).content.decode()
    assert "Its process was killed by SIGKILL, perhaps because the machine was out of memory." in text
