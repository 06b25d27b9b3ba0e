"""Tests the statements of docs/more/django-tasks.md, in the project that the page builds."""

import pytest
from django.db import transaction
from orders import receipts
from orders.tasks import charge, send_receipt


def test_a_task_runs_as_a_job_with_the_id_of_its_result(delayq):
    result = send_receipt.enqueue(7)
    delayq.assert_scheduled(send_receipt, args=[7], queue="mail")
    (run,) = delayq.run_due()
    result.refresh()
    assert (result.status.value, result.return_value) == ("SUCCESSFUL", "sent 7")
    assert receipts.receipt(8)
    assert run.outcome == "ack"


def test_a_rollback_removes_the_task(delayq):
    with pytest.raises(ZeroDivisionError), transaction.atomic():
        send_receipt.enqueue(7)
        raise ZeroDivisionError
    delayq.assert_not_scheduled()


def test_options_of_a_task_and_of_a_job_apply(delayq):
    receipts.charge_later(7)
    delayq.assert_scheduled(charge, args=[7], key="charge:7", delay="30m")
    delayq.fail_next(ConnectionError("away"))
    assert [run.outcome for run in delayq.advance("31m")] == ["retry", "ack"]


def test_a_job_is_moved_and_cancelled_by_the_backend(delayq):
    result = receipts.charge_later(7)
    assert receipts.postpone(result.id) == "done"
    delayq.assert_scheduled(charge, delay="10m")
    assert receipts.stop(result.id) == "done"
    delayq.assert_not_scheduled()
    result.refresh()
    assert result.status.value == "FAILED"
    assert result.errors[-1].exception_class_path.endswith("TaskCancelled")


def test_a_task_has_one_attempt(delayq):
    send_receipt.enqueue(7)
    delayq.fail_next(ValueError("no"))
    assert [run.outcome for run in delayq.drain()] == ["fail"]
