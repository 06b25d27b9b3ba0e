"""A refusal names the missing permission. The general texts of Django's admin are not shown for jobs."""

from __future__ import annotations

import pytest

import django_delayq as delayq
from django_delayq.admin import JobAdmin
from django_delayq.models import Operation
from tests.admin.conftest import JOBS, OPERATIONS, QUEUES, WORKERS, act, page
from tests.tasks_for_tests import close_order


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
    assert "<strong>Can create and delete schedules of the admin</strong> <code>delayq.schedule_job</code>" in refused(
        client.get(act(job, "copy"))
    )


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
