"""Each promise about an answer: with the first request lost, with the first reply lost, and with a repeat that
comes after somebody else has acted. A real line to Redis loses them. A caller that gets StoreUnavailable, or 503, asks once more.
"""

from __future__ import annotations

import ast
import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from django.core.cache import cache
from django.test import Client

import django_delayq as delayq
from django_delayq import ids
from django_delayq.contrib.gateway import tokens
from django_delayq.exceptions import KeyTaken, LeaseLost, LockTaken, StoreUnavailable
from django_delayq.mirror.mirror_loop import MirrorLoop
from django_delayq.mirror.relay import RelayLoop
from django_delayq.models import Job
from django_delayq.producer.stores import stores
from django_delayq.setting_readers import OfferTarget
from django_delayq.store.keys import Keys
from django_delayq.store.scripts import loader, site
from django_delayq.store.scripts.events import FIRST
from django_delayq.store.scripts.limits import LimitChange, LimitStore
from django_delayq.store.scripts.lock_store import LockStore
from django_delayq.store.scripts.queue import Outcome, QueueStore
from django_delayq.store.scripts.record import JobRecord, ScheduleItem
from django_delayq.store.scripts.recovery import EpochStore
from tests.cut_line import CutLine, socket_of, through
from tests.links import package_link
from tests.promises import PROMISES
from tests.store.board import SCRIPTS
from tests.tasks_for_tests import close_order, ping

pytestmark = pytest.mark.django_db(transaction=True)

ROOT = Path(__file__).parent.parent
LEASE = 30_000
STREAM = OfferTarget(name="shipping", key="shipping-out", kind="stream", maxlen=None)


class World:
    """A caller behind the proxy, and another caller with a direct connection."""

    def __init__(self, line: CutLine, link: Any, settings: Any) -> None:
        self.line, self.link, self.settings = line, link, settings
        self.direct = package_link(link)
        self.ran: list[str] = []  # by somebody else: each run that was acked
        self.found: Any = None  # by somebody else
        self._claims = 0

    def store(self, queue: str) -> QueueStore:
        return QueueStore(self.direct, prefix="delayq", queue=queue)

    def claim(self, queue: str, *, ahead_ms: int = 0) -> list[Any]:
        self._claims += 1
        store = self.store(queue)
        now = stores_now(self.link) + ahead_ms if ahead_ms else None
        return store.claim("other:1:w", f"o{self._claims}", want=10, lease_ms=LEASE, max_crashes=3, now_ms=now).jobs

    def run_all(self, queue: str) -> None:
        """A worker runs all that is due."""
        for job in self.claim(queue):
            self.store(queue).settle([Outcome(job.id, job.attempt, job.fence, "ack")], worker="other:1:w", max_crashes=3)
            self.ran.append(job.id)

    def take_over(self, queue: str) -> list[Any]:
        """A worker claims what another one holds, whose leases have ended by now."""
        for minute in range(1, 20):
            if found := self.claim(queue, ahead_ms=minute * 60_000):
                return found
        return []

    def settle_rows(self, queue: str) -> None:
        """Mirror and relay do what they have to do."""
        config = self.settings_of(queue)
        common = {"prefix": "delayq"}
        mirror, relay = MirrorLoop(self.direct, config, **common), RelayLoop(self.direct, config, young=-3600, **common)
        for _ in range(4):
            mirror.drain()
            relay.poll()
        mirror.drain()

    def settings_of(self, queue: str) -> Any:
        from django_delayq import conf

        return conf.get().queue(queue)


def stores_now(link: Any) -> int:
    seconds, micros = link.execute("TIME")
    return int(seconds) * 1000 + int(micros) // 1000


@pytest.fixture
def world(settings, redis_server, monkeypatch) -> Iterator[World]:
    spec = settings.DELAYQ["REDIS"]
    line = CutLine(socket_of(spec))
    own = {"CONSUMER": "pull", "BACKOFF": "1ms", "MAX_ATTEMPTS": 9, "DURABILITY": "redis"}
    queues = {**settings.DELAYQ["QUEUES"], "mail": own}
    settings.DELAYQ = {**settings.DELAYQ, "REDIS": through(line, spec), "QUEUES": queues}
    settings.ROOT_URLCONF = "tests.contrib.gateway.gateway_urls"
    stores.reset()
    cache.clear()
    for name in SCRIPTS:  # so that each call of a script is one request
        redis_server.link.execute("SCRIPT", "LOAD", loader.load(name, Keys("delayq", "")).text)
    for name in queues:  # a queue without a site is given one by a call before
        redis_server.link.execute("HSET", Keys("delayq", name)["meta"], "site", site.of("delayq"))
    yield World(line, redis_server.link, settings)
    stores.reset()
    line.close()
    assert line.errors == []


