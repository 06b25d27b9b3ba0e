"""From events to rows: what support staff see is what Redis did."""

from __future__ import annotations

import dataclasses
import json
from functools import partial

import pytest
from django.db import connection, transaction

import django_delayq as delayq
from django_delayq import clock, ids
from django_delayq.mirror.fold import is_strange
from django_delayq.models import Attempt, Checkpoint, Event, Job, SetAside
from django_delayq.producer.outbox import rows
from django_delayq.producer.stores import stores
from django_delayq.store.scripts.events import Entry, Item
from django_delayq.store.scripts.record import JobRecord
from tests.mirror.conftest import Orders
from tests.tasks_for_tests import close_order, ping

BIG = 2**80 + 1


def detail(**fields) -> bytes:
    return json.dumps(fields).encode()


def test_a_row_is_unpublished_until_redis_event_is_folded(orders):
    job = delayq.schedule(close_order, 7, delay="30m", key="o:7")
    row = Job.objects.get(pk=job.id)
    assert (row.state, row.published, row.derived) == ("scheduled", None, "unpublished")
    orders.fold()
    row.refresh_from_db()
    assert row.published is not None
    assert (row.derived, row.key, row.task) == ("scheduled", "o:7", "tests.tasks_for_tests.close_order")
    assert row.run_at == job.run_at


def test_arguments_come_back_exactly(orders):
    given = [BIG, 1.5, "ü\x00\u2028", None, {"a": [True]}]
    job = delayq.schedule(ping.using(queue="orders", durability="redis"), given[0])
    other = delayq.schedule(close_order, 1, note="a\x00b")
    orders.fold()
    assert Job.objects.get(pk=job.id).args == [BIG]
    assert Job.objects.get(pk=other.id).kwargs == {"note": "a\x00b"}


@pytest.mark.parametrize("kind", ["ack", "fail"])
@pytest.mark.parametrize("reported", [{"s": 1, "f": 2}, {"s": 9_795_000_000_000, "f": 9_795_000_000_001}, {"f": 253_402_300_799_000}])
def test_dates_that_no_run_can_have_do_not_decide_how_long_a_row_is_kept(orders, kind, reported):
    job = delayq.schedule(close_order, 7)
    [claimed] = orders.claim()
    orders.fold()
    row = Job.objects.get(pk=job.id)
    claim = row.started_at
    orders.settle(claimed, kind, detail=detail(**reported))
    orders.fold()
    row.refresh_from_db()
    assert claim <= row.started_at <= row.finished_at <= clock.now()


def test_a_run_that_succeeds(orders):
    job = delayq.schedule(close_order, 7)
    [claimed] = orders.claim()
    orders.fold()
    row = Job.objects.get(pk=job.id)
    assert (row.state, row.attempts, row.worker) == ("running", 1, "host:1:w")
    assert Attempt.objects.get().outcome == "running"
    claim = clock.to_ms(row.started_at)
    clock.sleep(0.02)
    orders.settle(claimed, "ack", detail=detail(s=claim + 5, f=claim + 15, r={"closed": 7}))
    orders.fold()
    row.refresh_from_db()
    assert (row.state, row.result, row.error) == ("succeeded", {"closed": 7}, "")
    run = Attempt.objects.get()
    assert (run.number, run.outcome, (run.finished_at - run.started_at).total_seconds()) == (1, "succeeded", 0.01)


def test_a_whole_life_folded_in_one_batch(orders):
    job = delayq.schedule(close_order, 7)
    orders.settle(orders.claim()[0], "retry", detail=detail(c="builtins.OSError", m="no route", t="Traceback …", p="abc"))
    orders.settle(orders.claim()[0], "snooze", detail=detail(d="lock taken"))
    orders.settle(orders.claim()[0], "crash")
    orders.settle(orders.claim()[0], "fail", detail=detail(c="shop.Refused", m="no", t="Traceback", p="def"))
    orders.fold()
    row = Job.objects.get(pk=job.id)
    assert (row.state, row.attempts, row.crashes, row.error, row.fingerprint) == (
        "failed",
        2,
        1,
        "shop.Refused: no",
        "def",
    )
    runs = list(Attempt.objects.order_by("id").values_list("number", "outcome", "error_class", "message"))
    assert runs == [
        (1, "retried", "builtins.OSError", "no route"),
        (2, "snoozed", "", "lock taken"),
        (2, "crashed", "", ""),
        (2, "failed", "shop.Refused", "no"),
    ]


