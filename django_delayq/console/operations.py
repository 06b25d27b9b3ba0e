"""Starts operations: for the admin, for `delayq.operate` and for the gateway. `operation_loop` carries them out."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime
from typing import Any, Final
from uuid import UUID

from django.db import connections
from django.utils import translation

from django_delayq import clock, conf, durations, ids
from django_delayq.console import keyset, selection
from django_delayq.console.selection import Selection
from django_delayq.console.verbs import VERBS, Verb
from django_delayq.durations import Delay
from django_delayq.exceptions import ConfigError, TooManyJobs
from django_delayq.failpoints import failpoint
from django_delayq.models import Job, Operation, database
from django_delayq.producer import commit, outbox, scopes
from django_delayq.producer.async_api import refuse_loop, twin
from django_delayq.producer.lookup import check_words
from django_delayq.producer.options import date, duration
from django_delayq.producer.outbox import rows
from django_delayq.text import did_you_mean

WHERE: Final = "operate()"
LIMIT: Final = 1_000  # jobs, unless the caller passes another limit
MOST_COUNTED: Final = 100_000  # in a preview; the worker counts all
LONGEST: Final = 30 * 24 * 3_600  # seconds over which an operation can be spread


def operate(
    verb: str,
    search: str,
    *,
    reason: str,
    limit: int = LIMIT,
    over: Delay = 0,
    delay: Delay | None = None,
    run_at: datetime | None = None,
    scope: str | None = None,
    dry_run: bool = False,
    actor: str = "",
) -> Operation:
    """Applies an action to all jobs that match a search. This starts an operation, as the admin does, and a worker with the role
    ``mirror`` carries it out. Jobs that are scheduled later aren't included.

    Args:
        verb: `cancel`, `run_now`, `reschedule`, `requeue`, `mark_succeeded`, `mark_failed` or `forget`.
        search: A search as in the admin, such as `meta:merchant=7 state:scheduled`, but without plain text. If it contains no state,
            a requeue applies to failed jobs.
        reason: Why you do this. It is stored with the events.
        limit: The maximum number of jobs. If more jobs match, none is changed.
        over: A period over which the changes are spread, at most 30 days.
        delay, run_at: For `reschedule`, the new date. A delay starts when the worker changes the job.
        scope: With the setting `SCOPE`, only jobs of this scope match. The default is the current scope.
        dry_run: Only counts the jobs. The operation isn't saved.
        actor: Who does this, for the events.

    `expected` is the number of jobs, or None if more than 10,000 jobs must be searched and no index finds them. A worker then counts
    the jobs before it begins. If there are more than the limit, it pauses the operation, which users can resume in the admin.

    Raises:
        TooManyJobs: More jobs match than the limit.
        ConfigError: An argument is invalid, or you call this in a transaction or without the outbox.
    """
    refuse_loop("delayq.aoperate(…)")
    outbox.check_installed()
    if not dry_run and commit.is_open(connections[conf.get().database]):
        raise ConfigError(f"{WHERE}: a transaction is open. Call it after the commit, because a rollback could not undo it.")
    when = {name: value for name, value in {"delay": delay, "run_at": run_at}.items() if value is not None}
    bound = {"scope": scopes.of_call(scope), "jobs": None, "dry_run": dry_run}
    operation = plan(verb, Selection(text=search), limit=limit, over=over, when=when, reason=reason, actor=actor, **bound)
    return operation if dry_run else start(operation)


aoperate = twin(operate)


def plan(
    verb: str, wanted: Selection, *, limit: int, over: Delay, when: dict[str, Any], scope: str, jobs: Any, dry_run: bool, **more: Any
) -> Operation:
    """An operation that is not saved. See `operate`.

    Args:
        when: `delay` or `run_at`.
        jobs: Only these rows, or None. A worker does not know their condition, so the operation is limited to their ids.
    """
    check_words(WHERE, more["actor"], more["reason"])
    if not (more["reason"].strip() and wanted.text.strip()):
        raise ConfigError(f"{WHERE}: reason or search is empty. Say which jobs you change, and why.")
    if type(limit) is not int or limit < 1:
        raise ConfigError(f"{WHERE}: limit={limit!r} must be a whole number of at least 1.")
    act = VERBS.get(verb)
    if act is None:
        raise ConfigError(f"{WHERE}: unknown verb {verb!r}{did_you_mean(verb, VERBS)}. Available verbs: {', '.join(VERBS)}.")
    if len(when) != act.needs_date:
        said = "needs either delay or run_at" if act.needs_date else "accepts neither delay nor run_at"
        raise ConfigError(f"{WHERE}: {verb} {said}.")
    date(when.get("delay"), when.get("run_at"), WHERE)
    options = {name: value.isoformat() if name == "run_at" else durations.seconds(value) for name, value in when.items()}
    if (seconds := round(duration(over, "over", WHERE) / 1000)) > LONGEST:
        raise ConfigError(f"{WHERE}: over={over!r} is longer than 30 days.")
    wanted = wanted.fixed(clock.to_ms(database.now()))
    with translation.override("en"):
        if faults := complaints(wanted, loose=False):
            raise ConfigError(f"{WHERE}: search {wanted.text!r}: {' '.join(faults)}")
    if scope and (wanted := replace(wanted, text=selection.within_scope(scope, wanted.text))).search.value("scope") != scope:
        raise ConfigError(f"{WHERE}: the search cannot be limited to the scope {scope!r}. Do not name a scope in it.")
    if len(act.swept) == 1 and not any(term.word == "state" for term in wanted.search.terms):
        wanted = replace(wanted, view=str(*act.swept))  # as for a command: a requeue without a state is not for cancelled jobs
    upto = newest()
    there = (Job.objects.all() if jobs is None else jobs).filter(pk__lte=upto)
    frozen = keyset.all_ids(wanted, there, act.swept)
    if frozen is None and jobs is not None:
        raise ConfigError(f"{WHERE}: the search would read more than {keyset.WINDOW:,} jobs. Add a condition, such as state:failed.")
    count = keyset.count_up_to(wanted, there, MOST_COUNTED) if frozen is None else len(frozen)
    if count is not None and count > limit and not dry_run:
        raise TooManyJobs(code=TooManyJobs.code, count=count, limit=limit)
    operation = made(act, wanted, upto, frozen, options=options, seconds=seconds, limit=limit, **more)
    operation.expected = None if count is None or count > MOST_COUNTED else count
    return operation


def complaints(wanted: Selection, *, loose: bool = True) -> list[str]:
    """Why an operation cannot use this selection. `loose`: it may contain plain text."""
    if not loose and (texts := wanted.search.loose):
        return [f"{texts[0].value!r} is plain text. Name the field, as in key:order-7."]
    return [*wanted.search.complaints, *filter(None, [selection.operation_refusal(wanted.search)])]


def newest() -> UUID:
    """The last job that an operation may include. Ids come from web hosts, whose clocks may be ahead."""
    return Job.objects.order_by("-pk").values_list("pk", flat=True).first() or ids.new()


def made(verb: Verb, wanted: Selection, upto: UUID, frozen: Sequence[UUID] | None, **more: Any) -> Operation:
    """An operation that is not saved. `frozen`: the ids of all its jobs, or None."""
    fields: dict[str, Any] = {"verb": verb.name, "permission": f"delayq.{verb.permission}", "selection": wanted.parts(), "upto": upto}
    if frozen is not None:
        fields |= {"frozen": list(map(ids.short, frozen)), "expected": len(frozen)}
    return Operation(**fields, **more)


def start(operation: Operation) -> Operation:
    """Saves an operation, so that a worker carries it out, and writes an event."""
    operation.created_at = database.now()
    with database.atomic():
        operation.save(using=database.alias(), force_insert=True)
        note(operation, "operation_started", operation.actor, operation.reason)
        failpoint("operations.start")
    failpoint("operations.started")
    return operation


def note(operation: Operation, kind: str, actor: str, reason: str) -> None:
    """Writes an event of an operation."""
    rows.note(None, "", kind, actor, reason, {"operation": str(operation.pk), "verb": operation.verb, "jobs": described(operation)[0]})


def described(operation: Operation) -> tuple[str, bool]:
    """The search of its jobs and True. For an operation of a newer version, the stored text and False."""
    try:
        return Selection(**operation.selection).words, True
    except TypeError:
        return json.dumps(operation.selection, ensure_ascii=False), False