@dataclass
class Case:
    """One answer. `script`: whose call is lost; `prepare`: what is there before; `call`: what is asked, and asked again; `other`: what
    somebody else does before the repeat; `answers`: to the caller in the end, per loss, and with "+" where somebody else has acted;
    `check`: what must be so then.
    """

    script: str
    prepare: Callable[[World], Any]
    call: Callable[[World, Any], Any]
    other: Callable[[World, Any], object]
    answers: dict[str, Any]
    check: Callable[[World, Any, str], None] = field(default=lambda *_: None)


def asked(call: Callable[[], Any]) -> Any:
    """The answer, as text where it is an error; asked once more where nothing is known."""
    for last in (False, True):
        try:
            answer = call()
        except StoreUnavailable:
            if last:
                raise
            stores.reset()  # as another process, or a moment later
            continue
        except (LeaseLost, LockTaken, KeyTaken) as error:
            return type(error).__name__
        if getattr(answer, "status_code", 0) == 503 and not last:
            stores.reset()
            continue
        return answer
    raise AssertionError


# --- schedule ---


def schedule(**options: Any) -> Callable[[World, Any], Any]:
    def call(world: World, thing: dict[str, Any]) -> Any:
        thing["job"] = delayq.schedule(thing["task"], 1, **options)
        return thing["job"].created

    return call


def once(world: World, thing: dict[str, Any], how: str) -> None:
    queue = thing["task"].queue
    if queue == "orders":
        world.settle_rows(queue)
    world.run_all(queue)
    assert world.ran == [thing["job"].short_id]


def confirmed(world: World) -> dict[str, Any]:
    """Redis is known to have all jobs, so that it decides about keys alone."""
    store = world.store("redis")
    store.epoch()
    epoch = EpochStore(store)
    found = epoch.look(FIRST)
    assert epoch.confirm(found.generation, server=found.server) == "ok"
    return {"task": ping}


def put_other(world: World, _: Any) -> None:
    record = JobRecord(id=ids.new(), task=ping.name, durable=False, key="k", payload=b"[[2]]")
    world.found = record.id
    world.store("redis").schedule([ScheduleItem.of(record, delay_ms=3_600_000)])


def one_of_key(world: World, thing: Any, how: str) -> None:
    held = [delayq.get(key="k", queue="redis")]
    assert world.store("redis").link.execute("HLEN", world.store("redis").keys["jobs"]) == 1
    assert held[0] is not None
    assert (held[0].id == world.found) is (how == "request+")


def one_of_key_at_the_look(world: World, thing: Any, how: str) -> None:
    assert world.store("redis").link.execute("HLEN", world.store("redis").keys["jobs"]) == 1
    assert (delayq.get(key="k", queue="redis").id == world.found) is ("+" in how)


# --- changes ---


def waiting(task: Any, delay: str = "0s") -> Callable[[World], Any]:
    return lambda world: delayq.schedule(task, 1, delay=delay)


def not_run(world: World, job: Any, how: str) -> None:
    world.run_all(job.queue)
    assert world.ran == []


def date_of(hours: int) -> Callable[[World, Any, str], None]:
    def check(world: World, job: Any, how: str) -> None:
        view = stores.inspector().job(job.queue, job.id)
        assert round((view.date_ms - view.now_ms) / 3_600_000) == hours

    return check


def failed(world: World) -> Any:
    job = delayq.schedule(close_order, 1)
    [held] = world.claim("orders")
    world.store("orders").settle([Outcome(held.id, held.attempt, held.fence, "fail")], worker="other:1:w", max_crashes=3)
    world.settle_rows("orders")
    return job


def attempts_are_one(world: World, job: Any, how: str) -> None:
    assert [found.attempt for found in world.claim("orders")] == ([] if how == "reply+" else [1])


# --- runs ---


def claimed(queue: str) -> Callable[[World], Any]:
    def prepare(world: World) -> Any:
        delayq.schedule(ping if queue == "redis" else close_order, 1)
        store = stores.queue(queue, 0)
        [job] = store.claim("mine:1:w", "m1", want=1, lease_ms=LEASE, max_crashes=3).jobs
        return job

    return prepare