def test_who_did_what_and_why(orders):
    job = delayq.schedule(close_order, 7, delay="1h")
    delayq.reschedule(job, delay="2h", actor="user:clerk", reason="customer asked")
    delayq.cancel(job, actor="user:clerk", reason="paid by phone")
    orders.fold()
    delayq.pause("orders", actor="user:clerk", reason="stocktaking")
    orders.fold()
    told = list(Event.objects.order_by("id").values_list("kind", "actor", "reason"))
    assert told == [
        ("rescheduled", "user:clerk", "customer asked"),
        ("cancelled", "user:clerk", "paid by phone"),
        ("paused", "user:clerk", "stocktaking"),
    ]
    assert Job.objects.get(pk=job.id).state == "cancelled"
    assert delayq.requeue(job, actor="user:boss") == "done"
    orders.fold()
    assert Job.objects.get(pk=job.id).state == "scheduled"


def test_folding_twice_gives_the_same_rows(orders):
    delayq.schedule(close_order, 7)
    orders.settle(orders.claim()[0], "retry", detail=detail(m="once"))
    delayq.schedule(close_order, 8, delay="1h").cancel(actor="clerk")
    entries = orders.mirror.log.read("0-0", 100)
    orders.mirror._write(entries)
    before = list(Job.objects.values()), list(Attempt.objects.values()), list(Event.objects.values())
    orders.mirror._write(entries)
    orders.fold()
    assert (list(Job.objects.values()), list(Attempt.objects.values()), list(Event.objects.values())) == before


def test_one_entry_that_is_told_again_takes_no_row_back(orders):
    delayq.schedule(close_order, 7)
    orders.settle(orders.claim()[0], "retry", detail=detail(m="once"))
    orders.settle(orders.claim()[0], "ack")
    entries = orders.mirror.log.read("0-0", 100)
    orders.mirror._write(entries)
    before = list(Job.objects.values()), list(Attempt.objects.values())
    assert before[0][0]["state"] == "succeeded"
    for entry in entries:
        orders.mirror._write([entry])
        assert (list(Job.objects.values()), list(Attempt.objects.values())) == before


@pytest.mark.parametrize("depth", [90, 500, 930, 940, 945, 5000])
def test_a_result_that_is_too_deep_to_be_written_again_stops_nothing(orders, depth):
    job = delayq.schedule(close_order, 7)
    orders.settle(orders.claim()[0], "ack", detail=b'{"r":' + b"[" * depth + b"]" * depth + b"}")
    orders.fold()
    row = Job.objects.get(pk=job.id)
    assert row.state == "succeeded"
    assert (row.result is not None) is (depth == 90)


def test_the_stream_is_trimmed_only_after_the_commit(orders, monkeypatch):
    delayq.schedule(close_order, 7)
    monkeypatch.setattr(orders.mirror.log, "trim", lambda upto, **_options: (_ for _ in ()).throw(OSError("killed here")))
    with pytest.raises(OSError, match="killed"):
        orders.mirror.poll()
    assert Job.objects.get().published is not None
    assert orders.mirror.log.length() == 1
    monkeypatch.undo()
    orders.fold()
    assert orders.mirror.log.length() == 0
    assert Checkpoint.objects.get(queue="orders").last_event != "0-0"


def test_a_redis_durability_job_gets_its_row_from_the_event(delayq_redis, transactional_db):
    queue = Orders("redis")
    job = delayq.schedule(ping, 5, delay="1h", key="k", priority=3, meta={"order": 5})
    assert not Job.objects.exists()
    queue.fold()
    row = Job.objects.get()
    assert (row.id, row.args, row.key, row.durable, row.priority, row.meta) == (
        job.id,
        [5],
        "k",
        False,
        1,
        {"order": 5},
    )


