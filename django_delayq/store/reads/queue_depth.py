"""The depth of queues: their jobs, the concurrency names and their holders, the consumers of messages, and the lists and streams of
targets. All functions only read.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from typing import Any, Final, Literal
from uuid import UUID

from django_delayq.setting_readers import OfferTarget
from django_delayq.store.connection.error_replies import StoreError
from django_delayq.store.connection.link import Link
from django_delayq.store.connection.places import Places
from django_delayq.store.keys import Keys
from django_delayq.store.reads.reach import WHOLE, Reach
from django_delayq.store.scripts import decode
from django_delayq.store.scripts.queue import TAG
from django_delayq.store.scripts.record import BANDS

PAUSE = ("paused", "paused_by", "paused_why", "paused_until")  # fields of meta
MOST_BESIDE = 399  # items of an entry besides the first, as in lua/include/untold.lua


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueDepth:
    """The depth of a queue. Times are in ms since 1970 (0: none). `oldest_late_ms` and `events_late_ms` (the age of the oldest event
    that no mirror has folded) are durations. `due` is part of `scheduled`. `blocked`, the jobs that wait for their name, is part of
    `due`. `behind`, the jobs that wait for the turn of their fair word, is part of `scheduled`; some may not be due. `held`, the due
    jobs that the pause of a word holds, and `rated`, those that wait for a token of their rate, are only part of `scheduled`, and they
    are not late. `untold`: the number of jobs in the `events` entries. `asked_ms`: when a process last asked for jobs here, or extended
    a lease.
    """

    queue: str
    scheduled: int
    due: int
    running: int
    retrying: int
    failed: int
    oldest_late_ms: int
    next_due_ms: int
    paused_ms: int
    paused_by: str
    paused_reason: str
    paused_until_ms: int
    events: int
    untold: int
    blocked: int
    held: int
    rated: int
    behind: int
    events_late_ms: int
    generation: str
    restoring: str
    asked_ms: int

    @property
    def paused(self) -> bool:
        """Whether the queue is paused."""
        return self.paused_ms > 0


def depth_commands(keys: Keys, now_ms: int) -> list[tuple[Any, ...]]:
    """The commands that read the depth of a partition at that moment of its server."""
    return [
        *(("ZCARD", keys[band]) for band in BANDS),
        *(("ZCOUNT", keys[band], "-inf", now_ms) for band in BANDS),
        *(("ZRANGE", keys[band], 0, 0, "WITHSCORES") for band in BANDS),
        ("ZRANGEBYSCORE", keys["blocked"], 0, "+inf", "WITHSCORES", "LIMIT", 0, 1),
        ("ZCOUNT", keys["blocked"], 0, "+inf"),
        ("ZCOUNT", keys["blocked"], 0, now_ms),
        ("ZLEXCOUNT", keys["waiters"], "[\3", "(\4"),
        ("ZCOUNT", keys["blocked"], "-inf", "(0"),
        ("ZLEXCOUNT", keys["waiters"], "[\2", "(\3"),
        ("ZCARD", keys["leases"]),
        ("HLEN", keys["runs"]),
        ("HLEN", keys["asks"]),
        ("ZCARD", keys["failed"]),
        ("XLEN", keys["events"]),
        ("XRANGE", keys["events"], "-", "+", "COUNT", 1),
        ("HMGET", keys["meta"], *PAUSE, "generation", "restoring", "surplus", "alive", "site"),
    ]


def depth_of(queue: str, now_ms: int, replies: Sequence[Any]) -> QueueDepth:
    """The depth, from the replies to `depth_commands`."""
    dates = [decode.moment_ms(first[1]) for first in replies[6:10] if first]
    waiting, overdue, behind, held, rated, *more = replies[10:]
    running, runs, asks, failed, events, oldest, meta = more  # oldest: [[id, [b"at", ms, …]]]
    blocked = max(0, waiting - behind)
    first = min(dates, default=0)
    paused, by, why, until, generation, restoring, surplus, alive, _ = ((value or b"").decode("utf-8", "replace") for value in meta)
    until_ms = decode.moment_ms(until)
    if until and until_ms <= now_ms:  # the pause has ended
        paused, by, why, until_ms = "", "", "", 0
    return QueueDepth(
        queue=queue,
        scheduled=sum(replies[0:3]) + waiting + held,  # `held` has counted `rated`
        due=sum(replies[3:6]) + max(overdue, blocked),
        blocked=blocked,
        held=max(0, held - rated),
        rated=rated,
        behind=behind,
        running=running,
        retrying=max(0, runs - running - asks),  # a job that polled has not failed; jobs that did both are counted too low
        failed=failed,
        oldest_late_ms=max(0, now_ms - first) if first else 0,
        next_due_ms=first,
        paused_ms=decode.moment_ms(paused) or int(bool(paused)),
        paused_by=by,
        paused_reason=why,
        paused_until_ms=until_ms,
        events=events,
        untold=events + min(decode.number(surplus), events * MOST_BESIDE),
        events_late_ms=max(0, now_ms - decode.moment_ms(oldest[0][1][1])) if oldest else 0,
        generation=generation,
        restoring=" of ".join(restoring.split(" ")[-2:]),
        asked_ms=decode.moment_ms(alive),
    )


def summed(parts: Sequence[QueueDepth]) -> QueueDepth:
    """The sum of these partitions of a queue. It is as late as the latest of them, and paused if all are."""
    if len(parts) == 1:
        return parts[0]
    total: dict[str, Any] = {}
    for name in ("scheduled", "due", "running", "retrying", "failed", "events", "untold", "blocked", "held", "rated", "behind"):
        total[name] = sum(getattr(part, name) for part in parts)
    for name in ("oldest_late_ms", "events_late_ms", "asked_ms"):
        total[name] = max(getattr(part, name) for part in parts)
    paused = all(part.paused for part in parts)
    return replace(
        parts[0],
        **total,
        next_due_ms=min((part.next_due_ms for part in parts if part.next_due_ms), default=0),
        paused_ms=max(part.paused_ms for part in parts) if paused else 0,
        paused_by=parts[0].paused_by if paused else "",
        paused_reason=parts[0].paused_reason if paused else "",
        paused_until_ms=parts[0].paused_until_ms if paused else 0,
        restoring=next((part.restoring for part in parts if part.restoring), ""),
    )


LOOKED: Final = 2_000  # holders, and as many waiters: the cost of the look does not depend on their number


@dataclass(frozen=True, slots=True, kw_only=True)
class NameFigures:
    """The use of a name. `holders`: the jobs that hold it. `waiting`: the number of due jobs that wait for it. Both count only jobs
    that were read.
    """

    name: str
    holders: tuple[UUID, ...]
    waiting: int


@dataclass(frozen=True, slots=True, kw_only=True)
class NamesSeen:
    """`figures`: the names, those with the most waiting jobs first. `cut`: more jobs hold a name, or wait for one, than were read."""

    figures: list[NameFigures]
    cut: bool


def concurrency_names(places: Places, parts: Sequence[Keys], reach: Reach = WHOLE) -> NamesSeen:
    """The names that are held or waited for in these partitions of a queue, in one round trip per server. It uses only commands that
    scripts also need.

    Raises:
        StoreUnavailable, StoreError: as `Link.execute`.
    """
    replies: list[Any] = []

    def ask(link: Link, there: list[Keys]) -> None:
        keys = [part[key] for part in there for key in ("holders", "waiters")]
        replies.extend(link.ask(*(("ZRANGE", key, "[ ", "+", "BYLEX", "LIMIT", 0, LOOKED + 1) for key in keys)))

    reach.each(places, parts, ask)
    holders: dict[bytes, list[UUID]] = {}
    waits = Counter[bytes]()
    for holding, waiting in zip(replies[::2], replies[1::2], strict=True):
        for member in holding[:LOOKED]:
            name, _, id = member.rpartition(b"\0")
            if name and (job := decode.job_id(id)) is not None:
                holders.setdefault(name, []).append(job)
        waits.update(member.partition(b"\0")[0] for member in waiting[:LOOKED])
    figures = [
        NameFigures(name=name.decode("utf-8", "replace"), holders=tuple(holders.get(name, ())), waiting=waits[name])
        for name in {**holders, **waits}
        if name
    ]
    figures.sort(key=lambda one: (-one.waiting, -len(one.holders), one.name))
    return NamesSeen(figures=figures, cut=max(map(len, replies), default=0) > LOOKED)


MOST_WORDS: Final = 200  # fair words of a partition whose waiting jobs are counted


@dataclass(frozen=True, slots=True, kw_only=True)
class FairFigures:
    """The unstarted jobs of a fair word. `waiting`: their number, with the one that has the turn. `oldest_ms`: the earliest of their
    dates, in ms since 1970; it can be in the future.
    """

    word: str
    waiting: int
    oldest_ms: int


@dataclass(frozen=True, slots=True, kw_only=True)
class FairSeen:
    """`figures`: the words, those with the most jobs first. `cut`: there are more words."""

    figures: list[FairFigures]
    cut: bool


def fair_words(places: Places, parts: Sequence[Keys], reach: Reach = WHOLE) -> FairSeen:
    """The fair words with unstarted jobs in these partitions of a queue, in two round trips per server. A job has the turn of each
    word, so that the words are found without a look at all jobs.

    Raises:
        StoreUnavailable, StoreError: as `Link.execute`.
    """
    counts, oldest, cut = Counter[bytes](), dict[bytes, int](), False

    def look(link: Link, there: list[Keys]) -> None:
        nonlocal cut
        turns = link.ask(*(("ZRANGE", part["holders"], "[\3", "(\4", "BYLEX", "LIMIT", 0, MOST_WORDS + 1) for part in there))
        cut = cut or max(map(len, turns), default=0) > MOST_WORDS
        lines = [
            (part, *member.rsplit(b"\0", 1)) for part, members in zip(there, turns, strict=True) for member in members[:MOST_WORDS]
        ]
        commands: list[tuple[Any, ...]] = []
        for part, line, id in lines:
            first, end = b"[" + line + b"\0", b"(" + line + b"\1"
            commands.append(("HGET", part["names"], id))
            commands.append(("ZLEXCOUNT", part["waiters"], first, end))
            commands.append(("ZRANGE", part["waiters"], first, end, "BYLEX", "LIMIT", 0, 1))
        replies: Iterator[Any] = iter(link.ask(*commands) if commands else ())
        for (_, line, _), value, count, waiters in zip(lines, replies, replies, replies, strict=False):
            word = line[2:].partition(b"\2")[0]
            counts[word] += count + 1
            dates = [decode.number((value or b"").split(b":")[2:3][0]) if value and value.count(b":") >= 3 else 0]
            dates += [decode.number(waiters[0][len(line) + 2 : len(line) + 17])] if waiters else []
            oldest[word] = min([*filter(None, dates), *([oldest[word]] if oldest.get(word) else [])], default=0)

    reach.each(places, parts, look)
    figures = [FairFigures(word=decode.text(word), waiting=count, oldest_ms=oldest[word]) for word, count in counts.items()]
    figures.sort(key=lambda one: (-one.waiting, one.word))
    return FairSeen(figures=figures, cut=cut)


MOST_RATES: Final = 200  # of a partition


@dataclass(frozen=True, slots=True, kw_only=True)
class RateFigures:
    """The due jobs that wait for a token of a rate. `oldest_ms`: the earliest of their dates, in ms since 1970."""

    name: str
    waiting: int
    oldest_ms: int


@dataclass(frozen=True, slots=True, kw_only=True)
class RatesSeen:
    """`figures`: the rates, those with the oldest jobs first. `cut`: jobs may wait for more rates."""

    figures: list[RateFigures]
    cut: bool


def rates(places: Places, parts: Sequence[Keys], wanted: Sequence[str] = (), reach: Reach = WHOLE) -> RatesSeen:
    """The rates for which jobs wait in these partitions, in two round trips per server: MOST_RATES of each partition, whose tokens come
    first, and the `wanted` ones.

    Raises:
        StoreUnavailable, StoreError: as `Link.execute`.
    """
    counts, oldest, cut = Counter[bytes](), dict[bytes, int](), False
    mine = [b"\2" + name.encode() for name in wanted]

    def look(link: Link, there: list[Keys]) -> None:
        nonlocal cut
        first = link.ask(*(("ZRANGE", part["opens"], 0, MOST_RATES) for part in there))
        scores = link.ask(*(("ZMSCORE", part["opens"], *mine) for part in there)) if mine else [()] * len(there)
        cut = cut or max(map(len, first), default=0) > MOST_RATES
        lines = []
        for part, members, of_mine in zip(there, first, scores, strict=True):
            found = [member for member in members[:MOST_RATES] if member.startswith(b"\2")]
            found += [line for line, score in zip(mine, of_mine, strict=False) if score is not None]
            lines += [(part, line) for line in dict.fromkeys(found)]
        commands: list[tuple[Any, ...]] = []
        for part, line in lines:
            bands = [
                (b"[" + line + b"\0" + band, b"(" + line + b"\0" + after) for band, after in ((b"1", b"2"), (b"2", b"3"), (b"3", b"4"))
            ]
            commands += [("ZRANGE", part["waiters"], *band, "BYLEX", "LIMIT", 0, 1) for band in bands]
            commands.append(("ZLEXCOUNT", part["waiters"], b"[" + line + b"\0", b"(" + line + b"\1"))
        replies: Iterator[Any] = iter(link.ask(*commands) if commands else ())
        for (_, line), high, normal, low, count in zip(lines, replies, replies, replies, replies, strict=False):
            dates = [decode.number(one[0][len(line) + 2 : len(line) + 17]) for one in (high, normal, low) if one]
            counts[line] += count
            oldest[line] = min([*dates, *([oldest[line]] if line in oldest else [])], default=0)

    reach.each(places, parts, look)
    figures = [
        RateFigures(name=decode.text(line[1:]), waiting=count, oldest_ms=oldest[line]) for line, count in counts.items() if count
    ]
    figures.sort(key=lambda one: (one.oldest_ms, one.name))
    return RatesSeen(figures=figures, cut=cut)


MOST_GROUPS: Final = 20  # of one stream


@dataclass(frozen=True, slots=True, kw_only=True)
class ReaderGroup:
    """A consumer group of a stream. `pending`: entries taken and not acknowledged. `lag`: entries that none of its consumers has got,
    None if Redis does not know (before 7, or after entries in the middle were deleted).
    """

    name: str
    consumers: int
    pending: int
    lag: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class TargetLength:
    """`length`: the number of entries, None with a `fault`: "type", the key has another type; "rights", our user may not read it.
    `groups`: the groups of a stream, MOST_GROUPS at most; None for a list, or if our user may not read them.
    """

    target: OfferTarget
    length: int | None
    fault: Literal["", "type", "rights"] = ""
    groups: Sequence[ReaderGroup] | None = None


def target_lengths(link: Link, targets: Sequence[OfferTarget]) -> list[TargetLength]:
    """The lengths of all these targets, in one round trip.

    Raises:
        StoreUnavailable: as `Link.execute`.
    """
    commands: list[tuple[Any, ...]] = []
    for target in targets:
        streams = target.kind == "stream"
        commands += [("XLEN", target.key), ("XINFO", "GROUPS", target.key)] if streams else [("LLEN", target.key)]
    replies = iter(link.execute_many(commands) if commands else ())
    return [_target_length(target, next(replies), next(replies) if target.kind == "stream" else None) for target in targets]


def summed_lengths(looks: Sequence[Sequence[TargetLength]]) -> list[TargetLength]:
    """The lengths of the same targets on several servers, added up: an offer goes to the server of its job's queue."""
    return [_summed_length(one) for one in zip(*looks, strict=True)]


