"""Edit and requeue, and purge."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from html import unescape

import pytest
from django.contrib.admin.models import LogEntry
from django.urls import reverse
from django.utils import timezone

import django_delayq as delayq
from django_delayq import codec
from django_delayq.admin import editing
from django_delayq.exceptions import PayloadError, PayloadTooLarge
from django_delayq.models import Event, Job, Operation
from django_delayq.producer import edit, name_format
from django_delayq.producer.stores import stores
from django_delayq.producer.task import Task, registry
from django_delayq.states import Change
from tests.admin.arguments_given import sent
from tests.admin.conftest import QUEUES, lose_redis, page, said
from tests.admin.test_operations import work
from tests.carriers import TENANT
from tests.tasks_for_tests import close_order


def form_of(job: delayq.Job) -> str:
    return reverse("admin:delayq_job_edit", args=[job.id])


def give(client, job: delayq.Job, *, follow: bool = True, more: Mapping[str, str] | None = None, **changed: tuple[str, str] | str):
    """Sends the form with other arguments. `more`: other fields to send."""
    form = client.get(form_of(job)).context["form"]
    return client.post(form_of(job), {**sent(form, **changed), "reason": "a typo", **(more or {})}, follow=follow)


DO = {"confirmed": "1"}


def arguments_in_redis(job: delayq.Job) -> list:
    record = stores.inspector().job("orders", job.id).record
    return list(codec.decode_payload(record.payload)[:2])


def test_what_changes_is_shown_first_and_then_done(orders, staff):
    job, client = orders.ended("fail", key="k", meta={"customer": 9}, max_attempts=1), staff()
    shown = give(client, job, order_id="8", note=("text", "right"))
    lines = [(line["mark"], line["text"].strip()) for line in shown.context["difference"].lines]
    assert ("-", '"order_id": 7') in lines
    assert ("+", '"order_id": 8,') in lines
    assert orders.in_redis(job) == "failed"
    done = give(client, job, order_id="8", note=("text", "right"), more=DO)
    assert said(done) == ["The job was requeued with the new arguments."]
    assert arguments_in_redis(job) == [[8], {"note": "right"}]
    row = Job.objects.get()
    assert (row.args, row.kwargs, row.meta) == ([8], {"note": "right"}, {"customer": 9})
    orders.fold()
    assert Job.objects.get().state == "scheduled"
    edited = Event.objects.get(kind="edited")
    assert (edited.actor, edited.reason, edited.detail) == ("admin:clerk0", "a typo", {"args": [7], "kwargs": {}})
    assert LogEntry.objects.get().change_message == "Edit and requeue: a typo"
    text = client.get(page(job)).content.decode()
    assert "Previous arguments: [[7], {}]" in text


def upgraded(order_id: int) -> dict[str, int]:
    return {"order": order_id, "amount": 5}


def test_the_form_has_the_arguments_of_the_present_version_and_so_has_the_edited_job(orders, staff, monkeypatch):
    job, client = orders.ended("fail", max_attempts=1, serial="order:{order_id}", meta={"by": "form"}), staff()
    changed = Task(lambda order, amount: None, name=close_order.name, queue="orders", version=2, upgrade={1: upgraded})
    changed.named = name_format.given("order:{order}", None, changed.signature, "", frozenset())
    monkeypatch.setattr(registry, "_tasks", {**registry._tasks, close_order.name: changed})
    shown = client.get(form_of(job)).context["form"]
    assert [(row["argument"].label, row["argument"].value) for row in shown.rows] == [("order", 7), ("amount", 5)]
    give(client, job, order="8", more=DO)
    assert arguments_in_redis(job) == [[], {"order": 8, "amount": 5}]
    row = Job.objects.get()
    assert (row.version, row.shared_name.text, row.meta) == (2, "order:8", {"by": "form"})
    row.options["meta"] = {"by": "form"}
    edit.upgrade(row)
    assert row.version == 1, "arguments that are not understood stay"


def test_large_numbers_stay_exact(orders, staff):
    job = orders.ended("fail", max_attempts=1)
    give(staff(), job, order_id=str(2**63 + 1), more=DO)
    assert arguments_in_redis(job) == [[2**63 + 1], {}]


def test_of_two_who_edit_one_job_one_is_told_that_the_other_was_faster(orders):
    job = orders.ended("fail", max_attempts=1)
    assert edit.edit_and_requeue(job.id, [8], {}) is Change.DONE
    assert edit.edit_and_requeue(job.id, [9], {}) is Change.CONFLICT  # its row has the state failed until the event is folded
    assert Job.objects.get().args == [8]
    assert arguments_in_redis(job) == [[8], {}]
    assert Event.objects.filter(kind="edited").count() == 1
    orders.fold()
    assert edit.edit_and_requeue(job.id, [9], {}) is Change.CONFLICT


def test_a_form_that_was_opened_before_somebody_else_edited_is_refused(orders, staff):
    job, client = orders.ended("fail", max_attempts=1), staff()
    opened = sent(client.get(form_of(job)).context["form"], order_id="8")
    Job.objects.update(args=[10])
    answer = client.post(form_of(job), {**opened, **DO})
    assert "Another user has changed" in answer.content.decode()
    assert orders.in_redis(job) == "failed"


def test_a_held_key_leaves_everything_as_it_was(orders):
    job = orders.ended("fail", key="k", max_attempts=1)
    orders.scheduled(key="k")
    assert edit.edit_and_requeue(job.id, [8], {}) is Change.CONFLICT
    assert Job.objects.get(pk=job.id).args == [7]
    assert not Event.objects.filter(kind="edited").exists()


def test_without_redis_nothing_changes(orders, staff, settings):
    job, client = orders.ended("fail", max_attempts=1), staff()
    lose_redis(settings)
    answer = give(client, job, order_id="8", more=DO)
    assert "Redis" in said(answer)[0]
    assert Job.objects.get().args == [7]


def test_what_has_not_ended_badly_is_not_edited(orders, staff):
    client = staff()
    for job in (orders.scheduled()[0], orders.running(), orders.ended("ack")):
        assert "cannot be edited" in said(client.get(form_of(job), follow=True))[0]
        assert edit.edit_and_requeue(job.id, [8], {}) in (Change.CONFLICT, Change.FINISHED)
        assert "/edit/" not in client.get(page(job)).content.decode()


def test_a_job_whose_rows_are_behind_is_not_offered_for_editing(orders, staff):
    job, client = delayq.schedule(close_order, 7, max_attempts=1), staff()
    [claimed] = orders.claim()
    orders.fold()
    orders.settle(claimed, "fail", detail=b"{}")
    text = client.get(page(job)).content.decode()
    assert orders.in_redis(job) == "failed"
    assert "/requeue/" in text
    assert "/edit/" not in text
    orders.fold()
    assert "/edit/" in client.get(page(job)).content.decode()


def test_back_from_what_changes_leads_to_the_form_with_what_was_typed(orders, staff):
    job, client = orders.ended("fail", max_attempts=1), staff()
    shown = give(client, job, order_id="8", note=("text", "right"))
    hidden = [tag for tag in re.findall(r"<input [^>]*>", shown.content.decode()) if 'type="hidden"' in tag]
    fields = {name: value for tag in hidden for name, value in re.findall(r'name="([^"]+)" value="([^"]*)"', tag)}
    [(name, value)] = re.findall(r'<input type="submit" name="(\w+)" value="([^"]*)"', shown.content.decode())
    form = client.post(form_of(job), {**{field: unescape(text) for field, text in fields.items()}, name: value})
    text = form.content.decode()
    assert (form.status_code, value) == (200, "Back")
    assert "Changes</h2>" not in text
    for typed in ('value="8"', 'value="right"', 'value="a typo"', '<option value="text" selected>'):
        assert typed in text
    assert orders.in_redis(job) == "failed"


def test_it_needs_its_permission(orders, staff):
    job = orders.ended("fail", max_attempts=1)
    client = staff("view_job", "requeue_job")
    assert client.get(form_of(job)).status_code == 403
    assert "/edit/" not in client.get(page(job)).content.decode()
    assert "/edit/" in staff("view_job", "edit_job").get(page(job)).content.decode()


def test_too_much_is_refused(orders):
    with pytest.raises(PayloadTooLarge):
        edit.check("tests.tasks_for_tests.close_order", "orders", [7], {"note": "x" * 70_000})
    with pytest.raises(PayloadError):
        edit.check("tests.tasks_for_tests.close_order", "orders", [object()], {})


def test_markup_in_arguments_shows_as_text(orders, staff):
    nasty = "<script>alert(1)</script>"
    job = orders.ended("fail", note=nasty, max_attempts=1)
    client = staff()
    for text in (
        client.get(form_of(job)).content.decode(),
        give(client, job, note=nasty * 2).content.decode(),
    ):
        assert nasty not in text
        assert "&lt;script&gt;" in text


def kept(before: str, after: str) -> int:
    """Returns the number of lines that stay, after it checks that no line is missing or invented."""
    found = editing.difference(before, after).lines
    assert [line["text"] for line in found if line["mark"] in " -"] == before.splitlines()
    assert [line["text"] for line in found if line["mark"] in " +"] == after.splitlines()
    return sum(line["mark"] == " " for line in found)


@pytest.mark.parametrize(
    ("before", "after", "stay"),
    [
        ("abcabba", "cbabac", 3),
        ("abc", "abc", 3),
        ("", "ab", 0),
        ("ab", "", 0),
        ("aab", "ab", 2),
        ("abxcd", "abycd", 4),
        ("xabcdy", "abcd", 4),
        ("ab" * 20, "ba" * 20, 39),
        ("a" * 50, "a" * 20 + "b" + "a" * 30, 50),
    ],
)
def test_the_difference_keeps_lines_that_both_texts_have(before, after, stay):
    assert kept("\n".join(before), "\n".join(after)) == stay


@pytest.mark.parametrize(
    ("old", "new", "too_large"),
    [
        (range(1_000), range(1_000, 2_000), False),
        (range(2_000), range(1_999, -1, -1), True),
        ([1, 2] * 8_000, [2, 1, 2, 2] * 4_000, True),
        ([1] * 16_000, [*[1] * 15_999, 2], False),
        ([1] * 2_800, [1, 1, 1, 2] * 49, True),
    ],
)
def test_texts_of_which_too_much_differs_are_shown_whole(old, new, too_large):
    before, after = json.dumps(list(old), indent=2), json.dumps(list(new), indent=2)
    kept(before, after)
    assert editing.difference(before, after).too_large == too_large


def test_the_page_of_an_edit_says_that_arguments_are_too_large_to_compare(orders, staff, monkeypatch):
    monkeypatch.setattr(editing, "MOST_WORK", 0)
    job = orders.ended("fail", max_attempts=1)
    Job.objects.update(task="tests.tasks_for_tests.takes_all", args=[1, 2, 3])
    shown = give(staff(), job, args="[0, 2, 4]")
    assert "too large to compare" in shown.content.decode()
    marks = [line["mark"] for line in shown.context["difference"].lines if line["text"].strip() == "2,"]
    assert marks == ["-", "+"]  # although it stays


# purge


def test_a_queue_is_purged_when_its_name_is_typed(orders, staff):
    orders.scheduled(3)
    client = staff()
    address = f"{QUEUES}orders/purge/"
    assert "3 jobs are scheduled" in client.get(address).content.decode()
    refused = client.post(address, {"typed": "order", "reason": "x"})
    assert (refused.status_code, "not the name of the queue" in refused.content.decode()) == (400, True)
    assert not Operation.objects.exists()
    client.post(address, {"typed": "orders", "reason": "a loop"})
    work()
    assert Operation.objects.get().counts == {"done": 3}
    orders.fold()
    assert set(Job.objects.values_list("state", flat=True)) == {"cancelled"}
    assert Event.objects.filter(job=None, kind="purged").get().reason == "a loop"
    assert {entry.change_message for entry in LogEntry.objects.all()} == {"Purge: orders: a loop"}


def test_purging_needs_its_permission(orders, staff):
    client = staff("view_queue", "pause_queue")
    assert client.get(f"{QUEUES}orders/purge/").status_code == 403
    assert client.post(f"{QUEUES}orders/purge/", {"typed": "orders"}).status_code == 403
    assert "purge/" not in client.get(QUEUES).content.decode()
    assert staff().get(f"{QUEUES}nowhere/purge/").status_code == 404


# a copy


def copy_of(job: delayq.Job) -> str:
    return reverse("admin:delayq_job_copy", args=[job.id])


def copied(client, job: delayq.Job, *, more: Mapping[str, str] | None = None, **changed: tuple[str, str] | str):
    """Sends the form as it was rendered, with other arguments. `more`: other fields to send."""
    context = client.get(copy_of(job)).context
    fields = {**sent(context["form"], **changed), "drawn": context["drawn"], "reason": "once more", **(more or {})}
    return client.post(copy_of(job), fields, follow=True)


def test_a_copy_is_a_new_job_and_leaves_the_old_one_as_it_is(orders, staff):
    job = orders.ended("ack", key="k", meta={"customer": 9}, max_attempts=3, backoff="1s 2s", priority=5, timeout="30s")
    client = staff("view_job", "schedule_job")
    assert "Schedule a copy" in client.get(page(job)).content.decode()
    answer = copied(client, job, more={"delay": "1h"})
    old, new = Job.objects.get(pk=job.id), Job.objects.exclude(pk=job.id).get()
    assert said(answer) == [f"The copy {new.short_id} was scheduled."]
    assert answer.redirect_chain == [(page(new), 302)]
    assert (old.state, new.state, orders.in_redis(new)) == ("succeeded", "scheduled", "scheduled")
    for name in ("task", "queue", "key", "args", "kwargs", "max_attempts", "priority"):
        assert getattr(new, name) == getattr(old, name)
    assert {name: new.options[name] for name in ("backoff", "timeout")} == {name: old.options[name] for name in ("backoff", "timeout")}
    assert new.meta == {"customer": 9, "copy_of": old.short_id, "scheduled_by": "admin:clerk0", "scheduled_why": "once more"}
    assert 3590 < (new.run_at - new.created_at).total_seconds() < 3610
    event = Event.objects.get(kind="copied")
    assert (event.job_id, event.actor, event.reason, event.detail) == (old.pk, "admin:clerk0", "once more", {"copy": new.short_id})
    assert "copied" in client.get(page(job)).content.decode()
    logged = {entry.object_id: (entry.action_flag, entry.change_message) for entry in LogEntry.objects.all()}
    assert logged == {
        str(old.pk): (2, f"Schedule a copy: once more ({new.short_id})"),
        str(new.pk): (1, "Schedule a copy: once more"),
    }


def test_a_copy_with_other_arguments_shows_what_changes_first(orders, staff):
    job, client = orders.ended("ack"), staff()
    shown = copied(client, job, order_id="8")
    assert ("+", '"order_id": 8') in [(line["mark"], line["text"].strip()) for line in shown.context["difference"].lines]
    assert Job.objects.count() == 1
    copied(client, job, order_id="8", more=DO)
    assert Job.objects.exclude(pk=job.id).get().args == [8]


def test_who_sends_the_form_twice_gets_one_copy(orders, staff):
    job, client = orders.ended("ack"), staff()
    drawn = client.get(copy_of(job)).context["drawn"]
    copied(client, job, more={"drawn": drawn})
    assert said(copied(client, job, more={"drawn": drawn})) == ["This copy has already been scheduled."]
    assert Job.objects.count() == 2
    assert "form was incomplete" in said(copied(client, job, more={"drawn": "nothing"}))[0]
    assert Job.objects.count() == 2


@pytest.mark.parametrize("home", [{"key": "k"}, {"serial": "k"}, {}], ids=str)
def test_so_does_who_copies_a_job_of_a_queue_with_several_partitions(delayq_redis, staff, settings, home):
    settings.DELAYQ = {**settings.DELAYQ, "QUEUES": {"orders": {"PARTITIONS": 16}}}
    job, client = delayq.schedule(close_order, 7, delay="1h", **home), staff()
    Job.objects.update(state="succeeded", published=timezone.now())
    delayq_redis.link.execute("FLUSHALL")
    drawn = client.get(copy_of(job)).context["drawn"]
    first = copied(client, job, more={"drawn": drawn})
    [made] = Job.objects.exclude(pk=job.id)
    again = copied(client, job, more={"drawn": drawn})
    assert (said(first), said(again)) == ([f"The copy {made.short_id} was scheduled."], ["This copy has already been scheduled."])
    assert [answer.redirect_chain for answer in (first, again)] == [[(page(made), 302)]] * 2
    assert Job.objects.count() == 2


def test_a_key_that_another_job_holds_stays_with_it(orders, staff):
    job, client = orders.ended("ack", key="k"), staff()
    holder = delayq.schedule(close_order, 7, key="k", delay="1h")
    assert said(copied(client, job)) == [f"Nothing was scheduled: the job {holder.short_id} has the key k and has not ended."]
    assert Job.objects.count() == 2


def test_a_copy_wants_arguments_that_the_task_takes(orders, staff):
    answer = copied(staff(), orders.ended("ack"), order_id="seven", more=DO)
    assert answer.status_code == 400
    assert "Enter a whole number" in answer.content.decode()
    assert Job.objects.count() == 1


@pytest.mark.parametrize("task", ["gone", "django_delayq.deliver", ""])
def test_of_what_people_give_no_arguments_for_there_is_no_copy(orders, staff, task):
    job, client = orders.ended("ack"), staff()
    Job.objects.update(task=task)
    assert "Schedule a copy" not in client.get(page(job)).content.decode()
    assert "cannot be copied" in said(client.get(copy_of(job), follow=True))[0]


def test_what_has_not_ended_has_no_copy(orders, staff):
    [job] = orders.scheduled()
    client = staff()
    assert "Schedule a copy" not in client.get(page(job)).content.decode()
    assert "cannot be copied" in said(client.get(copy_of(job), follow=True))[0]


def test_who_may_not_schedule_sees_no_copy_and_gets_none(orders, staff):
    job, client = orders.ended("ack"), staff("view_job", "requeue_job", "edit_job")
    assert "Schedule a copy" not in client.get(page(job)).content.decode()
    assert client.get(copy_of(job)).status_code == 403
    assert client.post(copy_of(job)).status_code == 403


def test_a_copy_carries_what_the_first_has_carried_and_lasts_as_long(orders, staff, settings):
    settings.DELAYQ = {**settings.DELAYQ, "CARRIERS": ["tests.carriers.Tenant"]}
    token = TENANT.set("acme")
    job = orders.ended("ack", expires="2h", concurrency=("order:{{x}}", 3))
    TENANT.reset(token)
    client = staff()
    copied(client, job)
    old, new = Job.objects.get(pk=job.id), Job.objects.exclude(pk=job.id).get()
    assert new.options["meta"]["delayq.carried"] == old.options["meta"]["delayq.carried"]
    assert new.shared_name == old.shared_name == ("order:{x}", 3)
    assert abs((new.expires_at - new.created_at) - (old.expires_at - old.created_at)).total_seconds() < 5


def test_a_copy_of_a_ticks_job_is_of_no_tick(orders, staff):
    job = orders.ended("ack")
    row = Job.objects.get()
    row.options = {"meta": {"delayq.periodic": {"name": "nightly"}, "note": 1}}
    row.save()
    copied(staff(), job)
    assert set(Job.objects.exclude(pk=job.id).get().meta) == {"note", "copy_of", "scheduled_by", "scheduled_why"}
