"""Tests the statements of docs/howto/call-a-url.md, in the project that the page builds."""

import json
import threading
from http.server import BaseHTTPRequestHandler, HTTPServer

import pytest
from django.test import RequestFactory
from orders import hooks, views

import django_delayq


class Partner(HTTPServer):
    """Stores each request, and answers with the next status."""

    def __init__(self):
        self.requests, self.statuses = [], []
        super().__init__(("127.0.0.1", 0), Desk)


class Desk(BaseHTTPRequestHandler):
    def do_POST(self):
        self.server.requests.append((dict(self.headers), self.rfile.read(int(self.headers["Content-Length"]))))
        self.send_response(self.server.statuses.pop(0) if self.server.statuses else 200)
        self.send_header("Content-Length", "2")
        self.end_headers()
        self.wfile.write(b"ok")

    def log_message(self, *args):
        pass


@pytest.fixture
def partner(monkeypatch, settings):
    server = Partner()
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    settings.DELAYQ = {**settings.DELAYQ, "HTTP": {**settings.DELAYQ["HTTP"], "ALLOW": ["127.0.0.0/8"]}}
    deliver = django_delayq.deliver
    local = f"http://127.0.0.1:{server.server_port}"
    monkeypatch.setattr(
        django_delayq, "deliver", lambda url, **options: deliver(url.replace("https://partner.example", local), **options)
    )
    yield server
    server.shutdown()
    thread.join()
    server.server_close()


def test_a_payment_is_announced_until_the_partner_accepts_it(delayq, partner):
    partner.statuses += [503, 429]
    job = hooks.announce_payment(7)
    assert hooks.announce_payment(7).created is False
    assert [run.outcome for run in delayq.advance("1h")] == ["retry", "retry", "ack"]
    assert [json.loads(body) for _, body in partner.requests] == [{"order": 7, "paid": True}] * 3
    assert {headers["webhook-id"] for headers, _ in partner.requests} == {job.short_id}
    result = job.result()
    assert (result["status"], result["answer"], result["complete"]) == (200, "ok", True)


def test_gone_fails_at_once(delayq, partner):
    partner.statuses += [410]
    hooks.announce_payment(7)
    assert [run.outcome for run in delayq.drain()] == ["fail"]


def test_the_view_accepts_what_was_signed_and_refuses_other_requests(delayq, partner):
    hooks.announce_payment(7)
    delayq.run_due()
    ((headers, body),) = partner.requests
    signed = {name: text for name, text in headers.items() if name.startswith("webhook-")}
    send = RequestFactory().post
    taken = send("/hook", body, content_type="application/json", headers=signed)
    assert (views.hook(taken).status_code, views.hook(taken).content.decode()) == (200, headers["webhook-id"])
    assert views.hook(send("/hook", b"{}", content_type="application/json", headers=signed)).status_code == 401


def test_a_secret_is_sent_and_its_answer_is_not_kept(delayq, partner):
    job = hooks.send_order(7)
    delayq.run_due()
    ((headers, _),) = partner.requests
    assert headers["Authorization"] == "Bearer token-of-the-partner"
    result = job.result()
    assert (result["answer"], result["complete"]) == ("", False)


def test_a_private_address_is_refused(delayq):
    django_delayq.deliver("http://127.0.0.1:1/", json={})
    assert [run.outcome for run in delayq.drain()] == ["fail"]
