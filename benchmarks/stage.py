"""One measurement: a fresh server, a folder for marks, and the system's programs around them."""

from __future__ import annotations

import contextlib
import json
import mmap
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

from benchmarks.servers import QUEUE, Masters, Redis, bound
from benchmarks.systems import OWN, ROOT, System
from django_delayq.store.keys import Keys

TICKS = os.sysconf("SC_CLK_TCK")
PATIENCE = 300.0  # seconds for a program that puts jobs in
PUTS = threading.Semaphore(os.cpu_count() or 1)  # where systems are measured side by side, only so many put jobs in
PORTION = 250_000  # jobs that one program puts in: it keeps all of them in its memory


class Failed(Exception):
    """The system did not do what was measured; the text says what was seen."""


class Worker:
    """A worker of the system, with all processes it has started."""

    def __init__(self, started: subprocess.Popen[bytes], log: Path) -> None:
        self.started = started
        self.log = log
        self.born = time.time()

    def tree(self) -> list[int]:
        """Its processes."""
        parents: dict[int, list[int]] = {}
        for entry in os.listdir("/proc"):
            if entry.isdigit():
                with contextlib.suppress(OSError, IndexError):
                    parents.setdefault(_parent(int(entry)), []).append(int(entry))
        found = [self.started.pid]
        for pid in found:
            found += parents.get(pid, [])
        return found

    def cpu(self) -> float:
        """Seconds of CPU that its living processes have used."""
        return sum(map(_cpu, self.tree()))

    def memory(self) -> int:
        """Bytes of memory: what each has alone, and its share of what they have in common."""
        return sum(map(_memory, self.tree()))

    def kill(self) -> None:
        """SIGKILL to all of it, at once."""
        for pid in self.tree():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self.started.wait(30)

    def stop(self) -> None:
        """SIGTERM, and SIGKILL to what is left."""
        tree = self.tree()
        with contextlib.suppress(ProcessLookupError):
            self.started.terminate()
        try:
            self.started.wait(10)
        except subprocess.TimeoutExpired:
            self.started.kill()
            self.started.wait(30)
        for pid in tree:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)

    def last_words(self) -> str:
        """The end of its log."""
        return self.log.read_text(errors="replace")[-600:].strip()


