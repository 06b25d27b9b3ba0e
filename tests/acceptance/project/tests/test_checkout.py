"""An order is closed after half an hour, unless a person acts on it."""

from datetime import timedelta

import pytest
from django.test import Client
from orders.models import Letter, Order
from orders.tasks import charge, close_order, remind
from orders.views import OutOfStock, place

import django_delayq
from django_delayq.testing.kit import Kit


def place_order(client: Client) -> tuple[Order, str]:
    placed = client.post("/orders/", {"total": 7}).json()
    return Order.objects.get(pk=placed["order"]), placed["job"]


def test_an_unpaid_order_is_reminded_of_and_then_closed(client: Client, delayq: Kit) -> None:
    order, _ = place_order(client)
    delayq.assert_scheduled(close_order, args=[order.pk], key=f"close-order:{order.pk}", queue="orders", delay="30m", within="1m")
    assert [run.task for run in delayq.advance("29m")] == ["orders.tasks.remind"]
    order.refresh_from_db()
    assert order.status == "placed"
    assert [(run.task, run.outcome) for run in delayq.advance("1m")] == [("orders.tasks.close_order", "ack")]
    order.refresh_from_db()
    assert order.status == "closed"
    assert [letter.subject for letter in Letter.objects.order_by("pk")] == ["reminder", "closed"]


def test_a_paid_order_stays_open(client: Client, delayq: Kit) -> None:
    order, closing = place_order(client)
    assert client.post(f"/orders/{order.pk}/pay/").json()["closing"] == "done"
    delayq.assert_not_scheduled(close_order)
    delayq.drain()
    order.refresh_from_db()
    assert order.status == "paid"
    assert client.get(f"/jobs/{closing}/").json()["state"] == "cancelled"


def test_to_pay_behind_the_close_finds_no_job_of_the_key_and_to_pay_twice_charges_once(client: Client, delayq: Kit) -> None:
    order, closing = place_order(client)
    delayq.advance("1h")
    first, second = (client.post(f"/orders/{order.pk}/pay/").json() for _ in range(2))
    assert (first["closing"], second["closing"]) == ("unknown", "unknown")
    assert first["job"] == second["job"]
    assert client.post(f"/orders/{order.pk}/more-time/").json() == {"change": "unknown"}
    assert client.post(f"/orders/{order.pk}/close/").json() == {"change": "unknown"}
    assert [django_delayq.cancel(closing), django_delayq.run_now(closing)] == ["finished", "finished"]
    assert len(delayq.scheduled(charge, key=f"charge:{order.pk}")) == 1


def test_more_time_moves_the_date(client: Client, delayq: Kit) -> None:
    order, _ = place_order(client)
    assert client.post(f"/orders/{order.pk}/more-time/").json() == {"change": "done"}
    delayq.assert_scheduled(close_order, delay="2h", within="1m")
    delayq.advance("119m")
    delayq.assert_scheduled(close_order, delay="1m", within="50s")


def test_an_order_that_is_rolled_back_leaves_no_job(delayq: Kit, db: None) -> None:
    with pytest.raises(OutOfStock):
        place(7, sold_out=True)
    delayq.assert_not_scheduled()
    place(7)
    delayq.assert_scheduled(close_order, count=1)


def test_many_reminders_at_once(delayq: Kit, db: None) -> None:
    orders = [place(total)[0] for total in range(5)]
    delayq.drain()
    made = remind_all([order.pk for order in orders])
    assert len({job.id for job in made}) == 5
    assert [run.args for run in delayq.advance("2d")] == [[order.pk] for order in orders]


def remind_all(pks: list[int]) -> list[django_delayq.Job]:
    return django_delayq.schedule_many(remind.using(delay="2d", key=f"again:{pk}").bind(pk) for pk in pks)


def test_a_worker_that_was_away_runs_what_is_late_but_not_what_has_expired(client: Client, delayq: Kit) -> None:
    place_order(client)
    delayq.travel(delayq.now + timedelta(hours=3))
    assert [(run.task, run.outcome) for run in delayq.run_due()] == [("orders.tasks.close_order", "ack")]
    assert not Letter.objects.filter(subject="reminder").exists()
