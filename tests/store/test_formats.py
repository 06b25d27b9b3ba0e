"""A queue has a format, and every process keeps to it."""

from __future__ import annotations

import pickle

import pytest

from django_delayq import ids
from django_delayq.setting_readers import OfferTarget
from django_delayq.store.scripts import formats
from django_delayq.store.scripts.limits import LimitChange, LimitStore
from django_delayq.store.scripts.lock_store import LockStore
from django_delayq.store.scripts.queue import ScheduleItem
from django_delayq.store.scripts.recovery import EpochStore
from tests.laws.dump import read as read_all
from tests.store.board import LEASE, NOW, SCRIPTS, job_id, record

TARGET = OfferTarget(name="out", key="shipping-out", kind="list", maxlen=None)
CALLS = {
    "schedule": lambda board: board.put(1),
    "claim": lambda board: board.claim(),
    "extend": lambda board: board.extend(1),
    "settle": lambda board: board.settle(1, "ack"),
    "cancel": lambda board: board.store.cancel(job_id(1), lacking="scheduled"),
    "reschedule": lambda board: board.store.reschedule(job_id(1), delay_ms=5),
    "requeue": lambda board: board.store.requeue(job_id(1), record(1)),
    "pause": lambda board: board.store.pause(),
    "limit": lambda board: LimitStore(board.store).limit([LimitChange("pause", "task:shop.close")]),
    "purge": lambda board: board.store.purge(),
    "offer": lambda board: board.store.offer(TARGET, b"1", id=ids.short(job_id(1)), attempt=1, nonce="n1"),
    "resign": lambda board: board.store.run("resign", None, "", "", "id", "0" * 40, b"record"),
    "sweep": lambda board: EpochStore(board.store).sweep("g"),
    "tidy": lambda board: board.store.tidy(tombstones_ms=0, failed_before_ms=NOW),
    "trim": lambda board: board.log.trim("9999999999999-0"),
    "restore": lambda board: EpochStore(board.store).stand(),
    "confirm": lambda board: EpochStore(board.store).confirm("g", mirrored="1-1"),
    "lock": lambda board: LockStore(board.store.link, board.keys).lock("a", "t", lease_ms=LEASE, holder="x"),
    "prolong": lambda board: LockStore(board.store.link, board.keys).prolong([("a", "t", LEASE)]),
    "assign": lambda board: board.store.run("assign", None, "", "", "", "", ""),
    "epoch": lambda board: board.store.epoch(),
    "show": lambda board: board.store.run("show", None, "", "", "w", "{}", "-"),
    "unlock": lambda board: LockStore(board.store.link, board.keys).unlock("a", "t"),
    "inspect": lambda board: board.store.run("inspect", None, "", ""),
    "counts": lambda board: board.store.run("counts", None, "", "", 1, 240, 120, "failed"),
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


def test_each_script_is_asked():
    assert set(SCRIPTS) == (set(CALLS) | {"probe"}) - {"the reader of the stream"}, "the probe has keys of its own alone"


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


@pytest.mark.parametrize("there", [None, "", "x", "-3", "nan", "1.5e"])
def test_a_missing_or_malformed_number_is_the_first_format(board, there):
    if there is not None:
        board.link.execute("HSET", board.keys["meta"], "format", there)
    assert board.put(1) == "created"
    assert [entry.format for entry in board.log.read("0-0", 10)] == [formats.FIRST]
    [(_, pairs)] = board.link.execute("XRANGE", board.keys["events"], "-", "+")
    assert pairs[pairs.index(b"f") + 1] == b"1"


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
