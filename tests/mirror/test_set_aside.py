"""The mirror loses nothing: it waits for temporary problems, and stores rejected events in a table."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager

import pytest
from django.db import Error, IntegrityError, InterfaceError, OperationalError, connection, connections

import django_delayq as delayq
from django_delayq import clock, codec, ids
from django_delayq.exceptions import DelayqError
from django_delayq.mirror.database_errors import about_data
from django_delayq.mirror.fold import MOST_FIELDS, problem_of
from django_delayq.mirror.service import LoopRunner
from django_delayq.models import Attempt, Checkpoint, Job, SetAside
from django_delayq.producer.stores import stores
from django_delayq.store.scripts.formats import FORMAT
from django_delayq.store.scripts.queue import Outcome
from django_delayq.store.scripts.worker_registry import WorkerRegistry
from django_delayq.worker import outcome
from tests.tasks_for_tests import close_order


@pytest.fixture
def told(orders):
    """Four jobs whose rows do not record their ends: two failed, two succeeded."""
    jobs = [delayq.schedule(close_order, number) for number in range(4)]
    orders.fold()
    for claimed, end in zip(orders.claim(), ("fail", "fail", "ack", "ack"), strict=True):
        orders.settle(claimed, end, detail=b'{"m":"no"}' if end == "fail" else b'{"r":7}')
    return jobs


@pytest.fixture
def other(orders) -> Iterator[object]:
    """A second session."""
    made = connections.create_connection("default")
    yield made
    made.close()


def run(*statements: str) -> None:
    with connection.cursor() as cursor:
        for statement in statements:
            cursor.execute(statement)


def only(vendors: str) -> None:
    if connection.vendor not in vendors:
        pytest.skip(f"of {vendors} alone")


def states() -> list[str]:
    return sorted(Job.objects.values_list("state", flat=True))


@contextmanager
def locked(other, by: str) -> Iterator[None]:
    """Another session holds the table of jobs: somebody creates an index, say."""
    other.set_autocommit(False)
    with other.cursor() as cursor:
        cursor.execute("LOCK TABLE delayq_job IN SHARE MODE")
    run(by)
    try:
        yield
    finally:
        other.rollback()
        run("RESET ALL")


@contextmanager
def held(other) -> Iterator[None]:
    """Another session holds a row."""
    other.set_autocommit(False)
    with other.cursor() as cursor:
        cursor.execute("SELECT * FROM delayq_job FOR UPDATE")
    run("SET innodb_lock_wait_timeout = 1")
    try:
        yield
    finally:
        other.rollback()
        run("SET innodb_lock_wait_timeout = DEFAULT")


@contextmanager
def renamed(other) -> Iterator[None]:
    """The schema differs from that of this release: the code was deployed before `migrate`, or the migration was rolled back."""
    run("ALTER TABLE delayq_job RENAME COLUMN fingerprint TO elsewhere")
    try:
        yield
    finally:
        run("ALTER TABLE delayq_job RENAME COLUMN elsewhere TO fingerprint")


@contextmanager
def forbidden(other) -> Iterator[None]:
    run("DROP ROLE IF EXISTS clerk", "CREATE ROLE clerk", "GRANT ALL ON ALL TABLES IN SCHEMA public TO clerk")
    run(
        "GRANT ALL ON ALL SEQUENCES IN SCHEMA public TO clerk",
        "REVOKE INSERT ON delayq_attempt FROM clerk",
        "SET ROLE clerk",
    )
    try:
        yield
    finally:
        run("RESET ROLE", "DROP OWNED BY clerk", "DROP ROLE clerk")


@contextmanager
def wanting(other) -> Iterator[None]:
    """A column that the newer schema wants and this release does not know."""
    run(
        "ALTER TABLE delayq_attempt ADD COLUMN wanted integer NOT NULL DEFAULT 0",
        "ALTER TABLE delayq_attempt ALTER wanted DROP DEFAULT",
    )
    try:
        yield
    finally:
        run("ALTER TABLE delayq_attempt DROP COLUMN wanted")


@contextmanager
def full(other) -> Iterator[None]:
    """The server says that the disk is full, in the words of another language."""
    run(
        "CREATE FUNCTION full_disk() RETURNS trigger LANGUAGE plpgsql AS "
        "$$ BEGIN RAISE EXCEPTION 'kein Platz mehr' USING ERRCODE = '53100'; END $$",
        "CREATE TRIGGER full_disk BEFORE INSERT ON delayq_attempt EXECUTE FUNCTION full_disk()",
    )
    try:
        yield
    finally:
        run("DROP FUNCTION full_disk CASCADE")


@contextmanager
def stuck(other) -> Iterator[None]:
    """A deadlock, in the words of another language."""
    run(
        "CREATE FUNCTION stuck() RETURNS trigger LANGUAGE plpgsql AS "
        "$$ BEGIN RAISE EXCEPTION 'Verklemmung' USING ERRCODE = '40P01'; END $$",
        "CREATE TRIGGER stuck BEFORE INSERT ON delayq_attempt EXECUTE FUNCTION stuck()",
    )
    try:
        yield
    finally:
        run("DROP FUNCTION stuck CASCADE")


PASSES: dict[str, tuple[str, Callable[..., AbstractContextManager[None]]]] = {
    "a statement that times out": ("postgresql", lambda other: locked(other, "SET statement_timeout = '300ms'")),
    "a lock that is not given": ("postgresql", lambda other: locked(other, "SET lock_timeout = '300ms'")),
    "a column that is missing": ("postgresql sqlite mysql", renamed),
    "a column that is new": ("postgresql", wanting),
    "a right that is missing": ("postgresql", forbidden),
    "a full disk in another language": ("postgresql", full),
    "a deadlock in another language": ("postgresql", stuck),
    "a row that another session holds": ("mysql", held),
}


@pytest.mark.parametrize("name", PASSES)
def test_nothing_is_lost_while_the_database_refuses(orders, told, other, name):
    vendors, trouble = PASSES[name]
    only(vendors)
    with trouble(other):
        before = orders.mirror.log.length()
        for _ in range(3):
            with pytest.raises(Error):
                orders.mirror.poll()
        assert orders.mirror.log.length() == before
        assert states() == ["scheduled"] * 4
    orders.fold()
    assert states() == ["failed", "failed", "succeeded", "succeeded"]
    assert not SetAside.objects.exists()


@contextmanager
def narrow() -> Iterator[None]:
    """The database refuses what is longer than it was told, and nothing else."""
    if connection.vendor == "postgresql":
        run("ALTER TABLE delayq_attempt ALTER message TYPE varchar(20)")
        try:
            yield
        finally:
            run("ALTER TABLE delayq_attempt ALTER message TYPE text")
    elif connection.vendor == "mysql":
        run("ALTER TABLE delayq_attempt MODIFY message varchar(20) NOT NULL")
        try:
            yield
        finally:
            run("ALTER TABLE delayq_attempt MODIFY message longtext NOT NULL")
    else:
        run("CREATE UNIQUE INDEX narrow ON delayq_attempt (length(message) > 20) WHERE length(message) > 20")
        Attempt.objects.create(job_id=ids.new(), number=1, fence="f", message="x" * 21, started_at=clock.now())
        try:
            yield
        finally:
            run("DROP INDEX narrow")
            Attempt.objects.filter(fence="f").delete()


CODES = {"postgresql": "22001", "mysql": "1406", "sqlite": "SQLITE_CONSTRAINT_UNIQUE"}


def test_what_is_about_the_data_of_one_row_is_kept_in_a_table_and_taken_in_when_it_can_be(orders, caplog):
    jobs = [delayq.schedule(close_order, number) for number in range(3)]
    orders.fold()
    messages = {ids.short(jobs[1].id): "L" * 21}
    with narrow():
        claimed = orders.claim()
        items = [
            Outcome(job.id, job.attempt, job.fence, "fail", 0, json.dumps({"m": messages.get(job.id, "no")}).encode())
            for job in claimed
        ]
        orders.store.settle(items, worker="host:1:w", max_crashes=3)  # one entry tells of all three
        orders.fold()
        assert orders.mirror.log.length() == 0
        assert states() == ["failed", "failed", "running"]
        kept = SetAside.objects.get()
        assert (kept.queue, kept.job_id, kept.kind, kept.code) == (
            "orders",
            jobs[1].id,
            "failed",
            CODES[connection.vendor],
        )
        assert bytes(kept.raw).endswith(items[1].detail)
        assert kept.length == len(kept.raw)
        assert "set aside" in caplog.text
        assert "LLLL" not in caplog.text, "what a job carries is not logged"
        assert orders.mirror.retry([kept.pk]) == (0, 1)
        kept.refresh_from_db()
        assert kept.tries == 2
    assert orders.mirror.retry([kept.pk]) == (1, 0)
    assert states() == ["failed"] * 3
    assert Attempt.objects.get(job_id=jobs[1].id).message == "L" * 21
    assert not SetAside.objects.exists()


def test_a_row_is_not_set_aside_for_what_another_session_does_meanwhile(orders, told, monkeypatch):
    """It is refused in a batch and once more alone, but not the third time."""
    refusals, save = iter([True, True, True, False]), orders.mirror.save

    def refuse(batch):
        if batch.changed and next(refusals, False):
            raise IntegrityError("somebody else was quicker") from Known()
        save(batch)

    class Known(Exception):
        sqlstate = "23505"

    monkeypatch.setattr(orders.mirror, "save", refuse)
    orders.fold()
    assert states() == ["failed", "failed", "succeeded", "succeeded"]
    assert not SetAside.objects.exists()


@pytest.mark.parametrize(("state", "kept"), [("22001", True), ("54000", True), ("23502", False), ("57014", False), ("", False)])
def test_a_refusal_is_judged_by_its_code_whatever_the_server_says(state, kept):
    class Said(Exception):
        sqlstate = state

    error = OperationalError("locked, deadlock, lock wait timeout, serialize, value too long")
    error.__cause__ = Said()
    assert about_data(error) == (state if kept else "")


def forge(*pairs: object, head: tuple[object, ...] = ("at", 1_795_000_000_000, "by", "x")) -> None:
    stores.link.execute("XADD", stores.queue("orders", 0).keys["events"], "*", *head, *pairs)


def test_forged_entries_stop_nothing_and_are_kept(orders):
    job = delayq.schedule(close_order, 1)
    short = ids.short(job.id)
    forge("abolished", f"{short} 1")
    forge("claimed", f"{short} many 0 f")
    forge("succeeded", "no-job 1 0 f")
    forge("bÿ", b"\xff\x00", head=("f", 99, "at", 1_795_000_000_000, "by", "x"))
    later = delayq.schedule(close_order, 2)
    orders.fold()
    assert orders.mirror.log.length() == 0
    assert not Job.objects.filter(pk__in=[job.id, later.id], published=None).exists()
    kept = [(one.kind, one.code, bytes(one.raw)) for one in SetAside.objects.order_by("id")]
    assert kept == [
        ("abolished", "unknown kind", f"{short} 1".encode()),
        ("claimed", "fold:ValueError", f"{short} many 0 f".encode()),
        ("succeeded", "no job", b"no-job 1 0 f"),
        ("bÿ", "unknown kind", b"\xff\x00"),
    ]


@pytest.mark.parametrize("who", ["the queue", "a worker"])
def test_an_event_of_a_newer_release_stops_the_mirror_while_that_release_is_there(orders, caplog, who):
    before = delayq.schedule(close_order, 1)
    forge("promoted", ids.short(before.id), head=("at", 1_795_000_000_000, "by", "x", "f", FORMAT + 1))
    behind = delayq.schedule(close_order, 2)
    registry = WorkerRegistry(stores.link, prefix="delayq")
    if who == "the queue":
        stores.link.execute("HSET", orders.store.keys["meta"], "format", FORMAT + 1)
    else:
        registry.beat("host:1:new", {"queues": ["orders"], "format": FORMAT + 1})
    runner = LoopRunner("the mirror of orders", orders.mirror)
    for _ in range(3):
        runner.run_once()
    assert runner.failures
    assert f"format {FORMAT + 1}" in caplog.text
    assert Job.objects.get(pk=behind.id).published is None
    assert orders.mirror.log.length() >= 2
    if who == "the queue":
        stores.link.execute("HDEL", orders.store.keys["meta"], "format")
    else:
        registry.leave("host:1:new")
    orders.fold()
    assert Job.objects.get(pk=behind.id).published is not None
    assert SetAside.objects.get().kind == "promoted"


def test_what_came_later_stands_when_an_older_event_is_taken_in(orders):
    job = delayq.schedule(close_order, 1)
    orders.fold()
    with narrow():
        orders.settle(orders.claim()[0], "fail", detail=json.dumps({"m": "L" * 21}).encode())
        orders.fold()
    assert job.requeue() is delayq.Change.DONE
    orders.fold()
    [kept] = SetAside.objects.values_list("pk", flat=True)
    assert orders.mirror.retry([kept]) == (1, 0)
    assert states() == ["scheduled"]
    assert Attempt.objects.get(job_id=job.id).message == "L" * 21
    assert Checkpoint.objects.get(queue="orders").last_event != "0-0"


def test_a_connection_that_the_driver_calls_closed_is_waited_for(caplog):
    class Closed:
        def poll(self) -> float:
            raise InterfaceError("connection already closed")

    runner = LoopRunner("the mirror of orders", Closed())
    runner.run_once()
    assert runner.failures == 1
    assert "Nothing is lost" in caplog.text


def test_an_event_larger_than_the_server_takes_is_set_aside_as_far_as_it_takes_it(orders):
    only("mysql")
    job = delayq.schedule(close_order, 1)
    orders.fold()
    with connection.cursor() as cursor:
        cursor.execute("SELECT @@global.max_allowed_packet")
        before = cursor.fetchone()[0]
    run("SET GLOBAL max_allowed_packet = 1048576")
    connection.close()
    try:
        orders.settle(orders.claim()[0], "ack", detail=json.dumps({"r": "x" * 3_000_000}).encode())
        later = delayq.schedule(close_order, 2)
        runner = LoopRunner("the mirror of orders", orders.mirror)
        for _ in range(20):
            runner.run_once()
        assert orders.mirror.log.length() == 0
        assert Job.objects.get(pk=later.id).published is not None
        kept = SetAside.objects.get()
        assert kept.job_id == job.id
        assert 0 < len(kept.raw) < 1_048_576 < kept.length
        assert orders.mirror.retry([kept.pk]) == (0, 1), "what was cut is not whole"
    finally:
        run(f"SET GLOBAL max_allowed_packet = {before}")
        connection.close()


class Refused(DelayqError):
    code = "refused"


def test_code_and_fields_of_an_error_of_ours_and_the_pause_it_asked_for_travel_with_the_end():
    error = Refused("no", target="a:1", status=503, big=2**60, name=None, list=[1], text="x\0y" * 2000)
    detail = json.loads(outcome.failure_detail(error=error, wait_ms=1500))
    assert (detail["k"], detail["w"]) == ("refused", 1500)
    fields = detail["v"]
    assert (fields["target"], fields["status"], fields["big"], fields["name"], fields["list"]) == ("a:1", 503, str(2**60), None, "[1]")
    assert len(fields["text"]) <= outcome.MAX_FIELD
    assert "\0" not in fields["text"]
    assert problem_of(detail) == {"code": "refused", "fields": fields, "wait_ms": 1500}


@pytest.mark.parametrize("error", [ValueError("x"), Refused("no fields"), None])
def test_others_say_nothing_more(error):
    detail = json.loads(outcome.failure_detail(error=error))
    assert not {"k", "v", "w"} & set(detail)
    assert problem_of(detail) is None


@pytest.mark.parametrize(
    ("detail", "problem"),
    [
        ({"k": 7, "v": {}}, None),
        ({"k": "a", "v": [1]}, None),
        ({"k": "a", "v": {}, "w": True}, {"code": "a", "fields": {}}),
        ({"w": -1}, None),
        ({"w": 2**70}, None),
        ({"w": 0}, {"wait_ms": 0}),
        ({"k": "a", "v": {"b": {"c": 1}, "d": 1.5}}, {"code": "a", "fields": {"b": "{'c': 1}", "d": "1.5"}}),
    ],
)
def test_what_we_do_not_write_is_no_problem(detail, problem):
    assert problem_of(detail) == problem


def test_of_many_fields_some_are_kept():
    assert len(problem_of({"k": "a", "v": {str(n): n for n in range(100)}})["fields"]) == MOST_FIELDS


def test_the_row_of_an_attempt_has_it(orders):
    delayq.schedule(close_order, 7)
    [claimed] = orders.claim()
    orders.settle(claimed, "retry", detail=codec.dumps({"c": "E", "m": "m", "k": "answer", "v": {"status": 503}, "w": 60_000}))
    orders.fold()
    [claimed] = orders.claim()
    orders.settle(claimed, "ack")
    orders.fold()
    problems = list(Attempt.objects.order_by("number").values_list("problem", flat=True))
    assert problems == [{"code": "answer", "fields": {"status": 503}, "wait_ms": 60_000}, None]
