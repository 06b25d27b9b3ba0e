"""A queue belongs to one site, and every script compares that before anything else."""

from __future__ import annotations

import pickle
from typing import Any

import pytest

from django_delayq.models import Checkpoint
from django_delayq.store.keys import Keys
from django_delayq.store.scripts import loader, site
from django_delayq.store.scripts.lock_store import LockStore
from django_delayq.store.scripts.queue import QueueStore, ScheduleItem
from django_delayq.store.scripts.recovery import EpochStore
from django_delayq.store.scripts.site import Facts, SiteRefused
from django_delayq.store.scripts.worker_registry import WorkerRegistry
from tests.store import test_formats
from tests.store.board import LEASE, NOW, SCRIPTS, Board, job_id, record

OURS = site.of("t")
CALLS = {**test_formats.CALLS, "probe": lambda board: board.store.run("probe", "UNLINK @hash", "SET", "@text")}
WORKERS = {
    "beat": lambda registry: registry.beat("a", {}),
    "leave": lambda registry: registry.leave("a"),
    "died": lambda registry: registry.died("a"),
    "ask": lambda registry: registry.ask("a", "stop", by="x"),
    "heard": lambda registry: registry.heard("a"),
    "all": lambda registry: registry.all(),
}


def contents(board: Board) -> dict[bytes, Any]:
    """All that Redis has."""
    return {key: board.link.execute("DUMP", key) for key in sorted(board.link.execute("KEYS", "*"))}


def give_away(board: Board, name: str = "q") -> None:
    board.link.execute("HSET", Keys("t", name)["meta"], "site", "another")


def filled(board: Board) -> None:
    """Jobs that wait, run, have failed and have a key; a lock."""
    board.put(1)
    board.put(2)
    board.claim(want=1)
    board.put(3, key="k")
    board.put(4)
    LockStore(board.store.link, board.keys).lock("a", "t", lease_ms=LEASE, holder="x")


def test_each_script_is_played():
    assert set(SCRIPTS) == set(CALLS) - {"the reader of the stream"}


@pytest.mark.parametrize("name", sorted(CALLS.keys() - {"assign"}))
def test_nothing_is_written_or_read_in_the_queue_of_another_site(board, name):
    filled(board)
    give_away(board)
    before = contents(board)
    with pytest.raises(SiteRefused) as caught:
        CALLS[name](board)
    assert contents(board) == before
    assert (caught.value.code, caught.value.fields["theirs"]) == ("site_other", "another")
    for word in ("'q'", OURS, "another", "PREFIX", "another Redis database", "manage.py delayq adopt"):
        assert word in str(caught.value)


@pytest.mark.parametrize("field", ["generation", "format"])
@pytest.mark.parametrize("name", sorted(CALLS.keys() - {"assign"}))
def test_the_site_comes_before_generation_and_format(board, name, field):
    filled(board)
    give_away(board)
    board.link.execute("HSET", board.keys["meta"], field, "99")
    with pytest.raises(SiteRefused):
        CALLS[name](board)


@pytest.mark.parametrize("name", sorted(WORKERS))
def test_the_workers_of_another_site_are_not_shown_asked_or_dropped(board, name):
    registry = WorkerRegistry(board.store.link, prefix="t")
    registry.beat("a", {})
    registry.ask("a", "quiet", by="x")
    give_away(board, "workers")
    before = contents(board)
    with pytest.raises(SiteRefused, match="workers of another site"):
        WORKERS[name](registry)
    assert contents(board) == before


def test_a_key_does_not_lead_past_the_comparison(board):
    filled(board)
    give_away(board)
    before = contents(board)
    for policy in ("keep", "replace", "latest", "earliest", "error", "after"):
        with pytest.raises(SiteRefused):
            board.put(9, key="k", on_conflict=policy)
    assert contents(board) == before


def test_what_stands_in_the_field_forges_no_reply(board):
    board.put(1)
    board.link.execute("HSET", board.keys["meta"], "site", "a b\r\n+OK\r\n" + "x" * 100)
    with pytest.raises(SiteRefused) as caught:
        board.put(2)
    assert len(caught.value.fields["theirs"]) == 64
    assert "\n" not in str(caught.value)


def test_the_refusal_survives_a_pickle():
    error = pickle.loads(pickle.dumps(SiteRefused(code="site_other", queue="q", where="w", ours="a", theirs="b")))
    assert (error.code, error.fields["queue"], "site b" in str(error)) == ("site_other", "q", True)


