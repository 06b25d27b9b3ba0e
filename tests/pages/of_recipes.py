"""Tests of the recipes, run in the project that their page builds."""

import json
import threading
from datetime import UTC, datetime, timedelta
from http.server import BaseHTTPRequestHandler, HTTPServer
from types import SimpleNamespace

import pytest
import time_machine
from django.core.management import call_command
from django.db import transaction
from orders import calendar, customers, offers, provider, reports, search, tasks, webhooks
from orders.models import Appointment, Order, Part, Price, Report

NOON = datetime(2031, 5, 1, 12, tzinfo=UTC)


@pytest.fixture
def told(monkeypatch):
    """Collects the calls to the provider whose functions are not on the page."""
    heard = []
    for name in ("book", "index", "put", "offer", "query"):
        monkeypatch.setattr(provider, name, lambda *args, name=name: heard.append((name, *args)), raising=False)
    return heard


class Bank(HTTPServer):
    """A provider that pays once per key. It first gives the answers that the test sets."""

    def __init__(self):
        self.keys, self.says = [], []
        super().__init__(("127.0.0.1", 0), Teller)


class Teller(BaseHTTPRequestHandler):
    def do_POST(self):
        self.rfile.read(int(self.headers["Content-Length"]))
        self.server.keys.append(self.headers["Idempotency-Key"])
        self.send_response(self.server.says.pop(0) if self.server.says else 200)
        self.end_headers()
        self.wfile.write(json.dumps({"id": "c1"}).encode())

    def log_message(self, *args):
        pass


@pytest.fixture
def bank(monkeypatch):
    server = Bank()
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    monkeypatch.setattr(provider, "URL", f"http://127.0.0.1:{server.server_port}/charges")
    yield server
    server.shutdown()
    thread.join()
    server.server_close()


def test_a_customers_jobs_are_found_also_those_that_a_job_schedules(delayq, capsys):
    def view(request):
        tasks.pack.schedule(Order.objects.create().pk)
        tasks.pack.using(meta={"customer": 8}).schedule(Order.objects.create().pk)

    customers.customer_middleware(view)(SimpleNamespace(user=SimpleNamespace(pk=7)))
    tasks.pack.schedule(Order.objects.create().pk)
    delayq.run_due()
    found = {}
    for customer in (7, 8):
        call_command("delayq", "list", "--search", f"customer:{customer}", "--json")
        found[customer] = sorted((job["task"], job["meta"]["customer"]) for job in json.loads(capsys.readouterr().out))
    assert found == {7: [("orders.tasks.pack", 7), ("orders.tasks.ship", 7), ("orders.tasks.ship", 7)], 8: [("orders.tasks.pack", 8)]}


def states():
    return list(Order.objects.order_by("pk").values_list("state", flat=True))


def test_a_charge_that_runs_twice_names_one_key(delayq, bank):
    bank.says += [503]
    order = Order.objects.create(total=700)
    job = tasks.charge.schedule(order.pk)
    delayq.run_due()
    delayq.crash_next(tasks.charge, at="end")
    delayq.advance("5m")
    assert len(bank.keys) == 3
    assert set(bank.keys) == {str(job.id)}
    assert (job.result(), states()) == ("c1", ["paid"])


def test_a_webhook_that_comes_twice_also_a_day_later_is_processed_once(delayq, rf):
    order = Order.objects.create()

    def comes(event):
        body = {"id": event, "order": order.pk}
        assert webhooks.payment(rf.post("/payments", body, content_type="application/json")).status_code == 204

    comes("e1")
    comes("e1")
    assert len(delayq.drain()) == 1
    assert states() == ["paid"]
    delayq.advance("1d")
    comes("e1")
    comes("e2")
    assert len(delayq.drain()) == 1, "of the other event"
    delayq.advance("7d")
    comes("e1")
    assert len(delayq.drain()) == 1


def test_a_charge_that_is_refused_fails_at_once(delayq, bank):
    bank.says += [402]
    tasks.charge.schedule(Order.objects.create().pk)
    assert [run.outcome for run in delayq.drain()] == ["fail"]


