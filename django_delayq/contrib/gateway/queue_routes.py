"""What a token may look at beside jobs: its queues and its tasks."""

from __future__ import annotations

import inspect
from typing import Any, Final

from django_delayq import conf
from django_delayq.contrib.gateway.exchange import GatewayAnswer, GatewayCall
from django_delayq.contrib.gateway.models import Token
from django_delayq.contrib.gateway.problems import GatewayProblem
from django_delayq.producer.stores import stores
from django_delayq.producer.task import Task, registry
from django_delayq.store.queue_depth import QueueDepth, summed

# As `delayq status --json` calls them. Who has paused it and why is left out: these are people of the project.
FIGURES: Final = ("queue", "scheduled", "due", "running", "retrying", "failed", "oldest_late_ms", "next_due_ms", "paused_ms")
_REST: Final = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)


def queues(call: GatewayCall) -> GatewayAnswer:
    """How full the queues of the token are."""
    names = [name for name in conf.get().queues if call.token.allows("queues", name)]
    return GatewayAnswer(status=200, body={"queues": list(map(_figures, _depths(names)))})


def queue(call: GatewayCall) -> GatewayAnswer:
    """The same of one."""
    name = call.path["queue"]
    if name not in conf.get().queues or not call.token.allows("queues", name):
        raise GatewayProblem("queue_unknown")
    return GatewayAnswer(status=200, body=_figures(_depths([name])[0]))


def _depths(names: list[str]) -> list[QueueDepth]:
    found, missing = stores.from_each(names, lambda reach: stores.inspector(reach).by_partition(names))
    if missing:  # numbers that lack some would be taken for all
        raise missing.first
    return list(map(summed, found))


def tasks(call: GatewayCall) -> GatewayAnswer:
    """The tasks that the token may schedule, by name, with the parameters of each."""
    return GatewayAnswer(status=200, body={"tasks": [_task(task) for task in _permitted(call.token)]})


def _permitted(token: Token) -> list[Task[..., Any]]:
    return [task for task in map(registry.get, registry.names()) if not task.own and token.may_schedule(task.name, task.queue)]


def _task(task: Task[..., Any]) -> dict[str, Any]:
    parameters = [
        {"name": one.name, "kind": one.kind.name.lower(), "required": one.default is one.empty and one.kind not in _REST}
        for one in task.signature.parameters.values()
    ]
    return {"task": task.name, "queue": task.queue, "parameters": parameters}


def _figures(depth: QueueDepth) -> dict[str, Any]:
    return {name: getattr(depth, name) for name in FIGURES}
