"""Schedules jobs: `schedule` and `schedule_many`. `plan` makes all checks before anything is written."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime
from functools import partial
from typing import TYPE_CHECKING, Any, Final, Generic, NamedTuple, Never, ParamSpec, TypeVar, Unpack
from uuid import UUID

from django.db import connections

from django_delayq import conf, durations, ids
from django_delayq.exceptions import ConfigError, PayloadError
from django_delayq.job_meta import NAMED, ONLY, Quota, Rate, SharedName
from django_delayq.ladder import Ladder
from django_delayq.producer import carriers, commit, homes
from django_delayq.producer.async_api import like, refuse_loop, scheduled
from django_delayq.producer.carriers import Call, watchers
from django_delayq.producer.commit import Plan
from django_delayq.producer.job import Job
from django_delayq.producer.options import (
    NONE,
    OPTIONS,
    Conflict,
    Durability,
    JobOptions,
    JobTemplate,
    Options,
    Planned,
    date,
    duration,
    hint_of_keyword,
    hint_of_method,
    moment,
    templates,
)
from django_delayq.producer.outbox.shapes import Once
from django_delayq.producer.put import PipelinedCall, batches, put_all, put_one
from django_delayq.producer.stores import stores
from django_delayq.states import CARRIED, NO_LIMIT, PERIODIC
from django_delayq.store.scripts.queue import MOST
from django_delayq.text import did_you_mean

MOST_TURNS: Final = 512  # a call starts at a random turn below this
# Keys of a job's meta that its caller cannot give.
RESERVED: Final = {
    CARRIED: "carriers. Use another key.",
    NAMED: "the name of a job. Pass serial= or concurrency= instead.",
    ONLY: "the limit of a token. Use another key.",
    PERIODIC: "jobs of schedules. Use another key.",
}

P = ParamSpec("P")
R = TypeVar("R")


class Binding(NamedTuple):
    """The task, options and arguments of a job. `id`: the id of the job, if it has one already. `tick`: see `plan`."""

    task: Any
    options: Options
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    id: UUID | None = None
    tick: dict[str, Any] | None = None


# Faster than calls of Binding and Options, which are made for each job.
_binding: Final[Callable[[tuple[Any, ...]], Binding]] = partial(tuple.__new__, Binding)
_given: Final[Callable[[tuple[Any, ...]], Options]] = partial(tuple.__new__, Options)


class Bound(Generic[P, R]):
    """A task with options. A task is a `Bound` without options."""

    __slots__ = ("options", "task")

    def __init__(self, task: Any, options: Options) -> None:
        self.task = task
        self.options = options

    def __eq__(self, other: object) -> bool:
        return type(other) is Bound and self.task is other.task and self.options == other.options

    def __hash__(self) -> int:
        return hash((id(self.task), self.options))

    def __repr__(self) -> str:
        said = (f"{name}={value!r}" for name, value, usual in zip(Options._fields, self.options, NONE, strict=True) if value != usual)
        return f"<{self.task!r}.using({', '.join(said)})>"

    if not TYPE_CHECKING:  # else any name would pass

        def __getattr__(self, name: str) -> Never:
            meant = hint_of_method(_label(self), name)
            said = f". Here it is {meant}" if meant else did_you_mean(name, dir(type(self)), 0.75)
            raise AttributeError(f"A task has no {name!r}{said}", name=name, obj=self)

    def using(self, **options: Unpack[JobOptions]) -> Bound[P, R]:
        """Returns the task with options: `task.using(delay="30m").schedule(...)`. They override earlier options with the same name.

        Raises:
            ConfigError: An option is unknown.
        """
        return Bound(self.task, self.options.but(options, self.task.name))

    def bind(self, *args: P.args, **kwargs: P.kwargs) -> Binding:
        """Returns a job for `schedule_many`."""
        if kwargs:
            _refuse_options(self.task, kwargs)
        return _binding((self.task, self.options, args, kwargs, None, None))

    def schedule(self, *args: P.args, **kwargs: P.kwargs) -> Job[R]:
        """Schedules a job with these arguments. See `delayq.schedule`."""
        refuse_loop("task.aschedule(…)")
        if kwargs:
            _refuse_options(self.task, kwargs)
        return put_in(self.task, self.options, args, kwargs)

    async def aschedule(self, *args: P.args, **kwargs: P.kwargs) -> Job[R]:
        """Async version of `schedule`. See `delayq.aschedule`."""
        return await _aput(self.bind(*args, **kwargs))


def schedule(
    task: Bound[Any, R],
    *args: Any,
    delay: durations.Delay | None = None,
    run_at: datetime | None = None,
    key: str = "",
    on_conflict: Conflict = "keep",
    queue: str | None = None,
    priority: int | None = None,
    max_attempts: int | None = None,
    backoff: Ladder | str | None = None,
    timeout: durations.Delay | None = None,
    expires: durations.Delay | datetime | None = None,
    meta: Mapping[str, Any] | None = None,
    using: str | None = None,
    durability: Durability | None = None,
    serial: str | None = None,
    concurrency: tuple[str, int] | None = None,
    once_for: durations.Delay | None = None,
    at_most: durations.Delay | None = None,
    then: Binding | None = None,
    **kwargs: Any,
) -> Job[R]:
    """Schedules a job: `schedule(task, *arguments, delay="30m", key="…", **keyword_arguments)`.

    Args:
        task: A task, or a task with options, such as `task.using(…)`. The options of this call take precedence.
        delay: How long to wait, as a timedelta, a number of seconds, or text such as "90s", "1h30m" or "2d".
        run_at: When to run the job, as an aware datetime. You can set either `delay` or `run_at`. By default, the job is due
            immediately.
        key: Text that identifies the job among the queue's unfinished jobs, up to 200 characters.
        on_conflict: What happens if an unfinished job already has the key: "keep" (return that job), "replace", "earliest",
            "latest", "after" (run again after that job) or "error".
        queue, priority, max_attempts, backoff, timeout: Override the task's options.
        expires: A duration from now, or an aware datetime. The job doesn't start after that time. If it has run before, it fails.
            Otherwise, it is cancelled. With max_attempts=0, the job is retried until then.
        meta: A dict of JSON values that is stored with the job.
        using: The alias of the database whose transaction publishes the job. The default is `DATABASE`.
        durability: "outbox" or "redis". The default is the queue's setting.
        serial, concurrency: Override the task's options. The name is a format string that can contain the arguments:
            "order:{order_id}", or ("tenant:{tenant}", 5).
        once_for: A period that begins when the job succeeds or fails. Until it ends, the same key returns that job, with
            `created=False`. Requires a key.
        at_most: The longest time from the first call to the date of the job, for on_conflict="latest". So repeated calls can't
            postpone the job forever.
        then: A job to schedule when this one succeeds, such as `report.using(delay="1m").bind(run_id)`. Its delay starts at that time.
            It is scheduled once, and not if this job is merged into another one. Not available with redis durability.

    Raises:
        PayloadError, PayloadTooLarge: An argument can't be represented in JSON, doesn't match the function's signature, or is too
            large.
        QueueUnknown, ConfigError: The queue isn't listed in the settings, or an option is invalid.
        KeyTaken: An unfinished job has the key, and on_conflict is "error". Or that job is running, and on_conflict is "replace".
            In a transaction, this is only known at the commit. The conflict is then logged, and the row of the new job is marked as
            cancelled.
        StoreUnavailable: Redis is down or rejects the job, because it has no memory left or because too many events wait for the
            database. Only raised with redis durability. In a transaction, it is logged at the commit, with the ids of the jobs. With
            `once_for`, also raised if another open transaction has the key for more than two seconds.
        SynchronousOnlyOperation: The function was called in async code. Use `await aschedule` instead.
    """
    refuse_loop("delayq.aschedule(…)")
    given = delay, run_at, key, expires, meta, then, on_conflict, queue, priority, max_attempts, backoff, timeout, using, durability
    options = _options(task, _given((*given, serial, concurrency, once_for, at_most)))  # in the order of the fields
    if kwargs:
        _refuse_options(task.task, kwargs, mixed=True)
    return put_in(task.task, options, args, kwargs)


@like(schedule)
async def aschedule(task: Bound[Any, Any], *args: Any, **kwargs: Any) -> Job:
    """Async version of `schedule`. It uses its own transaction.

    Raises:
        CancelledError: It is unknown whether the job was scheduled. The exception's `jobs` attribute is a tuple with the job's id.
        As `schedule`.
    """
    given = Options(**{name: kwargs.pop(name) for name in OPTIONS.keys() & kwargs.keys()})
    options = _options(task, given)
    if kwargs:
        _refuse_options(task.task, kwargs, mixed=True)
    return await _aput(Binding(task.task, options, args, kwargs))


def schedule_many(bindings: Iterable[Binding], *given: Never, using: str | None = None) -> list[Job]:
    """Schedules many jobs: `schedule_many(task.using(delay="30m").bind(pk) for pk in pks)`. The jobs are written in batches of 200. In
    a transaction, all jobs are published when it commits.

    Raises:
        As `schedule`. If a job is rejected, none of the jobs in its batch are scheduled.
    """
    refuse_loop("delayq.aschedule_many(…)")
    return put_many(bindings, given, using)


@like(schedule_many)
async def aschedule_many(bindings: Iterable[Binding], *given: Never, using: str | None = None) -> list[Job]:
    """Async version of `schedule_many`. Each batch uses its own transaction.

    Raises:
        CancelledError: It is unknown which of the jobs were scheduled. The exception's `jobs` attribute is a tuple with their ids.
        As `schedule`.
    """
    named = [binding._replace(id=homes.drawn(*binding[:4])) for binding in map(_checked, _many(bindings, given))]
    return await scheduled([binding.id for binding in named if binding.id], _put_many, named, using)


def plan(
    task: Planned,
    options: Options,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    using: str | None,
    id: UUID | None = None,
    carried: dict[str, Any] | None = None,
    tick: dict[str, Any] | None = None,
    turn: int | None = None,
    only: Sequence[str] | None = None,
) -> Plan:
    """Checks a job and makes its record.

    Args:
        using: the database alias, unless the options name one.
        id: the id of the job. If the job belongs to another partition than the id says, it gets another id.
        carried: the context of the job that it follows. None: the carriers pack the context.
        tick: the tick of the job, if it belongs to a schedule. Then it gets no context: the tenant or language of a worker, or of the
            person who clicks, has no meaning for a schedule.
        turn: distributes jobs without a key or a concurrency name over the partitions. None: at random, or by the id.
        only: the tasks whose jobs a token can access. If the job of another task has the key, that job stays and its id is not shown.

    Raises:
        PayloadError, PayloadTooLarge, QueueUnknown, ConfigError: see `schedule`.
    """
    template = templates.get(task, options, using)
    template.check(args, kwargs)
    if template.durable and not template.says_using:
        _check_transaction(template.using, template.where)
    if not options.key and template.on_conflict != "keep":
        raise ConfigError(f"{template.where}: on_conflict={options.on_conflict!r} requires a key. Pass key= as well.")
    delay_ms, due_ms = date(options.delay, options.run_at, template.where)
    if template.most_ms:
        due_ms = _within(template, options, delay_ms, due_ms)
    expires_ms = 0 if options.expires is None else _expires_at(options.expires, delay_ms, due_ms, template)
    if template.max_attempts == NO_LIMIT and not expires_ms:
        raise ConfigError(
            f"{template.where}: max_attempts=0 means that there is no limit. Pass expires= as well, so that the job ends at some time."
        )
    meta = None if options.meta is None else _checked_meta(options.meta, template.where)
    if tick:
        meta = {**(meta or {}), PERIODIC: tick}
    if carried:
        meta = {**(meta or {}), CARRIED: carried}
    elif carried is None and not tick and (template.carriers or watchers):
        meta = carriers.pack(meta)
    if only is not None and options.key:
        meta = {**(meta or {}), ONLY: [*only]}
    shared_name = None if template.named is None else template.named.name(args, kwargs, template.where)
    if task.rate_name:
        shared_name = SharedName("", 0, Rate(task.rate_name, _quota(template)))
    if shared_name:
        meta = {**(meta or {}), NAMED: shared_name.packed()}
    queue, payload = template.queue, template.payload_of(args, kwargs, meta)
    if template.divided:
        id = homes.placed(template, options.key, shared_name, id, turn)
    elif id is None:
        id = ids.new()
    planned = Plan(template, Job(id, queue.name, task.name, options.key, due_ms), payload, expires_ms, delay_ms)
    planned.shared_name = shared_name
    if template.once_ms:
        if not options.key:
            raise ConfigError(f"{template.where}: once_for requires a key. Pass key= as well.")
        planned.once = Once.of_job(queue.name, options.key, template.once_ms)
    if template.durable:
        planned.epoch = stores.epoch(queue.name, planned.partition)
    if options.then is not None:
        if not (template.durable or template.inline):
            raise ConfigError(f"{template.where}: then requires durability='outbox', because the row of the job stores the next job.")
        planned.then = follow_up(options.then, template.where)
    return planned


def follow_up(binding: Any, where: str) -> Plan:
    """Plans a job that is scheduled later, when another job has ended.

    Raises:
        As `plan`.
    """
    if not isinstance(binding, Binding):
        raise ConfigError(f"{where}: then must be a task with its arguments, such as then=task.bind(1), not {type(binding).__name__}.")
    planned, expires = plan(*binding[:4], None), binding.options.expires
    if not (planned.durable or planned.template.inline):
        raise ConfigError(f"{where}: then={planned.task}: the job requires durability='outbox'.")
    if planned.once is not None or not (expires is None or isinstance(expires, datetime)):
        wrong = "once_for" if planned.once is not None else "an expiry that is a duration"
        raise ConfigError(f"{where}: then={planned.task}: the job cannot have {wrong}, because it is scheduled later.")
    return planned


def _quota(template: JobTemplate) -> Quota:
    """The rate of the names of messages."""
    if template.queue.rate is None:
        raise ConfigError(
            f"{template.where}: rate= requires the rate of the queue. Set DELAYQ['QUEUES'][{template.queue.name!r}]['RATE'], for "
            "example to '100/m'."
        )
    return template.queue.rate


def put_in(
    task: Planned,
    options: Options,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    id: UUID | None = None,
    tick: dict[str, Any] | None = None,
    carried: dict[str, Any] | None = None,
    turn: int | None = None,
    only: Sequence[str] | None = None,
    inserted: Callable[[Job], None] | None = None,
    once: Once | None = None,
) -> Job:
    """Plans and schedules one job, and informs the watchers. `inserted`: see `put_one`. `once`: a key that schedules one job per
    period.

    Raises:
        AlreadyScheduled: another job has the key of `once` in that period.
        As `plan` and `schedule`.
    """
    if not watchers:
        planned = plan(task, options, args, kwargs, None, id, carried, tick, turn, only)
        planned.once = once or planned.once
        return put_one(planned, inserted)
    with carriers.watched(Call(task.name, options.queue or task.queue)) as call:
        planned = plan(task, options, args, kwargs, None, id, carried, tick, turn, only)
        planned.once = once or planned.once
        call.plans.append(planned)
        return put_one(planned, inserted)


async def _aput(binding: Binding) -> Job:
    id = homes.drawn(*binding[:4])
    return await scheduled([id], put_in, *binding._replace(id=id))


def put_many(
    bindings: Iterable[Binding], given: tuple[object, ...], using: str | None, planned: Callable[[list[Plan]], object] | None = None
) -> list[Job]:
    """Plans and schedules jobs. `planned` is called with each batch before it is written."""
    return _put_many(_many(bindings, given), using, planned)


def _put_many(bindings: Iterable[Binding], using: str | None, planned: Callable[[list[Plan]], object] | None = None) -> list[Job]:
    jobs: list[Job] = []
    with carriers.watched(Call(many=True)) as call, PipelinedCall() as pipelined:
        for turn, batch in enumerate(batches(bindings, MOST), random.randrange(MOST_TURNS)):
            plans = _planned(batch, using, turn)
            if planned is not None:
                planned(plans)
            if watchers:
                call.plans += plans
            jobs += put_all(plans, pipelined)
    return jobs


def _planned(batch: Sequence[Binding], using: str | None, turn: int) -> list[Plan]:
    if conf.get().partitions:
        return [
            plan(task, options, args, kwargs, using, id, None, tick, turn)
            for task, options, args, kwargs, id, tick in map(_checked, batch)
        ]
    fresh = zip(map(_checked, batch), ids.several(len(batch)), strict=True)  # all ids at once, which is faster
    return [plan(task, options, args, kwargs, using, id or new, None, tick) for (task, options, args, kwargs, id, tick), new in fresh]


def _refuse_options(task: Any, kwargs: Mapping[str, Any], *, mixed: bool = False) -> None:
    """Refuses a misspelled option among the arguments of a task that takes any keyword. `mixed`: the call takes options, too, so a
    similar name is probably a mistake.
    """
    if not task.takes_any:
        return  # the signature of the function refuses them
    for name in kwargs:
        if name in task.keywords or not (mixed or name in OPTIONS):
            continue
        meant = hint_of_keyword(_label(task), name, OPTIONS, cutoff=0.8)
        if meant:
            own = f" To pass it to the task, write {_label(task)}.schedule(…, {name}=…)." if mixed else ""
            raise ConfigError(f"schedule({task.name}): {meant}.{own}")


def _label(task: Any) -> str:
    """Returns the name of the function of a task."""
    try:
        return str(object.__getattribute__(task, "task").fn.__name__)
    except AttributeError:
        return "task"


def _expires_at(value: Any, delay_ms: int | None, due_ms: int, template: JobTemplate) -> int:
    """Returns the expiry in milliseconds, by the clock of Redis. If Redis cannot be reached, by the clock of this host."""
    now_ms, where = stores.now_ms(template.queue.name), template.where
    expires_ms = moment(value, "expires", where) if isinstance(value, datetime) else now_ms + duration(value, "expires", where)
    if expires_ms <= (due_ms if delay_ms is None else now_ms + delay_ms):
        raise ConfigError(
            f"{where}: expires={value!r} is not after the job's date, so the job could never run. Both are counted from "
            "now. Pass an expiry that is longer than the delay, or no expiry."
        )
    return expires_ms


def _within(template: JobTemplate, options: Options, delay_ms: int | None, due_ms: int) -> int:
    """Returns the date, but at most `at_most` from now. The script and the far row that hold the key know the first date."""
    if delay_ms is None:
        return min(due_ms, stores.now_ms(template.queue.name) + template.most_ms)
    if delay_ms > template.most_ms:
        raise ConfigError(
            f"{template.where}: delay={options.delay!r} is longer than at_most={options.at_most!r}, which is the longest time from the "
            "first call to the date of the job. Pass a longer at_most, or a shorter delay."
        )
    return due_ms


def _checked_meta(value: Any, where: str) -> dict[str, Any]:
    """Refuses `meta` with reserved keys."""
    if not isinstance(value, Mapping):
        raise PayloadError(f"{where}: meta must be a dict with text keys, not {value!r}.")
    for name, use in RESERVED.items():
        if name in value:
            raise PayloadError(f"{where}: meta has the key {name!r}, which is reserved for {use}")
    return dict(value)


def _check_transaction(alias: str, where: str) -> None:
    """Refuses to commit a row at once while the caller has a transaction on another database, which may be rolled back."""
    if len(connections.settings) == 1 or commit.is_open(connections[alias]):
        return
    for other in connections.all(initialized_only=True):
        if commit.is_open(other):
            raise ConfigError(
                f"{where}: a transaction is open on the database {other.alias!r}, but the job's row is in {alias!r} "
                "(DELAYQ['DATABASE']). If the transaction is rolled back, the job still runs. Also open a transaction on "
                f"{alias!r}. Or pass using={alias!r} to publish the job even after a rollback. Or pass "
                f"using={other.alias!r} and durability='redis' to publish it when the transaction on {other.alias!r} "
                "commits."
            )


def _options(task: Any, given: Options) -> Options:
    """Returns the options of the task, replaced by the given ones."""
    if not isinstance(task, Bound):
        named = "Import the task, and pass it instead of its name." if isinstance(task, str) else ""
        raise ConfigError(
            f"schedule() was given {task!r}, which is not a task. "
            f"{named or 'Decorate the function with @delayq.task, and pass the function itself, not a call of it.'}"
        )
    if task.options is NONE:
        return given
    said: dict[str, Any] = {name: value for name, value, usual in zip(Options._fields, given, NONE, strict=True) if value is not usual}
    return task.options._replace(**said) if said else task.options


def _many(bindings: Iterable[Binding], given: tuple[object, ...]) -> Iterable[Binding]:
    if given or isinstance(bindings, Binding) or not isinstance(bindings, Iterable):
        shown = f"{bindings!r} and {given[0]!r}" if given else repr(bindings)
        raise ConfigError(
            f"schedule_many() was given {shown}. Pass a list or a generator of bound tasks, such as "
            "schedule_many(task.bind(pk) for pk in pks)."
        )
    return bindings


def _checked(binding: Binding) -> Binding:
    if not isinstance(binding, Binding):
        lacking = isinstance(binding, Bound)
        raise ConfigError(
            f"schedule_many() was given {binding!r}, which {'is not bound to arguments' if lacking else 'is not a bound task'}. "
            "Pass the result of bind(): task.bind(…), or task.using(delay=…).bind(…)."
        )
    return binding
