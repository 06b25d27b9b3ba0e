"""HTTP tests with uvicorn and a real worker, for behaviour that needs processes and real time."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest
from deployment import Answer, Deployment, until

pytestmark = pytest.mark.live


def headers(number: int) -> dict[str, str]:
    return {"X-Tenant": f"shop-{number}", "X-Request-Id": f"r-{number}", "Accept-Language": "de" if number % 2 else "fr"}


def test_many_requests_at_once_schedule_outside_of_a_transaction_and_each_job_is_there(site: Deployment) -> None:
    with ThreadPoolExecutor(12) as clients:
        placed = [one.result() for one in [clients.submit(site.post, "/async/orders/", {"total": n}) for n in range(100, 112)]]
    assert {answer.status for answer in placed} == {200}
    assert {answer["created"] for answer in placed} == {True}
    assert len({answer["job"] for answer in placed}) == 12
    with ThreadPoolExecutor(12) as clients:
        found = list(clients.map(site.get, [f"/async/jobs/{answer['job']}/" for answer in placed]))
    assert {(answer["task"], answer["state"]) for answer in found} == {("orders.tasks.close_order", "scheduled")}


def test_many_requests_at_once_schedule_inside_of_one_and_half_are_rolled_back(site: Deployment) -> None:
    def place(number: int) -> Answer:
        return site.post("/async/orders/atomic/", {"total": 200 + number, **({"sold_out": 1} if number % 2 else {})})

    with ThreadPoolExecutor(12) as clients:
        placed = list(clients.map(place, range(12)))
    assert [answer.status for answer in placed] == [200, 409] * 6
    assert {answer["orders"] for answer in placed[1::2]} == {0}
    for answer in placed[::2]:
        assert answer["created"] is True
        assert site.get(f"/async/jobs/{answer['job']}/")["state"] == "scheduled"


def test_a_job_that_an_async_view_has_scheduled_runs_at_its_date_and_one_that_it_has_cancelled_does_not(site: Deployment) -> None:
    soon = site.post("/async/orders/", {"total": 300, "delay": "300ms"})
    kept = site.post("/async/orders/", {"total": 301, "delay": "1h"})
    assert site.post(f"/async/orders/{kept['order']}/cancel/")["change"] == "done"
    assert site.post(f"/async/orders/{kept['order']}/cancel/")["change"] == "done"
    assert site.end_of(soon["job"]) == ["succeeded", "succeeded"]
    assert site.end_of(kept["job"]) == ["cancelled", "cancelled"]
    assert site.get("/orders/of/300/") == {str(soon["order"]): "closed"}
    assert site.get("/orders/of/301/") == {str(kept["order"]): "placed"}


def test_async_views_wait_for_results_and_each_job_carries_its_own_surroundings(site: Deployment) -> None:
    order = site.post("/async/orders/", {"total": 400})["order"]
    with ThreadPoolExecutor(6) as clients:
        said = [clients.submit(site.post, f"/async/orders/{order}/thank/", {"wait": "20s"}, headers(number)) for number in range(6)]
    assert [answer.result().get("result") for answer in said] == [
        {"tenant": f"shop-{number}", "language": "de" if number % 2 else "fr", "request": f"r-{number}"} for number in range(6)
    ]


def test_a_client_that_goes_leaves_the_ids_of_what_nobody_knows_and_they_can_be_asked_for(site: Deployment) -> None:
    gone = site.leave_behind("/async/orders/held-up/", {"total": 500})
    (order,) = until(lambda: site.get("/orders/of/500/"), "the order was not placed")
    gone.close()
    (job,) = until(lambda: site.get("/async/abandoned/")["jobs"], "the view was not told that its client had gone")
    site.post(f"/orders/{order}/pay/")
    until(lambda: site.get("/orders/of/500/") == {order: "paid"}, "the charge did not run")
    assert site.get(f"/async/jobs/{job}/").status == 404, "its schedule had not begun when the client went"


def test_a_sync_call_in_an_async_view_is_refused_and_names_its_twin(site: Deployment) -> None:
    answer = site.get("/async/wrong/")
    assert answer.status == 500
    assert "delayq.acancel" in answer["error"]


def test_a_running_job_stops_when_it_is_asked_to(site: Deployment) -> None:
    job = site.post("/stock/count/", {"shelves": 1000})["job"]
    until(lambda: site.get(f"/jobs/{job}/")["state"] == "running", "it does not run")
    assert site.post("/stock/cancel/", {"job": job})["change"] == "running"
    assert site.end_of(job) == ["cancelled", "cancelled"]
    until(lambda: job in site.heard("job_cancelled"), "nobody heard of it")
