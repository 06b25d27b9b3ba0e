"""Tests the statements of docs/howto/wagtail.md, in the project that the page builds."""

from orders.tasks import index_page

from django_delayq.models import Job


def test_a_task_of_the_package_runs_as_a_job(delayq):
    result = index_page.enqueue(7)
    delayq.run_due()
    result.refresh()
    assert (str(result.status.value), result.return_value) == ("SUCCESSFUL", "indexed page 7")
    assert Job.objects.get().state == "succeeded"


def test_a_task_has_one_attempt(delayq):
    index_page.enqueue(7)
    delayq.fail_next(ValueError("no"))
    assert [run.outcome for run in delayq.drain()] == ["fail"]
