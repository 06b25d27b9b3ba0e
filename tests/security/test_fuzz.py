"""For any bytes in Redis, in the settings or on a command line, the package answers or raises a refusal of its own classes. It never
raises another exception.
"""

from __future__ import annotations

import json

from django.core.management import CommandError
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from django_delayq import codec, conf, ids, spread
from django_delayq.console import masking
from django_delayq.exceptions import PayloadError
from django_delayq.management.commands.delayq_worker import Command
from django_delayq.mirror.database_errors import Unfoldable
from django_delayq.mirror.fold import EventBatch, ids_of
from django_delayq.states import EventKind
from django_delayq.store.scripts import decode, events
from django_delayq.store.scripts.record import JobRecord
from django_delayq.store.scripts.worker_registry import _read as read_worker
from tests.security.vandal import Vandal
from tests.worker.bench import Bench, task

SHARED = settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None, max_examples=60)
ID = ids.short(ids.new())

numbers = st.one_of(st.integers(), st.floats(), st.just(10**400), st.sampled_from(["-inf", "inf", "nan", "1e999", "-0", ""]))
words = st.one_of(
    st.text(max_size=20),
    st.binary(max_size=20),
    numbers.map(str),
    st.sampled_from(["1", "0", "-", "n", "h", ID, "\n", " ", "1no", "1hr3", "1lo10:5"]),
)
headers = st.lists(words, max_size=9).map(lambda found: b" ".join(_bytes(word) for word in found))
json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=10),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=10), inner, max_size=4),
    max_leaves=20,
)
payloads = st.one_of(st.binary(max_size=60), json_values.map(lambda value: json.dumps(value).encode()))
records = st.one_of(
    st.binary(max_size=80),
    st.tuples(headers, payloads).map(lambda parts: parts[0] + b"\n" + parts[1]),
    payloads.map(lambda payload: b"1nr note\n" + payload),
)


def _bytes(word: str | bytes) -> bytes:
    return word if isinstance(word, bytes) else word.encode("utf-8", "replace")


# what is read


@given(records)
def test_a_record_is_read_or_refused(raw):
    try:
        record = JobRecord.decode(ids.new(), raw)
    except PayloadError:
        return
    assert JobRecord.decode(record.id, record.encode()) == record


@given(payloads)
def test_a_payload_is_read_or_refused(raw):
    try:
        args, kwargs, options = codec.decode_payload(raw)
    except PayloadError:
        return
    assert codec.loads(codec.dumps([args, kwargs, options])) == [args, kwargs, options]


@given(st.binary(max_size=30))
def test_what_is_no_number_date_or_id_counts_as_none(raw):
    assert 0 <= decode.moment_ms(raw) <= decode.number(raw) <= 2**53
    decode.text(raw)
    assert decode.job_id(raw) is None or len(raw) == 22


@given(st.one_of(st.binary(max_size=60), json_values.map(lambda value: json.dumps({"beat": value, "queues": value}).encode())))
def test_what_a_worker_says_of_itself_can_be_shown(raw):
    facts = read_worker(raw)
    assert isinstance(facts["beat"], int)
    assert all(isinstance(name, str) for name in facts.get("queues", ()))


@given(st.binary(max_size=3000), st.integers(0, 2**52))
def test_counts_of_lateness_are_read_from_any_bytes(raw, now_ms):
    assert len(spread.decode(raw, now_ms).late) == spread.BUCKETS


@given(st.lists(json_values, max_size=4), st.dictionaries(st.text(max_size=5), json_values, max_size=4))
def test_any_arguments_can_be_masked(args, kwargs):
    shown, named = masking.arguments("gone", args, kwargs)
    assert (len(shown), set(named)) == (len(args), set(kwargs))


# what is run


