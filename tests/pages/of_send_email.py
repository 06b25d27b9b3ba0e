"""Tests the statements of docs/howto/send-email.md, in the project that the page builds."""

import smtplib

import pytest
from django.core import mail
from django.core.mail import EmailMessage, EmailMultiAlternatives, get_connection
from orders import tasks
from orders.models import Order


@pytest.fixture
def order(db):
    return Order.objects.create(email="ann@example.com")


def refuse(monkeypatch, *codes):
    answers = [smtplib.SMTPRecipientsRefused({"ann@example.com": (code, b"no")}) for code in codes]
    send = EmailMessage.send

    def refused(self, *args, **kwargs):
        if answers:
            raise answers.pop(0)
        return send(self, *args, **kwargs)

    monkeypatch.setattr(EmailMessage, "send", refused)


def test_a_receipt_keeps_its_message_id_when_it_is_sent_twice(delayq, order):
    job = tasks.send_receipt.schedule(order.pk)
    delayq.crash_next(tasks.send_receipt, at="end")
    delayq.advance("5m")
    assert [message.extra_headers["Message-ID"] for message in mail.outbox] == [f"<{job.id}@shop.example>"] * 2
    assert f"order {order.pk}." in mail.outbox[0].body


def test_a_temporary_refusal_is_retried(delayq, order, monkeypatch):
    refuse(monkeypatch, 450)
    tasks.send_receipt.schedule(order.pk)
    assert [run.outcome for run in delayq.advance("1h")] == ["retry", "ack"]


def test_a_bounce_fails_at_once(delayq, order, monkeypatch):
    refuse(monkeypatch, 550)
    tasks.send_receipt.schedule(order.pk)
    assert [run.outcome for run in delayq.drain()] == ["fail"]


def test_the_backend_schedules_what_django_sends(delayq, db, monkeypatch):
    monkeypatch.setattr(tasks, "SMTP", "django.core.mail.backends.locmem.EmailBackend")
    backend = get_connection("orders.mail.ScheduledEmailBackend")
    message = EmailMultiAlternatives(
        "Hello", "text", "shop@example.com", ["ann@example.com"], headers={"X-Shop": "1"}, bcc=["bob@example.com"], connection=backend
    )
    message.attach_alternative("<p>text</p>", "text/html")
    assert message.send() == 1
    assert mail.outbox == []
    delayq.run_due()
    (sent,) = mail.outbox
    assert (sent.subject, sent.body, sent.from_email, sent.recipients()) == (
        "Hello",
        "text",
        "shop@example.com",
        ["ann@example.com", "bob@example.com"],
    )
    assert "<p>text</p>" in sent.message().as_string()
    assert sent.extra_headers == {"X-Shop": "1"}


def test_the_backend_refuses_attachments(delayq, db):
    message = EmailMessage("Hello", "text", to=["ann@example.com"], connection=get_connection("orders.mail.ScheduledEmailBackend"))
    message.attach("a.txt", "a", "text/plain")
    with pytest.raises(ValueError, match="Attachments"):
        message.send()
