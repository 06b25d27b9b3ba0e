"""Changes of whole queues (pause, resume, purge), and pauses of tasks and concurrency names. They take effect at once."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeVar
from uuid import UUID

from django.db import DatabaseError, InterfaceError, connections

from django_delayq import clock, conf, durations, ids
from django_delayq.exceptions import ConfigError, StoreUnavailable
from django_delayq.job_meta import MAX_NAME, is_text
from django_delayq.logger import Logger
from django_delayq.producer import acts, commit, outbox
from django_delayq.producer.async_api import refuse_loop, twin
from django_delayq.producer.changes import ChangeTarget
from django_delayq.producer.lookup import check_words
from django_delayq.producer.stores import stores
from django_delayq.producer.task import Task, registry
from django_delayq.states import Change
from django_delayq.store.connection.error_replies import is_refusal
from django_delayq.store.connection.link import FanOut
from django_delayq.store.scripts import loader
from django_delayq.store.scripts.limits import LimitStore, queue_word
from django_delayq.store.scripts.queue import MOST, QueueStore
from django_delayq.store.scripts.record import MAX_TASK
from django_delayq.text import did_you_mean

if TYPE_CHECKING:
    from django_delayq.models import Pause

T = TypeVar("T")
PAST: Final = {True: "paused", False: "resumed"}
logger = Logger("django_delayq.producer")


@dataclass(frozen=True, slots=True, kw_only=True)
class PauseReply:
    """The result of a pause or a resume. It is true if it changed something.

    Args:
        running: the number of jobs that are running now, and that a pause doesn't stop. It doesn't count partitions in `unconfirmed`.
        unconfirmed: the partitions that can't be reached, such as `orders/3`. Workers repeat the change there every second.
    """

    changed: bool
    running: int = 0
    unconfirmed: tuple[str, ...] = ()

    def __bool__(self) -> bool:
        return self.changed


def pause(
    queue: str | None = None,
    *,
    task: Task[Any, Any] | str | None = None,
    name: str | None = None,
    until: datetime | None = None,
    actor: str = "",
    reason: str = "",
) -> PauseReply:
    """Pauses a queue, or the jobs of a task or with a concurrency name in all queues. Pass one of them. Workers start no more of these
    jobs within two seconds, but running jobs continue. The pause is stored in the database first, so that it continues if Redis loses
    its data.

    Args:
        queue: the name of the queue.
        task: a task or its name.
        name: the name that `serial` or `concurrency` gives to jobs, such as `partner:7`.
        until: when the pause ends by itself, by the clock of Redis.
        actor: who pauses it, for the events.
        reason: a text that the admin displays.

    Raises:
        ConfigError: an argument is invalid, or you call it in a transaction.
        QueueUnknown: the settings don't list the queue.
        StoreUnavailable: neither the database nor a partition of the queue can be reached. While the database is away, a queue is only
            paused in Redis, and workers store the pause later. Repeat the call. Also raised if a queue belongs to another site.
    """
    refuse_loop("delayq.apause(…)")
    check_words("pause()", actor, reason)
    word = _word("pause()", queue, task, name)
    if until is not None and (not isinstance(until, datetime) or until.tzinfo is None):
        raise ConfigError(f"pause(): until={until!r} must be a date in the future with a time zone.")
    return _change(word, "pause()", paused=True, until=until, actor=actor, reason=reason)


def resume(
    queue: str | None = None,
    *,
    task: Task[Any, Any] | str | None = None,
    name: str | None = None,
    pace: str | None = None,
    actor: str = "",
    reason: str = "",
) -> PauseReply:
    """Ends the pause of a queue, a task or a name. Jobs that a task or a name held return in the order of their dates, as many as
    workers can start, so that they do not delay other jobs.

    Args:
        queue: the name of the queue.
        task: a task or its name.
        name: the name that `serial` or `concurrency` gives to jobs.
        pace: how many of the jobs that a task or a name held can return in a period, in each partition, such as `100/m`.
        actor: who resumes it, for the events.
        reason: a text that the admin displays.

    Raises:
        ConfigError, QueueUnknown, StoreUnavailable: see `pause`.
    """
    refuse_loop("delayq.aresume(…)")
    check_words("resume()", actor, reason)
    word = _word("resume()", queue, task, name)
    if pace is not None and queue is not None:
        raise ConfigError("resume(): pace is only possible with task or name.")
    return _change(word, "resume()", paused=False, pace_ms=0 if pace is None else _pace_ms(pace), actor=actor, reason=reason)


apause, aresume = twin(pause), twin(resume)


def _word(where: str, queue: str | None, task: Task[Any, Any] | str | None, name: str | None) -> str:
    """The word of a queue, a task or a concurrency name."""
    if sum(given is not None for given in (queue, task, name)) != 1:
        raise ConfigError(f"{where}: pass a queue, a task or a name, and only one of them.")
    if queue is not None:
        return queue_word(conf.get().queue(queue).name)
    outbox.check_installed()
    if name is not None:
        if not isinstance(name, str) or not is_text(name):
            raise ConfigError(f"{where}: name={name!r} must be text with 1 to {MAX_NAME} printable characters.")
        return f"name:{name}"
    named = getattr(task, "name", task)
    if not isinstance(named, str) or not named or len(named) > MAX_TASK:
        raise ConfigError(f"{where}: task={task!r} must be a task or its name.")
    return f"task:{named}"


def _pace_ms(pace: str) -> int:
    found = re.fullmatch(r"([1-9]\d{0,5})/([smhd])", pace) if isinstance(pace, str) else None
    if found is None:
        raise ConfigError(f"resume(): pace={pace!r} must be a number and a unit, such as '100/m' (s, m, h or d).")
    return max(1, int(durations.seconds(f"1{found[2]}") * 1000 / int(found[1])))


def _change(
    word: str, where: str, *, paused: bool, actor: str, reason: str, until: datetime | None = None, pace_ms: int = 0
) -> PauseReply:
    """Commits the state of a word, and sends it to its partitions."""
    kind, _, name = word.partition(":")
    by = {"actor": actor, "reason": reason}
    if not outbox.installed:
        return _change_in_redis(name, paused=paused, until=until, **by)
    if commit.is_open(connections[conf.get().database]):
        raise ConfigError(f"{where}: a transaction is open. Call it after the commit, because a rollback could not undo it.")
    try:
        if until is not None and outbox.pauses.has_passed(until):
            raise ConfigError(f"{where}: until={until!r} must be a date in the future with a time zone.")
        if paused and kind == "task" and registry.find(name) is None and not outbox.pauses.has_jobs(name):
            raise ConfigError(f"{where}: no task is named {name!r}{did_you_mean(name, registry.names())}.")
        changed = outbox.pauses.write(*_spellings(word), paused=paused, parts=[*partitions(word)], until=until, pace_ms=pace_ms, **by)
    except (DatabaseError, InterfaceError) as error:
        if kind != "queue":
            raise
        logger.warning("queue %s is %s only in Redis until the database can be reached: %s", name, PAST[paused], error)
        return _change_in_redis(name, paused=paused, until=until, **by)
    all_sent = [send_word(one) for one in _spellings(word)]
    for sent in all_sent:
        if sent.refused is not None:
            raise sent.refused
    left = dict.fromkeys(label for sent in all_sent for label in sent.left)
    changed = changed or any(sent.changed for sent in all_sent)
    return PauseReply(changed=changed, running=sum(sent.running for sent in all_sent), unconfirmed=tuple(left))


def _spellings(word: str) -> list[str]:
    """The words of a pause: Redis compares the names that jobs have, so a task is paused under each of its names."""
    kind, _, name = word.partition(":")
    return [f"task:{one}" for one in registry.spellings(name)] if kind == "task" else [word]


def pause_aliases() -> None:
    """Pauses tasks that are paused under one of their names under the others: a deploy has given them an alias.

    Raises:
        DatabaseError: call again.
    """
    if not (aliased := [_spellings(f"task:{task.name}") for task in registry if task.aliases]):
        return
    paused = {row.word for row in outbox.pauses.of_pauses() if row.paused_at}
    for words in aliased:
        if paused & {*words} and not paused >= {*words}:
            outbox.pauses.spread(words, [*partitions(words[0])])
            for word in words:
                send_word(word)


def _change_in_redis(queue: str, *, paused: bool, until: datetime | None, actor: str, reason: str) -> PauseReply:
    """Pauses or resumes a queue without a row. `PauseLoop` writes it later."""

    def in_one(store: QueueStore) -> tuple[tuple[bool, int], bool]:
        if paused:
            changed = store.pause(actor=actor, reason=reason, until_ms=clock.to_ms(until) if until else 0, alone=True)
        else:
            changed = store.resume(actor=actor, reason=reason, alone=True)
        return (changed, LimitStore(store).running()), False

    done = [*_each(queue, in_one)]
    return PauseReply(changed=any(changed for changed, _ in done), running=sum(running for _, running in done))


def running(queue: str | None = None, *, task: str | None = None, name: str | None = None) -> int:
    """The number of running jobs of a queue, a task or a concurrency name.

    Raises:
        ConfigError, QueueUnknown, StoreUnavailable.
    """
    words = _spellings(_word("running()", queue, task, name))
    names = conf.get().queues if queue is None else [queue]
    return sum(sum(_each(one, lambda store: (sum(map(LimitStore(store).running, words)), False))) for one in names)


def partitions(word: str = "") -> dict[str, QueueStore]:
    """The partitions of all queues by their labels, or those of a word."""
    config = conf.get()
    there = [queue for queue in config.queues.values() if not word or outbox.pauses.is_of(word, queue.name)]
    return {queue.label(store.partition): store for queue in there for store in stores.parts(queue.name)}


class SentWord(NamedTuple):
    """`left`: the partitions that have not confirmed the state of the word. `running`: the number of running jobs with the word in
    those that have. `changed`: whether it was another state in one of them. `refused`: one of the partitions is of another site.
    """

    left: list[str]
    running: int
    changed: bool
    refused: StoreUnavailable | None


def send_word(word: str) -> SentWord:
    """Sends the state of a word to the partitions that lack it."""
    parts, answers, errors = partitions(word), list[tuple[bool, int]](), list[StoreUnavailable]()

    def call(labels: Collection[str], row: Pause) -> list[str]:
        confirmed = []

        def one(label: str) -> tuple[bool, int]:
            store = parts[label]
            with stores.guarded(store.queue, store.partition):
                changed = outbox.pauses.send(store, row, stores.replicas(store.queue))
                return changed, LimitStore(store).running(word)

        known = [label for label in labels if label in parts]
        for label, answer in FanOut[str]().each(known, lambda label: parts[label].link, one):
            if isinstance(answer, StoreUnavailable):
                errors.append(answer)
            else:
                confirmed.append(label)
                answers.append(answer)
        return confirmed

    left, refused = outbox.pauses.confirm(word, call), next(filter(is_refusal, errors), None)
    return SentWord(left, sum(running for _, running in answers), any(changed for changed, _ in answers), refused)


def purge(queue: str, *, actor: str = "", reason: str = "") -> Iterator[int]:
    """Cancels all scheduled jobs of a queue, also committed ones that Redis does not have; running jobs go on. Yields how many,
    after every step of at most 200.

    Raises:
        QueueUnknown, StoreUnavailable.
    """
    check_words("purge()", actor, reason)
    config, away = conf.get().queue(queue), None
    named = config.name
    try:
        yield from _purge_rows(named, actor, reason)  # first: rows that the relay publishes in the meantime are then purged in Redis
    except StoreUnavailable as error:
        if not config.divided or is_refusal(error):
            raise
        away = error

    def empty(store: QueueStore) -> tuple[int, bool]:
        cancelled, left = store.purge(actor=actor, reason=reason)
        return cancelled, bool(left and cancelled)

    yield from _each(named, empty)
    if away is not None:
        raise away


def _each(queue: str, act: Callable[[QueueStore], tuple[T, bool]]) -> Iterator[T]:
    """Yields the results of `act` for all partitions; it also returns whether to call it again. If the server of one partition is
    away, the others still run. It is safe to call this again.

    Raises:
        StoreUnavailable: with several partitions, it names those that were not reached.
    """
    config, parts = conf.get().queue(queue), stores.parts(queue)
    first: StoreUnavailable | None = None
    missed: list[str] = []

    def guarded(store: QueueStore) -> tuple[T, bool]:
        with stores.guarded(queue, store.partition):
            return act(store)

    for store, answer in FanOut[QueueStore]().each(parts, lambda store: store.link, guarded):
        if isinstance(answer, StoreUnavailable):
            if not config.divided or is_refusal(answer):
                raise answer
            first = first or answer
            missed.append(config.label(store.partition))
            continue
        result, more = answer
        yield result
        if more:
            parts.append(store)  # after the others
    if first is not None:
        raise StoreUnavailable(code="partitions_away", partitions=", ".join(missed), cause=str(first)) from first


def _purge_rows(queue: str, actor: str, reason: str) -> Iterator[int]:
    if not outbox.installed:
        return
    config, fan_out = conf.get().queue(queue), FanOut[tuple[int, list[UUID]]]()

    def cancel(part: tuple[int, list[UUID]]) -> int:
        partition, there = part
        with stores.guarded(queue, partition):  # most of these rows are only not mirrored yet: Redis has the jobs
            views = stores.inspector().jobs(queue, there)
        lacking = [id for id, view in zip(there, views, strict=True) if view is None]
        answers = acts.cancel_each([ChangeTarget(id, queue) for id in lacking], actor=actor, reason=reason)
        return [loader.value(answer) for answer in answers].count(Change.DONE)

    last = None
    while cancelled := outbox.far_rows.purge(queue, MOST, actor, reason):
        yield cancelled
    while rows := outbox.jobs.unpublished(queue, last, MOST):
        last = rows[-1]
        parts = ids.by_partition(rows).items()
        for _, answer in fan_out.each(parts, lambda part: stores.places.of(queue, part[0]), cancel):
            if not isinstance(answer, StoreUnavailable):
                yield answer
            elif not config.divided or is_refusal(answer):
                raise answer
    fan_out.raise_first()
