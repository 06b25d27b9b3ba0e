"""What a commit is about to publish, and what its own transaction still does to it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any
from uuid import UUID

from django.db import connections

from django_delayq import clock
from django_delayq.producer import database
from django_delayq.producer.plan import Plan
from django_delayq.producer.where import JobRef
from django_delayq.states import Change


class Put:
    """A plan under way, and its handle. `withdrawn`: its own transaction has cancelled it."""

    __slots__ = ("handle", "plan", "withdrawn")

    def __init__(self, plan: Plan, handle: JobRef) -> None:
        self.plan = plan
        self.handle = handle
        self.withdrawn = False

    def redate(self, delay_ms: int | None, due_ms: int, started: float) -> None:
        """Another date, asked for at `started` (monotonic)."""
        self.plan.delay_ms, self.plan.due_ms, self.plan.started = delay_ms, due_ms, started
        self.handle.due_ms = due_ms


class Publication:
    """The commit hook of jobs that go in together."""

    def __init__(self, puts: Sequence[Put], publish: Callable[[list[Put]], None]) -> None:
        self.puts = puts
        self._publish = publish
        self.__qualname__ = "Publication"  # by which Django logs a robust hook

    def __call__(self) -> None:
        puts = [put for put in self.puts if not put.withdrawn]
        if puts:
            self._publish(puts)


class Withdrawal:
    """A hook in front of the publication: its job is not published."""

    def __init__(self, put: Put) -> None:
        self.put = put

    def __call__(self) -> None:
        self.put.withdrawn = True


class Pending:
    """A job of the open transaction: a change of it is part of that, and is undone with the savepoint in which it happens."""

    def __init__(self, put: Put, connection: Any, publication: Publication) -> None:
        self._put = put
        self._connection = connection
        self._publication = publication

    @classmethod
    def find(cls, job: UUID) -> Pending | None:
        """The job, if an open transaction will publish it."""
        return next((found for found in cls._all() if found._put.plan.id == job), None)

    @classmethod
    def keyed(cls, queue: str, key: str) -> list[UUID]:
        """The jobs of that key that open transactions will publish."""
        plans = (found._put.plan for found in cls._all() if not found.withdrawn)
        return [plan.id for plan in plans if plan.record.key == key and plan.queue.name == queue]

    @classmethod
    def _all(cls) -> Iterator[Pending]:
        for connection in connections.all(initialized_only=True):
            if connection.in_atomic_block:
                for hook in _hooks(connection):
                    if isinstance(hook, Publication):
                        yield from (cls(put, connection, hook) for put in hook.puts)

    @property
    def withdrawn(self) -> bool:
        """Whether the transaction, as it stands, has cancelled it."""
        hooks = _hooks(self._connection)
        return any(isinstance(hook, Withdrawal) and hook.put is self._put for hook in hooks)

    def cancel(self, actor: str, reason: str) -> Change:
        """Withdraws it."""
        plan = self._put.plan
        if not self.withdrawn:
            if plan.durable:
                database.need().withdraw(plan.id, actor, reason, plan.using)
            self._before_publication(Withdrawal(self._put))
        return Change.DONE

    def reschedule(self, delay_ms: int | None, due_ms: int, actor: str, reason: str) -> Change:
        """Gives it another date."""
        if self.withdrawn:
            return Change.FINISHED
        plan = self._put.plan
        if plan.durable:
            database.need().move(plan.id, due_ms, delay_ms, actor, reason, plan.using)
        self._before_publication(partial(self._put.redate, delay_ms, due_ms, clock.monotonic()))
        return Change.DONE

    def _before_publication(self, change: Callable[[], None]) -> None:
        """A hook of the savepoint that is open now, in front of the publication: Django drops it when that savepoint is rolled back."""
        hooks = self._connection.run_on_commit
        place = next(n for n, hook in enumerate(hooks) if hook[1] is self._publication)
        hooks.insert(place, (set(self._connection.savepoint_ids), change, False))


def _hooks(connection: Any) -> list[Any]:
    return [hook for _, hook, _ in connection.run_on_commit]
