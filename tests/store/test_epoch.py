"""The information of an epoch: whether a missing job may be running, how far the mirror has come, and which ends are remembered."""

from __future__ import annotations

import pytest

from django_delayq import clock, ids
from django_delayq.states import Change
from django_delayq.store.connection.error_replies import StoreError
from django_delayq.store.scripts import loader
from django_delayq.store.scripts.decode import position
from django_delayq.store.scripts.events import FIRST
from django_delayq.store.scripts.recovery import EpochStore, RestoreItem
from tests.store.board import NOW, job_id, record


@pytest.fixture
def epoch(board) -> EpochStore:
    return EpochStore(board.store)


def confirm(epoch: EpochStore, **options: str) -> str:
    found = epoch.look(FIRST)
    return epoch.confirm(found.generation, server=found.server, now_ms=NOW, **options)


@pytest.mark.parametrize(
    ("confirmed", "phase", "lacking", "wanted"),
    [
        (False, "", str(NOW), Change.RUNNING),
        (True, "sweep", str(NOW), Change.RUNNING),
        (True, "rest", str(NOW), Change.RUNNING),
        (True, "", str(NOW), Change.DONE),
        (False, "", str(NOW + 1), Change.DONE),
        (True, "", "running", Change.RUNNING),
        (False, "", "scheduled", Change.DONE),
    ],
)
def test_a_job_that_is_not_here_may_run_if_it_was_due_in_an_epoch_that_none_has_confirmed(
    board, epoch, confirmed, phase, lacking, wanted
):
    board.claim()  # so that there is a generation
    if confirmed:
        assert confirm(epoch) == "ok"
    if phase:
        assert confirm(epoch, phase=phase) == "ok"
    assert board.store.cancel(job_id(1), lacking=lacking, now_ms=NOW).change == wanted


@pytest.mark.parametrize(
    ("confirmed", "due", "wanted"),
    [
        ("", NOW, Change.DONE),  # what came after a wipe is known
        ("mine", NOW, Change.DONE),
        ("another", NOW + 1, Change.DONE),
        ("another", NOW, Change.RUNNING),
    ],
)
def test_a_job_that_waits_on_an_old_copy_may_be_running_if_it_is_due(board, epoch, confirmed, due, wanted):
    board.claim()  # so that there is a generation
    board.put(1, due)
    if confirmed:
        assert confirm(epoch) == "ok"
    if confirmed == "another":
        board.link.execute("HSET", board.keys["meta"], "server", "another")
    assert board.store.reschedule(job_id(1), due_ms=due, now_ms=NOW).change is wanted
    assert board.store.cancel(job_id(1), actor="clerk", now_ms=NOW).change == wanted
    if wanted is Change.RUNNING:
        assert confirm(epoch) == "ok"
        board.claim("n2", "w2")  # nobody has come to tell that it runs
        assert any(line.startswith("cancelled") for line in board.happened())
        assert board.store.cancel(job_id(1), now_ms=NOW).change == Change.DONE


def test_what_waited_when_another_server_moved_it_is_moved_here_though_it_is_due(board, epoch):
    board.claim()  # so that there is a generation
    board.put(1, NOW)
    assert confirm(epoch) == "ok"
    board.link.execute("HSET", board.keys["meta"], "server", "another")
    assert board.store.reschedule(job_id(1), due_ms=NOW + 9000, lacking="waited", now_ms=NOW).change is Change.DONE
    assert confirm(epoch) == "ok"
    assert board.claim("n2", "w2").jobs == []


def test_who_confirms_a_server_wakes_a_worker(board, epoch):
    board.claim()
    board.link.execute("DEL", board.keys["wake"])
    assert confirm(epoch) == "ok"
    assert board.tokens() == 1


def test_a_confirmation_of_what_is_not_there_changes_nothing(board, epoch):
    generation = board.claim().generation
    before = board.link.execute("HGETALL", board.keys["meta"])
    assert epoch.confirm("another", now_ms=NOW) == "changed"
    assert epoch.confirm(generation, server="another", now_ms=NOW) == "changed"
    assert board.link.execute("HGETALL", board.keys["meta"]) == before


def test_what_is_not_believed_gets_another_generation_and_events_behind_those_that_rows_have_seen(board, epoch):
    generation = board.claim().generation
    behind = f"{clock.wall_ms() + 3_600_000}-3"
    assert epoch.confirm(generation, phase="adopt", renew="r1", behind=behind, progress="me 1 2", now_ms=NOW) == "ok"
    board.put(1)
    added, entry = board.log.read("0-0", 10)
    assert position(behind) < position(added.id) < position(entry.id)
    assert board.claim("n2").generation == "r1"
    assert board.link.execute("HMGET", board.keys["meta"], "rolled", "restoring") == [b"adopt", f"{NOW} me 1 2".encode()]
    assert epoch.confirm("r1", mirrored="7-7", now_ms=NOW) == "ok"
    assert board.link.execute("HMGET", board.keys["meta"], "rolled", "restoring", "mirrored") == [None, None, b"7-7"]