@pytest.mark.parametrize("name", sorted(CALLS.keys() - {"counts", "inspect", "probe", "the reader of the stream"}))
def test_the_first_write_gives_an_empty_queue_the_id(board, name):
    try:
        CALLS[name](board)
    except SiteRefused:
        raise
    except Exception:  # there is nothing to act on
        pass
    key = Keys("t", "q")["meta"]
    assert board.link.execute("HGET", key, "site") == OURS.encode()


def test_of_two_sites_that_write_first_one_is_refused(board, monkeypatch):
    """The other one's assign comes between our first call and ours."""
    real = loader._begin

    def late(link: Any, keys: Keys, found: str) -> None:
        give_away(board)
        real(link, keys, found)

    monkeypatch.setattr(loader, "_begin", late)
    with pytest.raises(SiteRefused):
        board.put(1)
    assert contents(board).keys() == {board.keys["meta"].encode()}


@pytest.mark.parametrize(("theirs", "partition"), [("workers", 0), ("workers", 1), ("q", 1)])
def test_what_the_owner_has_not_touched_yet_is_refused(board, theirs, partition):
    give_away(board, theirs)
    before = contents(board)
    store = QueueStore(board.store.link, prefix="t", queue="q", partition=partition)
    with pytest.raises(SiteRefused, match="site another"):
        store.schedule([ScheduleItem.of(record(1), due_ms=NOW)])
    assert contents(board) == before


def test_a_queue_that_is_emptied_gets_the_id_again(board):
    board.put(1)
    board.link.execute("FLUSHALL")
    assert board.put(1) == "created"
    assert board.link.execute("HGET", board.keys["meta"], "site") == OURS.encode()


class At:
    """A database that knows another address, or an older event."""

    def __init__(self, address: str = "", last_event: str = "0-0") -> None:
        self.known_as = Facts(address, last_event)

    def id(self, prefix: str) -> str:
        return OURS

    def partition_facts(self, _queue: str, _partition: int, *, apart: bool = False) -> Facts:
        return self.known_as


@pytest.fixture
def database(monkeypatch):
    """Goes by that database, in a process that has seen no queue yet."""
    monkeypatch.setattr(site, "verified", set())
    monkeypatch.setattr(site, "_refused", {})
    return lambda one: monkeypatch.setattr(site, "_database", one)


@pytest.mark.parametrize("name", sorted(CALLS.keys() - {"assign", "counts", "inspect", "probe", "the reader of the stream"}))
def test_nothing_is_written_at_another_address_than_before(board, database, name):
    database(At("elsewhere:6379, db 0, prefix t"))
    with pytest.raises(SiteRefused) as caught:
        CALLS[name](board)
    assert caught.value.code == "site_moved"
    assert "manage.py delayq adopt" in str(caught.value)
    assert contents(board) == {}


def test_at_the_same_address_an_empty_queue_is_a_wipe(board, database):
    database(At(site.address(board.store.link.home, "t")))
    assert board.put(1) == "created"


def test_a_process_that_has_had_a_queue_there_takes_an_empty_one_for_a_wipe_and_asks_no_database(board, database):
    database(At())
    board.put(1)
    board.link.execute("FLUSHALL")
    database(At("elsewhere:6379, db 0, prefix t"))
    site.verified.add(("t", "q", 0, board.store.link.home))
    assert board.put(1) == "created"


def test_a_queue_with_the_id_may_be_anywhere(board, database):
    board.put(1)
    database(At("elsewhere:6379, db 0, prefix t"))
    assert board.put(2) == "created"


def test_the_locks_of_a_queue_on_another_server_have_no_address(board, database):
    database(At("elsewhere:6379, db 0, prefix t"))
    keys = Keys.of("t", "q", 0, jobs=False)
    assert isinstance(LockStore(board.store.link, keys).lock("a", "t", lease_ms=LEASE, holder="x"), int)


@pytest.mark.parametrize(
    ("where", "same"),
    [
        ("localhost:6379, db 0", False),
        ("127.0.0.1:6379, db 0", False),
        ("unix:/run/redis.sock, db 0", False),
        ("::1:6379, db 0", False),
        ("redis.internal:6379, db 0", True),
        ("10.0.0.5:6379, db 1", True),
        ("mymaster by Sentinel at s1:26379, s2:26379, db 0", True),
        ("mymaster by Sentinel at 127.0.0.1:26379, db 0", False),
        ("the Cluster of a:1, b:2", True),
    ],
)
def test_an_address_that_is_valid_on_one_host_counts_with_its_name(monkeypatch, where, same):
    monkeypatch.setattr("socket.gethostname", lambda: "web1.example.com")
    here = site.address(where, "delayq")
    monkeypatch.setattr("socket.gethostname", lambda: "laptop")
    assert (site.address(where, "delayq") == here) is same
    assert site.address(where, "other") != here
    assert here.startswith(where)


