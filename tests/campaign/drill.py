"""Situations that a random campaign rarely reaches, created on purpose: calls repeated after a lost reply, stale fences, expired
leases, outages, conflicts of every policy, an emptied script cache. They use a real Redis, its clock, and a proxy that cuts off
replies.

`python -m tests.campaign.drill` prints the violations. It exits with 1 if there are any, with 2 if a situation could not be
completed, else with 0. Each situation has a queue; a witness checks it after every call.
"""

from __future__ import annotations

import asyncio
import os
import sys
import threading
import time
import traceback
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor, as_completed
from itertools import count
from typing import Any
from uuid import UUID, uuid4

from django_delayq import ids
from django_delayq.exceptions import StoreUnavailable
from django_delayq.store.connection.link import connect
from django_delayq.store.scripts import loader, site
from django_delayq.store.scripts.events import EventLog, Item
from django_delayq.store.scripts.queue import Outcome, QueueStore, ScheduleItem
from django_delayq.store.scripts.record import ClaimedJob
from tests import servers
from tests.campaign.proxy import Proxy
from tests.campaign.witness import Witness
from tests.laws import dump as dumps
from tests.ports import free_port

LEASE = 400  # ms
MAX_CRASHES = 1
LIMIT = 20.0  # seconds for anything that is waited for
AT_ONCE = 6
BROKE_OFF = "broke off with"


class Noticed(Exception):
    """Something that must not be."""


class Line:
    """A proxy in a thread of this process: what it does changes at once."""

    def __init__(self, server: str) -> None:
        self.proxy = Proxy(server)
        self.port = free_port()
        ready = threading.Event()

        async def serve() -> None:
            ears = await asyncio.start_server(self.proxy.meet, "127.0.0.1", self.port)
            ready.set()
            async with ears:
                await ears.serve_forever()

        threading.Thread(target=lambda: asyncio.run(serve()), daemon=True).start()
        if not ready.wait(LIMIT):
            raise RuntimeError("the proxy does not start")


