"""Unresolved jobs: where staff finds them, what the pages show, and what a person can do."""

from __future__ import annotations

import pytest
from django.contrib.admin.models import LogEntry

import django_delayq as delayq
from django_delayq.console import health, overview
from django_delayq.models import Event, Job
from django_delayq.producer.stores import stores
from tests.admin.conftest import JOBS, QUEUES, act, choose, page, said
from tests.management.conftest import Run, run  # noqa: F401
from tests.management.test_doctor import only
from tests.tasks_for_tests import close_order


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
    assert "Unresolved" in [str(tab.label) for tab in found.tabs]
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


def test_the_dashboard_the_figures_and_the_commands_count_it(unresolved, staff, run):  # noqa: F811
    [sign] = health.row_signs(0)[1:]
    assert (sign.level, sign.value) == ("bad", "1")
    assert f"{JOBS}?state=unresolved" in staff().get(QUEUES).content.decode()
    assert ("delayq_unresolved_jobs", {"queue": "orders"}, 1) in health.database_samples()
    assert "unresolved" in run("status").out
    found = only(run, "D033")
    assert found["level"] == "error"
    assert "mark-succeeded" in found["hint"]
    assert overview.count_unpublished() == 0


def test_the_command_marks_and_answers_for_others(unresolved, orders, run):  # noqa: F811
    other = delayq.schedule(close_order, 1, delay="1h")
    assert run("list", "--state", "unresolved", "--json").json[0]["derived"] == "unresolved"
    assert "how did it end?" in run("inspect", unresolved.id).out
    assert run("mark-failed", other.id).code == 1
    answer = run("mark-succeeded", "--queue", "orders", "--yes")
    assert (answer.code, answer.out) == (0, "mark-succeeded: 1 done.\n")
    assert Job.objects.get(pk=unresolved.id).state == "succeeded"