def test_redis_that_has_dropped_more_than_is_recorded_belongs_to_another_database(board, database, monkeypatch):
    monkeypatch.setattr(site, "LAG", 0.0)
    board.put(1)
    board.log.trim("5-1")
    _, trimmed = board.store.stand()
    assert trimmed == ("5-1", "")
    older, same = Facts("", "5-0"), Facts("", "5-1")
    site.check_mirror(board.keys, "w", trimmed, same)
    with pytest.raises(SiteRefused, match="this database lost commits") as caught:
        site.check_mirror(board.keys, "w", trimmed, older)
    assert caught.value.code == "site_behind"
    with pytest.raises(SiteRefused):
        site.check_mirror(board.keys, "w", trimmed, older, lambda: older)
    site.check_mirror(board.keys, "w", trimmed, older, lambda: same)  # another node of the database showed the commit late
    site.check_mirror(board.keys, "w", trimmed, Facts("here", ""))  # the database does not answer
    site.check_mirror(board.keys, "w", trimmed, None)


def test_no_run_and_no_job_begins_where_another_database_was_found_last(board, database):
    board.put(1)
    board.claim("first", want=1)
    board.log.trim("5-1", token="7-00000000000000ff")
    _, trimmed = board.store.stand()
    with pytest.raises(SiteRefused, match="event 5-1, turn 7-00000000000000ff"):
        site.check_mirror(board.keys, "w", trimmed, Facts("", "5-1", "6-00000000000000ee 7-00000000000000ee"))
    before = contents(board)
    with pytest.raises(SiteRefused):
        board.put(2)
    with pytest.raises(SiteRefused):
        board.claim("second")
    assert contents(board) == before
    assert board.settle(1, "ack", fence="first") == "done", "what runs is settled, else it would run twice"
    site.check_mirror(board.keys, "w", trimmed, Facts("", "5-1", "6-00000000000000ee 7-00000000000000ff"))
    assert board.put(2) == "created"


@pytest.mark.parametrize("name", ["cancel", "cancel of one", "reschedule", "requeue", "purge"])
def test_no_job_changes_where_another_database_was_found_last(board, database, name):
    """A copy of the database must not change jobs that the mirror of the original records. Nothing is sent for it."""
    calls = {
        "cancel": lambda: board.store.cancel(job_id(1)),
        "cancel of one": lambda: board.store.cancel("the key"),
        "reschedule": lambda: board.store.reschedule(job_id(1), delay_ms=5),
        "requeue": lambda: board.store.requeue(job_id(2), record(2)),
        "purge": lambda: board.store.purge(),
    }
    board.put(1, key="the key")
    board.log.trim("5-1", token="7-00000000000000ff")
    _, trimmed = board.store.stand()
    mine, theirs = (
        Facts("", "5-1", "6-00000000000000ee 7-00000000000000ff"),
        Facts("", "5-1", "6-00000000000000ee 7-00000000000000ee"),
    )
    with pytest.raises(SiteRefused):
        site.check_mirror(board.keys, "w", trimmed, theirs)
    before = contents(board)
    with pytest.raises(SiteRefused, match="event 5-1, turn 7-00000000000000ff"):
        calls[name]()
    assert contents(board) == before
    site.check_mirror(board.keys, "w", trimmed, mine)
    calls[name]()
    assert contents(board) != before


@pytest.mark.parametrize(
    ("tokens", "token", "own"),
    [
        ("", "", True),
        ("1-a", "", True),  # wiped
        ("", "1-a", False),  # a copy that was made before the first turn
        ("1-a", "1-a", True),
        ("1-a", "1-b", False),
        ("4-a 5-b", "5-b", True),
        ("4-a 5-b", "4-a", True),  # the trim did not reach Redis
        ("4-a 5-b", "4-c", False),
        ("4-a 5-b", "5-c", False),
        ("4-a 5-b", "6-c", False),
        ("4-a 5-b", "3-c", True),  # Redis was rolled back
        ("9-a 10-b", "8-c", True),
        ("9-a 10-b", "11-c", False),
        ("refused 4-a 5-b", "", False),  # wiped, after another database had recorded it
        ("refused 4-a 5-b", "5-b", False),  # rolled back likewise
        ("refused 4-a 5-b", "3-c", False),
        ("refused ", "1-a", False),
    ],
)
def test_a_database_knows_its_own_tokens(tokens, token, own):
    assert site.has_written(tokens, token) is own