def settle(world: World, job: Any) -> str:
    [answer] = stores.queue("redis", 0).settle([Outcome(job.id, job.attempt, job.fence, "ack")], worker="mine:1:w", max_crashes=3)
    return answer


def taken_over(queue: str) -> Callable[[World, Any], None]:
    def other(world: World, _: Any) -> None:
        world.found = world.take_over(queue)

    return other


def other_still_holds(world: World, job: Any, how: str) -> None:
    view = stores.inspector().job("redis", ids.full(job.id))
    expected = "running" if how == "request+" else "finished"
    assert view.state == expected


def claim(world: World, _: Any) -> list[str]:
    return sorted(job.id for job in stores.queue("redis", 0).claim("mine:1:w", "m1", want=9, lease_ms=LEASE, max_crashes=3).jobs)


def extend(world: World, job: Any) -> str:
    return stores.queue("redis", 0).extend([(job.id, job.fence)], worker="mine:1:w", lease_ms=LEASE)[job.id]


def offer(world: World, job: Any) -> str:
    told = stores.queue("redis", 0).offer(STREAM, b"{}", id=job.id, attempt=job.attempt, nonce=job.fence)
    return told.status


def offered(world: World, job: Any, how: str) -> None:
    assert world.link.execute("XLEN", STREAM.key) == (how != "request+")


# --- messages ---


def pulled(world: World) -> Any:
    delayq.push("mail", 7)
    (message,) = delayq.pull("mail", lease="30s")
    return message


def message_verb(verb: str, *given: Any) -> Callable[[World, Any], str]:
    def call(world: World, message: Any) -> str:
        getattr(message, verb)(*given)
        return "ok"

    return call


def next_consumer(world: World, message: Any) -> None:
    """Finds that the lease has ended, ends that attempt, and pulls the message itself."""
    id, fence = message.held
    world.store("mail").settle([Outcome(id, message.attempt, fence, "retry")], worker="other:1:w", max_crashes=3)
    world.found = world.claim("mail")


def nobody_wrote(world: World, message: Any, how: str) -> None:
    if how == "request+":
        [held] = world.found
        view = stores.inspector().job("mail", ids.full(held.id))
        assert (view.state, view.attempt) == ("running", 2)
    else:
        assert not world.found


def next_consumer_acks(world: World, message: Any) -> None:
    next_consumer(world, message)
    for job in world.found:
        world.store("mail").settle([Outcome(job.id, job.attempt, job.fence, "ack")], worker="other:1:w", max_crashes=3)


def two_messages(world: World) -> None:
    for number in (1, 2):
        delayq.push("mail", number)


def pull_two(world: World, _: Any) -> list[int]:
    return sorted(message.body for message in delayq.pull("mail", 2))


def nothing_left_to_pull(world: World, how: str) -> None:
    assert world.claim("mail") == []
    assert world.link.execute("ZCARD", world.store("mail").keys["leases"]) == 2, "each is in the hands of one"


def paused(world: World) -> None:
    delayq.schedule(close_order, 1)
    assert world.claim("orders") == []


# --- locks ---


def lock_store(world: World) -> LockStore:
    return LockStore(world.direct, QueueStore(world.direct, prefix="delayq", queue="default").keys)


def take(world: World, thing: dict[str, Any]) -> bool:
    thing["lock"] = delayq.lock("a", lease="30s")
    thing["lock"].__enter__()
    return bool(thing["lock"].held)


def take_other(world: World, _: Any) -> None:
    world.found = lock_store(world).lock("a", "theirs", lease_ms=LEASE, holder="other")


def wipe_and_take(world: World, _: Any) -> None:
    world.link.execute("FLUSHDB")
    take_other(world, _)


def one_holder(world: World, thing: dict[str, Any], how: str) -> None:
    assert isinstance(world.found, int) is (how == "request+")
    if how != "request+":
        thing["lock"].__exit__(None, None, None)


def held(world: World) -> Any:
    lock = delayq.lock("a", lease="30s")
    lock.__enter__()
    return lock


def give_back(world: World, lock: Any) -> str:
    lock.__exit__(None, None, None)
    return "ok"


def others_is_kept(world: World, lock: Any, how: str) -> None:
    if how == "reply+":
        assert isinstance(world.found, int), "it was free for somebody else"
        assert lock_store(world).prolong([("a", "theirs", LEASE)]) == ["held"], "and the repeat did not give that back"
    else:
        assert isinstance(lock_store(world).lock("a", "next", lease_ms=LEASE, holder="next"), int)


