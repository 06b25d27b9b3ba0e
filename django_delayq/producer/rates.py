"""Rates that people set: they count instead of the one that a task declares, for all jobs with that name, in all queues."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from django.db import connections

from django_delayq import conf
from django_delayq.exceptions import ConfigError, StoreUnavailable
from django_delayq.job_meta import MAX_NAME, Quota, is_text
from django_delayq.producer import commit, outbox, queues
from django_delayq.producer.async_api import refuse_loop, twin
from django_delayq.producer.lookup import check_words
from django_delayq.producer.stores import stores
from django_delayq.store.connection.link import FanOut
from django_delayq.store.scripts.limits import LimitStore

WHERE: Final = "set_rate()"


@dataclass(frozen=True, slots=True, kw_only=True)
class RateReply:
    """The result of a change of a rate. It is true if it changed something.

    Args:
        waiting: the number of due jobs that waited for a token of the rate before the change. It doesn't count partitions that can't
            be reached.
        seconds: how long the last of them waits with the new rate; 0 if the rate was reset.
        unconfirmed: the partitions that can't be reached, such as `orders/3`. Workers repeat the change there every second.
    """

    changed: bool
    waiting: int = 0
    seconds: float = 0.0
    unconfirmed: tuple[str, ...] = ()

    def __bool__(self) -> bool:
        return self.changed


def set_rate(
    name: str, rate: str | None, *, burst: int | None = None, dry_run: bool = False, actor: str = "", reason: str = ""
) -> RateReply:
    """Sets how many jobs with this name can start in a period, instead of the rate that tasks declare. It takes effect at once, also
    for jobs that wait, and is stored in the database, so that it remains if Redis loses its data. Each queue counts by itself.

    Args:
        name: the name that `rate` gives to jobs, such as `bank:7`.
        rate: a number per unit, such as `100/m` (s, m, h or d). With None, the rate that tasks declare counts again.
        burst: how many can start at once after a quiet time. The default is as many as are due in 100 ms, at least 1.
        dry_run: only returns the answer that the call would have.
        actor: who sets it, for the events.
        reason: a text that the admin displays.

    Raises:
        ConfigError: an argument is invalid, or you call this in a transaction or without the outbox.
    """
    refuse_loop("delayq.aset_rate(…)")
    check_words(WHERE, actor, reason)
    outbox.check_installed()
    if not is_text(name):
        raise ConfigError(f"{WHERE}: name={name!r} must be text with 1 to {MAX_NAME} printable characters.")
    pace = None if rate is None else Quota.read(rate, burst)
    if rate is not None and pace is None:
        raise ConfigError(f"{WHERE}: rate={rate!r}, burst={burst!r} must be a number and a unit, such as '100/m' (s, m, h or d).")
    told, before = pace.told() if pace else "", pace_of(name)
    count = waiting(name)  # before the change, because workers then start jobs that it lets go
    if dry_run:
        changed, unconfirmed = told != (before.told() if before else ""), list[str]()
    elif commit.is_open(connections[conf.get().database]):
        raise ConfigError(f"{WHERE}: a transaction is open. Call it after the commit, because a rollback could not undo it.")
    else:
        word, parts = f"{outbox.pauses.RATE}{name}", queues.partitions()
        changed = outbox.pauses.write(word, paused=pace is not None, parts=parts, rate=told, actor=actor, reason=reason)
        unconfirmed = queues.send_word(word).left
    return RateReply(
        changed=changed, waiting=count, seconds=count * pace.each_ms / 1000 if pace else 0.0, unconfirmed=tuple(unconfirmed)
    )


aset_rate = twin(set_rate)


def pace_of(name: str) -> Quota | None:
    """The rate that a person has set for a name."""
    row = outbox.pauses.of_word(f"{outbox.pauses.RATE}{name}")
    return Quota(*map(int, row.rate.split(":"))) if row else None


def waiting(name: str) -> int:
    """The number of due jobs that wait for a token of a rate, in all partitions that can be reached."""
    parts, found = queues.partitions(), 0

    def one(label: str) -> int:
        store = parts[label]
        with stores.guarded(store.queue, store.partition):
            return LimitStore(store).waiting(name)

    for _, answer in FanOut[str]().each(parts, lambda label: parts[label].link, one):
        found += 0 if isinstance(answer, StoreUnavailable) else answer
    return found