def test_a_look_tells_what_the_queue_stands_on(board, epoch):
    found = epoch.look(FIRST)
    assert (found.generation, found.confirmed, found.older, found.rolled, found.restoring) == ("", None, False, "", "")
    board.claim()
    assert confirm(epoch, phase="adopt", progress="me 1 2") == "ok"
    before = clock.wall_ms()
    found = epoch.look(FIRST)
    assert before - 1 <= found.now_ms <= clock.wall_ms() + 1
    meta = board.link.execute("HMGET", board.keys["meta"], "generation", "server")
    assert [found.generation.encode(), found.confirmed.encode()] == meta
    assert found.server == found.confirmed
    assert (found.rolled, found.restoring) == ("adopt", f"{NOW} me 1 2")
    board.link.execute("HSET", board.keys["meta"], "server", "")
    assert epoch.look(FIRST).confirmed == "", "it was confirmed where INFO is not allowed"


def test_a_look_says_whether_an_event_is_missing_that_the_database_has(board, epoch):
    board.put(1)
    seen = board.log.last_id()
    assert not epoch.look(seen).older, "it is in the stream"
    board.put(2)
    board.log.trim(seen)
    assert not epoch.look(seen).older, "it has been trimmed"
    later = f"{position(seen)[0] + 10_000_000}-0"
    assert epoch.look(later).older
    board.link.execute("UNLINK", board.keys["events"], board.keys["meta"])
    assert epoch.look(seen).older
    assert not epoch.look(FIRST).older, "the database has none"


def test_where_info_is_not_allowed_a_look_tells_no_server(board, epoch, monkeypatch):
    real = board.store.link.execute_many
    monkeypatch.setattr(
        board.store.link, "execute_many", lambda commands: [real(commands)[0], StoreError("NOPERM"), *real(commands)[2:]]
    )
    found = epoch.look(FIRST)
    assert (found.server, found.now_ms) == ("", 0)


def test_what_is_found_is_noted_and_the_server_is_not_confirmed_by_it(board, epoch):
    board.claim()
    assert confirm(epoch, phase="found") == "ok"
    meta = board.link.execute("HMGET", board.keys["meta"], "rolled", "server")
    assert meta == [b"found", None]


@pytest.mark.parametrize(
    ("first", "second", "wanted"),
    [
        ("1000-5", "999-7", "1000-5"),
        ("1000-5", "1000-4", "1000-5"),
        ("1000-5", "1000-6", "1000-6"),
        ("1000-5", "1001-0", "1001-0"),
    ],
)
def test_a_slower_mirror_takes_nothing_back(board, first, second, wanted):
    board.log.trim(first)
    board.log.trim(second)
    assert board.link.execute("HGET", board.keys["meta"], "mirrored").decode() == wanted


@pytest.fixture
def few(monkeypatch):
    """Three of the ends that the database has recorded are remembered."""
    real = loader._read
    monkeypatch.setattr(loader, "_read", lambda path: real(path).replace("TOMBSTONES = 200000", "TOMBSTONES = 3"))
    loader.built.cache_clear()
    yield
    loader.built.cache_clear()


def by_cancel(board) -> None:
    board.store.cancel(job_id(1), now_ms=NOW)


def by_purge(board) -> None:
    board.store.purge(now_ms=NOW)


def by_settle(board) -> None:
    board.claim()
    board.settle(1, "ack")


def by_restore(board) -> None:
    board.link.execute("DEL", board.keys["jobs"])
    board.put(2, key="k")
    row = RestoreItem(ids.short(job_id(1)), record(1, key="k").encode())
    assert EpochStore(board.store).restore([row], epoch=board.store.epoch(), now_ms=NOW) == ["merged"]


@pytest.mark.parametrize("end", [by_cancel, by_purge, by_settle, by_restore])
@pytest.mark.parametrize(
    ("heard", "left"),
    [
        (6, [104, 105, 106, 1]),
        (4, [102, 103, 104, 105, 106, 1]),
        (3, [101, 102, 103, 104, 105, 106, 1]),
        (0, [101, 102, 103, 104, 105, 106, 1]),
    ],
)
def test_of_many_ends_the_oldest_that_the_database_has_heard_of_are_forgotten(board, few, end, heard, left):
    for number in range(1, 7):
        board.put(100 + number)
        board.store.cancel(job_id(100 + number), now_ms=NOW - 1000 + number)
    board.put(1)
    board.link.execute("HSET", board.keys["meta"], "mirrored", f"{NOW - 1000 + heard + 1}-0" if heard else "0-0")
    end(board)
    assert list(board.dump()["finished"]) == left


def test_no_more_than_a_thousand_ends_are_forgotten_by_a_call(board, few):
    board.link.execute("ZADD", board.keys["finished"], *(part for n in range(1500) for part in (NOW - 1500 + n, f"t{n}")))
    board.put(1)
    board.link.execute("HSET", board.keys["meta"], "mirrored", f"{NOW}-0")
    by_cancel(board)
    assert board.link.execute("ZCARD", board.keys["finished"]) == 501


def test_a_stream_is_trimmed_on_the_server_that_it_was_read_from_and_on_no_other(board, epoch):
    board.put(1)
    board.log.trim(board.log.last_id(), server="another")
    assert board.log.length() == 1
    board.log.trim(board.log.last_id(), server=epoch.look(FIRST).server)
    assert board.log.length() == 0
