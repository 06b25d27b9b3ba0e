"""Locks by name, as Redis keeps them: whose a name is, for how long, and under which number."""

from __future__ import annotations

import select

import pytest

from django_delayq.exceptions import StoreUnavailable
from django_delayq.store.connection.error_replies import StoreRefused
from django_delayq.store.connection.link import connect
from django_delayq.store.keys import Keys
from django_delayq.store.scripts.lock_store import LockStore, Taken
from tests.store.board import NOW, Board

LEASE = 30_000


class Locking(Board):
    """A board of which only locks are looked at."""

    def __init__(self, link) -> None:
        super().__init__(link)
        self.locks = LockStore(self.store.link, self.keys)

    def lock(self, token: str, name: str = "order:42", *, now: int = NOW, holder: str = "web-1:17", waits: bool = False):
        return self.locks.lock(name, token, lease_ms=LEASE, holder=holder, waits=waits, now_ms=now)

    def prolong(self, *tokens: str, name: str = "order:42", now: int = NOW) -> list[str]:
        return self.locks.prolong([(name, token, LEASE) for token in tokens], now_ms=now)

    def unlock(self, token: str, name: str = "order:42", *, now: int = NOW) -> str:
        return self.locks.unlock(name, token, now_ms=now)

    def held(self) -> dict[str, int]:
        """Name -> end of its lease, of all that is there."""
        ends = self.link.execute("ZRANGE", self.keys["lock_ends"], 0, -1, "WITHSCORES")
        found = {name.decode(): int(end) for name, end in zip(ends[::2], ends[1::2], strict=True)}
        assert sorted(found) == sorted(name.decode() for name in self.link.execute("HKEYS", self.keys["locks"]))
        return found


@pytest.fixture
def board(link) -> Locking:
    return Locking(link)


def test_a_name_is_somebody_s_until_it_is_given_back(board):
    assert board.lock("a") == NOW * 1000
    assert board.held() == {"order:42": NOW + LEASE}
    assert board.lock("b", now=NOW + 5000) == Taken("web-1:17", NOW, LEASE - 5000, NOW + 5000)
    assert board.lock("b", "order:43", now=NOW + 5000) == (NOW + 5000) * 1000
    assert board.unlock("a", now=NOW + 6000) == "done"
    assert board.held() == {"order:43": NOW + 5000 + LEASE}
    assert board.lock("b", now=NOW + 6000) == (NOW + 6000) * 1000
    assert board.link.execute("EXISTS", board.keys["events"], board.keys["unlocked"]) == 0


def test_the_same_holder_asks_again_and_hears_the_same_number_with_a_new_lease(board):
    assert [board.lock("a"), board.lock("a", now=NOW + 10_000)] == [NOW * 1000, NOW * 1000]
    assert board.held() == {"order:42": NOW + 10_000 + LEASE}
    assert board.lock("b", now=NOW + 10_000) == Taken("web-1:17", NOW, LEASE, NOW + 10_000)


def test_the_number_rises_with_every_holder_of_any_name_also_when_no_time_passes_and_over_a_clock_that_is_put_back(board):
    fences = []
    for number, now in enumerate((NOW, NOW, NOW - 3_600_000, NOW + 1, NOW + 2, NOW + 60_000)):
        fences.append(board.lock(f"t{number}", f"order:{number % 2}", now=now))
        board.unlock(f"t{number}", f"order:{number % 2}", now=now)
    first = NOW * 1000
    assert fences == [first, first + 1, first + 2, first + 1000, first + 2000, (NOW + 60_000) * 1000]


def test_the_number_rises_within_a_millisecond_also_when_redis_has_lost_all_meanwhile(board):
    fences = []
    for number in range(50):
        fences.append(board.locks.lock("a", f"t{number}", lease_ms=LEASE, holder="x"))
        board.link.execute("FLUSHALL")
    assert fences == sorted(set(fences))


def test_the_number_rises_behind_a_loss_of_all_that_redis_held(board):
    first = board.lock("a")
    board.link.execute("FLUSHALL")
    assert board.lock("b", now=NOW + 1) == first + 1000


@pytest.mark.parametrize("forged", ["nan", "-7", "1e300", "9" * 40, ""])
def test_a_number_that_nobody_of_us_has_written_does_not_stop_the_count(board, forged):
    board.link.execute("HSET", board.keys["meta"], "fence", forged)
    assert [board.lock("a"), board.lock("b", "order:43")] == [NOW * 1000, NOW * 1000 + 1]


def test_a_lease_that_ran_out_is_anybody_s_and_until_then_its_holder_s(board):
    board.lock("a")
    assert isinstance(board.lock("b", now=NOW + LEASE - 1), Taken)
    assert board.prolong("a", now=NOW + LEASE + 5) == ["held"]
    assert isinstance(board.lock("b", now=NOW + LEASE + 5), Taken)
    assert board.lock("b", now=NOW + 2 * LEASE + 5) == (NOW + 2 * LEASE + 5) * 1000
    assert (board.prolong("a", now=NOW + 2 * LEASE + 5), board.unlock("a", now=NOW + 2 * LEASE + 5)) == (["lost"], "lost")
    assert board.held() == {"order:42": NOW + 3 * LEASE + 5}


def test_who_holds_many_is_told_of_each(board):
    board.lock("a", "one")
    board.lock("b", "two")
    answers = board.locks.prolong([("one", "a", 60_000), ("two", "a", 60_000), ("three", "a", 60_000)], now_ms=NOW)
    assert (answers, board.held()) == (["held", "lost", "gone"], {"one": NOW + 60_000, "two": NOW + LEASE})


