"""Chooses the jobs of a command: by ids, by a key with its queue, or by a filter."""

from __future__ import annotations

import shlex
from argparse import ArgumentParser, ArgumentTypeError
from collections.abc import Iterator
from datetime import datetime
from functools import reduce
from itertools import islice
from operator import or_
from typing import Any
from uuid import UUID

from django.db.models import QuerySet
from django.utils import translation

from django_delayq import clock, conf, ids
from django_delayq.console import keyset, selection
from django_delayq.console.moments import DAYS, TIME, parse_start
from django_delayq.console.search_fields import STATES
from django_delayq.console.selection import Selection
from django_delayq.console.verbs import NamedJob
from django_delayq.management import UsageError, at_least, parse_duration
from django_delayq.models import Job, database, of_state
from django_delayq.producer.task import registry
from django_delayq.text import did_you_mean, nearest

NARROWING = ("state", "task", "search")  # filters, besides the queue
LONG = frozenset({"args", "kwargs", "options", "result", "error"})  # columns
STEP = 2000  # rows read at a time


def add_filters(parser: ArgumentParser, *, limit: int | None) -> None:
    parser.add_argument("--queue", help="select only jobs in this queue")
    parser.add_argument("--state", type=_state, metavar="STATE", help=f"select only jobs in this state: {', '.join(STATES)}")
    parser.add_argument("--task", help="select only jobs of this task")
    parser.add_argument("--search", help="a search as in the admin, such as 'state:failed task:close_order after:-2h'")
    parser.add_argument("--limit", type=at_least(1), default=limit, help=f"the maximum number of jobs (default: {limit or 'all'})")


def _state(text: str) -> str:
    state = text.lower()
    if state not in STATES:
        raise ArgumentTypeError(f"{text!r} is not a state{did_you_mean(state, STATES)}. Choose from: {', '.join(STATES)}")
    return state


def add_targets(parser: ArgumentParser) -> None:
    parser.add_argument("ids", nargs="*", metavar="ID", help="the ids of the jobs")
    parser.add_argument("--key", help="the key of a job; requires --queue")
    add_filters(parser, limit=None)


def known_queue(name: str | None) -> str | None:
    """The name of a listed queue."""
    if name is None:
        return None
    queues = conf.get().queues
    if name not in queues:
        raise UsageError(f"{name}: no such queue{did_you_mean(name, list(queues))}. Available queues: {', '.join(queues)}.")
    return name


def named_queues(options: dict[str, Any]) -> list[str]:
    """The queue of --queue, or else all. An empty name, such as an unset shell variable, is an error and does not mean all."""
    name = known_queue(options["queue"])
    return list(conf.get().queues) if name is None else [name]


def chosen(options: dict[str, Any]) -> Selection:
    """The selection of the filters. `--state`, `--queue` and `--task` work as in the admin."""
    text, words = options.get("search"), options.get("words")
    if text is not None and words is not None:
        raise UsageError("Specify the search only once, as an argument or with --search.")
    name, text = ("--search", text) if words is None else ("The search", words)
    if text is not None and not text.strip():  # such as an unset shell variable: without a filter, every job would match
        raise UsageError(f"{name} is empty.")
    queue, task, state = known_queue(options.get("queue")), _known_task(options), options.get("state")
    wanted = Selection(
        view=state or "",
        queue=queue or "",
        task=task or "",
        text=text or "",
        at_ms=clock.to_ms(database.now()),
    )
    with translation.override("en"):  # commands are always in English
        if complaints := wanted.search.complaints:
            raise UsageError(f"{name} {text}: {' '.join(complaints)}")
    return wanted


def filtered(options: dict[str, Any]) -> tuple[list[Job], list[str]]:
    """The matching rows, newest first, at most `limit`; and remarks about the search."""
    wanted, partly = chosen(options), False
    if wanted.search.loose:  # its meaning depends on the order of the list in the admin
        page = keyset.page(wanted, Job.objects.all(), options["limit"])
        jobs, partly = sorted(page.jobs, key=lambda job: job.pk, reverse=True), page.partly
    else:
        jobs = list(_found(wanted, Job.objects.all(), "-id", options["limit"]))
    with translation.override("en"):
        remarks = selection.search_remarks(wanted.search)
        if partly or not jobs:
            remarks += filter(None, [selection.searched_in(wanted.search, partly=partly)])
        others = [other.words for other in selection.other_searches(wanted) if other.words]  # no words mean all jobs
        if not jobs and others:
            remarks.append(f"Try instead: {' | '.join(others)}")
    return jobs, remarks


def _found(wanted: Selection, rows: QuerySet[Job], order: str, limit: int | None) -> Iterator[Job]:
    """Reads in pages by key. A server-side cursor would not work with a pool that uses another connection for each transaction."""
    asked = wanted.rows(rows).order_by(order)
    if not wanted.search.rough:
        return islice(keyset.through(asked, (order,), min(limit or STEP, STEP)), limit)
    return islice((job for job in keyset.through(asked, (order,), keyset.STEP) if wanted.search.exact(job)), limit)