def test_a_turn_makes_a_new_token_only_when_redis_has_the_last_one():
    first = site.tokens_after("", "")
    second = site.tokens_after(first, first)
    assert (first.partition("-")[0], second.split()[0], second.split()[1].partition("-")[0]) == ("1", first, "2")
    assert site.tokens_after(second, first) == second
    assert site.tokens_after(second, "") == second
    longest = site.REFUSED_PREFIX + " ".join(f"{10**15 - number}{first[1:]}" for number in (2, 1))
    assert len(longest) <= Checkpoint._meta.get_field("mirror_tokens").max_length
    assert site.tokens_after(first, first) != second, "it is random"
    assert site.Trimmed.read(None, first.encode()).token == first


@pytest.mark.parametrize("absurd", [b"", b"nan", b"1-xyz", b"-1-00000000000000ff", b"1-00000000000000ff\n", b"\xff"])
def test_what_no_mirror_writes_is_no_token_and_the_next_trim_replaces_it(board, absurd):
    board.put(1)
    board.link.execute("HSET", board.keys["meta"], "mirror_token", absurd)
    assert board.store.stand()[1].token == ""
    board.log.trim("5-1", token="1-00000000000000ff")
    assert board.store.stand()[1] == ("5-1", "1-00000000000000ff")


def test_only_the_first_of_two_trims_after_the_same_turn_is_done(board):
    board.put(1)
    one, two, three = (f"{number}-00000000000000ff" for number in (1, 2, 3))
    board.log.trim("5-1", token=one)
    board.log.trim("5-2", found=one, token=two)
    board.log.trim("5-3", found=one, token="2-00000000000000aa")  # another database
    assert board.store.stand()[1] == ("5-2", two)
    board.log.trim("5-2", found=one, token=two)  # again
    board.log.trim("5-3", found=two, token=three)
    board.log.trim("5-4", found=one, token=two)  # a slow mirror
    assert board.store.stand()[1] == ("5-3", three)


def test_a_process_whose_database_has_adopted_the_queue_goes_on_and_keeps_its_id_without_one(board, database, monkeypatch):
    monkeypatch.setattr(site, "_site_ids", {"t": "before"})
    new = At()
    new.id = lambda prefix: (_ for _ in ()).throw(SiteRefused(code="site_unknown", cause="away"))
    database(new)
    board.link.execute("HSET", board.keys["meta"], "site", OURS)
    with pytest.raises(SiteRefused, match="this database is site before"):
        board.put(1)
    with pytest.raises(SiteRefused, match="this database is site before"):
        board.put(1)
    database(At())
    with pytest.raises(SiteRefused):
        board.put(1)
    assert board.put(1) == "created"


def test_one_refusal_is_news_once_a_minute(monkeypatch):
    monkeypatch.setattr(site, "_logged", {})
    now = [100.0]
    monkeypatch.setattr("django_delayq.clock.monotonic", lambda: now[0])
    error = SiteRefused(code="site_other", queue="q", where="w", ours="a", theirs="b")
    assert [site.is_news(error), site.is_news(error)] == [True, False]
    assert site.is_news(SiteRefused(code="site_other", queue="r", where="w", ours="a", theirs="b"))
    assert site.is_news(ValueError())
    now[0] += 61
    assert site.is_news(error)


def test_a_queue_that_is_adopted_loses_all_of_the_other_site(board):
    filled(board)
    give_away(board)
    assert board.store.run("assign", None, "", "", "somebody", "", "1") == [b"another", b"another"], "another one than was looked at"
    assert board.link.execute("HLEN", board.keys["jobs"]) == 4
    assert board.store.run("assign", None, "", "", "another", "", "1") == [OURS.encode(), b"another"]
    assert contents(board).keys() == {board.keys["meta"].encode()}
    assert board.put(1) == "created"


def test_what_a_database_is_behind_of_stays_and_it_goes_on_from_its_own_last_event(board):
    filled(board)
    board.log.trim("5-1")
    before = board.log.generation()
    board.store.run("assign", None, "", "", OURS, "4-1", "")
    assert (board.log.generation(), board.link.execute("HGET", board.keys["meta"], "mirrored")) == (before, b"4-1")
    assert board.link.execute("HLEN", board.keys["jobs"]) == 4


def test_two_prefixes_are_two_sites(board):
    other = QueueStore(board.link, prefix="u", queue="q")
    other.schedule([ScheduleItem.of(record(1), due_ms=NOW)])
    assert board.put(1) == "created"
    assert site.of("u") != OURS
    assert EpochStore(other).look("0-0").site == site.of("u")


def test_an_offer_to_another_slot_is_refused_before_it_is_pushed(board, monkeypatch):
    board.put(1)
    board.claim()
    give_away(board)
    before = contents(board)
    monkeypatch.setattr(type(board.store.link), "beside", lambda self, key: object())
    with pytest.raises(SiteRefused):
        CALLS["offer"](board)
    assert contents(board) == before