class Stage:
    """Use as a context. `given` is added to the environment of the system's programs. `partitions`: of our queue. `masters`: used
    instead of one server.
    """

    def __init__(
        self, system: System, given: Mapping[str, str] | None = None, *, partitions: int = 1, masters: Masters | None = None
    ) -> None:
        self.system = system
        self.redis = Redis()
        self.servers: Redis | Masters = masters or self.redis
        self.partitions = partitions
        self.marks = Path(tempfile.mkdtemp(prefix="dqb-marks-", dir="/dev/shm" if os.path.isdir("/dev/shm") else None))
        self.environment = {
            **system.environment,
            "BENCH_QUEUES": json.dumps({QUEUE: {"PARTITIONS": partitions}} if partitions > 1 else None),
            **(given or {}),
            "BENCH_REDIS": self.servers.url,
            "BENCH_MARKS": str(self.marks),
        }
        self._workers: list[Worker] = []
        self._forgotten: set[float] = set()

    def __enter__(self) -> Stage:
        self.servers.__enter__()
        if self.system.name == OWN.name and "BENCH_DATABASE" not in self.environment:
            # A metric without a database: its processes read there which site they are.
            database = {"ENGINE": "django.db.backends.sqlite3", "NAME": f"{self.marks}.sqlite3"}
            self.environment |= {"DJANGO_SETTINGS_MODULE": "benchmarks.settings", "BENCH_DATABASE": json.dumps(database)}
            subprocess.run(
                [sys.executable, "-m", "django", "migrate", "--verbosity", "0"],
                cwd=ROOT,
                env={**self.environment, "PYTHONPATH": str(ROOT)},
                check=True,
            )
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if isinstance(error, Failed) and self._workers:
            error.args = (f"{error} · its log ends: {self._workers[-1].last_words()}",)
        for worker in self._workers:
            if worker.started.poll() is None:
                worker.kill()  # nothing is left to be finished, and some take many seconds for leaving
        self.servers.__exit__()
        self.redis.stop()
        shutil.rmtree(self.marks, ignore_errors=True)
        Path(f"{self.marks}.sqlite3").unlink(missing_ok=True)

    def run(self, verb: str, *words: object) -> dict[str, Any]:
        """Runs a verb of the adapter to its end; its last line is JSON."""
        command = [*self.system.command(verb), *map(str, words)]
        try:
            done = subprocess.run(
                command, cwd=ROOT, env=self.environment, capture_output=True, text=True, check=False, timeout=PATIENCE
            )
        except subprocess.TimeoutExpired:
            raise Failed(f"{self.system.name} {verb}: not done within {PATIENCE:.0f} s") from None
        if done.returncode:
            raise Failed(f"{self.system.name} {verb}: {done.stderr.strip()[-600:]}")
        found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
        return found

    def put(self, count: int, **options: Any) -> float:
        """Puts jobs in; seconds that it took. Options as the adapter's verb knows them."""
        words = [f"--{name}" if value is True else f"--{name}={value}" for name, value in options.items() if value]
        with PUTS:
            return float(self.run("put", f"--count={count}", *words)["seconds"])

    def fill(self, count: int) -> None:
        """Schedules jobs that never run: due within one hour, tomorrow."""
        due = time.time() + 86_400
        for first in range(0, count, PORTION):
            self.put(min(PORTION, count - first), first=first, due=due, spread=3600, many=True)
            self.forget_events()

    @contextlib.contextmanager
    def lent(self, **environment: str) -> Iterator[None]:
        """Programs that begin meanwhile have this in their environment."""
        before = self.environment
        self.environment = before | environment
        try:
            yield
        finally:
            self.environment = before

    def forget_events(self) -> None:
        """Ours: what the mirror has written to the database it takes off the stream."""
        if self.system.source == "own":
            for partition in range(self.partitions):
                self.servers.empty(Keys.of("delayq", QUEUE, partition)["events"])

    @property
    def site(self) -> str:
        """The id of the site that uses our queue."""
        return self.servers.field(Keys.of("delayq", QUEUE, 0)["meta"], "site")

    def quiet(self, workers: Sequence[Worker], seconds: float = 120.0) -> None:
        """Waits until workers have started, and have nothing to do any more."""
        deadline, last = time.monotonic() + seconds, sum(worker.cpu() for worker in workers)
        while time.monotonic() < deadline:
            time.sleep(2)
            now = sum(worker.cpu() for worker in workers)
            if now - last < 0.1 + 0.01 * len(workers):
                return
            last = now

    def worker(self, *, processes: int = 1, threads: int = 0) -> Worker:
        """Starts a worker, without waiting for it."""
        environment = {**self.environment, "BENCH_PROCESSES": str(processes), "BENCH_THREADS": str(threads)}
        log = self.marks / f"worker-{len(self._workers)}.log"
        with open(log, "wb") as file:
            started = subprocess.Popen(
                bound(self.system.command("worker")),
                cwd=ROOT,
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=file,
                start_new_session=True,
            )
        worker = Worker(started, log)
        self._workers.append(worker)
        return worker

    def warm(self, worker: Worker, jobs: int = 200) -> None:
        """Runs some jobs, until the worker is surely at work, and forgets their marks."""
        self.put(jobs, task="nothing", many=True)
        self.wait_marks(jobs, 60.0, worker)
        time.sleep(0.3)  # a system may run a job twice; the size of a later mark identifies it
        self.forget()

    def numbers(self) -> list[float]:
        """The marks of jobs since the last `forget`."""
        found = [number for path in self.marks.glob("*.mark") for number in _numbers(path)]
        return [number for number in found if number not in self._forgotten] if self._forgotten else found

    def forget(self) -> None:
        """Begins the marks anew."""
        self._forgotten |= set(self.numbers())

    def wait_marks(self, count: int, seconds: float, worker: Worker | None = None) -> list[float]:
        """Waits until so many jobs have left their mark.

        Raises:
            Failed: it took longer than `seconds`, or the worker has ended.
        """
        deadline = time.monotonic() + seconds
        pause = 0.02
        while len(found := self.numbers()) < count:
            if time.monotonic() > deadline:
                raise Failed(f"{len(found)} of {count} jobs ran within {seconds:.0f} s")
            if worker is not None and worker.started.poll() is not None:
                raise Failed(f"the worker ended with code {worker.started.returncode}")
            time.sleep(pause)
            pause = min(0.25, pause * 1.2)
        return found


def wait(until: Callable[[], bool], seconds: float, what: str) -> None:
    """Waits for a condition.

    Raises:
        Failed: it did not come about.
    """
    deadline = time.monotonic() + seconds
    while not until():
        if time.monotonic() > deadline:
            raise Failed(f"{what}: not within {seconds:.0f} s")
        time.sleep(0.05)


def _numbers(path: Path) -> list[float]:
    size = path.stat().st_size // 8 * 8
    if not size:
        return []
    with open(path, "rb") as file, mmap.mmap(file.fileno(), size, access=mmap.ACCESS_READ) as memory:
        view = memoryview(memory)
        cells = view.cast("d")
        low, high = 0, len(cells)  # filled from the front, except for the last few
        while low < high:
            middle = (low + high) // 2
            low, high = (middle + 1, high) if cells[middle] else (low, middle)
        while any(cells[low : low + 64]):
            low += 64
        found = [number for number in cells[:low] if number]
        cells.release()
        view.release()
    return found


def _stat(pid: int) -> list[str]:
    with open(f"/proc/{pid}/stat", encoding="ascii", errors="replace") as file:
        return file.read().rpartition(")")[2].split()


def _parent(pid: int) -> int:
    return int(_stat(pid)[1])


def _cpu(pid: int) -> float:
    try:
        words = _stat(pid)
    except OSError:
        return 0.0
    return (int(words[11]) + int(words[12])) / TICKS


def _memory(pid: int) -> int:
    try:
        with open(f"/proc/{pid}/smaps_rollup", encoding="ascii") as file:
            return sum(int(line.split()[1]) * 1024 for line in file if line.startswith("Pss:"))
    except OSError:
        return 0