# --- the gateway ---


class Caller:
    def __init__(self) -> None:
        queues, verbs = ["*"], ["*"]
        self._headers = {"Authorization": f"Bearer {tokens.make('partner', queues=queues, verbs=verbs)[1]}"}

    def post(self, path: str, body: Any, key: str = "") -> Any:
        headers = {**self._headers, **({"Idempotency-Key": key} if key else {})}
        return Client().post(f"/queue/v1/{path}", json.dumps(body), content_type="application/json", headers=headers)


def over_http(path: str, body: Any, key: str = "") -> Callable[[World, Any], Any]:
    def call(world: World, thing: dict[str, Any]) -> Any:
        answer = thing["caller"].post(path.format(**thing), body(thing) if callable(body) else body, key)
        if answer.status_code == 503:
            return answer
        told = answer.json()
        thing["answer"] = told
        if "messages" in told:
            return told["messages"][0]["answer"]
        return told.get("change", answer.status_code)

    return call


def caller(world: World) -> dict[str, Any]:
    return {"caller": Caller(), "task": ping}


def pulled_over_http(world: World) -> dict[str, Any]:
    thing = caller(world)
    delayq.push("mail", 7)
    (thing["message"],) = thing["caller"].post("queues/mail/pull", {}).json()["messages"]
    return thing


def next_over_http(world: World, thing: dict[str, Any]) -> None:
    attempt, _, nonce = thing["message"]["fence"].partition("/")
    world.store("mail").settle([Outcome(thing["message"]["id"], int(attempt), nonce, "retry")], worker="other:1:w", max_crashes=3)
    world.found = world.claim("mail")


def waiting_for_http(world: World) -> dict[str, Any]:
    job = delayq.schedule(ping, 1)
    return {**caller(world), "job": job, "id": job.short_id}


def one_over_http(world: World, thing: dict[str, Any], how: str) -> None:
    world.run_all("redis")
    assert world.ran == [thing["answer"]["id"]]


def one_row_over_http(world: World, thing: dict[str, Any], how: str) -> None:
    world.settle_rows("orders")
    world.run_all("orders")
    assert world.ran == [thing["answer"]["id"]]
    assert Job.objects.count() == 1


def failed_for_http(world: World) -> dict[str, Any]:
    job = failed(world)
    return {**caller(world), "job": job, "id": job.short_id}


def same(answer: Any, **others: Any) -> dict[str, Any]:
    """One answer in all four cases, except those given; "request_other" means "request+"."""
    found = dict.fromkeys(("request", "reply", "request+", "reply+"), answer)
    return found | {name.replace("_other", "+"): other for name, other in others.items()}


def message_case(verb: str, *given: Any) -> Case:
    return Case(
        "extend" if verb == "extend" else "settle",
        pulled,
        message_verb(verb, *given),
        next_consumer,
        same("ok", request_other="LeaseLost", **({"reply_other": "LeaseLost"} if verb == "extend" else {})),
        (lambda *_: None) if verb == "extend" else nobody_wrote_when_other,
    )


def nobody_wrote_when_other(world: World, message: Any, how: str) -> None:
    if "+" in how:
        nobody_wrote(world, message, how)


