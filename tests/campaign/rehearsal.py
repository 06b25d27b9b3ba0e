"""A web process of the campaign without servers: the calls that it would make for a seed. Every call of the package returns at once,
always with the same answer.

`python -m tests.campaign.rehearsal SEED STEPS` prints one line per call. With `down` as the last argument, every call is answered as
if Redis were unavailable.
"""

from __future__ import annotations

import json
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from itertools import count
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest import mock
from uuid import UUID

from django_delayq.exceptions import StoreUnavailable
from django_delayq.producer import acts, schedule
from django_delayq.producer.commit import Plan
from django_delayq.producer.job import Job
from django_delayq.states import Change
from tests.campaign import load

DATE = 1_893_456_000_000  # 2030


def lines(seed: str, steps: int, *, down: bool = False) -> list[dict[str, Any]]:
    """The calls of the web process with that seed, for that number of steps."""
    said: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory(prefix="rehearsal-") as folder, _answered(down):
        web = load.Web(Path(folder), "0.1", seed)
        web.record = SimpleNamespace(write=lambda **fields: said.append(fields))  # all that the load asks of a recorder
        for _ in range(steps):
            web.step()
    return said


@contextmanager
def _answered(down: bool) -> Iterator[None]:
    numbers, answers = count(1), count()

    def put(plans: Sequence[Plan], _flight: object = None) -> list[Job]:
        if down:
            raise StoreUnavailable("away")
        return [
            Job(
                id=UUID(int=next(numbers)),
                queue=plan.queue,
                task=plan.task,
                key=plan.key,
                due_ms=DATE,
                created=True,
            )
            for plan in plans
        ]

    def change(*_: Any, **__: Any) -> Change:
        if down:
            raise StoreUnavailable("away")
        return list(Change)[next(answers) % len(Change)]

    calls: list[tuple[Any, str, Callable[..., Any]]] = [
        (schedule, "put_all", put),
        (schedule, "put_one", lambda plan, *_: put([plan])[0]),
        (load.transaction, "atomic", nullcontext),
    ]
    calls += [(acts, name, change) for name in ("cancel", "reschedule", "run_now", "requeue")]
    calls.append((load.delayq, "pause", lambda **_: load.delayq.PauseReply(changed=change() is Change.DONE)))
    calls.append((load, "now_ms", lambda: DATE))
    patches = [mock.patch.object(place, name, stub) for place, name, stub in calls]
    for patch in patches:
        patch.start()
    try:
        yield
    finally:
        for patch in patches:
            patch.stop()


if __name__ == "__main__":
    for line in lines(sys.argv[1], int(sys.argv[2]), down="down" in sys.argv):
        print(json.dumps(line))
