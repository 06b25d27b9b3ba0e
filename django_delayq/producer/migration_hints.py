"""Names from other queue libraries and their equivalents, for error messages."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Final

from django_delayq.text import did_you_mean

_DELAY: Final = "delay=, such as delay='30s'"
_RUN_AT: Final = "run_at=, an aware datetime"
_BACKOFF: Final = "backoff=, the delays between attempts, such as backoff='15s 3m 10m'"
_ATTEMPTS: Final = "max_attempts=, which includes the first run"
_TIMEOUT: Final = "timeout=, such as timeout='30s'"
_ARGUMENTS: Final = "the arguments themselves, as in a call of the function"
_KEY: Final = "key=, unique among the unfinished jobs of a queue; delayq makes the ids"

# Options in Celery, RQ, Huey, Dramatiq, Procrastinate, django-q2, arq, Oban, Sidekiq and django.tasks.
_OPTIONS: Final[Mapping[str, str]] = {
    "eta": _RUN_AT,
    "run_after": _RUN_AT,
    "schedule_at": _RUN_AT,
    "scheduled_at": _RUN_AT,
    "defer_until": _RUN_AT,
    "_defer_until": _RUN_AT,
    "countdown": _DELAY,
    "defer_by": _DELAY,
    "_defer_by": _DELAY,
    "schedule_in": _DELAY,
    "wait": _DELAY,
    "wait_until": _RUN_AT,
    "args": _ARGUMENTS,
    "kwargs": _ARGUMENTS,
    "retries": _ATTEMPTS,
    "retry": _BACKOFF,
    "max_retries": _ATTEMPTS,
    "attempts": _ATTEMPTS,
    "retry_delay": _BACKOFF,
    "retry_backoff": _BACKOFF,
    "default_retry_delay": _BACKOFF,
    "min_backoff": _BACKOFF,
    "max_backoff": _BACKOFF,
    "retry_when": "backoff=f, where f(attempt, exception) returns None for errors without a retry",
    "autoretry_for": "backoff=f, where f(attempt, exception) returns None for errors without a retry",
    "throws": "backoff=f, where f(attempt, exception) returns None for errors without a retry",
    "bind": "delayq.current() inside the task",
    "context": "delayq.current() inside the task",
    "takes_context": "delayq.current() inside the task",
    "time_limit": _TIMEOUT,
    "soft_time_limit": _TIMEOUT,
    "job_timeout": _TIMEOUT,
    "ttl": "expires=, a duration or an aware datetime",
    "max_age": "expires=, a duration or an aware datetime",
    "queue_name": "queue=",
    "routing_key": "queue=",
    "exchange": "queue=",
    "task_id": _KEY,
    "job_id": _KEY,
    "_job_id": _KEY,
    "lock": _KEY,
    "queueing_lock": _KEY,
    "unique": _KEY,
    "acks_late": "nothing: a job is always settled after its run",
    "ignore_result": "nothing: DELAYQ['RETENTION'] sets how long results are kept",
}

# Methods of tasks in those libraries.
_NOW: Final = ("apply", "async_task", "call_async", "defer", "enqueue", "perform_async", "publish", "push", "send", "submit")
_LATER: Final = ("apply_async", "configure", "options", "perform_at", "perform_in", "schedule_in", "send_with_options", "set")
_AWAITED: Final = ("aapply_async", "adelay", "aenqueue", "defer_async", "kiq")
_BUNDLES: Final = ("message", "message_with_options", "s", "si", "subtask")


def of_method(task: str, name: str) -> str:
    """Returns the equivalent of a method of another library, or ""."""
    if name == "delay" or name in _NOW:
        return f"schedule: {task}.schedule(1), or {task}.using(delay='30m').schedule(1)."
    if name in _LATER:
        return f"schedule: {task}.using(delay='30m').schedule(1), or delayq.schedule({task}, 1, delay='30m')."
    if name in _AWAITED:
        return f"schedule: await {task}.aschedule(1), or await {task}.using(delay='30m').aschedule(1)."
    if name in _BUNDLES:
        return f"bind: delayq.schedule_many([{task}.bind(1), {task}.bind(2)])."
    return ""


def of_option(name: str, options: Collection[str], cutoff: float = 0.6) -> str:
    """Returns a hint for an unknown option: its equivalent, the nearest option, or ""."""
    known = _OPTIONS.get(name)
    return f" (here it is {known})" if known else did_you_mean(name, options, cutoff)


def of_keyword(task: str, name: str, options: Collection[str], cutoff: float = 0.6) -> str:
    """Returns a sentence without a full stop about a keyword that is not a parameter of the task, or ""."""
    if name in options:
        return f"{name!r} is an option: write {task}.using({name}=…).schedule(…), or delayq.schedule({task}, …, {name}=…)"
    meant = of_option(name, options, cutoff)
    return f"{name!r} is an unknown option{meant}" if meant else ""
