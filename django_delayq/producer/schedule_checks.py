"""What is refused of what `schedule` is given, beside what the options themselves refuse."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any

from django.db import connections

from django_delayq.exceptions import ConfigError, PayloadError
from django_delayq.producer import commit, migration_hints
from django_delayq.producer.options import NAMES, OPTIONS, JobTemplate, duration, moment
from django_delayq.producer.stores import stores
from django_delayq.shared_name import NAMED
from django_delayq.states import CARRIED, PERIODIC
from django_delayq.token_limits import ONLY


def refuse_options(task: Any, kwargs: Mapping[str, Any], *, mixed: bool = False) -> None:
    """Refuses what means an option, and stands among the arguments of a task that takes any. `mixed`: the call takes options as well,
    so that a word close to one is a slip of the pen.
    """
    if not task.takes_any:
        return  # its signature refuses them
    for name in kwargs:
        if name in task.keywords or not (mixed or name in NAMES):
            continue
        meant = migration_hints.of_keyword(label(task), name, OPTIONS, cutoff=0.8)
        if meant:
            own = f" To pass it to the task, write {label(task)}.schedule(…, {name}=…)." if mixed else ""
            raise ConfigError(f"schedule({task.name}): {meant}.{own}")


def label(task: Any) -> str:
    """What a task is called in the code of a project."""
    try:
        return str(object.__getattribute__(task, "task").fn.__name__)
    except AttributeError:
        return "task"


def expires_at(value: Any, delay_ms: int | None, due_ms: int, template: JobTemplate) -> int:
    """By Redis' clock, which decides; by this host's only if Redis cannot be asked."""
    now_ms, where = stores.now_ms(template.queue.name), template.where
    expires_ms = moment(value, "expires", where) if isinstance(value, datetime) else now_ms + duration(value, "expires", where)
    if expires_ms <= (due_ms if delay_ms is None else now_ms + delay_ms):
        raise ConfigError(
            f"{where}: expires={value!r} is not after the date of the job, so the job could never run. Both count from now: pass an "
            f"expiry that is longer than the delay, or none."
        )
    return expires_ms


def checked_meta(value: Any, where: str) -> dict[str, Any]:
    """`meta=`, in which the package has names of its own."""
    if not isinstance(value, Mapping):
        raise PayloadError(f"{where}: meta must be a dict with text keys, not {value!r}.")
    if CARRIED in value:
        raise PayloadError(f"{where}: meta has the key {CARRIED!r}, which is reserved for carriers. Use another key.")
    if NAMED in value:
        raise PayloadError(
            f"{where}: meta has the key {NAMED!r}, which is reserved for the name of a job. Pass serial= or concurrency= instead."
        )
    if ONLY in value:
        raise PayloadError(f"{where}: meta has the key {ONLY!r}, which is reserved for the limit of a token. Use another key.")
    if PERIODIC in value:
        raise PayloadError(f"{where}: meta has the key {PERIODIC!r}, which is reserved for jobs of schedules. Use another key.")
    return dict(value)


def check_transaction(alias: str, where: str) -> None:
    """Refuses a row that would be committed at once while the caller's own transaction, of another database, may be rolled back."""
    if len(connections.settings) == 1 or commit.is_open(connections[alias]):
        return
    for other in connections.all(initialized_only=True):
        if commit.is_open(other):
            raise ConfigError(
                f"{where}: a transaction is open on the database {other.alias!r}, and the row of the job goes into {alias!r} "
                f"(DELAYQ['DATABASE']): if the transaction is rolled back, the job still runs. Open one on {alias!r} "
                f"around both; pass using={alias!r} to publish the job even after a rollback; or, to publish it at the commit on "
                f"{other.alias!r}, using={other.alias!r} and durability='redis'."
            )
