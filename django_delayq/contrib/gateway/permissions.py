"""Permissions of tokens. These functions raise a GatewayProblem unless the token of the call has the permission.

A job that the token cannot access gets the same answer as a job that does not exist.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from typing import Any, Final
from uuid import UUID

from django_delayq import conf, ids
from django_delayq.conf import QueueConfig
from django_delayq.contrib.gateway import parsing
from django_delayq.contrib.gateway.dispatch import GatewayCall
from django_delayq.contrib.gateway.models import Token
from django_delayq.contrib.gateway.responses import GatewayProblem, pointer
from django_delayq.exceptions import TargetRefused
from django_delayq.models import Operation
from django_delayq.producer import job as handles
from django_delayq.producer.task import Task, registry
from django_delayq.setting_readers import HttpConfig

# The verb that a token needs for what an on_conflict policy may do to the job with the key.
DISPLACES: Final = {"replace": "cancel", "after": "cancel", "earliest": "reschedule", "latest": "reschedule"}


def task_and_queue(call: GatewayCall) -> tuple[Task[..., Any], str]:
    """The task that the body names, and the queue for its job."""
    name = call.body["task"]
    if not call.token.allows("tasks", name):
        raise GatewayProblem("task_denied", "/task")
    task = registry.find(name)
    if task is None:
        raise GatewayProblem("task_unknown", "/task")
    if not may_schedule(call.token, task):
        raise GatewayProblem("task_denied", "/task")
    return task, queue_of(call, task.queue)


def queue_of(call: GatewayCall, default: str) -> str:
    """The queue that the body names, or the default.

    Raises:
        GatewayProblem: queue_denied, queue_unlisted.
    """
    queue = str(call.body.get("queue", default))
    if not call.token.allows("queues", queue):
        raise GatewayProblem("queue_denied", "/queue")
    if queue not in conf.get().queues:
        raise GatewayProblem("queue_unlisted", "/queue")
    return queue


def check_policy(call: GatewayCall, on_conflict: str) -> None:
    """A policy that ends or moves another job needs the verb for that."""
    needed = DISPLACES.get(on_conflict)
    if needed is not None and not call.token.allows("verbs", needed):
        raise GatewayProblem("verb_denied", "/on_conflict", verb=needed)


def message_queue(call: GatewayCall) -> QueueConfig:
    """The queue in the path, which must contain messages."""
    name = call.path["queue"]
    found = conf.get().queues.get(name)
    if found is None or not call.token.allows("queues", name):
        raise GatewayProblem("queue_unknown")
    if not found.pulled:
        raise GatewayProblem("queue_of_workers")
    return found


def delivery_settings(call: GatewayCall) -> tuple[HttpConfig, str]:
    """The HTTP settings and the queue for a delivery."""
    http = conf.get().http
    if http is None:
        raise GatewayProblem("no_deliveries")
    from django_delayq.targets import addresses  # a project without deliveries does not load it

    queue = queue_of(call, http.queue)
    with parsing.problem_of(TargetRefused, code="url_refused", place="/url"):
        site = addresses.read_url(call.body["url"]).site
    for place, name in _secrets(call.body):
        if not call.token.may_send(name, site) or (http.secrets and name not in http.secrets):
            raise GatewayProblem("secret_denied", place)
    return http, queue


def offer_queue(call: GatewayCall) -> str:
    """The queue for an offer to the target that the body names."""
    to = call.body["to"]
    if not call.token.allows("targets", to):
        raise GatewayProblem("target_denied", "/to")
    if to not in conf.get().targets:
        raise GatewayProblem("target_unlisted", "/to")
    from django_delayq.targets.offering import offers  # a project without offers does not load it

    return queue_of(call, offers.queue)


def find_job(token: Token, id: str) -> handles.Job:
    """The job with this id."""
    try:
        parsed = ids.parse(id)
    except ValueError:
        raise GatewayProblem("job_unknown") from None
    return visible(token, handles.get(parsed))


def visible(token: Token, job: handles.Job | None) -> handles.Job:
    """The job, if it exists and the token can access it."""
    if job is None or not _allows(token, job):
        raise GatewayProblem("job_unknown")
    return job


def can_access(token: Token, id: UUID) -> bool:
    """Whether the token can access the job with this id. The task and the scope of a job never change."""
    found = handles.get(id)
    return found is not None and _allows(token, found)


def check_change(call: GatewayCall) -> None:
    """Rejects the change of a job that the token cannot access. Allows it if the job no longer exists: its task is not known."""
    with suppress(ValueError):  # the first request with such an id was rejected
        found = handles.get(ids.parse(call.path["id"]))
        if found is not None:
            visible(call.token, found)


def key_and_queue(call: GatewayCall) -> tuple[str, str]:
    """The key and the queue for a change by key."""
    return parsing.key(call.body["key"], "/key"), queue_of(call, call.body["queue"])


def operated_queue(call: GatewayCall) -> str:
    """The queue of an operation. The token also needs the verb of the change."""
    if not call.token.allows("verbs", call.body["verb"]):
        raise GatewayProblem("verb_denied", "/verb", verb=call.body["verb"])
    return queue_of(call, call.body["queue"])


def find_operation(token: Token, id: str) -> Operation:
    """The operation with this id, which the token has started."""
    with suppress(ValueError):
        found = Operation.objects.filter(pk=ids.parse(id), actor=token.actor).defer("frozen").first()
        if found is not None and token.allows("queues", found.selection.get("queue", "")):
            return found
    raise GatewayProblem("operation_unknown")


def may_schedule(token: Token, task: Task[..., Any]) -> bool:
    """Whether the token may schedule the task."""
    return not task.own and token.may_schedule(task.name, task.queue)


def _allows(token: Token, job: handles.Job) -> bool:
    return token.only_scope in ("", job.scope) and token.allows("queues", job.queue) and token.allows("tasks", job.task)


def _secrets(body: dict[str, Any]) -> Iterator[tuple[str, str]]:
    """The place and the name of each secret in the body."""
    if "secret" in body:
        yield "/secret", body["secret"]
    for header, value in body.get("headers", {}).items():
        if isinstance(value, dict):
            yield pointer("headers", header, "secret"), value["secret"]