def test_what_no_database_takes_is_written_all_the_same(orders):
    delayq.schedule(close_order, 7)
    bad = detail(c="E" * 500, m="nul \x00 surrogate \ud800", t="x" * 300_000, p="p" * 100)
    orders.settle(orders.claim()[0], "fail", detail=bad)
    delayq.schedule(close_order, 8)
    orders.settle(orders.claim()[0], "ack")
    orders.fold()
    assert sorted(Job.objects.values_list("state", flat=True)) == ["failed", "succeeded"]
    run = Attempt.objects.get(outcome="failed")
    assert run.message == "nul \\x00 surrogate \\ud800"
    assert len(run.error_class) == 200
    assert 99_000 < len(run.traceback) <= 100_000
    assert "characters cut" in run.traceback


def test_a_row_the_database_refuses_does_not_stall_the_others_and_its_event_is_kept(orders, monkeypatch):
    first = delayq.schedule(close_order, 1)
    for job in orders.claim():
        orders.settle(job, "ack", detail=detail(r="poison"))
    second = delayq.schedule(close_order, 2)
    for job in orders.claim():
        orders.settle(job, "ack")
    real = orders.mirror.save

    def refuse(batch):
        if any(job.result == "poison" for job in batch.changed.values()):
            from django.db import DataError

            raise DataError("value too strange")
        real(batch)

    monkeypatch.setattr(orders.mirror, "save", refuse)
    orders.fold()
    assert Job.objects.get(pk=second.id).state == "succeeded"
    assert Job.objects.get(pk=first.id).state == "running"
    kept = SetAside.objects.get()
    assert (kept.job_id, kept.kind, kept.code) == (first.id, "succeeded", "DataError")
    assert b'"poison"' in bytes(kept.raw)


def test_a_job_known_only_by_a_late_event_gets_a_stub(orders):
    job = delayq.schedule(close_order, 7)
    Job.objects.all().delete()
    orders.settle(orders.claim()[0], "fail", detail=detail(m="no"))
    orders.fold()
    row = Job.objects.get()
    assert (row.id, row.state, row.error) == (job.id, "failed", "no")


def test_an_end_says_how_many_attempts_there_were_where_the_event_of_the_last_claim_is_lost(orders, delayq_redis):
    job = delayq.schedule(close_order, 7)
    orders.fold()
    [claimed] = orders.claim()
    delayq_redis.link.execute("XTRIM", orders.store.keys["events"], "MAXLEN", 0)
    orders.settle(claimed, "fail", detail=detail(m="no"))
    orders.fold()
    row = Job.objects.get(pk=job.id)
    assert (row.state, row.attempts, row.crashes, row.error) == ("failed", 1, 0, "no")


def test_a_job_that_is_cancelled_or_replaced_between_two_attempts_keeps_their_number(orders):
    cancelled, replaced = delayq.schedule(close_order, 1), delayq.schedule(close_order, 2, key="o:2")
    for claimed in orders.claim():
        orders.settle(claimed, "retry", delay=60_000)
    assert cancelled.cancel() is delayq.Change.DONE
    delayq.schedule(close_order, 3, key="o:2", on_conflict="replace")
    orders.fold()
    ended = Job.objects.filter(pk__in=[cancelled.id, replaced.id])
    assert list(ended.values_list("state", "attempts")) == [("cancelled", 1)] * 2


def test_a_job_of_which_only_events_are_known_is_not_durable(orders):
    job = delayq.schedule(close_order, 7)
    Job.objects.all().delete()
    orders.settle(orders.claim()[0], "ack")
    orders.fold()
    row = Job.objects.get()
    assert (row.id, row.state, row.task) == (job.id, "succeeded", rows.STUB)
    assert not row.durable, "nothing could bring it back"


def test_the_longest_names_stand_whole_in_their_row(orders):
    job = delayq.schedule(close_order, 7, key="k" * 200)
    [[(_, raw)]] = stores.inspector().records("orders")
    record = dataclasses.replace(JobRecord.decode(job.id, raw), task="t" * 200)
    row = rows.new_row(record, "orders", clock.now())
    assert (row.task, row.key) == ("t" * 200, "k" * 200)


@pytest.mark.parametrize("expires", [None, "2h"])
def test_a_row_gives_back_the_record_that_redis_has(orders, expires):
    job = delayq.schedule(close_order, 7, delay="1h", key="o:7", priority=-1, expires=expires)
    orders.fold()
    [[(_, raw)]] = stores.inspector().records("orders")
    assert rows.record_of(Job.objects.get()) == JobRecord.decode(job.id, raw)