CASES: dict[str, Case] = {
    "schedule, redis durability": Case(
        "schedule", lambda world: {"task": ping}, schedule(), lambda world, _: world.run_all("redis"), same(True), once
    ),
    "schedule, a row that is published": Case(
        "schedule", lambda world: {"task": close_order}, schedule(), lambda world, _: world.run_all("orders"), same(None), once
    ),
    "schedule, a key, the look": Case(  # which the policies keep and error do not need
        "schedule",
        confirmed,
        schedule(key="k", delay="30m", on_conflict="latest"),
        put_other,
        same(True, request_other=False, reply_other=False),
        one_of_key_at_the_look,
    ),
    "schedule, a key": Case(
        "schedule",
        confirmed,
        schedule(key="k", delay="1h"),
        put_other,
        same(True, request_other=False),
        one_of_key,
    ),
    "schedule, a key and error": Case(
        "schedule",
        confirmed,
        schedule(key="k", delay="1h", on_conflict="error"),
        put_other,
        same(True, request_other="KeyTaken"),
        one_of_key,
    ),
    "cancel": Case(
        "cancel",
        waiting(close_order),
        lambda world, job: str(job.cancel()),
        lambda world, job: world.claim(job.queue),
        same("done", request_other="running"),
        not_run,
    ),
    "cancel, redis durability": Case(
        "cancel",
        waiting(ping),
        lambda world, job: str(job.cancel()),
        lambda world, job: world.claim(job.queue),
        same("done", request_other="running"),
        not_run,
    ),
    "reschedule": Case(
        "reschedule",
        waiting(close_order, "1h"),
        lambda world, job: str(job.reschedule(delay="2h")),
        lambda world, job: world.store(job.queue).reschedule(job.id, delay_ms=3 * 3_600_000),
        same("done"),
        date_of(2),
    ),
    "reschedule, redis durability": Case(
        "reschedule",
        waiting(ping, "1h"),
        lambda world, job: str(job.reschedule(delay="2h")),
        lambda world, job: world.store(job.queue).reschedule(job.id, delay_ms=3 * 3_600_000),
        same("done"),
        date_of(2),
    ),
    "run now": Case(
        "reschedule",
        waiting(close_order, "1h"),
        lambda world, job: str(job.run_now()),
        lambda world, job: world.run_all(job.queue),
        same("done", reply_other="finished"),
        lambda world, job, how: once(world, {"task": close_order, "job": job}, how),
    ),
    "requeue": Case(
        "requeue",
        failed,
        lambda world, job: str(job.requeue()),
        lambda world, job: world.claim("orders"),
        same("done", reply="conflict", reply_other="running"),
        attempts_are_one,
    ),
    "the end of a run": Case(
        "settle",
        claimed("redis"),
        settle,
        taken_over("redis"),
        same("done", reply="already", request_other="lost", reply_other="already"),
        other_still_holds,
    ),
    "extend": Case("extend", claimed("redis"), extend, taken_over("redis"), same("ok", request_other="lost", reply_other="lost")),
    "offer": Case(
        "offer",
        claimed("redis"),
        offer,
        taken_over("redis"),
        same("offered", reply="again", request_other="lost", reply_other="lost"),
        offered,
    ),
    "ack": message_case("ack"),
    "retry": message_case("retry", "1h"),
    "snooze": message_case("snooze", "1h"),
    "fail": message_case("fail"),
    "extend of a message": message_case("extend"),
    "ack, and the next consumer acks too": Case(
        "settle", pulled, message_verb("ack"), next_consumer_acks, same("ok"), lambda world, message, how: None
    ),
    "pull": Case(
        "claim",
        two_messages,
        pull_two,
        lambda world, _: world.claim("mail"),
        same([1, 2], request_other=[]),
        lambda world, _, how: nothing_left_to_pull(world, how),
    ),
    "pause": Case(
        "pause",
        lambda world: None,
        lambda world, _: delayq.pause("orders").changed,
        lambda world, _: world.store("orders").resume(),
        same(True),
        lambda world, _, how: paused(world),
    ),
    "pause of a task": Case(
        "limit",
        lambda world: None,
        lambda world, _: delayq.pause(task=close_order).changed,
        lambda world, _: LimitStore(world.store("orders")).limit([LimitChange("resume", f"task:{close_order.name}")]),
        same(True),
        lambda world, _, how: paused(world),
    ),
    "a lock is taken": Case("lock", lambda world: {}, take, take_other, same(True, request_other="LockTaken"), one_holder),
    "a lock is given back": Case("unlock", held, give_back, take_other, same("ok"), others_is_kept),
    "a lock is given back, and Redis has lost it": Case(
        "unlock",
        held,
        give_back,
        wipe_and_take,
        same("ok", request_other="LeaseLost", reply_other="LeaseLost"),
        lambda *_: None,
    ),
    "gateway, schedule": Case(
        "schedule",
        caller,
        over_http("jobs", {"task": ping.name}, key="one"),
        lambda world, _: world.run_all("redis"),
        same(201),
        one_over_http,
    ),
    "gateway, schedule, a row that is published": Case(
        "schedule",
        caller,
        over_http("jobs", {"task": close_order.name, "args": [1]}, key="one"),
        lambda world, _: world.run_all("orders"),
        same(202),
        one_row_over_http,
    ),
    "gateway, requeue": Case(
        "requeue",
        failed_for_http,
        over_http("jobs/{id}/requeue", {}),
        lambda world, thing: world.claim("orders"),
        same("done", reply="conflict", reply_other="running"),
        lambda world, thing, how: attempts_are_one(world, thing["job"], how),
    ),
    "gateway, ack": Case(
        "settle",
        pulled_over_http,
        over_http("queues/mail/ack", lambda thing: {"messages": [{name: thing["message"][name] for name in ("id", "fence")}]}),
        next_over_http,
        same("done", request_other="lost"),
    ),
    "gateway, cancel": Case(
        "cancel",
        waiting_for_http,
        over_http("jobs/{id}/cancel", {}),
        lambda world, thing: world.claim("redis"),
        same("done", request_other="running"),
        lambda world, thing, how: not_run(world, thing["job"], how),
    ),
}


