"""The effective settings of a queue and of a task, and where each one is set. Names are those of the settings and of `@task`."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import Any, Final, NamedTuple

from django.utils.formats import number_format
from django.utils.translation import gettext as now

from django_delayq import conf, durations
from django_delayq.admin.badges import allowed
from django_delayq.conf import PER_QUEUE, QueueConfig
from django_delayq.ladder import POLL, Ladder
from django_delayq.producer.task import Task
from django_delayq.store.connection.address import address
from django_delayq.text import visible

DURATIONS: Final = ("LEASE", "TIMEOUT", "HORIZON")
STEPS: Final = 20  # of a ladder
EMBEDDED: Final = "embedded"


class Setting(NamedTuple):
    """`by`: where it is set; "" for the general setting or the default."""

    name: str
    value: str
    by: str = ""


def of_queue(queue: QueueConfig) -> list[Setting]:
    """Returns the effective settings of a queue. Values in its entry that differ from the general ones are marked."""
    general, here = conf.get(), now("this queue")
    found = [Setting("CONSUMER", queue.consumer, here if queue.pulled else "")]
    for name in PER_QUEUE:
        value, usual = getattr(queue, name.lower()), getattr(general, name.lower())
        found.append(Setting(name, _shown(name, value), here if value != usual else ""))
    if queue.rate:
        found.append(Setting("RATE", f"{queue.rate} · {queue.rate.burst}", here))
    found.append(Setting("PARTITIONS", str(queue.partitions), here if queue.partitions > 1 else ""))
    if queue.former_partitions:
        found.append(Setting("FORMER_PARTITIONS", ", ".join(map(str, queue.former_partitions)), here))
    return found


def of_task(task: Task[Any, Any]) -> list[Setting]:
    """Returns the settings of jobs of a task that are scheduled without options, in its own queue."""
    general, here = conf.get(), now("this task")
    queue: Any = general.queues.get(task.queue, general)
    there = now("its queue")
    named = task.named
    found = [
        Setting("queue", visible(task.queue)),
        Setting("priority", str(task.priority), here if task.priority else ""),
        Setting("max_attempts", *_given(task.max_attempts, queue.max_attempts, allowed, here, there)),
        Setting("backoff", *_given(task.backoff, queue.backoff, _ladder, here, there)),
        Setting("timeout", *_given(task.timeout, queue.timeout, _duration, here, there)),
        Setting("lease", _duration(queue.lease), there),
        Setting("poll", *_given(task.poll, POLL, _ladder, here, "")),
        Setting("atomic", now("yes") if task.atomic else now("no"), here if task.atomic else ""),
    ]
    if named is not None:
        most = "" if named.option == "serial" else f" · {named.most}"
        found.append(Setting(named.option, visible(named.text) + most, here))
    if task.rated is not None:
        pace = task.rated.pace
        found.append(Setting("rate", f"{visible(task.rated.format.text)} · {pace} · {pace.burst}", here))
    if task.aliases:
        found.append(Setting("aliases", ", ".join(map(visible, task.aliases)), here))
    if task.version != 1:
        found.append(Setting("version", str(task.version), here))
    if task.sensitive:
        found.append(Setting("sensitive", ", ".join(sorted(map(visible, task.sensitive))), here))
    return found


def defined(task: Task[Any, Any]) -> tuple[str, str]:
    """Returns the module and name of the function of a task, and its file and line or ""."""
    fn = inspect.unwrap(task.fn)
    code = getattr(fn, "__code__", None)
    place = f"{code.co_filename}:{code.co_firstlineno}" if code is not None else ""
    return f"{getattr(fn, '__module__', '')}.{getattr(fn, '__qualname__', '')}".strip("."), place


def _given(own: Any, usual: Any, shown: Any, here: str, there: str) -> tuple[str, str]:
    return (shown(own), here) if own is not None else (shown(usual), there)


def _shown(name: str, value: Any) -> str:
    if name == "REDIS":
        return address(value) or EMBEDDED  # without its password
    if name in DURATIONS:
        return _duration(value)
    if name == "MAX_ATTEMPTS":
        return allowed(value)
    if isinstance(value, Mapping):
        return ", ".join(f"{state} {now('forever') if kept is None else durations.text(kept)}" for state, kept in value.items())
    return number_format(value, force_grouping=True) if isinstance(value, int) else str(value)


def _duration(seconds: float | None) -> str:
    return "–" if seconds is None else durations.text(seconds)


def _ladder(ladder: Any) -> str:
    if not isinstance(ladder, Ladder):
        return now("set by a function of the task")
    try:
        steps = ladder.steps(min(len(ladder), STEPS))
    except Exception:  # a formula is code of the project and can raise anything
        return repr(ladder)
    more = len(ladder) - len(steps)
    words = [*map(durations.text, steps), *([f"… +{more}"] if more else []), *([f"~{ladder.jitter:.0%}"] if ladder.jitter else [])]
    return " ".join(words)