@SHARED
@given(st.lists(st.tuples(records, words, st.sampled_from(["high", "normal", "low"])), min_size=1, max_size=10))
def test_jobs_of_any_bytes_leave_the_queue(redis_server, jobs):
    redis_server.link.execute("FLUSHALL")
    bench, ran = Bench(redis_server.link), []
    bench.tasks["note"] = task(lambda *args, **kwargs: ran.append((args, kwargs)))
    vandal = Vandal(redis_server.link, bench.board.keys, task="note")
    for record, id, band in jobs:
        vandal.due(_bytes(id) if len(_bytes(id)) % 2 else vandal.id(), record, band=band)
    for _ in range(len(jobs) + 2):
        bench.run()
    trouble = bench.mover.stuck_for
    bench.close()
    assert trouble == 0
    due = [redis_server.link.execute("ZCOUNT", bench.board.keys[band], "-inf", "2000") for band in ("high", "normal", "low")]
    assert due == [0, 0, 0]


# what is folded


kinds = st.one_of(st.sampled_from([kind.value for kind in EventKind]), st.text(max_size=5), st.sampled_from(["at", "by", "why"]))
values = st.tuples(st.sampled_from([ID, "no id", ""]), st.lists(words, max_size=6), payloads, st.booleans()).map(
    lambda parts: b" ".join([parts[0].encode(), *map(_bytes, parts[1])]) + (b"\n" + parts[2] if parts[3] else b"")
)


@example([("claimed", f"{ID} -5 0 f".encode())], "full")
@example([("claimed", f"{ID} {10**400} 0 f".encode())], "full")
@given(st.lists(st.tuples(kinds, values), max_size=6), st.sampled_from(["full", "outcomes", "failures"]))
def test_an_entry_is_folded_or_refused(pairs, audit):
    raw = [part for kind, value in pairs for part in (kind.encode("utf-8", "replace"), value)]
    entry = events._entry(b"1700000000000-0", raw)
    batch = EventBatch(queue="orders", partition=0, audit=audit, jobs={}, attempts={}, records={})
    ids_of([entry])
    try:
        batch.fold(entry)
    except Unfoldable:
        return
    for job in batch.changed.values():
        assert job.attempts >= 0
        assert len(job.worker) <= 200


# configuration and command line


everything = st.recursive(
    st.none() | st.booleans() | numbers | st.text(max_size=12) | st.binary(max_size=5) | st.just(object) | st.just("30s"),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8) | st.integers(), inner, max_size=3),
    max_leaves=8,
)
keys = st.sampled_from([*conf.DEFAULTS, "PARTITIONS"]) | st.text(max_size=8) | st.integers()


@given(st.dictionaries(keys, everything, max_size=6) | everything)
def test_settings_are_taken_or_named_as_problems(given_settings):
    problems, config = conf._read(given_settings)
    assert (config is None) == bool(problems)
    for problem in problems:
        assert problem.where.startswith("DELAYQ")
        assert str(problem)


NAMES = (
    "cancel",
    "reschedule",
    "requeue",
    "run-now",
    "list",
    "inspect",
    "purge",
    "prune",
    "pause",
    "resume",
    "resign",
    "status",
)
typed = st.one_of(
    st.sampled_from(
        [
            "--queue",
            "--key",
            "--state",
            "--task",
            "--limit",
            "--delay",
            "--run-at",
            "--yes",
            "--dry-run",
            "--json",
            "orders",
            "1h",
            "2030-01-01T00:00:00Z",
            "9999-12-31T23:59:59+14:00",
            "-1",
            "0",
            "1e999",
            "scheduled",
            "due",
            ID,
            "",
        ]
    ),
    st.text(max_size=12),
)


@SHARED
@given(st.sampled_from(NAMES), st.lists(typed, max_size=5))
def test_any_words_on_the_command_line_are_understood_or_refused(run, orders, name, words):
    answer = run(name, *words)
    assert answer.code in (0, 1, 2)
    assert "Traceback" not in answer.out + answer.error


@given(
    st.sampled_from(["--threads", "--grace", "--max-jobs", "--max-memory", "--health-port", "--processes"]),
    st.text(max_size=8),
)
def test_any_value_of_a_worker_option_is_understood_or_refused(option, text):
    parser = Command().create_parser("manage.py", "delayq_worker")
    try:
        parser.parse_args([f"{option}={text}"])
    except (CommandError, SystemExit):
        return