def test_a_key_that_is_held_ends_the_proposal(orders):
    first = delayq.schedule(close_order, 7, delay="1h", key="o:7")
    with transaction.atomic():  # else nothing is written of it
        second = delayq.schedule(close_order, 7, delay="2h", key="o:7", on_conflict="latest")
    assert (second.created, second.id) == (False, first.id)
    orders.fold()
    rows = {row.id: row for row in Job.objects.all()}
    merged = next(row for id, row in rows.items() if id != first.id)
    assert (merged.state, merged.error) == ("cancelled", f"key held by {ids.short(first.id)}")
    assert rows[first.id].run_at > first.run_at


def test_audit_outcomes_keeps_no_attempts_of_success(orders, settings):
    settings.DELAYQ = {**settings.DELAYQ, "AUDIT": "outcomes"}
    queue = Orders()
    delayq.schedule(close_order, 7)
    queue.settle(queue.claim()[0], "retry", detail=detail(m="once"))
    queue.settle(queue.claim()[0], "ack")
    queue.fold()
    assert Job.objects.get().state == "succeeded"
    assert list(Attempt.objects.values_list("outcome", flat=True)) == ["retried"]


def test_audit_failures_keeps_only_failed_jobs(orders, settings):
    settings.DELAYQ = {**settings.DELAYQ, "AUDIT": "failures"}
    queue = Orders()
    for outcome in ("ack", "fail", "cancel"):
        delayq.schedule(close_order, 7)
        queue.settle(queue.claim()[0], outcome)
    queue.fold()
    assert list(Job.objects.values_list("state", flat=True)) == ["failed"]


@pytest.mark.parametrize("audit", ["full", "failures"])
def test_a_failed_job_without_a_row_gets_one_from_the_record_that_redis_keeps(delayq_redis, transactional_db, settings, audit):
    settings.DELAYQ = {**settings.DELAYQ, "AUDIT": audit}
    queue = Orders("redis")
    job = delayq.schedule(ping, 5, key="k")
    if audit == "full":
        delayq_redis.link.execute("DEL", queue.store.keys["events"])  # the row is a stub
    queue.settle(queue.claim()[0], "fail", detail=detail(m="no"))
    queue.fold()
    row = Job.objects.get()
    assert (row.state, row.task, row.args, row.key) == ("failed", "tests.tasks_for_tests.ping", [5], "k")
    assert delayq.requeue(job.id, queue="redis") is delayq.Change.DONE
    [claimed] = queue.claim()
    assert b"tests.tasks_for_tests.ping k\n[[5]]" in claimed.record


def test_a_requeued_job_does_not_expire_at_once(orders):
    job = delayq.schedule(close_order, 7, expires="1ms")
    clock.sleep(0.01)
    assert orders.claim() == []
    orders.fold()
    assert Job.objects.get().error == "expired before it could run"
    assert job.requeue() is delayq.Change.DONE
    assert len(orders.claim()) == 1


def test_a_requeue_does_not_make_a_record_of_a_stub(delayq_redis, transactional_db):
    queue = Orders("redis")
    job = delayq.schedule(ping, 5, key="k")
    delayq_redis.link.execute("DEL", queue.store.keys["events"])  # the events of Redis are lost once
    [claimed] = queue.claim()
    queue.fold()
    queue.settle(claimed, "fail", detail=detail(m="no"))
    queue.fold()
    assert Job.objects.get().task == "?"
    assert delayq.requeue(job.id, queue="redis") is delayq.Change.DONE
    assert b"tests.tasks_for_tests.ping k\n[[5]]" in queue.claim()[0].record


@pytest.mark.parametrize(
    "body",
    [
        b'{"f":1e300,"s":1e300,"m":"a date beyond all"}',
        b'{"f":Infinity,"r":NaN}',
    ],
)
def test_an_event_that_cannot_be_read_does_not_stop_the_mirror(orders, body):
    first = delayq.schedule(close_order, 1)
    orders.settle(orders.claim()[0], "fail", detail=body)
    keys = orders.store.keys
    for item in (("scheduled", ids.short(first.id)), ("retried", f"{ids.short(first.id)} x"), ("merged", "0" * 22)):
        stores.link.execute("XADD", keys["events"], "*", "at", 1_795_000_000_000, "by", "x", *item)
    stores.link.execute("XADD", keys["events"], "*", "at", "999999999999999999", "by", "x", "paused", "")
    second = delayq.schedule(close_order, 2)
    orders.fold()
    assert Job.objects.get(pk=second.id).published is not None
    assert Job.objects.get(pk=first.id).state == "failed"


