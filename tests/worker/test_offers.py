"""Offers by a real worker: once, whatever happens to it, and as readers of other kinds take them."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
import redis

from django_delayq import codec
from tests.worker.conftest import Shop, eventually

NAME = "django_delayq.offer"
DOCS = Path(__file__).parents[2] / "docs" / "more" / "offers.md"
TARGETS = {
    "shipping": {"KEY": "shipping-out", "KIND": "stream", "MAXLEN": 100_000},
    "invoices": {"KEY": "invoices-out", "KIND": "list", "MAXLEN": None},
}


@pytest.fixture
def offering(shop: Shop) -> Shop:
    shop.settings = {"TARGETS": TARGETS, "MAX_CRASHES": 100, "LEASE": 2}
    return shop


def offer(shop: Shop, message: object, to: str = "shipping", **options: int) -> str:
    payload = codec.encode_payload((message,), {"to": to}, None, limit=65536, task=NAME)
    return shop.put(NAME, payload=payload, **options)


def reader(shop: Shop) -> redis.Redis:
    return redis.Redis(unix_socket_path=shop.url.removeprefix("unix://"), decode_responses=True)


def offered(shop: Shop) -> list[tuple[str, str]]:
    return [(fields["id"], json.loads(fields["body"])) for _, fields in reader(shop).xrange("shipping-out")]


@pytest.mark.slow
@pytest.mark.parametrize("what", ["offer.push=kill@1", "offer.pushed=kill@1", "offer.pushed=lose@1", "settler.settle=kill@1"])
def test_an_offer_stands_once_wherever_its_process_dies_and_whether_or_not_the_reply_comes(offering: Shop, what: str) -> None:
    offering.environment["DELAYQ_FAILPOINTS_ONCE"] = str(offering.folder / "once")
    id = offer(offering, {"order": 7})
    worker = offering.work(failpoints=what)
    eventually((offering.folder / "once").exists, "the failpoint")
    eventually(lambda: offering.left() == 0, worker.text())
    assert offering.happened(id)[-1] == "succeeded"
    assert offered(offering) == [(id, {"order": 7})]
    assert offering.link.execute("EXISTS", "delayq:{default}:offered") == 0


@pytest.mark.slow
def test_a_lost_reply_is_no_failed_attempt(offering: Shop) -> None:
    offering.environment["DELAYQ_FAILPOINTS_ONCE"] = str(offering.folder / "once")
    id = offer(offering, 1, max_attempts=1)
    offering.work(failpoints="offer.pushed=lose@1")
    eventually(lambda: offering.left() == 0)
    assert offering.happened(id) == ["scheduled", "claimed", "succeeded"]
    assert offered(offering) == [(id, 1)]


@pytest.mark.slow
def test_an_offer_whose_replies_are_all_lost_waits_and_is_then_known_to_be_given(offering: Shop) -> None:
    id = offer(offering, 1, max_attempts=1)
    worker = offering.work(failpoints="offer.pushed=lose")
    eventually(lambda: offering.happened(id)[-1] == "snoozed")
    assert "not known yet" in offering.detail(id, "snoozed")["d"]
    worker.kill_tree()
    offering.work()
    eventually(lambda: offering.left() == 0)
    assert offering.happened(id)[-1] == "succeeded"
    assert offered(offering) == [(id, 1)]


def test_a_group_of_readers_takes_each_once_and_acknowledges(offering: Shop) -> None:
    line = reader(offering)
    line.xgroup_create("shipping-out", "warehouse", id="0", mkstream=True)
    ids = [offer(offering, number) for number in range(20)]
    offering.work()
    eventually(lambda: offering.left() == 0)
    taken = []
    for name in ("a", "b"):
        [[_, entries]] = line.xreadgroup("warehouse", name, {"shipping-out": ">"}, count=10)
        taken += [fields["id"] for _, fields in entries]
        assert line.xack("shipping-out", "warehouse", *(entry for entry, _ in entries)) == 10
    assert sorted(taken) == sorted(ids)
    assert line.xpending("shipping-out", "warehouse")["pending"] == 0


def test_who_waits_at_a_list_is_woken_and_takes_the_oldest_first(offering: Shop) -> None:
    offering.work()
    first = offer(offering, {"n": 1}, "invoices")
    line = reader(offering)
    _, text = line.blpop("invoices-out", timeout=30)
    assert json.loads(text) == {"id": first, "body": {"n": 1}}
    for number in (2, 3):
        offer(offering, number, "invoices")
        eventually(lambda: offering.left() == 0)
    assert [json.loads(line.blpop("invoices-out", timeout=30)[1])["body"] for _ in range(2)] == [2, 3]


def test_the_readers_of_the_page_read_what_is_offered(offering: Shop, capsys: pytest.CaptureFixture[str], monkeypatch) -> None:
    """Both loops in order; one pass of the loop that never ends."""
    first = offer(offering, {"order": 7}, "shipping")
    id = offer(offering, {"invoice": 8}, "invoices")
    offering.work()
    eventually(lambda: offering.left() == 0)
    stream, listed = (block for block in re.findall(r"```python\n(.*?)```", DOCS.read_text(), re.DOTALL) if "redis.Redis(" in block)
    line = reader(offering)
    monkeypatch.setattr(redis, "Redis", lambda **_: line)
    exec(compile(stream.replace("while True:", "for _ in range(1):"), "docs/more/offers.md", "exec"), {})
    exec(compile(listed.replace("timeout=5", "timeout=1"), "docs/more/offers.md", "exec"), {})
    assert capsys.readouterr().out.splitlines() == [f"{first} {{'order': 7}}", f"{id} {{'invoice': 8}}"]
    assert (line.xlen("shipping-out"), line.llen("invoices-out")) == (0, 0)


def test_a_project_without_targets_does_not_know_the_task_and_the_job_waits(shop: Shop) -> None:
    id = offer(shop, 1)
    shop.work()
    eventually(lambda: shop.happened(id)[-1] == "snoozed")
    assert "No task named" in shop.detail(id, "snoozed")["d"]
