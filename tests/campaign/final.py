"""The final state: what Redis and the database hold when the campaign is over, and whether they have come to rest."""

from __future__ import annotations

from collections.abc import Iterator

from django.db import connection

from django_delayq import conf, ids
from django_delayq.models import Attempt, Event, Job
from django_delayq.store.connection import Link, connect
from django_delayq.store.keys import Keys
from django_delayq.store.queue import QueueStore
from tests.campaign.history import Final, QueueLeft, Row

LANES = ("high", "normal", "low")


def hex_of(short: bytes) -> str:
    """The id as rows and recorders write it."""
    try:
        return ids.full(short.decode()).hex
    except ValueError:
        return short.decode(errors="replace")


def link() -> Link:
    """A link of the campaign's own."""
    return connect(conf.get().redis, name="campaign", timeout=10)


def restless(redis: Link) -> str:
    """What is still going on; "" when nothing is."""
    for name in conf.get().queues:
        keys = Keys(conf.get().prefix, name)
        waiting = sum(redis.execute("ZCARD", keys[lane]) for lane in LANES)
        leased, events = redis.execute("ZCARD", keys["leases"]), redis.execute("XLEN", keys["events"])
        if waiting or leased or events:
            return f"{name}: {waiting} scheduled, {leased} running, {events} events"
    connection.close_if_unusable_or_obsolete()
    unpublished = Job.objects.unpublished().count()
    return f"{unpublished} unpublished rows" if unpublished else ""


def look(redis: Link, quiet: bool) -> Final:
    """Reads everything."""
    final = Final(quiet=quiet)
    fields = (
        "id",
        "args",
        "task",
        "queue",
        "key",
        "state",
        "attempts",
        "max_attempts",
        "crashes",
        "published",
        "durable",
        "error",
        "merged_into",
    )
    for row in Job.objects.values(*fields).iterator(5000):
        args, holder = row["args"], row["merged_into"]
        final.rows[row["id"].hex] = Row(
            id=row["id"].hex,
            op=args[0] if args else "",
            task=row["task"].rpartition(".")[2],
            queue=row["queue"],
            key=row["key"],
            state=row["state"],
            attempts=row["attempts"],
            max_attempts=row["max_attempts"],
            crashes=row["crashes"],
            published=row["published"] is not None,
            durable=row["durable"],
            error=row["error"],
            holder=holder.hex if holder else "",
        )
    runs = Attempt.objects.order_by("id").values_list("job_id", "number", "fence", "outcome")
    final.attempts = [(job.hex, number, fence, outcome) for job, number, fence, outcome in runs.iterator(5000)]
    acts = Event.objects.order_by("id").exclude(job=None).values_list("kind", "job_id", "actor")
    final.acts = [(kind, job.hex, actor) for kind, job, actor in acts.iterator(5000)]
    final.effects = list(_effects())
    final.queues = {name: _queue(redis, Keys(conf.get().prefix, name)) for name in conf.get().queues}
    return final


def _effects() -> Iterator[tuple[str, str]]:
    from tests.campaign.app.models import Effect

    for job, fence in Effect.objects.values_list("job", "fence"):
        yield job.hex, fence


def _queue(redis: Link, keys: Keys) -> QueueLeft:
    QueueStore(redis, prefix=keys.prefix, queue=keys.queue).tidy()  # as workers do about once a minute
    left = QueueLeft(events=redis.execute("XLEN", keys["events"]))
    left.jobs = {hex_of(id) for id in redis.execute("HKEYS", keys["jobs"])}
    for lane in LANES:
        flat = redis.execute("ZRANGE", keys[lane], 0, -1, "WITHSCORES")
        left.lanes |= {hex_of(id): int(float(due)) for id, due in zip(flat[::2], flat[1::2], strict=True)}
    left.leases = {hex_of(id) for id in redis.execute("ZRANGE", keys["leases"], 0, -1)}
    left.failed = {hex_of(id) for id in redis.execute("ZRANGE", keys["failed"], 0, -1)}
    left.runs, left.cancels, left.progress = (
        {hex_of(id) for id in redis.execute("HKEYS", keys[name])} for name in ("runs", "cancels", "progress")
    )
    flat = redis.execute("HGETALL", keys["keys"])
    left.keys = {key.decode(): hex_of(id) for key, id in zip(flat[::2], flat[1::2], strict=True)}
    flat = redis.execute("ZRANGE", keys["finished"], 0, -1, "WITHSCORES")
    left.finished = {hex_of(id): float(at) % 1 >= 0.5 for id, at in zip(flat[::2], flat[1::2], strict=True)}
    return left