def test_one_unknown_kind_makes_an_entry_strange():
    known, unknown = Item("paused", (), b""), Item("postponed", (), b"")
    assert [is_strange(Entry("1-0", 1, "w", "", items)) for items in [(known,), (known, unknown)]] == [False, True]


def test_a_wiped_redis_starts_a_new_count_of_events(orders, delayq_redis):
    delayq.schedule(close_order, 7)
    orders.fold()
    delayq_redis.link.execute("FLUSHALL")
    delayq.schedule(close_order, 8)
    orders.fold()
    assert Job.objects.filter(published__isnull=True).count() == 0


def test_the_lag_tells_how_far_behind(orders):
    assert orders.mirror.lag().entries == 0
    delayq.schedule(close_order, 7)
    assert orders.mirror.lag().entries == 1


def test_two_mirrors_share_the_work(orders):
    other = Orders()
    for number in range(10):
        delayq.schedule(close_order, number)
    orders.mirror.poll()
    other.mirror.poll()
    assert Job.objects.filter(published__isnull=True).count() == 0
    assert connection.in_atomic_block is False


def test_ids_are_the_same_everywhere(orders):
    job = delayq.schedule(close_order, 7)
    assert ids.parse(ids.short(job.id)) == job.id


def test_a_hundred_snoozes_in_a_row_leave_ten_attempts(orders):
    job = delayq.schedule(close_order, 7, delay=0)
    for batch in range(10):
        for _ in range(10):
            orders.settle(orders.claim()[0], "snooze", detail=b'{"d":"not yet"}')
        orders.fold()
        assert Attempt.objects.filter(job_id=job.id).count() <= 10, f"after {batch + 1} batches"
    orders.settle(orders.claim()[0], "retry", detail=b'{"c":"ValueError"}')
    for _ in range(3):
        orders.settle(orders.claim()[0], "snooze")
    orders.settle(orders.claim()[0], "ack")
    orders.fold()
    outcomes = list(Attempt.objects.order_by("id").values_list("number", "outcome"))
    assert outcomes == [*[(1, "snoozed")] * 10, (1, "retried"), *[(2, "snoozed")] * 3, (2, "succeeded")]


def test_a_purge_is_told_with_its_count(orders):
    for number in (7, 8):
        delayq.schedule(close_order, number, delay="1h")
    orders.store.purge(actor="user:clerk")
    orders.fold()
    assert list(Event.objects.filter(kind="purged").values_list("job_id", "detail", "actor")) == [(None, {"count": 2}, "user:clerk")]


def test_what_was_set_aside_without_an_id_is_told_without_a_job(orders, delayq_redis):
    delayq_redis.link.execute("ZADD", orders.store.keys["normal"], 5, "no id of ours")
    assert orders.claim() == []
    orders.fold()
    told = list(Event.objects.filter(kind="aside").values_list("job_id", "detail"))
    assert told == [(None, {"reason": "a date without a job"})]
    assert not SetAside.objects.exists()


def test_a_takeover_is_told_in_one_entry_and_folded_whole(orders):
    job = delayq.schedule(close_order, 7)
    now = clock.wall_ms() + 1000
    claim = partial(orders.store.claim, want=200, lease_ms=30_000, max_crashes=3)
    assert claim("lost", "n1", now_ms=now).jobs
    orders.fold()
    for later in (10_000, 20_000, 29_000):
        assert not claim("idle", f"n{later}", now_ms=now + later).jobs
    assert claim("idle", "n2", now_ms=now + 30_001).jobs
    orders.fold()
    row = Job.objects.get(pk=job.id)
    assert (row.state, row.attempts, row.crashes, row.worker) == ("running", 1, 1, "idle")


def test_an_evicted_run_shows_as_such_and_counts_neither_attempt_nor_crash(orders):
    job = delayq.schedule(close_order, 7, delay=0)
    orders.settle(orders.claim()[0], "evict", detail=b'{"e":"evicted","d":"its process was killed"}')
    orders.fold()
    row = Job.objects.get(pk=job.id)
    assert (row.state, row.attempts, row.crashes, row.error) == ("scheduled", 0, 0, "")
    assert list(Attempt.objects.values_list("outcome", "message")) == [("evicted", "its process was killed")]