def test_only_what_passes_is_tried_again(delayq, told):
    tasks.book_parcel.schedule(1)
    tasks.book_parcel.schedule(2)
    delayq.fail_next(ConnectionError, tasks.book_parcel)
    delayq.fail_next(ValueError, tasks.book_parcel)
    assert sorted(run.outcome for run in delayq.drain()) == ["ack", "fail", "retry"]


def test_ten_changes_are_indexed_once_behind_the_last(delayq, told):
    for _ in range(10):
        search.order_changed(7)
        delayq.advance("10s")
    assert told == []
    delayq.advance("20s")
    assert told == [("index", 7)]


def test_a_change_while_it_runs_is_not_missed(delayq, monkeypatch):
    order, seen = Order.objects.create(total=1), []

    def put(order_id, total):
        seen.append(total)
        if len(seen) == 1:  # another process saves it twice meanwhile
            for value in (2, 3):
                Order.objects.filter(pk=order_id).update(total=value)
                search.order_saved(order_id)

    monkeypatch.setattr(provider, "put", put, raising=False)
    search.order_saved(order.pk)
    delayq.advance("1m")
    assert seen == [1, 3]


def test_a_reminder_follows_its_appointment(delayq):
    with time_machine.travel(NOON, tick=False):
        appointment = Appointment.objects.create(starts_at=NOON)
        calendar.move(appointment, NOON + timedelta(days=3))
        calendar.move(appointment, NOON + timedelta(days=5))
        calendar.move(appointment, NOON + timedelta(days=4))
        delayq.advance("2d")
        appointment.refresh_from_db()
        assert appointment.reminded == 0
        assert [run.outcome for run in delayq.advance("1d")] == ["ack"]
        appointment.refresh_from_db()
        assert appointment.reminded == 1


def test_an_offer_is_not_sent_when_its_time_is_over(delayq, told):
    with time_machine.travel(NOON, tick=False):
        sent = offers.announce(1, NOON + timedelta(hours=1), NOON + timedelta(hours=2))
        delayq.advance("1h")
        late = offers.announce(2, NOON + timedelta(hours=3), NOON + timedelta(hours=4))
        delayq.travel(NOON + timedelta(hours=5))
        delayq.run_due()
    assert told == [("offer", 1)]
    assert (sent.state, late.state) == ("succeeded", "cancelled")


def test_each_step_follows_the_one_before(delayq):
    order = Order.objects.create()
    tasks.pack.schedule(order.pk)
    assert [run.task.rpartition(".")[2] for run in delayq.drain()] == ["pack", "ship"]
    assert states() == ["shipped"]


def test_the_last_part_finishes_the_report_once_though_parts_run_twice(delayq):
    report = reports.start(3)
    delayq.crash_next(tasks.compute_part, at="end")
    runs = delayq.drain()
    assert sum(run.task.endswith("finish_report") for run in runs) == 1
    assert Report.objects.get().total == sum(part.pk * 10 for part in Part.objects.filter(report=report))


def test_a_report_that_is_rolled_back_has_no_parts(delayq):
    with pytest.raises(RuntimeError), transaction.atomic():
        reports.start(3)
        raise RuntimeError
    delayq.assert_not_scheduled()


def test_a_long_job_goes_on_piece_by_piece(delayq, monkeypatch):
    monkeypatch.setattr(tasks, "PIECE", 4)
    Price.objects.bulk_create(Price(cents=100 * number) for number in range(10))
    tasks.convert_prices.schedule()
    delayq.crash_next(tasks.convert_prices, at="end")
    assert len(delayq.drain()) == 4  # three pieces, of which the first runs twice
    assert [price.euros for price in Price.objects.order_by("pk")] == [f"{number}.00" for number in range(10)]


def test_no_more_than_so_many_calls_a_minute(delayq, told):
    for number in range(5):
        tasks.query_bank.schedule(number)
    delayq.run_due()
    assert len(told) == 1
    delayq.advance("70s")
    assert len(told) == 3
    delayq.advance("70s")
    assert sorted(number for _, number in told) == [0, 1, 2, 3, 4]
