"""Offers: what a run pushes into a list or a stream of others, once per job."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from django_delayq import ids
from django_delayq.setting_readers import OfferTarget
from django_delayq.store.connection.error_replies import StoreError, StoreRefused
from django_delayq.store.scripts.recovery import EpochStore
from tests.links import package_link
from tests.store.board import NOW, Board, job_id

STREAM = OfferTarget(name="shipping", key="shipping-out", kind="stream", maxlen=None)
LIST = OfferTarget(name="invoices", key="invoices-out", kind="list", maxlen=None)
BODY = b'{"order":7,"name":"Zo\xc3\xab"}'
TARGETS = pytest.mark.parametrize("target", [STREAM, LIST], ids=["stream", "list"])


class Offering(Board):
    """A board whose jobs offer."""

    def offer(self, number: int = 1, target: OfferTarget = STREAM, *, attempt: int = 1, nonce: str = "n1", body: bytes = BODY) -> str:
        short = ids.short(job_id(number))
        return self.store.offer(target, body, id=short, attempt=attempt, nonce=nonce, now_ms=NOW).status

    def running(self, *numbers: int) -> None:
        for number in numbers:
            self.put(number)
        assert len(self.claim().jobs) == len(numbers)

    def entries(self, target: OfferTarget) -> list[tuple[str, str]]:
        """ID and body of each entry in the target, as a reader parses them."""
        if target.kind == "list":
            return [(text["id"], json.dumps(text["body"])) for text in map(json.loads, self.link.execute("LRANGE", target.key, 0, -1))]
        found = []
        for _, fields in self.link.execute("XRANGE", target.key, "-", "+"):
            told = dict(zip(fields[::2], fields[1::2], strict=True))
            assert list(told) == [b"id", b"body"]
            found.append((told[b"id"].decode(), json.dumps(json.loads(told[b"body"]))))
        return found


@pytest.fixture
def board(link) -> Offering:
    return Offering(link)


def entry(number: int) -> tuple[str, str]:
    return ids.short(job_id(number)), json.dumps(json.loads(BODY))


@TARGETS
def test_a_run_offers_once_and_who_repeats_it_hears_so(board, target):
    board.running(1)
    assert [board.offer(1, target) for _ in range(3)] == ["offered", "again", "again"]
    assert board.entries(target) == [entry(1)]
    assert board.link.execute("HKEYS", board.keys["offered"]) == [ids.short(job_id(1)).encode()]
    assert board.happened() == ["scheduled 1", "claimed 1"]


@TARGETS
def test_what_stands_there_is_what_other_languages_are_promised(board, target):
    board.running(1)
    board.offer(1, target)
    if target.kind == "list":
        assert board.link.execute("LRANGE", target.key, 0, -1) == [b'{"id":"%b","body":%b}' % (entry(1)[0].encode(), BODY)]
    else:
        [[_, fields]] = board.link.execute("XRANGE", target.key, "-", "+")
        assert fields == [b"id", entry(1)[0].encode(), b"body", BODY]


@TARGETS
def test_the_answer_says_where_it_is_and_so_does_the_next_one(board, target):
    board.running(1, 2)
    board.offer(1, target)
    places = [board.store.offer(target, BODY, id=entry(2)[0], attempt=1, nonce="n1", now_ms=NOW).place for _ in range(2)]
    last = "2" if target.kind == "list" else board.link.execute("XREVRANGE", target.key, "+", "-", "COUNT", 1)[0][0].decode()
    assert places == [last, last]


@pytest.mark.parametrize(("attempt", "nonce"), [(1, "n2"), (2, "n1"), (1, "")])
def test_who_does_not_hold_the_job_pushes_nothing(board, attempt, nonce):
    board.running(1)
    assert board.offer(attempt=attempt, nonce=nonce) == "lost"
    assert board.entries(STREAM) == []
    assert "offered" not in board.dump()


def test_a_run_that_nobody_knows_pushes_nothing(board):
    assert board.offer() == "gone"
    board.put(1)
    assert board.offer() == "gone"
    board.claim()
    board.settle(1, "retry")
    assert board.offer() == "gone"
    assert board.entries(STREAM) == []


def test_a_cancel_that_comes_first_is_obeyed(board):
    board.running(1)
    board.store.cancel(job_id(1), now_ms=NOW)
    assert board.offer() == "cancel"
    assert board.entries(STREAM) == []
    assert board.settle(1, "snooze", delay=1000) == "done"
    assert board.happened()[-1] == "cancelled 1"


def test_a_cancel_that_comes_later_does_not_hide_that_it_was_offered(board):
    board.running(1)
    board.offer()
    board.store.cancel(job_id(1), now_ms=NOW)
    assert board.offer() == "again"


@pytest.mark.parametrize("outcome", ["retry", "snooze", "ask", "crash", "park", "evict"])
def test_the_next_run_finds_the_note(board, outcome):
    board.running(1)
    board.offer()
    board.settle(1, outcome)
    again = board.claim("n2", now=NOW + 1000).jobs[0]
    assert board.offer(attempt=again.attempt, nonce="n2") == "again"
    assert board.entries(STREAM) == [entry(1)]


def test_who_takes_a_lost_lease_over_finds_the_note_and_the_former_holder_is_lost(board):
    board.running(1)
    board.offer()
    board.claim("n2", "w2", now=board.pass_lease())
    assert (board.offer(nonce="n2"), board.offer(nonce="n1")) == ("again", "lost")
    assert board.entries(STREAM) == [entry(1)]


def test_a_requeue_of_a_job_that_had_been_offered_before_it_failed_pushes_no_second_time(board):
    board.running(1)
    board.offer()
    board.settle(1, "fail")
    board.store.requeue(job_id(1), now_ms=NOW)
    board.claim("n2")
    assert board.offer(nonce="n2") == "again"


def test_with_its_success_the_note_goes_and_that_of_others_stays(board):
    board.running(1, 2)
    board.offer(1)
    board.offer(2)
    board.settle(1, "ack")
    assert list(board.dump()["offered"]) == [2]


@pytest.mark.parametrize("how", ["cancel", "sweep", "expired"])
def test_what_other_ends_leave_is_tidied_and_what_waits_keeps_its_note(board, how):
    if how == "expired":
        board.put(1, expires_ms=NOW + 10)
    else:
        board.put(1)
    board.put(2)
    board.claim()
    board.offer(1)
    board.offer(2)
    board.settle(1, "retry")
    board.settle(2, "retry")
    if how == "cancel":
        board.store.cancel(job_id(1), now_ms=NOW)
    elif how == "sweep":
        EpochStore(board.store).drop([ids.short(job_id(1))], now_ms=NOW)
    else:
        board.claim("n2", now=NOW + 20)
        board.link.execute("HDEL", board.keys["jobs"], ids.short(job_id(1)))  # as tidy does it, when the row is there
    cursor, rounds = "0", 0
    while cursor != "0" or not rounds:
        cursor, rounds = board.store.tidy(cursor=cursor, now_ms=NOW).cursor, rounds + 1
    assert list(board.dump()["offered"]) == [2]


@TARGETS
def test_a_key_that_holds_something_else_is_refused_and_nothing_is_left(board, target):
    board.running(1)
    board.link.execute("SET", target.key, "theirs")
    before = board.dump()
    with pytest.raises(StoreError) as error:
        board.offer(1, target)
    assert error.value.reply.startswith("WRONGTYPE")
    assert (board.dump(), board.link.execute("GET", target.key)) == (before, b"theirs")
    board.link.execute("DEL", target.key)
    assert board.offer(1, target) == "offered"


@TARGETS
def test_with_no_memory_left_nothing_is_pushed_and_nothing_is_noted(own_redis, target):
    server = own_redis()
    from tests.links import opened

    link = opened(server.url)
    board = Offering(link, package_link(link))
    board.running(1)
    before = board.dump()
    link.execute("CONFIG", "SET", "maxmemory", "1")
    with pytest.raises(StoreRefused) as error:
        board.offer(1, target)
    assert error.value.full
    assert (board.dump(), board.entries(target)) == (before, [])
    assert board.settle(1, "retry") == "done"
    link.execute("CONFIG", "SET", "maxmemory", "0")
    board.claim("n2")
    assert board.offer(1, target, attempt=2, nonce="n2") == "offered"
    assert board.entries(target) == [entry(1)]


def test_of_a_list_the_oldest_go(board):
    board.running(1, 2, 3)
    for number in (1, 2, 3):
        board.offer(number, replace(LIST, maxlen=2))
    assert board.entries(LIST) == [entry(2), entry(3)]


def test_of_a_stream_the_oldest_go_by_whole_nodes(board):
    for _ in range(450):
        board.link.execute("XADD", STREAM.key, "*", "id", "old", "body", "1")
    board.running(1)
    board.offer(1, replace(STREAM, maxlen=10))
    left = board.entries(STREAM)
    assert len(left) < 450
    assert left[-1] == entry(1)


def test_after_a_wipe_a_run_that_comes_back_offers_again(board):
    """Redis cannot know entries that it lost; readers recognize a duplicate by the ID."""
    board.running(1)
    board.offer()
    board.link.execute("FLUSHALL")
    assert board.offer() == "gone"
    board.running(1)
    assert board.offer() == "offered"
    assert board.entries(STREAM) == [entry(1)]


def test_a_garbage_note_does_not_let_a_second_one_through(board):
    board.running(1)
    board.link.execute("HSET", board.keys["offered"], entry(1)[0], "\x00nonsense")
    assert board.offer() == "again"
    assert board.entries(STREAM) == []