@pytest.mark.parametrize("ran", [True, False])
def test_a_job_that_expires_after_attempts_has_failed_with_its_last_error_and_is_cancelled_without(orders, ran):
    job = delayq.schedule(close_order, 7, delay=0, expires="2s")  # time for the claim
    if ran:
        orders.settle(orders.claim()[0], "retry", detail=b'{"c":"ValueError","m":"the bank is closed","p":"f1"}')
        orders.fold()
    deadline = clock.monotonic() + 30
    while clock.wall_ms() <= clock.to_ms(Job.objects.get(pk=job.id).expires_at) and clock.monotonic() < deadline:
        clock.sleep(0.01)
    assert orders.claim() == []
    orders.fold()
    row = Job.objects.get(pk=job.id)
    assert row.finished_at is not None
    if ran:
        assert (row.state, row.attempts, row.fingerprint) == ("failed", 1, "f1")
        assert row.error.startswith("Expired")
        assert "ValueError: the bank is closed" in row.error
    else:
        assert (row.state, row.error) == ("cancelled", "expired before it could run")


def test_how_a_job_was_displaced_stands_in_its_row_and_a_requeue_forgets_it(orders):
    merged, replaced, expired, holder = (delayq.schedule(close_order, n, delay="1h") for n in range(4))
    orders.fold()
    short = {job.id: ids.short(job.id) for job in (merged, replaced, expired, holder)}
    events = orders.store.keys["events"]
    for kind, value in (
        ("merged", f"{short[merged.id]} {short[holder.id]} latest"),
        ("cancelled", f'{short[replaced.id]} 0 0 -\n{{"m":"replaced","r":"{short[holder.id]}"}}'),
        ("expired", short[expired.id]),
    ):
        stores.link.execute("XADD", events, "*", "by", "x", kind, value)
    orders.fold()
    rows = {row.id: (row.state, row.ending, row.merged_into) for row in Job.objects.all()}
    assert rows[merged.id] == ("cancelled", "merged", holder.id)
    assert rows[replaced.id] == ("cancelled", "replaced", holder.id)
    assert rows[expired.id] == ("cancelled", "expired", None)
    assert rows[holder.id] == ("scheduled", None, None)
    stores.link.execute("XADD", events, "*", "by", "x", "requeued", f"{short[replaced.id]} 1795000000000")
    orders.fold()
    row = Job.objects.get(pk=replaced.id)
    assert (row.state, row.ending, row.merged_into) == ("scheduled", None, None)


def test_proposals_of_a_hot_key_leave_no_event_rows(orders):
    holder = delayq.schedule(close_order, 7, delay="1h", key="o:7")
    proposal = delayq.schedule(close_order, 8, delay="1h")
    orders.fold()
    events, due = orders.store.keys["events"], clock.to_ms(holder.run_at) + 60_000
    moved = f"{ids.short(holder.id)} {due}"
    stores.link.execute("XADD", events, "*", "by", "x", "rescheduled", f"{moved} latest")
    stores.link.execute("XADD", events, "*", "by", "x", "merged", f"{ids.short(proposal.id)} {ids.short(holder.id)} latest")
    orders.fold()
    assert clock.to_ms(Job.objects.get(pk=holder.id).run_at) == due
    assert not Event.objects.exists()
    stores.link.execute("XADD", events, "*", "by", "clerk", "rescheduled", moved)
    orders.fold()
    assert [event.actor for event in Event.objects.all()] == ["clerk"], "what people do is told"


@pytest.mark.parametrize("words", [" no_job\na date without a job", " no_job\nin other words"])
def test_a_date_that_lost_its_job_makes_the_row_unpublished_by_its_code(orders, delayq_redis, words):
    job = delayq.schedule(close_order, 7)
    orders.fold()
    delayq_redis.link.execute("XADD", "delayq:{orders}:events", "*", "aside", ids.short(job.id) + words)
    orders.fold()
    row = Job.objects.get(pk=job.id)
    assert (row.state, row.published) == ("scheduled", None)
