"""The movers and settlers of a process on a Cluster of three masters: how many threads they take, and who hears what while slots move
and masters hang.
"""

from __future__ import annotations

import logging
import statistics
import threading
from collections import deque
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from django_delayq import clock, codec, ids
from django_delayq.store.connection.cluster import slot_of
from django_delayq.store.connection.link import Link
from django_delayq.store.connection.places import place
from django_delayq.store.keys import tag
from django_delayq.store.scripts.queue import ScheduleItem
from django_delayq.store.scripts.record import JobRecord
from django_delayq.worker.lease_table import LeaseTable
from django_delayq.worker.loop import ErrorPause
from django_delayq.worker.process import node_threads
from django_delayq.worker.process.consumer import JobBuffer, Pace
from django_delayq.worker.process.mover import FULL_FOR, Mover
from django_delayq.worker.process.node_threads import Movers, NodeThreads, Settlers, SettlerThread
from django_delayq.worker.process.settler import Adopter, Settler
from django_delayq.worker.process.task_process import rows
from tests.conftest import missing
from tests.links import opened
from tests.topologies import ClusterNode, ClusterServers, redis_program
from tests.worker.bench import Bench, line
from tests.worker.conftest import eventually

pytestmark = pytest.mark.slow

PARTS = 16
AT_ONCE = 0.3  # seconds in which a call is heard, mostly; the timers look once a second
TIMEOUT = 2.0  # seconds that a call waits for a server


class Process:
    """The movers and settlers of a task process. Nobody runs what they claim: a test takes it out of the buffer."""

    def __init__(self, cluster: ClusterServers) -> None:
        self.cluster = cluster
        self.places = place(cluster.url, name="process", timeout=TIMEOUT)
        self.elsewhere = place(cluster.url, name="producer", timeout=TIMEOUT)
        self.lines = [line(partition=part).on(self.places, "t") for part in range(PARTS)]
        self.producers = [line(partition=part).on(self.elsewhere, "t") for part in range(PARTS)]
        links = [line.store.link for line in self.lines]
        assert len(set(links)) == PARTS
        leases = LeaseTable(rows(2, PARTS), PARTS)
        self.free = deque(range(leases.rows))
        self.all_free = leases.rows
        self.buffer = JobBuffer(lambda: None)
        self.consumers: list[Any] = [SimpleNamespace(finished=0) for _ in range(2)]
        adopters = [Adopter(leases=leases, worker="w/1") for _ in links]
        each = {
            link: Settler(leases=leases, free=self.free, adopter=adopter, worker="w/1", settled=lambda: None)
            for link, adopter in zip(links, adopters, strict=True)
        }
        self.settlers = Settlers(each)
        self.movers = [
            Mover(
                lines=[line],
                numbers=[number],
                link=line.store.link,
                leases=leases,
                free=self.free,
                buffer=self.buffer,
                consumers=self.consumers,
                settler=self.settlers,
                adopter=adopters[number],
                pace=Pace(2),
                worker="w/1",
                others=PARTS - 1,
            )
            for number, line in enumerate(self.lines)
        ]
        self.mover = Movers(dict(zip(self.movers, links, strict=True)), deque())
        self.settlers.start()
        self.mover.poll()

    def threads(self, name: str) -> int:
        return sum(thread.name == name and thread in self._mine() for thread in threading.enumerate())

    def _mine(self) -> list[threading.Thread]:
        both = (*self.mover._threads._threads.values(), *self.settlers._threads._threads.values())  # type: ignore[attr-defined]  # one mover has none
        return [thread._thread for thread in both]

    def slot(self, part: int) -> int:
        return slot_of(f"{{{tag('q', part)}}}")

    def master_of(self, part: int) -> ClusterNode:
        return self.cluster.serving(self.slot(part))

    def parts_of(self, node: ClusterNode) -> list[int]:
        return [part for part in range(PARTS) if self.master_of(part) is node]

    def put(self, part: int) -> None:
        payload = codec.encode_payload((), {}, None, limit=65536, task="x")
        record = JobRecord(id=ids.new(), task="x", durable=False, payload=payload)
        self.producers[part].store.schedule([ScheduleItem.of(record, delay_ms=0)])

    def heard(self, part: int) -> float:
        """Schedules a job there and returns how long it took to come here."""
        self.put(part)
        began = clock.monotonic()
        while not len(self.buffer):
            assert clock.monotonic() - began < 20, f"nobody hears of partition {part}"
            clock.sleep(0.001)
        took = clock.monotonic() - began
        run = self.buffer.take()
        assert run is not None
        assert run.line is self.lines[part]
        self.consumers[0].finished += 1
        self.settlers.add(run, run.outcome("ack"))
        return took

    def is_called(self, *parts: int) -> bool:
        """Whether each of them hears of its jobs by a call, and not by a timer: two of three times at once."""
        return all(statistics.median(self.heard(part) for _ in range(3)) < AT_ONCE for part in parts)

    def waits(self, part: int) -> bool:
        """Whether its mover listens, and holds nothing."""
        mover = self.movers[part]
        return mover.wake.armed and not mover.trouble.failures

    def all_wait(self, *but: int) -> None:
        eventually(lambda: all(self.waits(part) for part in range(PARTS) if part not in but), "all movers listen")

    def close(self) -> None:
        self.settlers.end(5)
        assert not self.settlers._threads._threads
        threads = self.mover._threads
        with threads._lock:
            mine = list(threads._threads.values())
            for thread in mine:
                thread.loops = []
                thread.call()
        for thread in mine:
            thread.join(10)
        for mover in self.movers:
            mover.wake.close()
        self.places.close()
        self.elsewhere.close()


