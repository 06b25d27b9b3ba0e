"""Pages of the admin while one of two servers is down. Each page opens, reports the missing data, and tries that server once."""

from __future__ import annotations

import pytest

import django_delayq as delayq
from django_delayq import conf
from django_delayq.mirror.mirror_loop import MirrorLoop
from django_delayq.models import Job, Operation
from django_delayq.producer.stores import stores
from django_delayq.store.connection.link import Link
from tests.admin.conftest import JOBS, OPERATIONS, QUEUES, SET_ASIDE, WORKERS, Staff, beat
from tests.tasks_for_tests import close_order

PAGES = {
    "jobs": JOBS,
    "running": f"{JOBS}?state=running",
    "due": f"{JOBS}?state=due",
    "retrying": f"{JOBS}?state=retrying",
    "unpublished": f"{JOBS}?state=unpublished",
    "blocked": f"{JOBS}?q=is:blocked",
    "jobs, fresh": f"{JOBS}?live=1",
    "failures": f"{JOBS}failures/",
    "a job of the shared server": JOBS + "{default}/change/",
    "a job of the other server": JOBS + "{own}/change/",
    "preview": f"{OPERATIONS}start/cancel/?state=scheduled",
    "operations": OPERATIONS,
    "an operation": OPERATIONS + "{operation}/change/",
    "dashboard": QUEUES,
    "dashboard, fresh": f"{QUEUES}?live=1",
    "a queue of the shared server": f"{QUEUES}default/change/",
    "a queue of the other server": f"{QUEUES}own/change/",
    "purge": f"{QUEUES}own/purge/",
    "remedies": f"{QUEUES}remedies/",
    "trends": f"{QUEUES}trends/",
    "workers": WORKERS,
    "schedules": "/admin/delayq/periodic/",
    "targets": "/admin/delayq/target/",
    "set aside": SET_ASIDE,
}


@pytest.fixture
def site(orders, own_redis, settings):
    servers = {"shared": own_redis(), "own": own_redis()}
    queues = {"default": {}, "orders": {}, "own": {"REDIS": servers["own"].url}}
    settings.DELAYQ = {**settings.DELAYQ, "REDIS": servers["shared"].url, "QUEUES": queues}
    jobs = {queue: delayq.schedule(close_order, 1, queue=queue, delay="1h") for queue in ("default", "own")}
    for name in queues:
        MirrorLoop(stores.places, conf.get().queue(name), prefix="delayq").drain()
    beat("default", "own")
    operation = Operation.objects.create(verb="cancel", selection={"view": "scheduled"}, actor="kim")
    return servers, {**{queue: Job.objects.get(pk=job.id).pk for queue, job in jobs.items()}, "operation": operation.pk}


def test_a_queue_whose_server_is_away_keeps_its_place_on_the_dashboard(site, staff: Staff):
    servers, _ = site
    servers["shared"].terminate()
    client = staff()
    seen = client.get(QUEUES)
    assert [row["name"] for row in seen.context["queues"]] == ["default", "orders", "own"]
    page = seen.content.decode()
    assert page.count(">does not answer</td>") == 2
    assert f'<a href="{QUEUES}default/change/">default</a>' in page
    assert "The figures from Redis do not include default, orders." in page


def test_selected_jobs_of_the_server_that_answers_are_cancelled_and_the_others_are_named(site, staff: Staff):
    servers, ids = site
    servers["own"].terminate()
    form = {
        "action": "cancel",
        "_selected_action": [str(ids["own"]), str(ids["default"])],
        "confirmed": "1",
        "reason": "",
        "index": "0",
    }
    done = [str(message) for message in staff().post(JOBS, form, follow=True).context["messages"]]
    assert done[0] == "1 cancelled."
    assert done[1].startswith(f"1 job was not changed ({Job.objects.get(pk=ids['own']).short_id}): ")
    assert delayq.reschedule(ids["default"], delay="2h", queue="default") == "finished"


def test_trends_are_of_the_queues_that_answer(site, staff: Staff):
    servers, _ = site
    servers["own"].terminate()
    for span in ("1h", "7d"):
        seen = staff().get(f"{QUEUES}trends/?span={span}")
        assert (seen.context["trouble"], [line["name"] for line in seen.context["queues"]]) == ("", ["default", "orders"])
        assert "The figures from Redis do not include own." in seen.content.decode()


@pytest.mark.parametrize("away", ["shared", "own"])
def test_every_page_comes_while_one_server_is_away(site, staff: Staff, monkeypatch, away):
    servers, names = site
    tries: list[str] = []
    real = Link._send
    monkeypatch.setattr(Link, "_send", lambda link, commands: (tries.append(link.where), real(link, commands))[1])
    client = staff()
    servers[away].terminate()
    found = {}
    for page, address in PAGES.items():
        stores.forget()
        tries.clear()
        answer = client.get(address.format(**names))
        found[page] = answer.status_code, sum(servers[away].socket in where for where in tries)
    assert {page: status for page, (status, _) in found.items() if status != 200} == {}
    assert {page: times for page, (_, times) in found.items() if times > 1} == {}