def test_giving_back_twice_changes_nothing_more(board):
    board.lock("a")
    assert [board.unlock("a"), board.unlock("a")] == ["done", "gone"]
    board.lock("b")
    assert board.unlock("a") == "lost"
    assert board.held() == {"order:42": NOW + LEASE}


def test_what_redis_has_lost_is_gone_and_is_not_brought_back(board):
    board.lock("a")
    board.link.execute("FLUSHALL")
    assert (board.prolong("a"), board.unlock("a"), board.held()) == (["gone"], "gone", {})


def test_what_vanished_holders_leave_is_dropped_a_minute_later_by_whoever_locks_anything(board):
    for number in range(21):
        board.lock(f"t{number}", f"order:{number}")
    board.lock("x", "other", now=NOW + LEASE + 59_999)
    assert len(board.held()) == 22
    board.lock("x", "other", now=NOW + LEASE + 60_000)
    assert len(board.held()) == 2
    board.lock("x", "other", now=NOW + LEASE + 60_000)
    assert board.held() == {"other": NOW + 2 * LEASE + 60_000}


def test_a_holder_s_name_is_kept_as_it_is(board):
    board.lock("a", holder="job ü of\nthree words")
    assert board.lock("b").holder == "job ü of\nthree words"


@pytest.mark.parametrize("stands", [b"", b"nothing of ours", b"1 2", b"x a 5 who"])
def test_what_nobody_of_us_has_written_holds_nothing(board, stands):
    board.link.execute("HSET", board.keys["locks"], "order:42", stands)
    board.link.execute("ZADD", board.keys["lock_ends"], NOW + LEASE, "order:42")
    assert (board.prolong("a"), board.unlock("a"), board.lock("b")) == (["gone"], "gone", NOW * 1000)


def readable(line) -> bool:
    return select.select([line], [], [], 5)[0] == [line]


def now_of(board) -> int:
    return int(board.link.execute("TIME")[0]) * 1000


def test_who_waits_hears_of_the_name_and_who_does_not_leaves_nothing(board):
    now = now_of(board)
    board.lock("a", now=now)
    line = board.locks.line(board.lock("b", now=now, waits=True).now_ms)
    line.arm()
    assert select.select([line], [], [], 0)[0] == []
    board.unlock("a", now=now)
    assert readable(line)
    assert line.names() == {"order:42"}
    line.arm()  # and hears it once
    assert select.select([line], [], [], 0)[0] == []
    line.close()
    board.lock("a", "order:43", now=now)
    board.unlock("a", "order:43", now=now)
    assert board.link.execute("XLEN", board.keys["unlocked"]) == 1


def test_what_was_free_between_the_look_and_the_wait_is_heard(board):
    now = now_of(board)
    board.lock("a", now=now)
    seen = board.lock("b", now=now, waits=True)
    board.unlock("a", now=now)
    line = board.locks.line(seen.now_ms)
    line.arm()
    assert readable(line)
    assert line.names() == {"order:42"}
    line.close()


def test_a_broken_line_says_what_it_is(own_redis):
    server = own_redis()
    locks = LockStore(connect(server.url), Keys("t", "q"))
    line = locks.line(NOW)
    line.arm()
    server.restart()
    with pytest.raises(StoreUnavailable, match="The line that waits for locks to Redis at"):
        line.names()
    line.close()


def test_word_of_those_who_wait_is_kept_for_two_seconds(board):
    board.lock("a")
    board.lock("b", waits=True)
    board.lock("c", waits=True, now=NOW - 1)
    assert board.link.execute("ZRANGE", board.keys["lock_waits"], 0, -1, "WITHSCORES") == [b"order:42", str(NOW + 2000).encode()]
    board.unlock("a", now=NOW + 2000)
    assert board.link.execute("EXISTS", board.keys["unlocked"]) == 0
    board.lock("b", "order:44", now=NOW + 2000)
    assert board.link.execute("ZCARD", board.keys["lock_waits"]) == 0


def test_word_of_those_who_wait_no_more_is_dropped_by_whoever_locks_anything(board):
    for number in range(22):
        board.lock("a", f"order:{number}")
        board.lock("b", f"order:{number}")
    assert board.link.execute("ZCARD", board.keys["lock_waits"]) == 0, "nobody waits"
    for number in range(22):
        board.lock("b", f"order:{number}", waits=True)
    left = []
    for _ in range(2):
        board.lock("x", "other", now=NOW + 2000)
        left.append(board.link.execute("ZCARD", board.keys["lock_waits"]))
    assert left == [2, 0]


def test_the_last_64_names_are_kept_and_something_else_in_their_place_is_made_anew(board):
    board.link.execute("SET", board.keys["unlocked"], "not ours")
    for number in range(70):
        board.lock("a", f"order:{number}")
        board.lock("b", f"order:{number}", waits=True)
        board.unlock("a", f"order:{number}")
    assert board.link.execute("XLEN", board.keys["unlocked"]) == 64


def test_at_maxmemory_locks_are_taken_held_and_given_back(own_redis):
    server = own_redis(maxmemory="2mb", maxmemory_policy="noeviction")
    from django_delayq.store.connection.link import connect

    link = connect(server.url, name="test")
    board = Locking(link)
    board.lock("a")
    board.unlock("a")
    board.prolong("a")
    link.execute("CONFIG", "SET", "maxmemory", "1")
    with pytest.raises(StoreRefused):
        link.execute("SET", "x", "y")
    assert isinstance(board.lock("a", now=NOW + 1), int)
    assert (board.prolong("a", now=NOW + 1), board.unlock("a", now=NOW + 1)) == (["held"], "done")
    link.close()


def test_more_than_200_in_a_call_are_refused(board):
    from django_delayq.store.connection.link import StoreError

    with pytest.raises(StoreError, match="200"):
        board.prolong(*["a"] * 201)
