"""The loops of one task process without threads, so that a test can interleave their passes."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from itertools import zip_longest
from types import SimpleNamespace
from typing import Any

from django_delayq import clock, codec, ids
from django_delayq.exceptions import UnknownTask
from django_delayq.ladder import Ladder
from django_delayq.producer import carriers
from django_delayq.producer.task import Task
from django_delayq.store.connection.link import Link
from django_delayq.store.scripts.queue import ScheduleItem
from django_delayq.store.scripts.record import JobRecord
from django_delayq.worker.lease_table import LeaseTable
from django_delayq.worker.line import Line
from django_delayq.worker.logs import JobLog
from django_delayq.worker.process.consumer import Consumer, JobBuffer, Pace
from django_delayq.worker.process.executor import Executor
from django_delayq.worker.process.mover import Mover
from django_delayq.worker.process.settler import Adopter, Settler
from django_delayq.worker.process.task_call import Coroutines
from django_delayq.worker.process.timeouts import SoftTimer
from django_delayq.worker.receivers import SignalReceiver
from django_delayq.worker.supervisor.fork import Child
from django_delayq.worker.supervisor.hanging_processes import HangingProcesses
from django_delayq.worker.supervisor.lease_extender import LeaseExtender
from django_delayq.worker.supervisor.process_recovery import ProcessRecovery
from tests.store.board import Board


def line(queue: str = "q", **fields: Any) -> Line:
    """A line with the usual settings."""
    usual = {
        "queue": queue,
        "partition": 0,
        "lease": 30.0,
        "lease_ms": 30_000,
        "max_crashes": 3,
        "max_result": 65536,
        "backoff": Ladder("1m"),
        "timeout": None,
    }
    return Line(**{**usual, **fields})


class FakeTask(SimpleNamespace):
    """The attributes of a task that the worker uses."""

    __hash__ = object.__hash__

    def understood(self, args: Sequence[Any], kwargs: Mapping[str, Any], meta: Mapping[str, Any] | None) -> Any:
        """As a real task does."""
        real: Task[..., Any] = Task(self.fn, name=self.name, version=self.version, upgrade=self.upgrade)
        return real.understood(args, kwargs, meta)


def task(fn: Callable[..., Any], **fields: Any) -> Any:
    """A registered task."""
    usual = {"name": fn.__name__, "fn": fn, "backoff": None, "poll": None, "timeout": None, "is_async": False, "atomic": False}
    usual |= {"version": 1, "upgrade": {}}
    return FakeTask(**{**usual, **fields})


class Bench:
    """One task process on queues of prefix "t" (mostly "q" alone), with its supervisor's loops."""

    def __init__(
        self,
        link: Link,
        *,
        threads: int = 2,
        rows: int = 20,
        queues: tuple[str, ...] = ("q",),
        weights: tuple[int, ...] = (),
        package: Link | None = None,
        **fields: Any,
    ) -> None:
        self.board = Board(link, package)
        link = self.board.store.link
        described = [line(queue, weight=weight, **fields) for queue, weight in zip_longest(queues, weights, fillvalue=1)]
        self.lines = [line.on(link, "t") for line in described]
        self.stores = [line.store for line in self.lines]
        self.leases = LeaseTable(rows, len(queues))
        self.free = deque(range(rows))
        self.called = self.settled = 0
        self.tasks: dict[str, Any] = {}
        self.buffer = JobBuffer(self._call)
        self.adopter = Adopter(leases=self.leases, worker="w/1")
        self.settler = Settler(
            leases=self.leases,
            free=self.free,
            adopter=self.adopter,
            worker="w/1",
            settled=self._settled,
        )
        self.executor = Executor(
            leases=self.leases,
            find_task=self.find,
            task_numbers={},
            receivers=(SignalReceiver(), JobLog("w/1")),
            coroutines=Coroutines(lambda: None),
            timer=SoftTimer(),
            missing=carriers.missing,
        )
        self.pace = Pace(threads)
        self.consumers = [
            Consumer(
                number,
                buffer=self.buffer,
                executor=self.executor,
                settler=self.settler,
                pace=self.pace,
                end_thread=lambda: None,
            )
            for number in range(threads)
        ]
        self.mover = Mover(
            lines=self.lines,
            link=link,
            leases=self.leases,
            free=self.free,
            buffer=self.buffer,
            consumers=self.consumers,
            settler=self.settler,
            adopter=self.adopter,
            pace=self.pace,
            worker="w/1",
        )
        self.child: Any = SimpleNamespace(
            pid=1,
            worker="w/1",
            leases=self.leases,
            remove_lease_file=lambda: None,
            hung=set(),
            hung_since=None,
            aborted={},
            killed=False,
            exit_code=-9,
        )
        self.told: list[bytes] = []
        self.child.tell = self.told.append
        self.child.abort = partial(Child.abort, self.child)
        self.child.kill = lambda: setattr(self.child, "killed", True)
        self.extender = LeaseExtender(lines=self.lines, children=lambda: [self.child], worker="w")
        self.recovery = ProcessRecovery(lines=self.lines, tasks=["shop.close"])
        self.replaced: list[Any] = []
        self.deadlines = HangingProcesses(
            lines=self.lines,
            children=lambda: [self.child],
            replace=self.replaced.append,
            tasks=["shop.close"],
            find_task=self.find,
            grace=30.0,
        )

    def find(self, name: str) -> Any:
        try:
            return self.tasks[name]
        except KeyError:
            raise UnknownTask(f"No task named {name!r} is registered.") from None

    def register(self, fn: Callable[..., Any], **fields: Any) -> None:
        self.tasks[fn.__name__] = task(fn, **fields)

    def put(
        self,
        task: str,
        *args: Any,
        kwargs: dict[str, Any] | None = None,
        options: dict[str, Any] | None = None,
        line: int = 0,
        delay_ms: int = 0,
        **fields: Any,
    ) -> str:
        payload = codec.encode_payload(args, kwargs or {}, options, limit=65536, task=task)
        record = JobRecord(**{"id": ids.new(), "task": task, "durable": False, "payload": payload, **fields})
        self.stores[line].schedule([ScheduleItem.of(record, delay_ms=delay_ms)])
        return ids.short(record.id)

    def move(self) -> None:
        """A pass of the mover, as if a wake token had come."""
        for watch in self.mover._watches:
            watch.at = 0.0
        self.mover.poll()

    def take(self) -> Any:
        """The next job of the buffer, which must not be empty. On a slow machine, too, it may begin, see `executor.AT_ONCE`."""
        assert len(self.buffer)
        taken: Any = self.buffer.take()
        taken.claimed = clock.monotonic()
        return taken

    def run(self) -> None:
        """Moves, runs and settles until nothing is in the buffer."""
        self.move()
        while len(self.buffer):
            self.consumers[0].poll(self.take())
        self.settler.poll()

    def kinds(self) -> list[str]:
        """The kinds of all events so far."""
        return [item.kind for entry in self.board.log.read("0-0", 1000) for item in entry.items]

    def body(self, kind: str) -> dict[str, Any]:
        """The detail of the last event of that kind."""
        found = [item.body for entry in self.board.log.read("0-0", 1000) for item in entry.items if item.kind == kind]
        return codec.loads(found[-1])

    def close(self) -> None:
        self.mover.wake.close()

    def _settled(self) -> None:
        self.settled += 1

    def _call(self) -> None:
        self.called += 1