@pytest.fixture
def cluster() -> Iterator[ClusterServers]:
    program = redis_program() or missing("no redis")
    with ClusterServers(program=program, cluster_require_full_coverage="no", cluster_node_timeout="60000") as servers:
        yield servers


@pytest.fixture
def process(cluster: ClusterServers) -> Iterator[Process]:
    running = Process(cluster)
    try:
        running.all_wait()
        yield running
    finally:
        for node in cluster.masters:
            node.resume()
        running.close()


@pytest.fixture
def said(caplog) -> Callable[[str], list[str]]:
    """The log records that contain these words."""
    caplog.set_level(logging.WARNING)
    return lambda words: [text for text in caplog.messages if words in text]


def test_a_call_for_each_of_sixteen_partitions_is_heard_at_once_by_a_thread_per_master(process: Process) -> None:
    assert process.is_called(*range(PARTS))
    eventually(lambda: len(process.free) == process.all_free, "all is settled")
    for _ in range(2):
        assert (process.threads("delayq-mover"), process.threads("delayq-settler")) == (3, 3)
        eventually(lambda: process.is_called(*range(PARTS)))
    waiting = sum(
        int(node.call("INFO", "clients", whole=True).split("blocked_clients:")[1].split()[0]) for node in process.cluster.masters
    )
    assert waiting == PARTS, "a connection for each waits"


def test_slots_that_move_are_heard_where_they_are_by_the_thread_of_that_master(process: Process) -> None:
    source, to = process.cluster.masters[:2]
    moved = process.parts_of(source)
    assert len(moved) > 1
    for part in moved:
        process.cluster.move(process.slot(part), to)
    process.elsewhere.close()
    eventually(lambda: process.threads("delayq-mover") == 2, "the thread of the master that has nothing ends")
    process.all_wait()
    assert process.is_called(*range(PARTS))
    eventually(lambda: len(process.free) == process.all_free, "all is settled")
    for part in moved[:1]:
        process.cluster.move(process.slot(part), source)
    eventually(lambda: process.threads("delayq-mover") == 3, "and begins anew")
    process.all_wait()
    assert process.is_called(moved[0])


def test_while_a_master_is_frozen_the_others_are_heard_at_once(process: Process, said) -> None:
    frozen = process.master_of(0)
    away = process.parts_of(frozen)
    assert len(away) > 3
    [process.heard(part) for part in away]
    eventually(lambda: len(process.free) == process.all_free, "all is settled")
    frozen.pause()
    began = clock.monotonic()
    others = [part for part in range(PARTS) if part not in away]
    unnoticed = 0  # how often each of the others was read meanwhile: one that waits is read later
    while not all(process.movers[part].trouble.failures for part in away):
        [process.heard(part) for part in others]
        unnoticed += not any(process.movers[part].trouble.failures for part in away)
        assert clock.monotonic() - began < 2 + 2 * TIMEOUT, "who is on that master learns it from the first who waited for it"
    assert unnoticed > 9, "they do not wait for it"
    [process.heard(part) for part in others]
    lines = said("Failed attempts since the last line")
    assert lines
    assert all(f":{frozen.port}" in line for line in lines)
    assert said("mover: ") == []
    frozen.resume()
    process.all_wait()
    assert process.is_called(0)


def test_wake_lines_that_break_are_made_anew_without_a_word(process: Process, said) -> None:
    node = process.master_of(0)
    node.call("CLIENT", "KILL", "TYPE", "normal")
    process.all_wait()
    assert said("wake line") == []
    assert process.is_called(*range(PARTS))


