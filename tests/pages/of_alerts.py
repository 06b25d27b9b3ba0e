"""Tests the statements of docs/howto/alerts.md, in the project that the page builds."""

import threading
from http.server import BaseHTTPRequestHandler, HTTPServer

import pytest
from django.core import mail
from orders import tasks

import django_delayq


@django_delayq.task(max_attempts=1)
def ship(order_id):
    raise ValueError(f"no parcel for {order_id}")


def no_money():
    raise ValueError("no money")


@django_delayq.task(max_attempts=1)
def pay(order_id):
    no_money()


@django_delayq.task(max_attempts=1)
def refund(order_id):
    no_money()


def throw(error):
    raise error


@pytest.fixture
def calls(settings):
    """Receives the requests of the heartbeat."""
    heard = []

    class Service(BaseHTTPRequestHandler):
        def do_GET(self):
            heard.append(self.path)
            self.send_response(200)
            self.end_headers()

        def log_message(self, *args):
            pass

    server = HTTPServer(("127.0.0.1", 0), Service)
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    settings.HEARTBEAT_URL = f"http://127.0.0.1:{server.server_port}/ping"
    yield heard
    server.shutdown()
    thread.join()
    server.server_close()


def test_there_is_one_email_per_cause(delayq, db):
    for order in range(3):
        ship.schedule(order)
    pay.schedule(1)
    delayq.run_due()
    assert mail.outbox == []
    delayq.advance("5m")
    assert sorted(message.subject for message in mail.outbox) == [
        f"[Django] {pay.name} failed (1)",
        f"[Django] {ship.name} failed (3)",
    ]
    [shipped] = [message for message in mail.outbox if "ship" in message.subject]
    assert "no parcel for" in shipped.body
    assert "https://shop.example/admin/delayq/job/?state=failed&q=fingerprint:" in shipped.body


def test_later_failures_are_reported_again(delayq, db):
    for _ in range(2):
        ship.schedule(1)
        delayq.advance("10m")
    assert len(mail.outbox) == 2


def test_a_report_that_is_sent_late_has_all_failures(delayq, db, monkeypatch):
    sent, answers = tasks.mail_admins, [OSError("no mail server")]
    monkeypatch.setattr(tasks, "mail_admins", lambda *mail: sent(*mail) if not answers else throw(answers.pop()))
    ship.schedule(1)
    ship.using(delay="1m").schedule(2)
    delayq.advance("1h")
    assert [message.subject for message in mail.outbox] == [f"[Django] {ship.name} failed (2)"]


def test_the_same_error_of_two_tasks_is_reported_for_both(delayq, db):
    pay.schedule(1)
    refund.schedule(1)
    delayq.advance("10m")
    assert len(mail.outbox) == 2


def test_a_report_that_fails_does_not_report_itself(delayq, db, monkeypatch):
    monkeypatch.setattr(tasks, "mail_admins", lambda *_: 1 / 0)
    ship.schedule(1)
    delayq.advance("30d")
    delayq.assert_not_scheduled()


def test_the_heartbeat_calls_the_service(delayq, db, calls):
    tasks.tell_that_jobs_run.schedule()
    assert [run.outcome for run in delayq.run_due()] == ["ack"]
    assert calls == ["/ping"]
