from __future__ import annotations

import pytest
from django.db import connection, transaction

import django_delayq as delayq
from django_delayq import clock, conf
from django_delayq.mirror import restore
from django_delayq.mirror.mirror_loop import MirrorLoop
from django_delayq.mirror.relay import RelayLoop
from django_delayq.mirror.restore import RestoreLoop
from django_delayq.producer.stores import stores
from django_delayq.store.connection.link import Link, ScriptMissing, connect
from django_delayq.store.scripts.queue import Outcome, QueueStore
from tests.mirror.horizons import Horizon
from tests.mirror.restoring import settle_down
from tests.tasks_for_tests import close_order


class Orders:
    """The queue "orders" with its loops, and a worker made of single calls."""

    def __init__(self, queue: str = "orders") -> None:
        config = conf.get()
        self.config = config.queue(queue)
        common = {"prefix": config.prefix, "signer": config.signer}
        self.store = QueueStore(stores.link, queue=queue, **common)
        self.mirror = MirrorLoop(stores.link, self.config, **common)
        self.relay = RelayLoop(stores.link, self.config, young=0, **common)
        self._claims = 0

    def claim(self, want: int = 200, *, ahead_ms: int = 0):
        """`ahead_ms`: from now, by the clock of this host, which is that of Redis; 0: by its own."""
        self._claims += 1
        now_ms = clock.wall_ms() + ahead_ms if ahead_ms else None
        nonce = f"n{self._claims}"
        return self.store.claim("host:1:w", nonce, want=want, lease_ms=30_000, max_crashes=3, now_ms=now_ms).jobs

    def settle(self, job, outcome: str, *, delay: int = 0, detail: bytes = b"{}") -> str:
        item = Outcome(id=job.id, attempt=job.attempt, fence=job.fence, kind=outcome, delay_ms=delay, detail=detail)
        return self.store.settle([item], worker="host:1:w", max_crashes=3)[0]

    def fold(self) -> None:
        self.mirror.drain()


@pytest.fixture
def orders(delayq_redis, transactional_db) -> Orders:
    return Orders()


@pytest.fixture
def loop(orders, monkeypatch) -> RestoreLoop:
    """The loop of the queue "orders", which has found its epoch well."""
    monkeypatch.setattr(restore, "LOOK", 0.0)
    made = RestoreLoop(stores.link, orders.config, prefix="delayq")
    settle_down(orders, made)
    return made


@pytest.fixture
def wipe(redis_server):
    """Empties Redis."""
    return lambda: redis_server.link.execute("FLUSHALL")


@pytest.fixture
def unpublished(orders):
    """A job whose web process died right after the commit, or stopped there: `later` continues it."""

    class Maker:
        def __init__(self) -> None:
            self.later: list = []

        def __call__(self, number: int = 7, **options) -> delayq.Job:
            held = []
            with transaction.atomic():
                job = delayq.schedule(close_order, number, **options)
                held.extend(connection.run_on_commit)
                connection.run_on_commit.clear()
            self.later.append(lambda: [hook() for _, hook, _ in held])
            return job

    return Maker()


@pytest.fixture
def lost_reply(monkeypatch):
    """Redis does what it was asked, and its answer is lost; so many times, after so many answers."""

    def lose(times: int = 1, *, after: int = 0) -> None:
        receive = Link._receive
        left, before = [times], [after]

        def lossy(link, connection, count):
            replies = receive(link, connection, count)
            if before[0]:
                before[0] -= 1
            elif left[0] and not any(isinstance(reply, ScriptMissing) for reply in replies):
                left[0] -= 1
                raise link._unavailable(TimeoutError("the answer is lost"), nothing_done=False)
            return replies

        monkeypatch.setattr(Link, "_receive", lossy)

    return lose


@pytest.fixture
def horizon(settings, request):
    """The queue "orders" has a horizon of an hour."""
    settings.DELAYQ = {**settings.DELAYQ, "QUEUES": {"orders": {"HORIZON": "1h"}, "default": {}}}
    return Horizon(request.getfixturevalue("orders"))


@pytest.fixture
def sent(monkeypatch) -> list:
    """The calls of Redis, each with its commands."""
    calls: list = []
    send = Link._send
    monkeypatch.setattr(Link, "_send", lambda link, commands: calls.append(commands) or send(link, commands))
    return calls


@pytest.fixture
def redis_away(tmp_path):
    """From the call on, producers can't reach Redis. Called with False, Redis is back."""

    def away(gone: bool = True) -> None:
        stores.stand_in(connect(f"unix://{tmp_path}/nobody") if gone else None)

    yield away
    stores.stand_in(None)
