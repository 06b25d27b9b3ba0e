"""Which jobs a command is about: ids, a key with its queue, or a filter over the rows."""

from __future__ import annotations

import difflib
from argparse import ArgumentParser, ArgumentTypeError
from dataclasses import dataclass
from datetime import datetime
from typing import Any
from uuid import UUID

from django.core.management.base import CommandError
from django.utils.dateparse import parse_datetime

from django_delayq import clock, conf, ids
from django_delayq.models import Job, JobQuerySet
from django_delayq.producer.task import registry
from django_delayq.states import State

USAGE = 2
DERIVED = ("due", "retrying", "unpublished")
STATES = (*[state.value for state in State], *DERIVED)


@dataclass(frozen=True, slots=True)
class Target:
    """A job to act on; the queue where it is known."""

    id: UUID
    queue: str | None


def add_filters(parser: ArgumentParser, *, limit: int | None) -> None:
    """--queue, --state, --task, --limit."""
    parser.add_argument("--queue", help="only this queue")
    parser.add_argument("--state", choices=STATES, metavar="STATE", help=f"only this state: {', '.join(STATES)}")
    parser.add_argument("--task", help="only this task")
    parser.add_argument("--limit", type=_at_least_1, default=limit, help=f"at most so many (default: {limit or 'all'})")


def add_targets(parser: ArgumentParser) -> None:
    """Ids, or --key with --queue, or a filter."""
    parser.add_argument("ids", nargs="*", metavar="ID", help="job ids (UUID, or the 22 characters that logs show)")
    parser.add_argument("--key", help="a business key; needs --queue")
    add_filters(parser, limit=None)


def known_queue(name: str | None) -> str | None:
    """The name, if the settings list it."""
    if name is None:
        return None
    queues = conf.get().queues
    if name not in queues:
        raise CommandError(
            f"{name}: no such queue{_near(name, list(queues))}. The queues are: {', '.join(queues)}.",
            returncode=USAGE,
        )
    return name


def filtered(options: dict[str, Any]) -> JobQuerySet:
    """The rows that the filters leave."""
    found = Job.objects.using(conf.get().database).all()
    if queue := known_queue(options.get("queue")):
        found = found.filter(queue=queue)
    task = options.get("task")
    if task is not None:
        names = registry.names()
        if task not in names and not found.filter(task=task).exists():
            raise CommandError(f"--task {task}: no such task{_near(task, names)}.", returncode=USAGE)
        found = found.filter(task=task)
    state = options.get("state")
    if state in DERIVED:
        found = {"due": found.due, "retrying": found.retrying, "unpublished": found.unpublished}[state]()  # type: ignore[attr-defined]  # the stubs forget the manager's own queryset
    elif state:
        found = found.filter(state=state)
    return found  # type: ignore[return-value]  # as above


def named_key(options: dict[str, Any]) -> tuple[str, str] | None:
    """The business key and its queue, where --key names one job. An empty key, as of an unset shell variable, is refused: taken for
    none, it would leave the whole queue.
    """
    key = options["key"]
    if key is None or options["ids"]:
        return None
    if not key:
        raise CommandError("--key is empty.", returncode=USAGE)
    queue = known_queue(options["queue"])
    if queue is None:
        raise CommandError(f"--key {key}: a key names a job within a queue; add --queue.", returncode=USAGE)
    _alone("--key", options, "state", "task", "limit")
    return key, queue


def targets(options: dict[str, Any], *, states: frozenset[State]) -> list[Target]:
    """The jobs named by ids, or the rows of `states` that a filter leaves."""
    if options["ids"]:
        _alone("ids", options, "key", "state", "task", "limit")
        queue = known_queue(options.get("queue"))
        return [Target(parse_id(text), queue) for text in options["ids"]]
    if all(options.get(name) is None for name in ("queue", "state", "task")):
        raise CommandError(
            "Name the jobs: by id, by --key with --queue, or by --queue, --state, --task.", returncode=USAGE
        )
    found = filtered(options)
    if not options.get("state"):
        found = found.filter(state__in=[state.value for state in states])
    limit = options.get("limit")
    rows = found.order_by("id").values_list("id", "queue")
    return [Target(id, queue) for id, queue in (rows[:limit] if limit else rows.iterator(chunk_size=2000))]


def parse_id(text: str) -> UUID:
    """A job id from a command line."""
    try:
        return ids.parse(text)
    except ValueError as error:
        raise CommandError(f"{error}.", returncode=USAGE) from None


def seconds(text: str | None, option: str) -> float | None:
    """A duration from a command line."""
    if text is None:
        return None
    try:
        return clock.seconds(float(text)) if text.replace(".", "", 1).isdigit() else clock.seconds(text)
    except ValueError as error:
        raise CommandError(f"{option} {text}: {error}.", returncode=USAGE) from None


def moment(text: str, option: str) -> datetime:
    """A date with its time zone from a command line."""
    try:
        found = parse_datetime(text)
    except ValueError:  # well written, but there is no such day
        found = None
    if found is None or found.tzinfo is None:
        raise CommandError(
            f"{option} {text}: write a date with a time zone, as 2030-01-31T18:00:00+01:00.", returncode=USAGE
        )
    try:
        clock.from_ms(clock.to_ms(found))
    except ValueError as error:  # within the year 9999 there, beyond it in UTC, where no row can hold it
        raise CommandError(f"{option} {text}: {error}.", returncode=USAGE) from None
    return found


def _alone(what: str, options: dict[str, Any], *others: str) -> None:
    given = [f"--{name}" for name in others if options.get(name) is not None]
    if given:
        raise CommandError(f"Name the jobs either by {what} or by {', '.join(given)}, not by both.", returncode=USAGE)


def _at_least_1(text: str) -> int:
    if text.isdecimal() and int(text) > 0:
        return int(text)
    raise ArgumentTypeError(f"{text!r} is no whole number of at least 1")


def _near(name: str, known: list[str]) -> str:
    close = difflib.get_close_matches(name, known, n=1)
    return f" (did you mean {close[0]!r}?)" if close else ""
