"""A queue has a format, and every process keeps to it."""

from __future__ import annotations

import pickle

import pytest

from django_delayq import ids
from django_delayq.store import formats, scripts
from django_delayq.store.format_store import FormatStore
from django_delayq.store.lock_store import LockStore
from django_delayq.store.offers import OfferStore
from django_delayq.store.queue import ScheduleItem
from django_delayq.store.recovery import GroundStore
from django_delayq.target import OfferTarget
from tests.laws.dump import read as read_all
from tests.store.board import LEASE, NOW, job_id, record

TARGET = OfferTarget(name="out", key="shipping-out", kind="list", maxlen=None)
CALLS = {
    "schedule": lambda board: board.put(1),
    "claim": lambda board: board.claim(),
    "extend": lambda board: board.extend(1),
    "settle": lambda board: board.settle(1, "ack"),
    "cancel": lambda board: board.store.cancel([job_id(1)], lacking="scheduled"),
    "reschedule": lambda board: board.store.reschedule(job_id(1), delay_ms=5),
    "requeue": lambda board: board.store.requeue(job_id(1), record(1)),
    "pause": lambda board: board.store.pause(),
    "purge": lambda board: board.store.purge(),
    "offer": lambda board: OfferStore(board.store).offer(TARGET, b"1", id=ids.short(job_id(1)), attempt=1, nonce="n1"),
    "resign": lambda board: board.store.run("resign", None, "", "", "id", "0" * 40, b"record"),
    "sweep": lambda board: GroundStore(board.store).sweep("g"),
    "tidy": lambda board: board.store.tidy(tombstones_ms=0, failed_before_ms=NOW),
    "trim": lambda board: board.log.trim("9999999999999-0"),
    "restore": lambda board: GroundStore(board.store).stand(),
    "confirm": lambda board: GroundStore(board.store).confirm("g", mirrored="1-1"),
    "upgrade": lambda board: FormatStore(board.store).upgrade(),
    "lock": lambda board: LockStore(board.store.link, board.keys).lock("a", "t", lease_ms=LEASE, holder="x"),
    "prolong": lambda board: LockStore(board.store.link, board.keys).prolong([("a", "t", LEASE)]),
    "assign": lambda board: board.store.run("assign", None, "", "", "", "", ""),
    "ground": lambda board: board.store.ground(),
    "show": lambda board: board.store.run("show", None, "", "", "w", "{}", "-"),
    "unlock": lambda board: LockStore(board.store.link, board.keys).unlock("a", "t"),
    "inspect": lambda board: board.store.run("inspect", None, "", ""),
    "the reader of the stream": lambda board: board.log.read("0-0", 10),
}


def schedule(board, number):
    """By Redis' clock, as processes do."""
    board.store.schedule([ScheduleItem.of(record(number), delay_ms=0)])


def claim(board):
    """The same."""
    board.store.claim("w", "n", want=0, lease_ms=LEASE, max_crashes=3)


def everything(board):
    return read_all(board.link, board.keys), board.link.execute("XRANGE", board.keys["events"], "-", "+")


@pytest.fixture
def newer_release(monkeypatch):
    """From here on this process is of the next release."""

    def install() -> int:
        monkeypatch.setattr(formats, "FORMAT", formats.FORMAT + 1)
        scripts.built.cache_clear()
        return formats.FORMAT

    yield install
    monkeypatch.undo()
    scripts.built.cache_clear()


def test_each_script_is_asked():
    assert set(scripts.SCRIPTS) == (set(CALLS) | {"probe"}) - {"the reader of the stream"}, "the probe has keys of its own alone"


@pytest.mark.parametrize("name", CALLS)
def test_nothing_is_written_or_read_in_a_newer_format(board, name):
    board.put(1)
    board.put(2)
    board.claim(want=1)
    board.link.execute("HSET", board.keys["meta"], "format", formats.FORMAT + 1)
    before = everything(board)
    with pytest.raises(formats.FormatNewer) as caught:
        CALLS[name](board)
    assert everything(board) == before
    text = str(caught.value)
    for word in ("'q'", f"format {formats.FORMAT + 1}", f"up to {formats.FORMAT}", "Upgrade"):
        assert word in text


def test_the_refusal_survives_a_pickle():
    error = pickle.loads(pickle.dumps(formats.FormatNewer("orders", 7)))
    assert (error.queue, error.found, "orders" in str(error)) == ("orders", 7, True)


@pytest.mark.parametrize("there", ["0", "", "x", "-3", "nan", "1.5e"])
def test_what_is_no_number_is_format_0(board, there):
    board.link.execute("HSET", board.keys["meta"], "format", there)
    assert board.put(1) == "created"
    assert board.log.read("0-0", 10)[0].format == 0


def test_entries_bear_their_format_only_when_the_queue_has_one(board):
    board.put(1)
    assert FormatStore(board.store).upgrade().after == formats.FORMAT
    board.put(2)
    assert [entry.format for entry in board.log.read("0-0", 10)] == [0, formats.FORMAT]
    raw = board.link.execute("XRANGE", board.keys["events"], "-", "+")
    assert [b"f" in pairs[::2] for _, pairs in raw] == [False, True]
    assert [item.kind for entry in board.log.read("0-0", 10) for item in entry.items] == ["scheduled", "scheduled"]


def test_an_upgrade_sent_again_changes_nothing(board):
    board.put(1)
    first, second = (FormatStore(board.store).upgrade() for _ in range(2))
    assert (first.before, first.after) == (0, formats.FORMAT)
    assert (second.before, second.after) == (formats.FORMAT, formats.FORMAT)


def test_whoever_schedules_or_claims_leaves_word_once_a_minute(board, monkeypatch):
    def word():
        return board.link.execute("HGET", board.keys["meta"], f"seen:{formats.FORMAT}")

    for number, call in enumerate((lambda: schedule(board, 1), lambda: claim(board), lambda: schedule(board, 2)), 1):
        first = word()
        monkeypatch.setattr("django_delayq.clock.monotonic", lambda now=number * 60.0: now)
        call()
        second = word()
        assert int(second) >= int(first or 1)
        board.link.execute("HDEL", board.keys["meta"], f"seen:{formats.FORMAT}")
        monkeypatch.setattr("django_delayq.clock.monotonic", lambda now=number * 60.0 + 59.9: now)
        call()
        assert word() is None


def test_the_format_is_not_raised_while_an_older_process_calls(board, newer_release):
    FormatStore(board.store).upgrade()
    old = formats.FORMAT
    schedule(board, 1)
    seen = int(board.link.execute("HGET", board.keys["meta"], f"seen:{old}"))
    new = newer_release()
    store = FormatStore(board.store)
    early = store.upgrade(quiet_ms=3_600_000, least=1, now_ms=seen + 3_599_999)
    assert (early.before, early.after, early.older) == (old, old, {old: 3_599_999})
    back = store.upgrade(quiet_ms=3_600_000, least=1, now_ms=seen - 7_200_000)  # the clock was put back
    assert (back.after, back.older) == (old, {old: 0})
    late = store.upgrade(quiet_ms=3_600_000, least=1, now_ms=seen + 3_600_000)
    assert (late.before, late.after) == (old, new)


def test_format_0_is_left_to_people(board, newer_release):
    board.put(1)
    newer_release()
    store = FormatStore(board.store)
    assert store.upgrade(quiet_ms=0, least=1).after == 0
    assert store.upgrade(quiet_ms=0).after == formats.FORMAT
