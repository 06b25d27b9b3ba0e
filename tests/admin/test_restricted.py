"""A subclass that excludes rows excludes them everywhere: pages, forms, actions, counts and related jobs."""

from __future__ import annotations

import json
from itertools import count
from types import ModuleType

import pytest
from django.contrib.admin.models import LogEntry
from django.contrib.admin.sites import AdminSite
from django.contrib.auth.models import Group, User
from django.urls import path

import django_delayq as delayq
from django_delayq.admin import JobAdmin, OperationAdmin
from django_delayq.models import Job, Operation
from django_delayq.producer.stores import stores
from tests.admin.conftest import JOBS, OPERATIONS, QUEUES, WORKERS, act, choose, page, said
from tests.admin.test_operations import begin
from tests.mirror.conftest import Orders
from tests.tasks_for_tests import close_order

TEAM = "/team/delayq/job/"
CLAIMS = count()
VERBS = ("cancel", "run_now", "reschedule", "requeue")


@pytest.fixture
def team(orders, staff, settings):
    """A browser of the team that owns the queue "orders"."""
    settings.ROOT_URLCONF = "tests.admin.team"
    client = staff()
    User.objects.get().groups.add(Group.objects.create(name="orders"))
    return client


def failed(queue: str, message: str, **options) -> delayq.Job:
    line = Orders(queue)
    line._claims = next(CLAIMS)
    job = delayq.schedule(close_order, 7, note=message, queue=queue, max_attempts=1, **options)
    [claimed] = line.claim()
    line.settle(claimed, "fail", detail=json.dumps({"c": "E", "m": message, "p": f"p-{message}"}).encode())
    line.fold()
    return job


def waiting(queue: str) -> delayq.Job:
    job = delayq.schedule(close_order, 7, delay="1h", queue=queue)
    Orders(queue).fold()
    return job


@pytest.mark.parametrize("place", ["change", "edit", "history", "cancel", "run_now", "reschedule", "requeue", ""])
def test_the_page_of_a_job_of_another_team_is_that_of_no_job(team, place):
    mine, other = failed("orders", "mine"), failed("default", "theirs")
    way = f"{place}/" if place else ""
    for client_address in (f"{TEAM}{other.id}/{way}", f"{TEAM}{other.id}/{way}?live=1"):
        post = place in VERBS
        answer = (team.post if post else team.get)(client_address, {"delay": "1h"}, follow=True)
        assert answer.redirect_chain[-1][0] in ("/team/", TEAM)
        assert "theirs" not in answer.content.decode()
        assert "doesn’t exist" in said(answer)[0]
    assert team.get(f"{TEAM}{mine.id}/change/").status_code == 200
    assert not LogEntry.objects.exists()


@pytest.mark.parametrize("verb", VERBS)
def test_nothing_is_done_to_a_job_of_another_team(team, verb):
    other = failed("default", "theirs") if verb == "requeue" else waiting("default")
    before = stores.inspector().job("default", other.id)
    form = {"action": verb, "_selected_action": [str(other.id)], "index": "0", "confirmed": "1", "delay": "1d"}
    team.post(TEAM, form)
    team.post(f"{TEAM}{other.id}/{verb}/", {"delay": "1d"})
    after = stores.inspector().job("default", other.id)
    assert (after.state, after.date_ms) == (before.state, before.date_ms)
    assert not LogEntry.objects.exists()


def test_lists_counts_and_failures_know_none_of_them(team):
    mine = [failed("orders", "mine") for _ in range(2)]
    other = failed("default", "theirs")
    shown = team.get(TEAM).context["cl"]
    assert {job.pk for job in shown.result_list} == {job.id for job in mine}
    assert {str(tab["label"]): tab["count"] for tab in shown.tabs}["Failed"] == "2"
    for query in (f"?q={other.id}", "?queue=default", "?q=queue:default", "?q=error:theirs", "?q=arg:note=theirs"):
        assert list(team.get(TEAM + query).context["cl"].result_list) == [], query
    failures = team.get(f"{TEAM}failures/")
    assert [group.count for group in failures.context["groups"]] == [2]
    assert "theirs" not in failures.content.decode()


def test_a_team_starts_no_operation_by_any_address(team):
    waiting("orders")
    assert team.get(TEAM).context["for_all"] == []
    for verb in VERBS:
        place = f"/team/delayq/operation/start/{verb}/"
        assert team.get(place).status_code in (403, 404)
        assert team.post(place, {"delay": "1h"}).status_code in (403, 404)
    refused = team.post(TEAM, {"action": "cancel", "_selected_action": ["0"], "select_across": "1", "index": "0"})
    assert refused.status_code == 302
    assert not Operation.objects.exists()


# rules of any kind


@pytest.fixture
def without(monkeypatch):
    """`without(job)` makes the admin of jobs exclude this job."""
    inherited = JobAdmin.get_queryset

    def leave_out(job: delayq.Job) -> None:
        monkeypatch.setattr(JobAdmin, "get_queryset", lambda self, request: inherited(self, request).exclude(pk=job.id))

    return leave_out


