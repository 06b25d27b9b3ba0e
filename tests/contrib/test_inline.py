"""`DELAYQ["INLINE"]` and Django's tasks: the behaviour of Django's `ImmediateBackend`, but at the commit."""

from __future__ import annotations

import pytest
from asgiref.sync import async_to_sync
from django.db import transaction

from django_delayq import under_test

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture(autouse=True)
def inline(settings, monkeypatch, backend):
    monkeypatch.setenv(under_test.URL, "redis://127.0.0.1:1/0")  # nobody is there
    settings.DELAYQ = {**settings.DELAYQ, "INLINE": True}


@pytest.fixture
def mail(backend):
    from tests.contrib import mail

    return mail


@pytest.fixture
def told(backend):
    """Collects the signals, each with the status of its result at that time."""
    from django_delayq.contrib.tasks import api

    heard = []

    def listener(name):
        def note(task_result, **_):
            heard.append((name, task_result.task.name, str(task_result.status)))

        return note

    listeners = {name: listener(name) for name in ("task_enqueued", "task_started", "task_finished")}
    for name, note in listeners.items():
        getattr(api.OURS, name).connect(note)
    yield heard
    for name, note in listeners.items():
        getattr(api.OURS, name).disconnect(note)


def test_the_result_is_at_hand_when_enqueue_returns(mail):
    result = mail.send.enqueue(1, note="x")
    assert (result.status, result.return_value, result.attempts) == ("SUCCESSFUL", "sent 1", 1)
    result.refresh()
    assert mail.send.get_result(result.id).return_value == "sent 1"


def test_an_error_of_a_task_is_in_its_result_and_leaves_neither_enqueue_nor_the_commit(mail):
    ran = []
    with transaction.atomic():
        result = mail.fail.enqueue()
        transaction.on_commit(lambda: ran.append("the file is deleted"))
        assert result.status == "READY"
    assert ran == ["the file is deleted"]
    assert (result.status, result.errors[0].exception_class) == ("FAILED", ConnectionError)
    assert mail.fail.enqueue().status == "FAILED"


def test_a_task_of_a_transaction_that_is_rolled_back_does_not_run(mail):
    with pytest.raises(LookupError), transaction.atomic():
        result = mail.send.enqueue(1)
        raise LookupError
    assert (result.status, mail.SEEN) == ("READY", [])


def test_there_is_one_attempt_whatever_the_task_asks_for(mail, told):
    result = mail.look.enqueue(2)
    assert (result.status, result.attempts, len(result.errors)) == ("FAILED", 1, 1)
    assert told == [("task_enqueued", "look", "READY"), ("task_started", "look", "RUNNING"), ("task_finished", "look", "FAILED")]


def test_a_task_that_enqueues_another_keeps_its_own_result(mail, told):
    result = mail.send_later.enqueue(7)
    assert (result.status, result.return_value) == ("SUCCESSFUL", "SUCCESSFUL")
    assert [name for _, name, _ in told] == ["send_later", "send_later", "send", "send", "send", "send_later"]


def test_a_person_who_interrupts_a_task_ends_what_has_enqueued_it(mail):
    with pytest.raises(KeyboardInterrupt):
        mail.interrupted.enqueue()


def test_async_code_has_the_result_likewise(mail):
    result = async_to_sync(mail.send.aenqueue)(1)
    assert (result.status, result.return_value) == ("SUCCESSFUL", "sent 1")