def _known_task(options: dict[str, Any]) -> str | None:
    """The name of a registered task, or of a task that has rows."""
    task: str | None = options.get("task")
    queue = options.get("queue")
    names = registry.names()
    if task is None or registry.find(task) is not None:
        return task
    rows = Job.objects.filter(task=task)
    if not (rows.filter(queue=queue) if queue else rows).exists():
        raise UsageError(f"--task {task}: no such task{near_task(task, names)}.")
    return task


def near_task(name: str, known: list[str]) -> str:
    """A similar task name, for an error. Most people type only the last part of the name."""
    last = {task.rpartition(".")[2]: task for task in known}
    near = nearest(name.rpartition(".")[2], last)
    return f" (did you mean {last[near]!r}?)" if near else did_you_mean(name, known)


def named_key(options: dict[str, Any]) -> tuple[str, str] | None:
    """The key and its queue, if --key is given. An empty key, such as an unset shell variable, is an error: without a key, the whole
    queue would match.
    """
    key = options["key"]
    if key is None or options.get("ids"):
        return None
    if not key:
        raise UsageError("--key is empty.")
    queue = known_queue(options["queue"])
    if queue is None:
        raise UsageError(f"--key {key}: keys are unique only within a queue. Add --queue.")
    _alone("--key", options, *NARROWING, "limit")
    return key, queue


def targets(options: dict[str, Any], *, states: frozenset[str]) -> list[NamedJob]:
    """The jobs with these ids, or the rows of `states` that match the filters."""
    if options["ids"]:
        _alone("ids", options, "key", *NARROWING, "limit")
        queue = known_queue(options.get("queue"))
        return [NamedJob(parse_id(text), queue) for text in options["ids"]]
    if all(options.get(name) is None for name in ("queue", *NARROWING)):
        raise UsageError("Select jobs by id, by --key with --queue, or by --queue, --state, --task or --search.")
    wanted = chosen(options)
    with translation.override("en"):
        if refusal := selection.operation_refusal(wanted.search):
            raise UsageError(refusal)
    for term in wanted.search.terms:
        if term.word == "task" and not term.negated and len(term.tasks) > 1:
            raise UsageError(f"task:{term.value} matches several tasks: {', '.join(term.tasks)}. Select one with --task.")
    if wanted.search.loose:
        return _found_by_text(wanted, states, options.get("limit"))
    rows = Job.objects.defer(*LONG - wanted.search.columns)
    if not wanted.shown_view:
        rows = rows.filter(reduce(or_, map(of_state, states)))
    return [NamedJob(job.pk, job.queue) for job in _found(wanted, rows, "id", options.get("limit"))]


def _found_by_text(wanted: Selection, states: frozenset[str], limit: int | None) -> list[NamedJob]:
    """The rows of a search with a free text, if it can be searched in all of them."""
    found = keyset.all_ids(wanted, Job.objects.all(), states)
    if found is None:
        rows = keyset.page(wanted, Job.objects.all(), keyset.STEP).jobs
        others = [f"{each.words} (at least {count})" for each, count in selection.exact_searches(wanted, rows)]
        with translation.override("en"):
            text = selection.incomplete(wanted.search)
        raise UsageError(" ".join([text, *([f"Try instead: {' | '.join(others)}"] if others else [])]))
    queues = dict(Job.objects.filter(pk__in=found[:limit]).values_list("pk", "queue"))
    return [NamedJob(pk, queues[pk]) for pk in found[:limit] if pk in queues]


def parse_id(text: str) -> UUID:
    """A job id from a command line."""
    try:
        return ids.parse(text)
    except ValueError as error:
        search = shlex.quote(f"key:{text}")
        raise UsageError(f"{error}. If this is a key, find the id with: delayq list --search {search}") from None


def seconds(text: str | None, option: str) -> float | None:
    """A duration from a command line."""
    if text is None:
        return None
    try:
        return parse_duration(text)
    except ArgumentTypeError as error:
        raise UsageError(f"{option} {text}: {error}.") from None


def moment(text: str, option: str, also: str = "") -> datetime:
    """A date from a command line. A time alone is a time of today that has not passed. `also`: another kind of value, for the error."""
    at = database.now()
    try:
        found = parse_start(text, at)
    except (ValueError, OverflowError):
        day = f"{text} has no time; " if text in DAYS else ""
        raise UsageError(
            f'{option} {text}: {day}use {also}a date such as 2030-01-31T18:00:00+01:00, "2030-01-31 18:00" '
            f"(time zone {conf.project_timezone()}), 18:00 (today) or +10m."
        ) from None
    if found < at and TIME.fullmatch(text):
        raise UsageError(f"{option} {text}: this time of today has passed. Use a date as well.")
    return found


def _alone(what: str, options: dict[str, Any], *others: str) -> None:
    given = [f"--{name}" for name in others if options.get(name) is not None]
    if given:
        raise UsageError(f"Select jobs either by {what} or by {', '.join(given)}, not by both.")