def test_jobs_of_the_same_key_are_those_that_the_admin_has(orders, staff, without):
    first, second = (orders.ended("ack", key="k") for _ in range(2))
    last = orders.ended("fail", key="k")
    client = staff()
    assert page(first) in client.get(page(last)).content.decode()
    without(first)
    text = client.get(page(last)).content.decode()
    assert page(first) not in text
    assert page(second) in text


def test_an_object_rule_is_asked_for_each_job(orders, staff, monkeypatch):
    mine, other = (orders.ended("fail", key="k", max_attempts=1, detail=b'{"c":"E","p":"a"}') for _ in range(2))
    inherited = JobAdmin.has_view_permission

    def rule(self, request, obj=None):
        return inherited(self, request, obj) and (obj is None or obj.pk != other.id)

    monkeypatch.setattr(JobAdmin, "has_view_permission", rule)
    client = staff()
    assert client.get(page(mine)).status_code == 200
    assert page(other) not in client.get(page(mine)).content.decode()
    for place in ("change", "edit", "history"):
        assert client.get(f"{JOBS}{other.id}/{place}/").status_code == 403, place
    assert client.post(act(other, "requeue")).status_code == 403
    assert said(choose(client, "requeue", [mine, other], confirmed="1")) == [
        "You do not have permission to do this to 1 of these jobs. They were not changed.",
        "1 requeued.",
    ]
    assert orders.in_redis(other) == "failed"
    assert page(other) not in client.get(f"{JOBS}failures/").content.decode()


@pytest.mark.parametrize("verb", VERBS)
def test_what_may_be_done_is_asked_for_each_job(orders, staff, monkeypatch, verb):
    mine, other = (orders.ended("fail") if verb == "requeue" else orders.scheduled()[0] for _ in range(2))
    monkeypatch.setattr(JobAdmin, f"has_{verb}_permission", lambda self, request, obj=None: not obj or obj.pk == mine.id)
    client, fields = staff(), {"delay": "1d"}
    assert f"../{verb}/" in client.get(page(mine)).content.decode()
    assert f"../{verb}/" not in client.get(page(other)).content.decode()
    assert client.post(act(other, verb), fields).status_code == 403
    answer = choose(client, verb, [other], confirmed="1", **fields)
    assert said(answer) == ["You do not have permission to do this to 1 of these jobs. They were not changed."]
    assert not LogEntry.objects.exists()


@pytest.mark.parametrize(
    ("rules", "started"),
    [
        ({}, True),
        ({"get_queryset": lambda self, request: JobAdmin.get_queryset(self, request)}, False),
        ({"has_view_permission": lambda self, request, obj=None: True}, False),
        ({"has_cancel_permission": lambda self, request, obj=None: True}, False),
        ({"get_queryset": lambda self, request: JobAdmin.get_queryset(self, request), "operations": True}, True),
        ({"operations": False}, False),
    ],
)
def test_a_subclass_with_rules_of_its_own_has_no_operations_unless_it_says_so(orders, staff, settings, rules, started):
    orders.scheduled(1)
    site, addresses = AdminSite(), ModuleType("addresses")
    site.register(Operation, OperationAdmin)
    site.register(Job, type("Ruled", (JobAdmin,), rules))
    addresses.urlpatterns = [path("admin/", site.urls)]
    settings.ROOT_URLCONF = addresses
    client = staff()
    assert bool(client.get(f"{JOBS}?state=scheduled").context["for_all"]) == started
    assert client.get(f"{OPERATIONS}start/cancel/?state=scheduled").status_code == (200 if started else 403)
    client.post(f"{OPERATIONS}start/cancel/?state=scheduled", {})
    assert Operation.objects.exists() == started


@pytest.mark.parametrize(("rules", "shown"), [({}, True), ({"search_fields": ()}, False)])
def test_a_subclass_without_a_search_shows_no_field_for_it(orders, staff, settings, rules, shown):
    site, addresses = AdminSite(), ModuleType("addresses")
    site.register(Job, type("Ruled", (JobAdmin,), rules))
    addresses.urlpatterns = [path("admin/", site.urls)]
    settings.ROOT_URLCONF = addresses
    assert ('id="searchbar"' in staff().get(JOBS).content.decode()) == shown


def test_an_operation_that_its_admin_leaves_out_is_none(orders, staff, monkeypatch):
    operation, client = begin(), staff()
    inherited = OperationAdmin.get_queryset
    monkeypatch.setattr(OperationAdmin, "get_queryset", lambda self, request: inherited(self, request).none())
    for place in ("change/", "change/?live=1", "history/"):
        assert client.get(f"{OPERATIONS}{operation.pk}/{place}").status_code == 302, place
    assert client.post(f"{OPERATIONS}{operation.pk}/pause/").status_code == 302
    operation.refresh_from_db()
    assert operation.stage == "waiting"