# Promises about an answer, by their slugs in tests/promises, and the cases that play them in all three ways.
PLAYED: dict[str, tuple[str, ...]] = {
    "published-twice": ("schedule, redis durability",),
    "commit": ("schedule, a row that is published",),
    "one-job-per-key": ("schedule, a key", "schedule, a key, the look", "schedule, a key and error"),
    "answers": ("cancel", "cancel, redis durability", "reschedule", "reschedule, redis durability", "run now"),
    "fence": ("the end of a run",),
    "lease": ("extend",),
    "offer": ("offer",),
    "message-lease": ("pull", "extend of a message", "ack", "retry", "snooze", "fail", "ack, and the next consumer acks too"),
    "message-reply": ("pull", "ack", "retry", "snooze", "fail"),
    "lock-reply": ("a lock is taken", "a lock is given back"),
    "lock": ("a lock is given back", "a lock is given back, and Redis has lost it"),
    "pause": ("pause",),
    "pause-of-a-word": ("pause of a task",),
    "http-once": ("gateway, schedule", "gateway, schedule, a row that is published", "requeue", "gateway, cancel", "gateway, requeue"),
    "http-settle": ("gateway, ack",),
}
# The others, with one test elsewhere for each way.
ELSEWHERE: dict[str, tuple[str, str, str]] = {
    "replicas": (
        "tests/producer/test_replicas.py::test_a_replica_that_comes_back_in_time_is_waited_for",
        "tests/producer/test_replicas.py::test_what_answers_behind_a_lost_answer_is_not_believed_before_the_replica_has_it",
        "tests/producer/test_replicas.py::test_a_change_that_the_replica_lacks_is_raised_each_time_it_is_asked_for",
    ),
    "atomic": (
        "tests/worker/test_effects.py::test_an_atomic_run_pays_once_wherever_its_process_dies",
        "tests/mirror/test_atomic_runs.py::test_a_second_delivery_does_nothing_and_gives_the_first_result",
        "tests/mirror/test_atomic_runs.py::test_a_stale_run_that_ends_after_the_next_one_leaves_nothing",
    ),
    "delivery-once": (
        "tests/targets/test_delivery.py::test_the_first_request_is_lost",
        "tests/targets/test_delivery.py::test_the_first_answer_is_lost",
        "tests/targets/test_delivery.py::test_the_repeat_comes_after_the_receiver_has_acted",
    ),
}


def test_each_promise_about_an_answer_is_played_in_three_ways():
    assert {*PLAYED, *ELSEWHERE} <= PROMISES.keys()
    assert {case for cases in PLAYED.values() for case in cases} == CASES.keys(), "each case plays a promise"
    for tests in ELSEWHERE.values():
        for test in tests:
            file, _, function = test.partition("::")
            names = {node.name for node in ast.walk(ast.parse((ROOT / file).read_text("utf-8"))) if isinstance(node, ast.FunctionDef)}
            assert function in names, test


def played(world: World, name: str, what: str, *, other: bool) -> None:
    case = CASES[name]
    thing = case.prepare(world)
    how = f"{what}+" if other else what
    world.line.lose(what, case.script, then=(lambda: case.other(world, thing)) if other else lambda: None)
    answer = asked(lambda: case.call(world, thing))
    assert world.line.lost, "nothing was lost: the test plays another script than is called"
    assert answer == case.answers[how]
    case.check(world, thing, how)


@pytest.mark.parametrize("name", CASES)
def test_the_first_request_is_lost(world, name):
    played(world, name, "request", other=False)


@pytest.mark.parametrize("name", CASES)
def test_the_first_reply_is_lost(world, name):
    played(world, name, "reply", other=False)


@pytest.mark.parametrize("what", ["request", "reply"])
@pytest.mark.parametrize("name", CASES)
def test_the_repeat_comes_after_somebody_else_has_acted(world, name, what):
    played(world, name, what, other=True)