def test_a_slot_that_is_half_way_to_a_master_that_hangs_keeps_no_other_one_waiting(process: Process) -> None:
    source = process.master_of(0)
    to = next(node for node in process.cluster.masters if node is not source)
    others = [part for part in range(1, PARTS) if process.master_of(part) is not to]
    process.heard(0)
    eventually(lambda: len(process.free) == process.all_free, "all is settled")
    process.cluster.open(process.slot(0), to)
    while process.cluster.carry(process.slot(0), to):
        pass
    to.pause()
    eventually(lambda: process.threads("delayq-mover") == 4, "its mover waits in a thread of its own")
    began = clock.monotonic()
    took = []
    while clock.monotonic() - began < 2 * TIMEOUT:
        took += [process.heard(part) for part in others]
    assert max(took) < TIMEOUT / 2, "they do not wait for it"
    to.resume()
    to.wait_ready()
    process.cluster.settle(process.slot(0), to)
    eventually(lambda: process.threads("delayq-mover") == 3, "and is with the others again")
    process.all_wait()
    assert process.is_called(0)


def test_while_the_cluster_is_down_there_is_no_thread_for_each_slot(process: Process) -> None:
    gone = process.master_of(0)
    others = [mover for part, mover in enumerate(process.movers) if process.master_of(part) is not gone]
    for node in process.cluster.masters:
        node.call("CONFIG", "SET", "cluster-require-full-coverage", "yes")
        node.call("CONFIG", "SET", "cluster-node-timeout", "1000")
    gone.pause()
    eventually(lambda: all(mover.trouble.error is not None and mover.trouble.error.code == "redis_slot" for mover in others))
    began = clock.monotonic()
    while clock.monotonic() - began < 2 * TIMEOUT:
        assert process.threads("delayq-mover") <= 3
        clock.sleep(0.01)
    gone.resume()
    process.all_wait()
    assert process.is_called(0)


class Ended:
    """The wait that a settler's thread asks for. It is stopped while it settles."""

    def __init__(self) -> None:
        self.trouble = ErrorPause("settler")
        self.over = False

    def fill(self, filled: threading.Event) -> None:
        pass

    def finish(self) -> None:
        pass

    def step(self) -> float:
        self.over = True
        return float("inf")


def test_a_settler_that_is_told_to_end_while_it_settles_keeps_no_thread() -> None:
    settlers = Settlers({opened("redis://nobody:1/0"): Ended()})  # type: ignore[dict-item]  # a stand-in
    settlers.start()
    settlers.end(10)
    assert not settlers._threads._threads


class Moving:
    """A link that leads to one server now, and to another one then."""

    moves = False

    def __init__(self, met: Link) -> None:
        self.met = met


class Counted:
    """A settler that has nothing to do, and counts how often it is asked."""

    over = False

    def __init__(self) -> None:
        self.trouble = ErrorPause("settler")
        self.steps = 0

    def fill(self, filled: threading.Event) -> None:
        pass

    def step(self) -> float:
        self.steps += 1
        return 0.01


def test_a_loop_for_whose_new_server_no_thread_can_be_had_is_handed_over_when_one_can(monkeypatch, said) -> None:
    monkeypatch.setattr(node_threads, "AFTER_A_BUG", 0.01)
    first, second = opened("redis://nobody:1/0"), opened("redis://nobody:2/0")
    link, loop = Moving(first), Counted()
    short = threading.Event()

    class Thread(SettlerThread):
        def start(self) -> None:
            if short.is_set():
                raise RuntimeError("can't start new thread")
            super().start()

    threads: NodeThreads[Any] = NodeThreads({loop: link}, Thread)  # type: ignore[dict-item]  # a stand-in
    threads.start()
    eventually(lambda: loop.steps)
    short.set()
    link.met = second
    eventually(lambda: said("a thread failed"))
    assert [*threads._threads] == [first]
    short.clear()
    eventually(lambda: [*threads._threads] == [second])
    before = loop.steps
    eventually(lambda: loop.steps > before)
    loop.over = True
    threads.call()
    threads.join(10)
    assert not threads._threads


def test_what_ends_right_when_the_thread_of_settlers_has_waited_long_enough_is_settled_at_once(monkeypatch) -> None:
    link = opened("redis://nobody:1/0")
    thread = SettlerThread(link, NodeThreads({}, SettlerThread))

    def wait(seconds: float | None) -> bool:
        thread.call()
        return False

    monkeypatch.setattr(thread._filled, "wait", wait)
    assert thread.sleep(0.1), "all are asked"


def test_a_mover_without_room_only_since_another_asks_keeps_its_timers_and_looks_again(bench: Bench) -> None:
    bench.register(print)
    bench.mover._spare, another = 1, object()
    bench.move()
    bench.put("print")
    for _ in range(3):
        bench.buffer.asking(another, 2, clock.monotonic())
        pause = bench.mover.poll() if bench.mover._full_since else bench.move() or 0.0
        assert pause <= FULL_FOR
        assert not len(bench.buffer)
        clock.sleep(FULL_FOR)
        bench.buffer.asking(another, 0, 0.0)
    assert bench.mover._watches[0].holds_timer
    bench.mover.poll()
    assert len(bench.buffer) == 1