@pytest.mark.parametrize("model", ["queue", "worker"])
@pytest.mark.parametrize("place", ["history", "change", "delete"])
def test_the_pages_of_queues_and_workers_tell_of_no_job(orders, staff, model, place):
    [job] = orders.scheduled()
    answer = staff(f"view_{model}").get(f"/admin/delayq/{model}/{job.id}/{place}/", follow=True)
    assert "close_order" not in answer.content.decode()
    assert answer.redirect_chain or answer.status_code == 403


def test_where_each_job_is_judged_a_failure_group_shows_what_its_sample_says_and_no_more(orders, rf, admin_user):
    for message in ("theirs", "mine"):
        orders.ended("fail", detail=json.dumps({"c": "E", "m": message, "p": "same"}).encode())
    request = rf.get(f"{JOBS}failures/")
    request.user = admin_user
    judged = type("Judged", (JobAdmin,), {"has_view_permission": lambda self, request, obj=None: True})
    others = [kind(Job, AdminSite()).failures(request).context_data["groups"][0].others for kind in (JobAdmin, judged)]
    assert others == [{"E: theirs": 1}, {}]


def refused(answer) -> str:
    assert answer.status_code == 403
    return " ".join(answer.content.decode().split())


@pytest.mark.parametrize(
    ("address", "codename", "label"),
    [
        (JOBS, "view_job", "Can view job"),
        (f"{JOBS}failures/", "view_job", "Can view job"),
        (QUEUES, "view_queue", "Can view queue"),
        (WORKERS, "view_worker", "Can view worker"),
        (OPERATIONS, "view_operation", "Can view operation"),
    ],
)
def test_who_may_not_see_a_page_is_told_which_permission_is_missing(orders, staff, address, codename, label):
    text = refused(staff("view_setaside").get(address))
    assert f"<strong>{label}</strong> <code>delayq.{codename}</code>" in text
    assert "that clerk0 does not have" in text


@pytest.mark.parametrize("verb", ["cancel", "run_now", "reschedule", "requeue"])
def test_who_may_not_do_a_thing_is_told_which_permission_is_missing(orders, staff, verb):
    [job] = orders.scheduled()
    assert f"<code>delayq.{verb}_job</code>" in refused(staff("view_job").post(act(job, verb), {"delay": "1h"}))


def test_a_copy_and_an_edit_name_theirs(orders, staff):
    job, client = orders.ended(), staff("view_job")
    assert "<code>delayq.edit_job</code>" in refused(client.get(act(job, "edit")))
    named = "<strong>Can schedule copies of jobs, and add, change and delete schedules</strong> <code>delayq.schedule_job</code>"
    assert named in refused(client.get(act(job, "copy")))


def test_a_rule_of_the_site_is_no_missing_permission(orders, staff, monkeypatch):
    def sees(self, request, obj=None):
        return self.allows(request, "view_job") and (obj is None or obj.key != "secret")

    monkeypatch.setattr(JobAdmin, "has_view_permission", sees)
    job = delayq.schedule(close_order, 7, key="secret")
    orders.fold()
    text = refused(staff("view_job").get(page(job)))
    assert "A rule of this site does not allow this action" in text
    assert "delayq.view_job" not in text


def test_a_permission_that_was_looked_for_and_not_needed_is_not_named(orders, staff):
    """The page of a job checks many permissions. A later refusal has a different reason, and names only that."""
    job, client = orders.ended("ack"), staff("view_job")
    assert client.get(page(job)).status_code == 200
    assert "view_sensitive" not in refused(client.get(act(job, "copy")))


def test_other_apps_say_what_they_said(orders, staff, settings):
    """Other apps keep the refusals of Django or of the project."""
    text = refused(staff("view_job").get("/admin/auth/user/"))
    assert "delayq" not in text


def test_who_is_not_logged_in_is_asked_to_log_in(orders, client):
    answer = client.get(JOBS)
    assert (answer.status_code, answer.url) == (302, f"/admin/login/?next={JOBS}")


# the remaining parts of Django's admin


def test_the_history_of_a_job_is_what_happened_to_it(orders, staff):
    job, client = orders.ended(), staff("view_job")
    answer = client.get(f"{JOBS}{job.id}/history/")
    assert (answer.status_code, answer.url) == (302, f"{page(job)}#happened")
    text = client.get(page(job)).content.decode()
    assert 'href="#happened" class="historylink"' in text
    assert 'id="happened"' in text


def test_a_list_bears_the_name_of_what_it_shows(orders, staff):
    client = staff()
    for address, title in ((JOBS, "Jobs"), (OPERATIONS, "Operations")):
        text = client.get(address).content.decode()
        assert "to view" not in text
        assert f"<h1>{title}</h1>" in text


def test_an_object_that_nobody_has_touched_says_so(orders, staff):
    operation = Operation.objects.create(verb="cancel", actor="admin:x")
    text = staff().get(f"{OPERATIONS}{operation.pk}/history/").content.decode()
    assert "No actions have been taken on this object in the admin." in text
    assert "change history" not in text