def _summed_length(those: Sequence[TargetLength]) -> TargetLength:
    faulty = next((one for one in those if one.fault), None)
    if faulty is not None:
        return faulty
    groups = [group for one in those for group in one.groups or ()]
    seen = any(one.groups is not None for one in those)
    return TargetLength(
        target=those[0].target, length=sum(one.length or 0 for one in those), groups=groups[:MOST_GROUPS] if seen else None
    )


def _target_length(target: OfferTarget, length: Any, groups: Any) -> TargetLength:
    if isinstance(length, StoreError):
        return TargetLength(target=target, length=None, fault="type" if length.reply.startswith("WRONGTYPE") else "rights")
    if isinstance(length, Exception):
        raise length
    if isinstance(groups, StoreError) and groups.reply.endswith("no such key"):
        groups = []
    found = [_group(one) for one in groups[:MOST_GROUPS]] if isinstance(groups, list) else None
    return TargetLength(target=target, length=length, groups=found)


def _group(flat: Sequence[Any]) -> ReaderGroup:
    told = dict(zip(map(decode.text, flat[::2]), flat[1::2], strict=True))
    lag = told.get("lag")
    return ReaderGroup(
        name=decode.text(told.get("name", b"")),
        consumers=told.get("consumers", 0),
        pending=told.get("pending", 0),
        lag=lag if isinstance(lag, int) else None,
    )


