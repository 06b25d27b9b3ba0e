"""One partition of one queue: a method per script, in the order of a job's life. Only this module translates arguments and replies of
these scripts.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from types import MappingProxyType
from typing import Any, Final, Literal, NamedTuple, TypeVar, get_args
from uuid import UUID

from django_delayq import clock, ids
from django_delayq.exceptions import DelayqError, PayloadError
from django_delayq.job_meta import told_of
from django_delayq.setting_readers import OfferTarget
from django_delayq.signing import Signer
from django_delayq.spread import times
from django_delayq.states import Change
from django_delayq.store.connection.error_replies import StoreError
from django_delayq.store.connection.link import Link
from django_delayq.store.connection.places import Places
from django_delayq.store.keys import Keys
from django_delayq.store.scripts import decode, formats, loader, site
from django_delayq.store.scripts.record import (
    Changed,
    ClaimedJob,
    JobRecord,
    ScheduleItem,
    ScheduleMode,
    ScheduleReply,
    common_turn,
    moved,
    read,
    repeated,
    schedule_replies,
    with_past,
)
from django_delayq.store.scripts.replicas import Replicas
from django_delayq.store.scripts.site import Trimmed

MOST: Final = 200  # jobs per script call
TAG: Final = 10  # the first characters of a nonce, which are the same in all claims of one consumer
HOUR_MS: Final = 3_600_000
FOREVER_MS: Final = 10**15
DAY_MS: Final = 24 * HOUR_MS

T = TypeVar("T")
Kind = Literal["ack", "retry", "snooze", "ask", "evict", "park", "fail", "crash", "cancel"]
Extended = Literal["ok", "cancel", "abort", "lost", "gone", "wait"]
Settled = Literal["done", "already", "lost", "gone"]
SETTLED: Final[Mapping[bytes, Settled]] = {answer.encode(): answer for answer in get_args(Settled)}
Resigned = Literal["done", "changed", "gone"]


class Claim(NamedTuple):
    """The answer to a claim. `wait_ms`: when to claim again. `more`: due jobs remain. `generation`: that of the store's data.
    `server`: the run of the server ("" if INFO is not allowed). `for_thread`: a due job with a rate waits for an idle thread.
    """

    jobs: list[ClaimedJob]
    wait_ms: float
    now_ms: int
    generation: str
    server: str
    more: bool
    paused: bool
    for_thread: bool = False

    @property
    def epoch(self) -> str:
        """The epoch of the claim. A different one later means that Redis was wiped, rolled back, restarted or replaced."""
        return f"{self.generation}:{self.server}"


class Outcome(NamedTuple):
    """The value in which a run ends. `id` is short. `delay_ms` is used by retry, snooze and ask. `detail` is JSON for the mirror,
    opaque here. `ran_ms`: the duration of the run, below 0 if not known; `late_ms`: how late it started. Two fields are for the
    worker's receivers only, and are not sent to Redis: `error`, which the task raised, and `reason`, a text.
    """

    id: str
    attempt: int
    fence: str
    kind: Kind
    delay_ms: int = 0
    detail: bytes = b""
    ran_ms: int = -1
    late_ms: int = 0
    error: BaseException | None = None
    reason: str = ""


class Tidied(NamedTuple):
    """The result of one call of tidy: how much it dropped, and the `cursor` for the next call ("0": done)."""

    tombstones: int
    failed: int
    cursor: str


_claimed: Final[Callable[[tuple[Any, ...]], ClaimedJob]] = partial(tuple.__new__, ClaimedJob)  # without Python code for each job
FREE: Final = b"free"
Vouch = Literal["1", "", "unresolved"]  # what the caller of requeue knows of the end of the job, see requeue.lua
OfferStatus = Literal["offered", "again", "cancel", "lost", "gone"]


class OfferReply(NamedTuple):
    """The result of an offer, see offer.lua. `place`: the id of its entry; for a list, its length afterwards; else ""."""

    status: OfferStatus
    place: str


class QueueStore:
    """The transitions of one partition. Every call is one script, atomic, and safe to repeat with the same arguments.

    Every method takes `now_ms`, a time for tests; by default Redis' own clock is used. A call takes at most 200 jobs. `replicas`: the
    call returns only when they have the change, see `Replicas`.

    Args:
        places: finds the server of the queue.
        signer: signs every record that this store writes; None writes them unsigned.

    Raises (all methods):
        StoreUnavailable: Redis cannot be reached or refuses for the time being.
        StoreError: it answered with another error.
    """

    def __init__(self, places: Places, *, prefix: str, queue: str, partition: int = 0, signer: Signer | None = None) -> None:
        self.link = places.of(queue, partition)
        self.signer = signer
        self.queue = queue
        self.partition = partition
        self.keys = Keys.of(prefix, queue, partition)
        self._noted = float("-inf")  # when this process has written `seen:<format>` last (monotonic)
        self.unconfirmed = "", 0.0  # an unconfirmed epoch, and until when (monotonic) it is remembered

    @property
    def new_generation(self) -> str:
        """The generation for a store without one. Each call returns another, because a store that is wiped twice must not look the
        same.
        """
        return os.urandom(8).hex()

    def run(self, script: str, now_ms: int | str | None, by: str, why: str, *arguments: Any) -> Any:
        """Runs a script on this partition with its arguments unchanged. Returns the raw reply."""
        return loader.run(self.link, loader.load(script, self.keys), self.keys, *loader.head(now_ms, by, why), *arguments)

    def run_each(
        self, script: str, calls: Sequence[tuple[Any, ...]], read: Callable[[list[Any]], T], replicas: Replicas | None = None
    ) -> list[T | DelayqError]:
        """Runs a script once for each of these arguments, in one write. Returns what `read` makes of the replies to each call, one for
        each time that it was sent; or its error. If all have failed, the first error is raised.
        """
        bounded(calls)
        site.admit(self.link, self.keys)
        called = self.link, loader.load(script, self.keys), self.keys, calls
        sent = [loader.run_each(*called)] if replicas is None else replicas.start(*called)()
        results, failed = list[T | DelayqError](), 0
        for replies in zip(*sent, strict=True):
            answered = [reply for reply in replies if not isinstance(reply, DelayqError)]
            results.append(read(answered) if answered else replies[-1])
            failed += not answered
        if failed == len(calls):
            loader.value(results[0])
        return results

    def _time(self, now_ms: int | None) -> int | str | None:
        """The time argument of schedule and claim, which every process calls. Once a minute it is "!": the clock of Redis, and a write
        of `seen:<format>`. The next release reads there which releases still run.
        """
        if now_ms is not None or clock.monotonic() - self._noted < formats.INTERVAL:
            return now_ms
        self._noted = clock.monotonic()
        return "!"

    def written(self, record: JobRecord) -> bytes:
        """The record in the form that this queue stores. No other function makes these bytes."""
        raw = record.encode()
        return raw if self.signer is None else self.signer.sign(raw, queue=self.queue, id=ids.short(record.id))

    def schedule(
        self, items: Sequence[ScheduleItem], *, actor: str = "", reason: str = "", max_events: int = 0, now_ms: int | None = None
    ) -> list[ScheduleReply]:
        """Nothing -> scheduled. Returns one reply per item, in order. `max_events` above 0: refuses (StoreError "EVENTSFULL") while
        the mirror is that many jobs behind.
        """
        return self.start_schedule(items, actor=actor, reason=reason, max_events=max_events, now_ms=now_ms)()[1]

    def start_schedule(
        self,
        items: Sequence[ScheduleItem],
        *,
        actor: str = "",
        reason: str = "",
        max_events: int = 0,
        epoch: str = "",
        mode: ScheduleMode = "told",
        replicas: Replicas | None = None,
        now_ms: int | None = None,
    ) -> Callable[[], tuple[str, list[ScheduleReply]]]:
        """Like `schedule`, but only sends the call. Returns a function that waits for the epoch and the replies; call it once.
        `epoch`: the epoch for which the sender's knowledge is valid; in another one there are no replies, and nothing is written.
        """
        bounded(items)
        site.admit(self.link, self.keys)
        arguments: list[Any] = [max_events, epoch, mode]
        now, short, written = clock.monotonic(), ids.short, self.written
        for item in items:
            date: Any = item.due_ms
            if (date is None) == (item.delay_ms is None):
                raise ValueError(f"job {short(item.id)}: give either due_ms or delay_ms")
            if date is None:
                date = f"+{item.left_ms(now)}"
            arguments += (short(item.id), written(item), item.told_policy() if item.key else item.on_conflict, date, item.told_name())
        named, head = any(arguments[7::5]), loader.head(self._time(now_ms), actor, reason)
        if named:
            arguments[2] = f"named {mode}"
        else:
            del arguments[7::5]
        script, stride = loader.load("schedule", self.keys), 5 if named else 4
        if replicas is not None:
            answers = replicas.start(self.link, script, self.keys, [(*head, *arguments)])
            return lambda: repeated([schedule_replies(items, arguments, loader.value(reply), stride) for [reply] in answers()])
        answer = loader.start(self.link, script, self.keys, *head, *arguments)
        return lambda: schedule_replies(items, arguments, answer(), stride)

    def epoch(self) -> str:
        """The epoch for publications: the generation, and the confirmed run of the server. A store without a generation gets one."""
        return self.stand()[0]

    def stand(self) -> tuple[str, Trimmed]:
        """The epoch, and what the mirror has trimmed."""
        epoch, upto, token = self.run("epoch", None, "", "", self.new_generation)
        return decode.text(epoch), Trimmed.read(upto, token)

    def claim(
        self,
        worker: str,
        nonce: str,
        *,
        want: int,
        lease_ms: int,
        max_crashes: int,
        epoch: str = "",
        max_events: int = 0,
        wary: bool = False,
        away_ms: int = 0,
        free: int | None = None,
        pulled_ms: int = 0,
        older_ms: int = 0,
        now_ms: int | None = None,
    ) -> Claim:
        """Scheduled and due, or lease run out -> running. A repeat with the same `worker` and `nonce` returns the same jobs.

        `epoch`: the epoch that the worker knows; in another one it gets nothing. `max_events` above 0: it gets nothing while the
        mirror is behind by twice as many jobs. `wary`: a mirror serves this queue, and must confirm a new store before a claim.
        `away_ms`: how long its calls have failed. `free`: the number of idle threads (None: one for each job), and so of jobs with a
        rate that it can get. `pulled_ms` above 0: a consumer of the project claims, and this is the lease of the queue. The leases of
        `lost` jobs ran out; the caller settles these. `older_ms`: only jobs that have been due for as long.

        `want` 0 claims nothing and hands the timer over. `nonce` must be new for each new claim, and consist of letters and digits.
        """
        site.raise_if_refused(self.keys)
        told = (nonce, min(want, MOST), lease_ms, max_crashes, epoch, max_events, int(wary), away_ms, "" if free is None else free)
        pulled = (pulled_ms, older_ms) if pulled_ms else ()
        reply = self.run("claim", self._time(now_ms), worker, "", *told, *pulled)
        generation, server = decode.text(reply[0]), decode.text(reply[1])
        epoch = f"{generation}:{server}"
        turn = common_turn(reply[6])
        jobs = [
            _claimed((id.decode(), int(attempt), int(crashes), int(due), record, nonce, self.queue, epoch, 0, 0, 0, turn, False, False))
            for id, attempt, crashes, due, record in zip(*[iter(reply[7:])] * 5, strict=True)
        ]
        if reply[6] and not turn:
            jobs = with_past(jobs, reply[6], int(reply[2]))
        return Claim(
            jobs=jobs,
            generation=generation,
            server=server,
            now_ms=int(reply[2]),
            wait_ms=float(reply[3]),
            more=reply[4] != b"0",
            for_thread=reply[4] == b"2",
            paused=reply[5] == b"1",
        )

    def extend(
        self,
        items: Sequence[tuple[str, str]],
        *,
        worker: str,
        lease_ms: int,
        progress: Mapping[str, str] | None = None,
        pulled_ms: int = 0,
        now_ms: int | None = None,
    ) -> dict[str, Extended]:
        """Running -> running, later lease, for pairs of short id and fence. `progress`: short id -> "done/total"."""
        bounded(items)
        done = progress or {}
        arguments = [value for id, fence in items for value in (id, fence, done.get(id, ""))]
        lease = f"{lease_ms}/{pulled_ms}" if pulled_ms else lease_ms
        reply = self.run("extend", now_ms, worker, "", lease, *arguments)
        return {id: answer.decode() for (id, _), answer in zip(items, reply, strict=True)}

    def settle(self, items: Sequence[Outcome], *, worker: str, max_crashes: int, now_ms: int | None = None) -> list[Settled]:
        """Running -> succeeded, scheduled, failed or cancelled. One answer per item, in order."""
        bounded(items)
        arguments: list[Any] = []
        for id, attempt, fence, kind, delay_ms, detail, ran_ms, late_ms, _error, _reason in items:
            arguments += (id, attempt, fence, kind, delay_ms, detail, times(late_ms, ran_ms))
        return [SETTLED[answer] for answer in self.run("settle", now_ms, worker, "", max_crashes, *arguments)]

    def offer(
        self, target: OfferTarget, body: bytes, *, id: str, attempt: int, nonce: str, worker: str = "", now_ms: int | None = None
    ) -> OfferReply:
        """Puts the `body` (JSON) of the job with that short id into the target, unless that was done before. This is one call, or
        three on a Cluster if the target's key is in another slot than the queue. Then, if the caller crashes before the last call,
        the body is pushed again.

        Raises:
            StoreUnavailable: StoreRefused with `full`: no memory is left, and nothing was written.
            StoreError: `reply` begins with WRONGTYPE if the target's key has another type.
        """
        content, there = _content(target, id, body), self.link.beside(target.key)

        def sent(*words: Any, beside: str = "") -> Any:
            told = (*loader.head(now_ms, worker, ""), id, attempt, nonce, *words)
            return loader.run(self.link, loader.load("offer", self.keys), self.keys, *told, beside=beside)

        if there is self.link:
            status, place = sent(target.kind, "" if target.maxlen is None else target.maxlen, *content, beside=target.key)
        else:
            status, place = sent("look", "")
            if status == FREE:
                status, place = sent("note", "", _push(there, target, content))
        return OfferReply(status.decode(), decode.text(place))

    def cancel(
        self,
        job: UUID | str,
        *,
        actor: str = "",
        reason: str = "",
        lacking: str = "",
        unless: str = "",
        abort: bool = False,
        replicas: Replicas | None = None,
        now_ms: int | None = None,
    ) -> Changed:
        """Scheduled -> cancelled. A running job gets a request; with `abort` the request ends its run. `job`: an id, or the business
        key as text. `lacking`: the state in the row of a job that Redis does not have: "running"; a date in ms until which it waits;
        "scheduled" for a job that was cancelled before in another epoch; "" if not known. `unless`: in that epoch nothing is done,
        and the result is `unknown`.
        """
        [answer] = self.cancel_each(
            [(job, lacking)], actor=actor, reason=reason, unless=unless, abort=abort, replicas=replicas, now_ms=now_ms
        )
        return loader.value(answer)

    def cancel_each(
        self,
        jobs: Sequence[tuple[UUID | str, str]],
        *,
        actor: str = "",
        reason: str = "",
        unless: str = "",
        abort: bool = False,
        replicas: Replicas | None = None,
        now_ms: int | None = None,
    ) -> list[Changed | DelayqError]:
        """Like `cancel`, for several jobs, each with its `lacking`, in one write. Returns for each job the result, or its error."""
        head = loader.head(now_ms, actor, reason)
        calls = [(*head, lacking, unless, "1" if abort else "", loader.target(job)) for job, lacking in jobs]
        return self.run_each("cancel", calls, Changed.read, replicas)

    def reschedule(
        self,
        job: UUID | str,
        *,
        due_ms: int | None = None,
        delay_ms: int | None = None,
        actor: str = "",
        reason: str = "",
        lacking: str = "",
        unless: str = "",
        policy: str = "",
        replicas: Replicas | None = None,
        now_ms: int | None = None,
    ) -> Changed:
        """Scheduled -> scheduled at another date. `policy`: not if the present date is already earlier, or later; see
        reschedule.lua. For other arguments see `cancel`. `lacking` "waited": another server has made this change before, so the job
        is moved even if it is due here and not confirmed.
        """
        date = f"+{delay_ms or 0}" if due_ms is None else due_ms
        [answer] = self.reschedule_each(
            [(job, lacking, date)], actor=actor, reason=reason, unless=unless, policy=policy, replicas=replicas, now_ms=now_ms
        )
        return loader.value(answer)

    def reschedule_each(
        self,
        jobs: Sequence[tuple[UUID | str, str, int | str]],
        *,
        actor: str = "",
        reason: str = "",
        unless: str = "",
        policy: str = "",
        replicas: Replicas | None = None,
        now_ms: int | None = None,
    ) -> list[Changed | DelayqError]:
        """Like `reschedule`, for several jobs in one write, each with its `lacking`, and a date in ms or a delay, such as "+5000".
        Returns for each job the result, or its error.
        """
        head = loader.head(now_ms, actor, reason)
        calls = [(*head, unless, lacking, policy, loader.target(job), date) for job, lacking, date in jobs]
        return self.run_each("reschedule", calls, moved, replicas)

    def reschedule_many(
        self,
        jobs: Sequence[tuple[UUID, int | str]],
        *,
        actor: str = "",
        reason: str = "",
        unless: str = "",
        policy: str = "",
        now_ms: int | None = None,
    ) -> tuple[str, list[Changed]]:
        """Like `reschedule`, for several jobs in one call of the script, each with a date in ms or a delay, such as "+5000". Returns
        the epoch, and one result per job. In the epoch `unless` there are no results.
        """
        site.admit(self.link, self.keys)
        bounded(jobs)
        told = [value for id, date in jobs for value in (ids.short(id), date)]
        epoch, *reply = self.run("reschedule", now_ms, actor, reason, unless, "", policy, *told)
        return decode.text(epoch), [Changed.read([(epoch, reply[0], *reply[n : n + 4])]) for n in range(1, len(reply), 4)]

    def requeue(
        self,
        job: UUID,
        record: JobRecord | None = None,
        *,
        vouched: bool = True,
        unresolved: bool = False,
        due_ms: int | None = None,
        delay_ms: int = 0,
        actor: str = "",
        reason: str = "",
        now_ms: int | None = None,
    ) -> tuple[Change, UUID]:
        """Failed or cancelled -> scheduled, with a new retry ladder. `record`: for a job that Redis has forgotten. `vouched`: the
        caller knows that it failed or was cancelled; otherwise Redis must still know its cancellation. `unresolved`: a person
        decides, whatever Redis knows of its end. Returns the change, and the job or the holder of its key (conflict).
        """
        date = "" if due_ms is None else due_ms, delay_ms
        vouch: Vouch = "unresolved" if unresolved else "1" if vouched else ""
        [answer] = self.requeue_each([(job, record, vouch)], date=date, actor=actor, reason=reason, now_ms=now_ms)
        return loader.value(answer)

    def ends(self, jobs: Sequence[UUID]) -> dict[UUID, str]:
        """For each of these jobs, at most 200, what identifies its last end, for `requeue_each`."""
        names = [ids.short(id) for id in jobs]
        scores = self.link.execute_many([("ZMSCORE", self.keys[key], *names) for key in ("failed", "finished")])
        failed, finished = map(loader.value, scores)
        return {id: decode.text(one or other or b"0") for id, one, other in zip(jobs, failed, finished, strict=True)}

    def requeue_each(
        self,
        jobs: Sequence[tuple[UUID, JobRecord | None, Vouch]],
        *,
        ends: Mapping[UUID, str] = MappingProxyType({}),
        date: tuple[int | str, int] = ("", 0),
        actor: str = "",
        reason: str = "",
        now_ms: int | None = None,
    ) -> list[tuple[Change, UUID] | DelayqError]:
        """Like `requeue`, for several jobs in one write, each with its record and what the caller knows of its end. `date`: in ms, or
        "" and a delay. `ends`: those of which a repeat must not put back a later one, see `ends`. Returns for each job the result, or
        its error.
        """
        head, calls = loader.head(now_ms, actor, reason), []
        for job, record, vouch in jobs:
            given, name = (self.written(record), told_of(record.payload)) if record else (b"", "")
            calls.append((*head, *date, ids.short(job), given, vouch, name, ends.get(job, "")))
        return self.run_each("requeue", calls, _requeued)

    def pause(
        self,
        *,
        actor: str = "",
        reason: str = "",
        until_ms: int = 0,
        alone: bool = False,
        on_way_back: bool = False,
        replicas: Replicas | None = None,
        now_ms: int | None = None,
    ) -> bool:
        """No job is claimed until `resume`, or until that date; running jobs continue. Returns False if the queue was paused already.
        `alone`: the database does not know of it. With `on_way_back`, also returns False if no restore is under way.
        """
        ends = ("1" if on_way_back else "", until_ms, "1" if alone else "")
        return self._pause((*loader.head(now_ms, actor, reason), "1", *ends), replicas)

    def resume(
        self, *, actor: str = "", reason: str = "", alone: bool = False, replicas: Replicas | None = None, now_ms: int | None = None
    ) -> bool:
        """Jobs are claimed again. Returns False if the queue was not paused. `alone`: the database does not know of it."""
        return self._pause((*loader.head(now_ms, actor, reason), "0", "", 0, "1" if alone else ""), replicas)

    def _pause(self, call: tuple[Any, ...], replicas: Replicas | None) -> bool:
        [changed] = self.run_each("pause", [call], lambda replies: bool(loader.value(replies[0])), replicas)
        return loader.value(changed)

    def purge(self, *, limit: int = MOST, actor: str = "", reason: str = "", now_ms: int | None = None) -> tuple[int, int]:
        """Cancels scheduled jobs, at most `limit` (up to 200). Returns the number of cancelled jobs, and the number that is left."""
        site.admit(self.link, self.keys)
        cancelled, left = self.run("purge", now_ms, actor, reason, min(limit, MOST))
        return int(cancelled), int(left)

    def resign(self, items: Sequence[tuple[str, bytes]]) -> list[Resigned]:
        """Signs records again. `items`: pairs of short id and record as it was read. A record that has changed since is skipped.
        Needs a signer.
        """
        bounded(items)
        if self.signer is None:
            raise ValueError("a store without a signer cannot sign")
        arguments: list[Any] = []
        for id, record in items:
            read_as = hashlib.sha1(record, usedforsecurity=False).hexdigest()
            arguments += (id, read_as, self.signer.sign(record, queue=self.queue, id=id))
        return [answer.decode() for answer in self.run("resign", None, "", "", *arguments)]

    def tidy(
        self,
        *,
        tombstones_ms: int = HOUR_MS,
        failed_before_ms: int | None = None,
        stats_minutes: int = 8 * 24 * 60,
        claims_ms: int = DAY_MS,
        cursor: str = "0",
        failed: Sequence[UUID] = (),
        now_ms: int | None = None,
    ) -> Tidied:
        """Drops old tombstones, counters and claims, and failed records that are in the database according to the caller. While the
        mirror has events to read, all tombstones stay. Nothing else shows that these jobs have ended, and a clock that was set
        forward and back makes new tombstones look old. `failed`: at most 200 failed jobs whose records are dropped, whatever their
        date.
        """
        bounded(failed)
        if now_ms is None and self.link.execute("XLEN", self.keys["events"]):
            tombstones_ms = FOREVER_MS
        before = "" if failed_before_ms is None else failed_before_ms
        told = tombstones_ms, before, stats_minutes, claims_ms, cursor, *map(ids.short, failed)
        tombstones, dropped, next_cursor = self.run("tidy", now_ms, "", "", *told)
        return Tidied(int(tombstones), int(dropped), next_cursor.decode())


def holder_of(link: Link, keys: Keys, key: str) -> UUID | None:
    """The unfinished job that holds a business key in that partition. As for the scripts, its record must have the key.

    Raises:
        SiteRefused: the queue belongs to another site.
    """
    holder, own = link.ask(("HGET", keys["keys"], key), ("HGET", keys["meta"], "site"))
    site.check(keys.prefix, keys.queue, link.home, decode.text(own))
    id = decode.job_id(holder)
    try:
        return id if id is not None and read(link.execute("HGET", keys["jobs"], holder) or b"")[0].key == key else None
    except PayloadError:
        return None


def _requeued(replies: list[Any]) -> tuple[Change, UUID]:
    status, holder, _ = replies[-1]
    return Change(status.decode()), ids.full(holder.decode())


def bounded(items: Sequence[Any]) -> None:
    if len(items) > MOST:
        raise StoreError(f"{len(items)} jobs in one call; a script takes at most {MOST}. Send them in several calls.")


def _push(link: Link, target: OfferTarget, content: tuple[Any, ...]) -> Any:
    """Pushes without a note. Returns the place."""
    if target.kind == "stream":
        most = () if target.maxlen is None else ("MAXLEN", "~", target.maxlen)
        return link.execute("XADD", target.key, *most, "*", *content)
    length = link.execute("RPUSH", target.key, *content)
    if target.maxlen is not None:
        link.execute("LTRIM", target.key, -target.maxlen, -1)
    return length


def _content(target: OfferTarget, id: str, body: bytes) -> tuple[Any, ...]:
    if target.kind == "stream":
        return "id", id, "body", body
    return (b'{"id":"%b","body":%b}' % (id.encode(), body),)
