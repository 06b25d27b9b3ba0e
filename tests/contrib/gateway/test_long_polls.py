"""Waiting pulls and many consumers on a real ASGI server. Waiting requests block no others, and crashes lose no message."""

from __future__ import annotations

import signal
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests import servers
from tests.app import record
from tests.contrib.gateway.consumer import LEASE
from tests.contrib.gateway.served import Served
from tests.messages.held import held, overlaps
from tests.stage import Actor, eventually

pytestmark = pytest.mark.slow

WAITING = 60
DEATHS = ["1 taken", "2 half", "3 settled", "4 taken", ""]  # the points at which each consumer is killed
MESSAGES = 150


@pytest.fixture
def redis(own_redis: Callable[..., servers.RedisServer]) -> servers.RedisServer:
    return own_redis()


@pytest.fixture
def served(redis: servers.RedisServer, settings: Any, tmp_path: Any) -> Iterator[Served]:
    folder = servers.folder()
    served = Served(tmp_path, folder / "web", redis.url, settings.REDIS_URL)
    try:
        served.start()
        yield served
    finally:
        served.stop()


def waiting(redis: servers.RedisServer) -> int:
    """Returns the number of consumers that wait for a call from Redis."""
    (told,) = (line for line in redis.call("INFO", "clients", whole=True).splitlines() if line.startswith("blocked_clients:"))
    return int(told.partition(":")[2])


def figures(served: Served) -> dict[str, Any]:
    found: dict[str, Any] = served.client.get("queues/mail").body
    return found


def push(served: Served, body: Any) -> str:
    answer = served.client.post("queues/mail/messages", {"body": body})
    assert answer.status == 201, answer.body
    return str(answer.body["id"])


def test_a_push_ends_the_wait(served, redis):
    asked = served.client.ask("queues/mail/pull", {"wait": 60})
    eventually(lambda: waiting(redis) == 1, "nobody waits")
    id = push(served, {"order": 7})
    answer = served.client.answer(asked)
    assert (answer.status, answer.body["wait"]) == (200, 60)
    assert [message["id"] for message in answer.body["messages"]] == [id]


def test_a_wait_that_is_over_answers_with_nothing(served):
    assert served.client.post("queues/mail/pull", {"wait": "50ms"}).body["messages"] == []


def test_many_that_wait_hold_up_nobody_and_each_gets_its_own(served, redis):
    once = {"wait": 60, "lease": "5m"}  # on a busy machine a shorter one ends before the last consumer has its message
    asked = [served.client.ask("queues/mail/pull", once) for _ in range(WAITING)]
    eventually(lambda: waiting(redis) == WAITING, "not all of them wait")
    assert served.client.get("queues").status == 200
    pushed = {push(served, number) for number in range(WAITING)}
    answers = [served.client.answer(one) for one in asked]
    got = Counter(message["id"] for answer in answers for message in answer.body["messages"])
    assert set(got) == pushed
    assert set(got.values()) == {1}


def test_for_a_client_that_went_away_while_it_waited_nothing_is_claimed(served, redis):
    for _ in range(3):
        asked = served.client.ask("queues/mail/pull", {"wait": 60})
        eventually(lambda: waiting(redis) == 1, "nobody waits")
        asked.close()
        eventually(lambda: waiting(redis) == 0, "it still waits")
    id = push(served, 1)
    assert (figures(served)["due"], figures(served)["running"]) == (1, 0)
    (message,) = served.client.post("queues/mail/pull").body["messages"]
    assert (message["id"], message["attempt"]) == (id, 1)


def test_what_was_claimed_for_a_client_that_took_no_answer_comes_again(served):
    pushed = {push(served, number) for number in range(20)}
    for _ in pushed:
        served.client.ask("queues/mail/pull", {"lease": 1}).close()
    got: set[str] = set()

    def pulled() -> bool:
        for message in served.client.post("queues/mail/pull", {"n": 50, "wait": "200ms"}).body["messages"]:
            place = f"queues/mail/messages/{message['id']}/ack"
            assert served.client.post(place, {"fence": message["fence"]}).status == 200
            got.add(message["id"])
        return got == pushed

    eventually(pulled, "some of them are lost")
    assert figures(served)["scheduled"] == figures(served)["running"] == 0


def test_without_redis_a_pull_is_503_also_one_that_waits(served, redis):
    asked = served.client.ask("queues/mail/pull", {"wait": 60})
    eventually(lambda: waiting(redis) == 1, "nobody waits")
    redis.kill()
    for answer in (served.client.answer(asked), served.client.post("queues/mail/pull")):
        assert (answer.status, answer.body["code"]) == (503, "store_away")
        assert int(answer.headers["Retry-After"]) > 0
    redis.start()
    id = eventually(lambda: _pushed(served), "it does not come back")
    assert [message["id"] for message in served.client.post("queues/mail/pull", {"wait": 10}).body["messages"]] == [id]


def _pushed(served: Served) -> str:
    answer = served.client.post("queues/mail/messages", {"body": 1})
    return str(answer.body["id"]) if answer.status == 201 else ""


def test_of_five_consumers_over_http_none_holds_what_another_holds_and_nothing_is_lost(served: Served, tmp_path: Path) -> None:
    actors: list[Actor] = []
    try:
        pushed = {served.client.post("queues/mail/messages", {"body": number}).body["id"] for number in range(MESSAGES)}
        for number, death in enumerate(DEATHS):
            words = [str(number), str(served.address), served.token, str(tmp_path), *death.split()]
            actor = Actor(tmp_path / f"{number}.log", [sys.executable, "-m", "tests.contrib.gateway.consumer", *words], {})
            actor.start()
            actors.append(actor)
        eventually(lambda: len(settled(tmp_path)) > 20, "nobody acks")
        served.kill()
        served.start()
        codes = [actor.wait(120) for actor in actors]
        figures = served.client.get("queues/mail").body
    finally:
        for actor in actors:
            actor.kill_tree()
    assert set(codes) == {0, -signal.SIGKILL}, "".join(actor.text() for actor in actors)
    assert (figures["scheduled"], figures["running"], figures["failed"]) == (0, 0, 0)
    found = held(tmp_path, LEASE)
    assert set(found) == pushed
    assert all(spans[-1].ends for spans in found.values()), "the last holder of each has settled it"
    fences = [span.fence for spans in found.values() for span in spans]
    assert len(set(fences)) == len(fences)
    assert overlaps(found) == []
    # If the server died, the first ack may have succeeded.
    done = Counter(line["id"] for line in settled(tmp_path) if line["done"] and line["tries"] == 1)
    assert set(done.values()) == {1}, "nobody is told done for what another has done"


def settled(folder: Path) -> list[dict[str, Any]]:
    """Returns the ledger lines about the messages that consumers settled."""
    return [line for line in record.lines(folder, "consumer-*.jsonl") if line["what"] == "told"]
