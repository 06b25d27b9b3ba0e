"""Publishes rows to Redis. The commit hook, the relay, and every change of a job that Redis lacks publish through this module, so
that date, policy, key and cancel follow the same rules.

A first publication, right after its commit, acts in order of arrival. A late publication (by the relay, or after a refusal) does not
act on a holder whose row was written after its own row, by the database's clock. Its job is merged into the holder. Knowledge about
rows is valid for one epoch, which every publication names. If Redis has another epoch, it refuses the publication, and the rows are
read again.

Redis knows who holds a key, unless the server lacks jobs or is not confirmed yet. Then the rows decide.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence, Set
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final, NamedTuple
from uuid import UUID

from django_delayq import clock, conf, ids
from django_delayq.exceptions import StoreUnavailable
from django_delayq.failpoints import failpoint
from django_delayq.producer import outbox
from django_delayq.producer.breaker import CircuitOpen
from django_delayq.producer.outbox.shapes import StoredJob, WaitingRow
from django_delayq.producer.stores import stores
from django_delayq.states import FINISHED, EndingKind, State
from django_delayq.store.connection.error_replies import StoreError
from django_delayq.store.scripts.queue import MOST, QueueStore
from django_delayq.store.scripts.record import (
    CREATED,
    DECIDED,
    FORBIDDEN,
    REFUSED,
    DebouncePolicy,
    ScheduleItem,
    ScheduleMode,
    ScheduleReply,
    ScheduleStatus,
    first_ms,
)
from django_delayq.store.scripts.replicas import COOLDOWN, Replicas

if TYPE_CHECKING:
    from django_delayq.store.scripts.recovery import Restored

ASKS: Final = ("ask", "ask told")  # modes in which nothing is written
BESIDE: Final[Mapping[str, ScheduleStatus]] = {"error": "taken", "replace": "running", "after": "behind"}
UNCONFIRMED: Final = 1.0  # seconds for which the publisher remembers that an epoch is unconfirmed
TRIES: Final = 3  # another holder may come between two calls, but not often
Sent = tuple[str, list[ScheduleReply]]  # the epoch and the replies; no replies if Redis has another epoch than the sender


class Published(NamedTuple):
    """The rows that were sent, with one reply each. There are no replies if Redis had another epoch by then."""

    epoch: str
    jobs: list[UUID]
    replies: list[ScheduleReply]


@dataclass(slots=True)  # not frozen: one is made for each call of schedule, and setting its fields would take longer
class Publisher:
    """Publishes to one partition of a queue. It ignores rows of other partitions, which may have the same key.

    Args:
        max_events, replicas: see `QueueStore.start_schedule`; `replicas` only with redis durability, since rows need none.

    Raises (all methods):
        StoreUnavailable, StoreError: as `QueueStore`; the rows are unchanged, and may be published again.
        DatabaseError: the rows are unchanged here, too.
    """

    store: QueueStore
    max_events: int = 0
    actor: str = ""
    replicas: Replicas | None = None

    @classmethod
    def of(cls, queue: str, partition: int, *, durable: bool = True) -> Publisher:
        """The publisher of a partition for a process that schedules. `durable`: whether it publishes rows."""
        replicas = None if durable else stores.replicas(queue)
        return cls(stores.queue(queue, partition), conf.get().most_events_in(queue), replicas=replicas)

    def publish(self, items: Sequence[ScheduleItem], epoch: str = "") -> Sent:
        """At most 200 jobs, in this order. `epoch`: in which their rows were read, or written ("": there are no rows)."""
        sent = self._after_rows(items, epoch, "told") if self.store.unconfirmed[0] else None
        return self.finish(items, sent or self.send(items, epoch)(), epoch)

    def publish_rows(self, jobs: Sequence[UUID], *, due_ms: int | None = None, mode: ScheduleMode = "") -> Published:
        """Publishes the rows, at most 200, that are not published yet, as late publications. `due_ms`: a date that replaces their
        own.
        """
        epoch = self.store.epoch()
        items = [late(row, due_ms) for row in self._rows(jobs) if row.unpublished]
        held = self.held(items)
        free = [item for item in items if item.id not in held]
        if not free:
            return Published(epoch, list(held), list(held.values()))
        self.meet(item.key for item in free)
        epoch, replies = self.finish(free, self.send(free, epoch, mode)(), epoch)
        told = [*held, *(item.id for item in free)]
        return Published(epoch, told[: len(held) + len(replies)], [*held.values(), *replies])

    def held(self, items: Sequence[ScheduleItem]) -> dict[UUID, ScheduleReply]:
        """Returns the replies for items whose keys are held by unresolved rows, which Redis does not know. Writes the replies into
        the rows of the items.
        """
        keys = {item.key for item in items if item.key}
        return self._held(items, outbox.jobs.waiting(self.store.queue, keys)) if keys else {}

    def _held(self, items: Sequence[ScheduleItem], waiting: Sequence[WaitingRow]) -> dict[UUID, ScheduleReply]:
        holders = {row.key: row for row in waiting if row.unresolved}
        if not holders:
            return {}
        found = [(item, _beside_unresolved(item, holders[item.key])) for item in items if item.key in holders]
        denied = self._tell(found, "")
        return {item.id: FORBIDDEN if item.id in denied else reply for item, reply in found}

    def meet(self, keys: Iterable[str]) -> None:
        """Makes the far rows of these keys near, so that the script decides: a process that wrote a row of one of these keys may have
        died before it looked for far rows. The relay publishes the rows.
        """
        named = {key for key in keys if key}
        if named and conf.get().queue(self.store.queue).horizon:
            outbox.far_rows.bring_in_keys(self.store.queue, named)

    def publish_before(self, items: Sequence[ScheduleItem], waiting: Sequence[WaitingRow] | None = None) -> dict[UUID, ScheduleReply]:
        """Publishes the older rows of the same keys that Redis lacks. Otherwise such a row, published late, would find the key free
        after a newer job has run. Returns those of `items` that must not be published, see `held`. `waiting`: the rows of these keys,
        if they were read after the commit.
        """
        own, passed, older = {item.id for item in items}, set(), []
        if waiting is None:
            keys = {item.key for item in items if item.key}
            waiting = outbox.jobs.waiting(self.store.queue, keys) if keys else []
        for row in waiting:
            if row.id in own:
                passed.add(row.key)
            elif row.key not in passed and not row.unresolved:
                older.append(row.id)
        if older and (lacking := self._lacking(older)):
            self.publish_rows(lacking)
        return self._held(items, waiting)

    def complete(self, keys: Collection[str]) -> None:
        """Publishes the rows of these keys that Redis lacks, whether it lost them or never had them."""
        self._put_in(keys, lost=True)

    def bring_back(self, jobs: Sequence[UUID], *, due_ms: int | None = None) -> list[Restored]:
        """Restores those of these rows, at most 200, that are published and unfinished, and that Redis may have lost. Jobs that Redis
        has are not changed.
        """
        epoch = self.store.epoch()
        rows = [row for row in self._rows(jobs) if row.unfinished and row.published]
        if not rows:
            return []
        store, lease_ms = stores.recovery(self.store), conf.get().queue(self.store.queue).lease_ms
        self._take_away(self._rows(store.holders({row.record.key for row in rows if row.record.key})))
        failpoint("publish.bring_back")
        lost = [
            store.row(
                row.record,
                runs=row.state is State.RUNNING,
                attempts=row.attempts,
                crashes=row.crashes,
                asks=row.asked,
                cancel=row.cancel_requested,
                due_ms=row.run_at_ms if due_ms is None else due_ms,
                lease_ms=lease_ms,
                first_ms=first_ms(row.on_conflict, row.created_at),
            )
            for row in rows
        ]
        if due_ms is not None:  # with a date this is a change, and Redis has answered that no worker has started them
            lost = [item._replace(unsure_ms=0) for item in lost]
        answers = store.restore(lost, epoch=epoch, actor=self.actor)
        failpoint("publish.brought_back")
        return answers

    def ask(self, items: Sequence[ScheduleItem]) -> list[ScheduleReply]:
        """Returns what would happen to jobs with keys, if each were scheduled now. Schedules nothing. Rows of these keys that Redis
        lacks are published first.
        """
        sent = self._after_rows(items, "", "ask told")
        told = {*range(len(items))} if sent else set[int]()
        _, replies = sent or self._noted(self.send(items, "", "ask")())
        if not told:
            again = self._decided(items, replies)
            told = {*again}
            self._ask_again(list(again.values()), again, replies)
        free = [n for n, reply in enumerate(replies) if reply.status == "free" and items[n].durable]
        if not free:
            return replies
        waiting = outbox.jobs.waiting(self.store.queue, {items[n].key for n in free})
        unresolved = {row.key: row for row in reversed(waiting) if row.unresolved}
        mine = {row.key for row in waiting if ids.partition(row.id) == self.store.partition}
        for n in free:
            if (row := unresolved.get(items[n].key)) is not None:
                replies[n] = _beside_unresolved(items[n], row)
        late = [n for n in free if n not in told and items[n].key in mine and items[n].key not in unresolved]
        self._put_in({items[n].key for n in late}, lost=False)
        self._ask_again([items[n] for n in late], late, replies)
        return replies

    def _ask_again(self, items: Sequence[ScheduleItem], places: Iterable[int], replies: list[ScheduleReply]) -> None:
        """Asks again, after the rows of these keys were published."""
        if items:
            for n, reply in zip(places, self.send(items, "", "ask told")()[1], strict=True):
                replies[n] = reply

    def _after_rows(self, items: Sequence[ScheduleItem], epoch: str, mode: ScheduleMode) -> Sent | None:
        """Sends jobs in an epoch that Redis has reported as unconfirmed within the last second. Redis would only answer that the rows
        must be asked first, so this publishes the rows of the keys first. Returns None if no such epoch is known, or if Redis has
        another epoch by now.
        """
        unconfirmed, until = self.store.unconfirmed
        if clock.monotonic() >= until or epoch not in ("", unconfirmed):
            return None
        self._put_in({item.key for item in items if item.key}, lost=True, but={item.id for item in items})
        sent = self.send(items, unconfirmed, mode)()
        return sent if sent[1] else None

    def _noted(self, sent: Sent) -> Sent:
        """Remembers that this epoch is unconfirmed. It does not remember the holder of a key: another process may change it at any
        time.
        """
        epoch, replies = sent
        if epoch.endswith(":") and any(reply.status == "asked" for reply in replies):
            self.store.unconfirmed = epoch, clock.monotonic() + UNCONFIRMED
        return sent

    def resolve_repeats(self, items: Sequence[ScheduleItem], sent: Sent) -> Sent:
        """Completes the reply to jobs that were sent a second time. If a job was merged the first time, only a tombstone is left. So
        this asks the script about another job of the same key, which is not scheduled.
        """
        epoch, replies = sent
        for n, (item, reply) in enumerate(zip(items, replies, strict=True)):
            if reply.status == "displaced" and item.key:
                policy = item.on_conflict if item.on_conflict == "error" else "keep"
                probe = replace(ScheduleItem.of(item, delay_ms=0, on_conflict=policy), id=ids.new(ids.partition(item.id)))
                _, [found] = self.send([probe], "", "ask told")()
                if found.status in ("kept", *REFUSED):
                    replies[n] = found
        return epoch, replies

    def put_in_waiting(self, key: str) -> bool:
        """Publishes the unpublished rows of a key. Returns whether there were any."""
        waiting = outbox.jobs.waiting(self.store.queue, [key])
        waits = any(ids.partition(row.id) == self.store.partition for row in waiting)
        if waits:
            self._put_in([key], lost=False)
        return waits

    def send(self, items: Sequence[ScheduleItem], epoch: str, mode: ScheduleMode = "") -> Callable[[], Sent]:
        """Sends the call without waiting. Returns a function that waits for the reply. Pass the reply to `finish`."""
        replicas = None if mode in ASKS else self.replicas
        if replicas is not None and replicas.cooldown:
            raise CircuitOpen(
                code="redis_left_alone", seconds=COOLDOWN, where=self.store.link.where, cause="its replicas lack what was written"
            )
        told: Any = {"actor": self.actor, "max_events": self.max_events, "epoch": epoch, "mode": mode}
        return self.store.start_schedule(items, replicas=replicas, **told)

    def finish(self, items: Sequence[ScheduleItem], sent: Sent, epoch: str = "") -> Sent:
        """Decides the items that the first call could not decide, and writes the answers into the rows. `epoch`: the epoch that the
        first call named.
        """
        stood, replies = sent
        for reply in replies:
            if reply.status not in DECIDED:
                break
        else:
            return sent
        self._noted(sent)
        for _ in range(TRIES):
            again = self._decided(items, replies)
            if not again:
                break
            try:
                stood, decided = self.send(list(again.values()), epoch, "told")()
            except (StoreUnavailable, StoreError) as error:
                error.nothing_done = error.nothing_done and not any(reply.status in CREATED for reply in replies)
                raise
            if not decided:
                return stood, []
            for n, reply in zip(again, decided, strict=True):
                replies[n] = reply
        denied = self._tell([(item, reply) for item, reply in zip(items, replies, strict=False) if item.durable], epoch)
        return stood, [FORBIDDEN if item.id in denied else reply for item, reply in zip(items, replies, strict=False)]

    def _decided(self, items: Sequence[ScheduleItem], replies: list[ScheduleReply]) -> dict[int, ScheduleItem]:
        """Returns the items to send again, by number: those whose answer depends on rows, and late ones, each with the policy that it
        may use. A job that runs according to its row is not replaced, even if it waits here until its worker has adopted it. A job
        that comes after it is `behind`.
        """
        asked = [n for n, reply in enumerate(replies) if reply.status == "asked"]
        contested = [n for n, reply in enumerate(replies) if reply.status == "contested"]
        if not asked and not contested:
            return {}
        open_ = {items[n].id: replies[n].id for n in sorted([*asked, *contested])}  # each with the holder of its key
        rowless = {items[n].id for n in asked if not items[n].durable}
        wanted = {*open_, *open_.values()} - rowless
        rows = outbox.jobs.read(wanted) if outbox.installed else {}
        if asked:
            self._put_right({items[n].key for n in asked}, [rows.get(replies[n].id) for n in asked], set(open_))
        again, now = {}, clock.monotonic()  # one time for all, so that the first delay to start is due first
        for n in sorted([*asked, *contested]):
            item, holder = items[n], rows.get(replies[n].id)
            policy, late, _ = item.on_conflict.partition("@")
            runs = holder is not None and holder.state is State.RUNNING and holder.record.id != item.id
            if n not in asked and not _older(holder, rows.get(item.id)):
                policy, late = "keep", ""
            elif holder is not None and runs and policy == "after" and item.durable:
                replies[n] = replies[n]._replace(status="behind") if item.may_know(holder.record.task) else FORBIDDEN
                continue
            elif runs and policy == "replace":
                policy, late = "error", ""
            policy = f"{policy}@{ids.short(replies[n].id)}" if late else policy
            again[n] = ScheduleItem.of(item, due_ms=item.due_ms, delay_ms=item.left_ms(now), on_conflict=policy)
        return again

    def _put_right(self, keys: Set[str], holders: Sequence[StoredJob | None], own: Set[UUID]) -> None:
        """Removes holders that have ended according to their rows, which this server does not know. Then publishes the rows of these
        keys that it lacks.
        """
        self._take_away(list({row.record.id: row for row in holders if row is not None}.values()))
        self._put_in(keys, lost=True, but=own)

    def _take_away(self, holders: Sequence[StoredJob]) -> None:
        """Removes holders that have ended by an event that this server lacks. If they stayed, the jobs that replaced them would be
        merged into them, and no job of the key would remain.
        """
        epoch = stores.recovery(self.store)
        for row in holders:
            if row.state in FINISHED and epoch.look(row.seen).older:
                epoch.drop([ids.short(row.record.id)], actor=self.actor)

    def _tell(self, answers: Sequence[tuple[ScheduleItem, ScheduleReply]], epoch: str) -> set[UUID]:
        """Writes the answers into the rows. Returns the jobs that wait for a holder to end and may not replace another such job."""
        denied: set[UUID] = set()
        told = [(item.id, reply) for item, reply in answers if reply.status in ("kept", "moved", *REFUSED)]
        if told:  # before the followers are read, because one of these jobs may wait for the same holder
            outbox.jobs.end(EndingKind.MERGED, {id: None if reply is FORBIDDEN else reply.id for id, reply in told})
        behind = {item.id: item.key for item, reply in answers if reply.status == "behind"}
        if behind:
            outbox.follow_ups.await_end({reply.id for _, reply in answers if reply.status == "behind"})
        for followers in self._followers(behind, {reply.id for _, reply in answers if reply.status == "behind"}):
            kept: list[StoredJob] = []
            for row in followers:
                if all(row.record.may_know(other.record.task) for other in kept):
                    kept.append(row)
                else:
                    denied.add(row.record.id)
            *older, last = kept
            if older:
                self._replace(older, last, epoch)
        if denied:
            outbox.jobs.end(EndingKind.MERGED, dict.fromkeys(denied))
        return denied

    def _replace(self, older: list[StoredJob], last: StoredJob, epoch: str) -> None:
        """Among rows that wait for the same holder, keeps the one that was written last, with the earliest date of all. The others
        are ended as replaced.
        """
        policy = f"replaced@{ids.short(last.record.id)}"
        for start in range(0, len(older), MOST):
            batch = older[start : start + MOST]
            replies = self.send([late(row, policy=policy) for row in batch], epoch)()[1]
            # There are no replies if Redis has another epoch. The next pass handles these rows again.
            gone = [row.record.id for row, reply in zip(batch, replies, strict=False) if reply.status == "displaced"]
            outbox.jobs.end(EndingKind.REPLACED, dict.fromkeys(gone, last.record.id))
        first = min(older, key=lambda row: row.run_at_ms)
        if first.run_at_ms < last.run_at_ms:  # the rest of a delay stays a delay
            left = None if first.left_ms is None else max(0, first.left_ms)
            outbox.jobs.move(last.record.id, first.run_at_ms, left, self.actor, "")

    def _followers(self, behind: Mapping[UUID, str], holders: Set[UUID]) -> list[list[StoredJob]]:
        """For each key, the rows that wait for its holder, up to the last of these jobs, oldest first. The row of the holder itself
        may be unpublished.
        """
        if not behind:
            return []
        waiting = outbox.jobs.waiting(self.store.queue, set(behind.values()))
        rows = self._rows([row.id for row in waiting if row.id not in holders])
        rows = [row for row in rows if row.unpublished and row.on_conflict == "after"]
        found = []
        for key in set(behind.values()):
            group = [row for row in rows if row.record.key == key]
            own = [n for n, row in enumerate(group) if row.record.id in behind]
            if own:
                found.append(group[: own[-1] + 1])
        return found

    def _put_in(self, keys: Collection[str], *, lost: bool, but: Set[UUID] = frozenset()) -> None:
        """Publishes the rows of these keys that Redis lacks: unpublished rows, and with `lost` also rows that Redis may have lost. At
        most 200 rows of each key, since the relay publishes the others. `but`: the rows on whose behalf this happens; rows written
        after them wait.
        """
        if not outbox.installed or not keys:
            return
        jobs, seen = [], Counter[str]()
        for id, key in outbox.jobs.keyed(self.store.queue, keys):
            seen[key] += MOST if id in but else 1
            if seen[key] <= MOST and id not in but and ids.partition(id) == self.store.partition:
                jobs.append(id)
        for start in range(0, len(jobs), MOST):
            lacking = self._lacking(jobs[start : start + MOST])
            if lacking and lost:
                self.bring_back(lacking)
            if lacking:
                self.publish_rows(lacking, mode="told")

    def _lacking(self, jobs: Sequence[UUID]) -> list[UUID]:
        """Those of the first 200 that Redis does not know. Most of them are only not mirrored yet. The relay handles the jobs after
        the first 200.
        """
        from django_delayq.store.scripts.events import EventLog  # a web process rarely needs it

        mine = [id for id in jobs if ids.partition(id) == self.store.partition]
        return EventLog(self.store.link, self.store.keys).unknown(mine[:MOST])

    def _rows(self, jobs: Sequence[UUID]) -> list[StoredJob]:
        return [*outbox.jobs.read([id for id in jobs if ids.partition(id) == self.store.partition]).values()]


def _older(holder: StoredJob | None, row: StoredJob | None) -> bool:
    """Whether the holder was written first. False if one of them has no row, since the database's clock has not recorded it."""
    return (
        holder is not None and row is not None and holder.record.durable and row.record.durable and holder.created_at <= row.created_at
    )


def _beside_unresolved(item: ScheduleItem, holder: WaitingRow) -> ScheduleReply:
    """The reply for a job whose key an unresolved row holds. It is the same as for a running holder, since the unresolved job may
    have run or not.
    """
    if not item.may_know(holder.task):
        return FORBIDDEN
    policy = item.on_conflict.partition("@")[0]
    return ScheduleReply(BESIDE.get(policy, "kept"), holder.id, 0)


def late(row: StoredJob, due_ms: int | None = None, *, policy: str = "") -> ScheduleItem:
    """A row as an item of a late publication. A delay counts by the database's clock; a date (or `due_ms`) counts by the clock of
    Redis.
    """
    if not policy:
        debounce = DebouncePolicy.read(row.on_conflict)
        own = str(debounce.on(row.on_conflict, row.created_at)) if debounce else row.on_conflict
        policy = own if own in ("keep", "error") else f"{own}@"
    if due_ms is None and row.left_ms is not None:
        return ScheduleItem.of(row.record, delay_ms=max(0, row.left_ms), on_conflict=policy)
    return ScheduleItem.of(row.record, due_ms=row.run_at_ms if due_ms is None else due_ms, on_conflict=policy)