MOST_READ: Final = 200  # consumers, and held messages, that are read


@dataclass(frozen=True, slots=True, kw_only=True)
class HeldMessage:
    """A message that a consumer holds. `id`: short. `lease_ms`: when its lease ends, in ms since 1970."""

    id: str
    fence: str
    attempt: int
    lease_ms: int


@dataclass(frozen=True, slots=True, kw_only=True)
class MessageConsumer:
    """A consumer that has pulled messages within a day. `claimed_ms`: when it last got messages. `held`: its messages, in the order
    in which their leases end. `name` is "" for leases of an unknown consumer: it pulled long ago, or the message was restored from
    its row.
    """

    name: str
    claimed_ms: int
    held: Sequence[HeldMessage] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class PulledQueue:
    """`asked_ms`: when a consumer last asked for messages or extended a lease; 0 for never. `held`: the number of held messages.
    `cut`: not all consumers, or not all messages that they hold, were read.
    """

    queue: str
    now_ms: int
    asked_ms: int
    held: int
    consumers: Sequence[MessageConsumer]
    cut: bool


class MessageConsumers:
    """The message consumers of the queues of one prefix.

    Raises (all methods):
        StoreUnavailable, StoreError: as `Link.execute`.
    """

    def __init__(self, places: Places, *, prefix: str) -> None:
        self._places = places
        self._prefix = prefix

    def of_each(self, queues: Sequence[str], reach: Reach = WHOLE) -> list[PulledQueue]:
        """The consumers of these queues, each of which has one partition."""
        found: list[PulledQueue] = []
        parts = [Keys.of(self._prefix, queue, 0) for queue in queues]
        reach.each(self._places, parts, lambda _link, there: found.extend(self.of(keys.queue) for keys in there))
        return found

    def of(self, queue: str) -> PulledQueue:
        """The consumers of that queue, in two round trips. It reads at most MOST_READ of each kind."""
        keys, link = Keys(self._prefix, queue), self._places.of(queue, 0)
        time, alive, (cursor, claims), count, leases = link.ask(
            ("TIME",),
            ("HGET", keys["meta"], "alive"),
            ("HSCAN", keys["claims"], 0, "COUNT", MOST_READ),
            ("ZCARD", keys["leases"]),
            ("ZRANGE", keys["leases"], 0, MOST_READ - 1, "WITHSCORES"),
        )
        held = self._held(link, keys, leases)
        consumers = []
        for name, claim in islice(zip(claims[::2], claims[1::2], strict=True), MOST_READ):
            nonce, _, rest = claim.partition(b" ")
            mine = held.pop(decode.text(nonce)[:TAG], ())
            claimed_ms = decode.moment_ms(rest.partition(b" ")[0])
            consumers.append(MessageConsumer(name=decode.text(name), claimed_ms=claimed_ms, held=mine))
        others = sorted((one for rest in held.values() for one in rest), key=lambda one: one.lease_ms)
        consumers.sort(key=lambda one: -one.claimed_ms)
        if others:
            consumers.append(MessageConsumer(name="", claimed_ms=0, held=others))
        return PulledQueue(
            queue=queue,
            now_ms=decode.time_ms(time),
            asked_ms=decode.moment_ms(alive or b"0"),
            held=count,
            consumers=consumers,
            cut=cursor != b"0" or len(claims) > 2 * MOST_READ or count > MOST_READ,
        )

    def _held(self, link: Link, keys: Keys, leases: Sequence[bytes]) -> dict[str, list[HeldMessage]]:
        """The held messages by the first characters of their nonces."""
        found: defaultdict[str, list[HeldMessage]] = defaultdict(list)
        if not leases:
            return found
        runs = link.execute("HMGET", keys["runs"], *leases[::2])
        for id, end, run in zip(leases[::2], leases[1::2], runs, strict=True):
            parts = decode.text(run or b"").split(":")
            if decode.job_id(id) is not None and len(parts) >= 4:
                fence = parts[3]
                found[fence[:TAG]].append(
                    HeldMessage(id=id.decode(), fence=fence, attempt=decode.number(parts[0].encode()), lease_ms=decode.moment_ms(end))
                )
        return found
