"""The fields of a search, one by one. Each has a condition for the database, and a function that checks a row in Python."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from operator import ge, lt
from typing import Any, Final, NamedTuple
from uuid import UUID

from django.db.models import Exists, ExpressionWrapper, F, OuterRef, Q, TextField
from django.utils.translation import gettext as now

from django_delayq import conf, ids
from django_delayq.console import masking
from django_delayq.console.moments import parse_moment
from django_delayq.exceptions import StoreUnavailable, UnknownTask
from django_delayq.models import DERIVED, UNENDED, Attempt, meta_of, of_state
from django_delayq.producer.stores import stores
from django_delayq.producer.task import registry
from django_delayq.states import CUSTOMER, DELIVERY, OFFER, PARKED, AttemptOutcome, EndingKind, State
from django_delayq.store.connection.error_replies import StoreError
from django_delayq.text import nearest

STATES: Final = (*(state.value for state in State), *DERIVED)
ASKING, BLOCKED, CRASHED = "asking", "blocked", "crashed"  # the values of `is:`
MOST_BLOCKED: Final = 1000  # jobs of a queue that `is:blocked` finds
NO_FINGERPRINT: Final = "none"  # real fingerprints have 12 hexadecimal digits
MOST_BRACKETS: Final = 50  # in the value of an argument, which limits its depth
ARGUMENTS: Final = ("task", "args", "kwargs")  # the columns that the visible arguments depend on
JSON: Final = frozenset({"args", "kwargs", "options"})


@dataclass(frozen=True, slots=True)
class Term:
    """One condition. `word` is one of WORDS, or "" for a free text. `rows`: the condition for the database; `rough`: it may match too
    many rows, and `holds` decides, from these `columns`. `tasks`: the tasks that a part of a name or an argument matches. `named`:
    the rows that a free text finds by id or key; `few`: the condition lists its rows one by one.
    """

    word: str
    value: str
    rows: Q
    holds: Callable[[Any], bool]
    columns: tuple[str, ...]
    rough: bool = False
    tasks: tuple[str, ...] = ()
    negated: bool = False
    named: Q | None = None
    few: bool = False

    @property
    def free(self) -> bool:
        """Whether it is a free text that must be found."""
        return not self.word and not self.negated

    def turned(self) -> Term:
        """The condition for all other rows."""
        rows = Q() if self.rough else ~self.rows
        return replace(self, rows=rows, holds=lambda row: not self.holds(row), negated=not self.negated)


@dataclass(frozen=True, slots=True)
class Sense:
    """The context of a search: `-2h` counts from `at`, and `tasks` are the known tasks."""

    at: datetime
    tasks: Sequence[str]


class Refused(Exception):
    """A term is invalid. The text describes valid values."""


def free_text(text: str, sense: Sense) -> Term:
    """A free text: part of a key, a task name, an error or a visible argument; or an id."""
    queues, needle = list(conf.get().queues), text.lower()
    named, id = Q(queue__in=queues, key=text), None
    try:
        # A key can look like an id, such as the UUID of an order.
        id = ids.parse(text)
        named |= Q(pk=id)
    except ValueError:
        named |= _key_begins(queues, text)

    open_tasks: dict[str, bool] = {}
    plain = needle.isascii() and needle.isprintable() and not {'"', "\\"} & {*needle}  # then JSON contains it unchanged

    def holds(row: Any) -> bool:
        task = row.task
        if row.id == id or needle in row.key.lower() or needle in row.error.lower() or needle in task.lower():
            return True
        if (is_open := open_tasks.get(task)) is None:
            is_open = open_tasks[task] = plain and _hides_nothing(task)
        # Decodes few of ten thousand rows. If a task has masked arguments, all rows are decoded, so that the time reveals nothing.
        written = f"{row.args_json} {row.kwargs_json}".lower() if is_open and hasattr(row, "args_json") else ""
        if written and needle not in written and "\\u" not in written:
            return False
        return any(_has_text(value, needle) for value in _shown(row))

    whole = [text] if "." in text else []  # it can be the name of a task that is not registered here
    tasks = tuple(dict.fromkeys([*_tasks(text, sense), *whole]))
    return Term("", text, Q(), holds, ("id", "key", "error", *ARGUMENTS), rough=True, tasks=tasks, named=named)


def _tasks(part: str, sense: Sense) -> list[str]:
    return [name for name in sense.tasks if part.lower() in name.lower()]


def _parsed(value: str) -> UUID:
    try:
        return ids.parse(value)
    except ValueError:
        raise Refused(now("an id has 22 letters and digits, as shown in lists and logs, or is a UUID.")) from None


def _id(value: str, sense: Sense) -> Term:
    id = _parsed(value)
    return Term("id", value, Q(pk=id), lambda row: row.id == id, ("id",))


def _batch(value: str, sense: Sense) -> Term:
    batch = _parsed(value)
    return Term("batch", value, Q(batch=batch), lambda row: row.batch == batch, ("batch",))


def _key_begins(queues: Sequence[str], start: str) -> Q:
    """The condition on the key is required on PostgreSQL: its index covers only rows with a key, which LIKE does not imply."""
    return Q(queue__in=queues, key__startswith=start) & ~Q(key="")


def _key(value: str, sense: Sense) -> Term:
    queues = list(conf.get().queues)
    if value.endswith("*") and len(value) > 1:
        start = value[:-1]
        return Term("key", value, _key_begins(queues, start), lambda row: row.key.startswith(start), ("key",), rough=True)
    return Term("key", value, Q(queue__in=queues, key=value), lambda row: row.key == value, ("key",), rough=True)


def _task(value: str, sense: Sense) -> Term:
    parts = [value] if value in sense.tasks else _tasks(value, sense)
    if len(parts) == 1:
        return of_tasks(parts[0], parts)
    return replace(of_tasks(value, [*parts, value]), tasks=tuple(parts))


def of_tasks(value: str, tasks: Sequence[str]) -> Term:
    """Jobs of these tasks."""
    meant = frozenset(tasks)
    rows = Q(task__in=sorted(meant)) if len(meant) > 1 else Q(task=tasks[0])
    return Term("task", value, rows, lambda row: row.task in meant, ("task",), tasks=tuple(tasks))


def _state(value: str, sense: Sense) -> Term:
    value = value.lower()
    if value not in STATES:
        raise Refused(possible_states(value))
    columns = ("state", "run_at", "attempts", "fingerprint", "published", "far", "last_event", "ending")
    return Term("state", value, of_state(value, sense.at), lambda row: _is_in_state(row, value, sense.at), columns)


def possible_states(value: str) -> str:
    """A sentence for an unknown state."""
    said = now("possible states: %(states)s.") % {"states": ", ".join(STATES)}
    near = nearest(value, STATES)
    return now("%(said)s Did you mean %(near)s?") % {"said": said, "near": near} if near else said


def _is_in_state(row: Any, state: str, at: datetime) -> bool:
    """The same condition as `of_state`, for a row."""
    if state not in DERIVED:
        return bool(row.state == state)
    unresolved = row.ending == EndingKind.UNKNOWN
    if state == "unresolved":
        return row.state in UNENDED and row.published is None and not row.far and unresolved
    if row.state != State.SCHEDULED.value or (state == "unpublished" and unresolved):
        return False
    if state == "due":
        return bool(row.run_at <= at)
    if state == "retrying":
        return bool(row.attempts >= 1)
    if state == "parked":
        return row.fingerprint in PARKED
    return row.published is None and bool(row.far) == (state == "far") and (state != "far" or row.last_event == "")


def _error(value: str, sense: Sense) -> Term:
    return Term("error", value, Q(error__icontains=value), lambda row: value.lower() in row.error.lower(), ("error",))


def _worker(value: str, sense: Sense) -> Term:
    """Jobs whose last run was on the worker, and jobs that it held when it died."""
    lost = Attempt.objects.filter(outcome=AttemptOutcome.CRASHED.value, worker__icontains=value)

    def holds(row: Any) -> bool:
        return value.lower() in row.worker.lower() or (row.crashes > 0 and lost.filter(job_id=row.id).exists())

    rows = Q(worker__icontains=value) | Q(Exists(lost.filter(job_id=OuterRef("pk"))), crashes__gt=0)
    return Term("worker", value, rows, holds, ("id", "worker", "crashes"))


def _fingerprint(value: str, sense: Sense) -> Term:
    wanted = "" if value == NO_FINGERPRINT else value
    return Term("fingerprint", value, Q(fingerprint=wanted), lambda row: row.fingerprint == wanted, ("fingerprint",))


def _is(value: str, sense: Sense) -> Term:
    """Conditions besides the state: unfinished jobs that have polled, jobs whose worker died while it ran them, and due jobs that wait
    for a concurrency name. Only Redis knows the latter.
    """
    value = value.lower()
    if value == ASKING:
        rows = Q(state__in=UNENDED, asked__gt=0)
        return Term("is", ASKING, rows, lambda row: row.state in UNENDED and (row.asked or 0) > 0, ("state", "asked"))
    if value == CRASHED:
        return Term("is", CRASHED, Q(crashes__gt=0), lambda row: row.crashes > 0, ("crashes",))
    if value != BLOCKED:
        raise Refused(now("possible values: %(words)s.") % {"words": f"{ASKING}, {BLOCKED}, {CRASHED}"})
    try:
        queues = list(conf.get().queues)
        found, missing = stores.from_each(queues, lambda reach: stores.inspector(reach).blocked(queues, MOST_BLOCKED))
        if missing:
            raise missing.first
    except (StoreUnavailable, StoreError):
        raise Refused(now("Redis cannot be reached, and only Redis has this information.")) from None
    ids = frozenset(found)
    rows = Q(state=State.SCHEDULED.value, pk__in=ids)
    return Term("is", BLOCKED, rows, lambda row: row.state == State.SCHEDULED.value and row.id in ids, ("id", "state"), few=True)


def _dated(word: str, column: str, finds: str, *values: str) -> SearchField:
    """A field that compares a date: at this time or later (`…after`), or before it."""
    lookup, holds = ("gte", ge) if word.endswith("after") else ("lt", lt)

    def read(value: str, sense: Sense) -> Term:
        try:
            moment = parse_moment(value, sense.at)
        except (ValueError, OverflowError):
            raise Refused(now('use 2026-05-01, "2026-05-01 18:30", 18:30, today, yesterday, -2h (two hours ago) or +10m.')) from None

        def matches(row: Any) -> bool:
            found = getattr(row, column)
            return found is not None and holds(found, moment)

        return Term(word, value, Q(**{f"{column}__{lookup}": moment}), matches, (column,))

    return SearchField(read, finds, values)


def _arg(value: str, sense: Sense) -> Term:
    name, wanted = _named_value(value)
    tasks = frozenset(task for task in sense.tasks if shows(task, name))

    scalar = not any(isinstance(value, (list, dict)) for value in wanted)
    written = [json.dumps(value) for value in wanted]
    seen = {task: scalar and _hides_nothing(task) for task in tasks}

    def holds(row: Any) -> bool:
        is_open = seen.get(row.task)
        if is_open and hasattr(row, "args_json") and not any(each in row.args_json or each in row.kwargs_json for each in written):
            return False
        if is_open is None or not shows(row.task, name):
            return False
        args, kwargs = _shown(row)
        return _is_one_of({**dict(zip(registry.get(row.task).signature.parameters, args, strict=False)), **kwargs}, name, wanted)

    return Term("arg", value, Q(task__in=sorted(tasks)), holds, ARGUMENTS, rough=True, tasks=tuple(sorted(tasks)))


def _meta(value: str, sense: Sense) -> Term:
    name, wanted = _named_value(value)

    def holds(row: Any) -> bool:
        return _is_one_of(masking.attached(row.task, meta_of(_given(row, "options"))), name, wanted)

    return Term("meta", value, Q(), holds, ("task", "options"), rough=True)


def _customer(value: str, sense: Sense) -> Term:
    return replace(_meta(f"{CUSTOMER}={value}", sense), word=CUSTOMER, value=value)


def _named_value(value: str) -> tuple[str, list[Any]]:
    name, equals, given = value.partition("=")
    if not equals or not name:
        raise Refused(now("enter a name and a value, as in arg:order_id=77."))
    if given.count("[") + given.count("{") > MOST_BRACKETS:
        raise Refused(now("a value can have at most %(most)d brackets.") % {"most": MOST_BRACKETS})
    try:
        found = json.loads(given)
    except ValueError:  # no JSON: it is text
        return name, [given]
    return name, [found] if isinstance(found, str) else [found, given]  # 77 is the number and the text


def _host(value: str, sense: Sense) -> Term:
    """Deliveries to a host. The port is ignored, because jobs do not contain it."""
    host = value.lower()
    if host.startswith("["):
        host = host[1:].partition("]")[0]
    elif host.count(":") == 1:
        host = host.partition(":")[0]
    rows = Q(task=DELIVERY)
    return Term("host", host, rows, lambda row: _names(row, DELIVERY, "host", host), ARGUMENTS, rough=True, tasks=(DELIVERY,))


def _target(value: str, sense: Sense) -> Term:
    return Term("target", value, Q(task=OFFER), lambda row: _names(row, OFFER, "to", value), ARGUMENTS, rough=True, tasks=(OFFER,))


def _names(row: Any, task: str, argument: str, value: str) -> bool:
    """Whether the row is a job of this task with this visible argument, even if the task is not registered here."""
    if row.task != task or value == masking.MASK:
        return False
    return bool(masking.arguments(task, [], _given(row, "kwargs"))[1].get(argument) == value)


def shows(task: str, argument: str) -> bool:
    """Whether jobs of the task can have a visible argument with this name. False for tasks that are not registered here."""
    return has(task, argument) and argument not in masking.names_of(task)


def has(task: str, argument: str) -> bool:
    """Whether jobs of the task can have an argument with this name."""
    try:
        parameters = registry.get(task).signature.parameters
    except UnknownTask:
        return False
    masked = masking.names_of(task)
    rest = [one.name for one in parameters.values() if one.kind is one.VAR_KEYWORD and one.name not in masked]
    return argument in parameters or bool(rest)


def read_raw(columns: Iterable[str]) -> dict[str, Any]:
    """For `annotate`: the undecoded text of these JSON columns. Terms read `args_json` instead of `args`."""
    return {f"{name}_json": ExpressionWrapper(F(name), output_field=TextField()) for name in columns if name in JSON}


def _given(row: Any, column: str) -> Any:
    raw = getattr(row, f"{column}_json", None)
    return getattr(row, column) if raw is None else json.loads(raw)


def _hides_nothing(task: str) -> bool:
    """Whether all arguments of a registered task are visible."""
    return task != DELIVERY and not masking.names_of(task)


def _shown(row: Any) -> tuple[list[Any], dict[str, Any]]:
    """The arguments, masked as on pages, so that a search cannot reveal hidden values. Empty if the task is not registered here."""
    try:
        registry.get(row.task)
    except UnknownTask:
        return [], {}
    return masking.arguments(row.task, _given(row, "args"), _given(row, "kwargs"))


def _is_one_of(given: Mapping[str, Any], name: str, wanted: Sequence[Any]) -> bool:
    found = given.get(name, masking.MASK)
    return found != masking.MASK and any(type(found) is type(each) and found == each for each in wanted)


def _has_text(value: Any, needle: str) -> bool:
    """Whether the value contains the text, or is the number, at any depth."""
    if isinstance(value, str):
        return value != masking.MASK and needle in value.lower()
    if isinstance(value, dict):
        return any(_has_text(inner, needle) for inner in value.values())
    if isinstance(value, list):
        return any(_has_text(inner, needle) for inner in value)
    return value is not None and str(value).lower() == needle


class SearchField(NamedTuple):
    """A field of the search. `finds` completes "Jobs"; `values`: examples, for the documentation."""

    read: Callable[[str, Sense], Term]
    finds: str
    values: tuple[str, ...] = ("",)


FIELDS: Final[dict[str, SearchField]] = {
    "id": SearchField(_id, "with this id"),
    "key": SearchField(_key, "with this key, or with a key that starts with this text", ("close-order:77", "close-order:*")),
    "task": SearchField(_task, "of this task, given its full name or part of it", ("close_order",)),
    "queue": SearchField(
        lambda value, _: Term("queue", value, Q(queue=value), lambda row: row.queue == value, ("queue",)), "in this queue", ("orders",)
    ),
    "state": SearchField(_state, f"in this state; one of {', '.join(f'`{state}`' for state in STATES)}", ("failed",)),
    "error": SearchField(_error, "whose last error contains this text", ("timeout",)),
    "arg": SearchField(_arg, "with this argument value", ("order_id=77",)),
    "meta": SearchField(_meta, "with this `meta` value", ("tenant=3",)),
    "batch": SearchField(_batch, "of this batch, given its id"),
    CUSTOMER: SearchField(_customer, "of this [customer](recipes.md#how-do-i-find-all-jobs-of-a-customer)", ("7",)),
    "host": SearchField(_host, "that deliver to this host", ("partner.example",)),
    "target": SearchField(_target, "that offer a message to this target", ("shipping",)),
    "worker": SearchField(_worker, "that last ran on a worker whose name contains this text, or crashed with it", ("vm-2",)),
    "after": _dated("after", "run_at", "that run at this time or later", "-2h", "10:00", '"2026-05-01 18:30"'),
    "before": _dated("before", "run_at", "that run before this time", "2026-05-01"),
    "started_after": _dated("started_after", "started_at", "whose last run started at this time or later", "10:00"),
    "started_before": _dated("started_before", "started_at", "whose last run started before this time", "today"),
    "ended_after": _dated("ended_after", "finished_at", "that ended at this time or later", "yesterday"),
    "ended_before": _dated("ended_before", "finished_at", "that ended before this time", "-2h"),
    "fingerprint": SearchField(_fingerprint, f"with this failure cause; `{NO_FINGERPRINT}` finds jobs without one"),
    "is": SearchField(
        _is,
        "that are polling for a result, that wait for a job with the same `serial` or `concurrency` name, or that have crashed",
        (ASKING, BLOCKED, CRASHED),
    ),
}
WORDS: Final = tuple(FIELDS)