class Scene:
    """A queue, a store that several workers use, and the witness. `limit`: seconds for anything that is waited for."""

    limit = LIMIT

    def __init__(self, server: servers.RedisServer, queue: str) -> None:
        self.server = server
        self.queue = queue
        self.link = connect(f"unix://{server.socket}", name="drill")
        self.store = QueueStore(self.link, prefix="delayq", queue=queue)
        self.witness = Witness(self.link, self.store.keys, max_crashes=MAX_CRASHES, forgetting=False)
        self.nonces = count()

    def do(self, name: str, *arguments: Any, **options: Any) -> Any:
        """A call of the store, and a look at what it has left."""
        reply = getattr(self.store, name)(*arguments, **options)
        self.look()
        return reply

    def look(self) -> None:
        self.witness.look()
        if self.witness.wrong:
            raise Noticed(f"witness: {self.witness.wrong[0]}")

    def expect(self, right: bool, text: str) -> None:
        if not right:
            raise Noticed(text)

    def same(self, found: Any, wanted: Any, text: str) -> None:
        self.expect(found == wanted, f"{text}: {found!r}, not {wanted!r}")

    def lost(self, name: str, *arguments: Any, **options: Any) -> None:
        """Makes the same call through a proxy that cuts off the reply: it takes effect, but the caller gets no answer."""
        line = Line(self.server.socket)
        link = connect(f"redis://127.0.0.1:{line.port}", name="drill", timeout=LIMIT)
        # The reply that is lost must be that of the call, not that of what a new link sends before.
        site.admit(link, self.store.keys)
        link.execute("SCRIPT", "LOAD", loader.load(name, self.store.keys).text)
        line.proxy.rule, line.proxy.amount = "reset", 1.0
        store = QueueStore(link, prefix="delayq", queue=self.queue)
        try:
            getattr(store, name)(*arguments, **options)
        except StoreUnavailable:
            self.look()
            return
        raise Noticed(f"{name} was answered on a line that cuts replies off")

    # what most situations need

    def item(self, delay: int | None = 0, *, policy: Any = "keep", due: int | None = None, **fields: Any) -> ScheduleItem:
        usual = {"id": uuid4(), "task": "drill.task", "payload": b"[]", "max_attempts": 9}
        return ScheduleItem(
            **{**usual, **fields},
            due_ms=due,
            delay_ms=None if due is not None else delay,
            on_conflict=policy,
        )

    def add(self, delay: int = 0, **fields: Any) -> UUID:
        """A new job."""
        item = self.item(delay, **fields)
        self.same(self.do("schedule", [item])[0].status, "created", "a new job")
        return item.id

    def claim(self, worker: str = "w1", want: int = 10, nonce: str = "", **options: Any) -> list[ClaimedJob]:
        """One claim."""
        options = {"lease_ms": LEASE, "max_crashes": MAX_CRASHES, **options}
        jobs: list[ClaimedJob] = self.do("claim", worker, nonce or f"n{next(self.nonces)}", want=want, **options).jobs
        return jobs

    def take(self, worker: str = "w1", **fields: Any) -> ClaimedJob:
        """A new job in the hands of a worker, with a lease that outlasts any situation."""
        job = self.add(**fields)
        (found,) = self.claim(worker, lease_ms=60_000)
        self.same(found.id, ids.short(job), "the job that is claimed")
        return found

    def held(self, worker: str = "w1", **fields: Any) -> ClaimedJob:
        """The same, with a short lease."""
        self.add(**fields)
        (found,) = self.claim(worker)
        return found

    def overtaken(self, worker: str = "w2") -> list[ClaimedJob]:
        """Waits until leases expire and another worker gets the jobs. All workers but the holder send signs of life meanwhile."""
        return self.until(lambda: self.claim(worker), "a job whose lease has ended is taken over")

    def until(self, what: Callable[[], Any], text: str) -> Any:
        deadline = time.monotonic() + self.limit
        while not (found := what()):
            self.expect(time.monotonic() < deadline, f"never: {text}")
        return found

    def settle(self, job: ClaimedJob, outcome: Any = "ack", **fields: Any) -> str:
        """How the run of that claim ended."""
        item = Outcome(job.id, job.attempt, job.fence, outcome)._replace(**fields)
        answer: str = self.do("settle", [item], worker="w", max_crashes=MAX_CRASHES)[0]
        return answer

    def dump(self) -> dumps.Dump:
        return dumps.read(self.link, self.store.keys)

    def told(self, kind: str) -> list[tuple[int, Item]]:
        """All events of a kind, with their dates."""
        entries = EventLog(self.link, self.store.keys).read("0-0", 10_000)
        return [(entry.at_ms, item) for entry in entries for item in entry.items if item.kind == kind]

    def now(self) -> int:
        seconds, micros = self.link.execute("TIME")
        return int(seconds) * 1000 + int(micros) // 1000


def report(what: str) -> int:
    """Prints what was noticed, "" for nothing. Returns the exit code."""
    print(what, flush=True)
    if BROKE_OFF in what:
        return 2
    return 1 if what else 0


def play() -> int:
    """All situations, several side by side, up to the first that notices something. Returns the exit code."""
    from tests.campaign import losses, publishing, with_worker
    from tests.campaign.situations import ALL

    server = servers.RedisServer()
    server.start()
    broken = ""  # goes on, since another situation may tell what is wrong
    try:
        with ThreadPoolExecutor(AT_ONCE) as pool:
            waiting = {pool.submit(_play, work, server): work.__name__ for work in (*ALL, *losses.ALL, *publishing.ALL)}
            for future in as_completed(waiting):
                if found := future.result():
                    if BROKE_OFF in found:
                        broken = broken or f"{waiting[future]}: {found}"
                        continue
                    pool.shutdown(wait=False, cancel_futures=True)
                    return report(f"{waiting[future]}: {found}")
        for name, step in with_worker.play(server):
            if found := _found(step):
                return report(f"{name}: {found}")
        return report(broken)
    finally:
        server.stop()
        sys.stdout.flush()


def _play(work: Callable[[Scene], None], server: servers.RedisServer) -> str:
    return _found(lambda: work(Scene(server, work.__name__)))


def _found(step: Callable[[], None]) -> str:
    try:
        step()
    except Noticed as error:
        return str(error)
    except Exception as error:  # no finding: a mutant that only breaks a situation shows nothing
        place = traceback.extract_tb(error.__traceback__)[-1]
        return f"{BROKE_OFF} {type(error).__name__}: {error} ({os.path.basename(place.filename)}:{place.lineno})"
    return ""


if __name__ == "__main__":
    from tests.campaign import drill  # one module, one `Noticed`, also for those who import it

    sys.exit(drill.play())
