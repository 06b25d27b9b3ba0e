"""The laws of queues notice what they are for: a good queue, and what is wrong with it after one change by hand."""

from __future__ import annotations

from collections.abc import Callable
from copy import deepcopy

import pytest

from django_delayq.store.scripts.events import Entry, Item
from tests.laws.dump import Dump
from tests.laws.history import History, Look, Sees
from tests.laws.judge import judge
from tests.laws.story import Story
from tests.store.board import record

LATER = 1_800_000_000_000.0


def good() -> Dump:
    """w waits, r waits for its second attempt, k runs and holds a key, f has failed, c was cancelled, s has succeeded."""
    return Dump(
        jobs={
            "w": record(1, band="high").encode(),
            "r": record(2, max_attempts=2).encode(),
            "k": record(3, key="order").encode(),
            "f": record(4, key="order").encode(),
        },
        high={"w": LATER},
        normal={"r": LATER},
        leases={"k": LATER},
        failed={"f": LATER},
        finished={"c": LATER + 0.5, "s": LATER + 0.25},
        runs={"r": "1:0:n:", "k": "1:0:N:n1"},
        cancels={"k": "clerk"},
        progress={"k": "1/2"},
        keys={"order": "k"},
    )


def entry(*items: tuple[str, ...]) -> list[Entry]:
    return [Entry("1-0", 0, "", "", tuple(Item(kind, tuple(fields), b"") for kind, *fields in items))]


def broken(dump: Dump) -> str:
    return said(Sees.QUEUES, Look(after=dump))


def untold(before: Dump, after: Dump, entries: list[Entry], *, forgetting: bool = False) -> str:
    return said(Sees.CHANGES, Look(before=before, after=after, entries=entries, forgetting=forgetting))


def unlisted(before: Dump, after: Dump, entries: list[Entry], script: str) -> str:
    breaches = judge(History(sees=Sees.CHANGES | Sees.SCRIPT, looks=[Look(before=before, after=after, entries=entries, script=script)]))
    return "; ".join(str(breach) for breach in breaches if breach.law == "every move is in the table")


def said(sees: Sees, look: Look) -> str:
    return "; ".join(map(str, judge(History(sees=sees, looks=[look], max_crashes=1))))


def test_a_good_queue_breaks_nothing() -> None:
    assert broken(good()) == ""
    assert untold(good(), good(), []) == ""


@pytest.mark.parametrize(
    ("harm", "sentence"),
    [
        (lambda dump: dump.jobs.pop("w"), "has no record"),
        (lambda dump: dump.high.clear(), "no place"),
        (lambda dump: dump.normal.update(w=LATER), "exactly one"),
        (lambda dump: dump.leases.update(w=LATER), "exactly one"),
        (lambda dump: dump.failed.update(k=LATER), "exactly one"),
        (lambda dump: (dump.high.clear(), dump.low.update(w=LATER)), "waits in low"),
        (lambda dump: dump.runs.pop("k"), "a lease and no run"),
        (lambda dump: dump.runs.update(r="1:0:n:n9"), "a fence and no lease"),
        (lambda dump: dump.runs.update(f="1:0:n:"), "has a run and is failed"),
        (lambda dump: dump.runs.update(k="1:0:n:n1"), "its run says band n"),
        (lambda dump: dump.keys.update(order="f"), "f holds the key"),
        (lambda dump: dump.keys.clear(), "does not hold its key"),
        (lambda dump: dump.runs.update(r="3:0:n:"), "attempt 3 of 2"),
        (lambda dump: dump.finished.update(w=LATER), "has a tombstone"),
        (lambda dump: dump.cancels.update(w="clerk"), "cancel request and does not run"),
        (lambda dump: dump.progress.update(w="1/2"), "progress and does not run"),
        (lambda dump: dump.asks.update(w="1"), "has asked and has no run"),
    ],
)
def test_a_broken_queue_is_noticed(harm: Callable[[Dump], object], sentence: str) -> None:
    dump = good()
    harm(dump)
    assert sentence in broken(dump)


def moved(change: Callable[[Dump], object]) -> Dump:
    dump = deepcopy(good())
    change(dump)
    return dump


def ends(dump: Dump, id: str, tombstone: float = LATER) -> None:
    """Takes the job away, with a tombstone."""
    for name in ("jobs", "high", "normal", "low", "leases", "failed", "runs", "cancels", "progress"):
        getattr(dump, name).pop(id, None)
    dump.finished[id] = tombstone


@pytest.mark.parametrize(
    ("change", "events"),
    [
        (lambda dump: ends(dump, "k", LATER + 0.25), entry(("succeeded", "k"))),
        (lambda dump: ends(dump, "k", LATER + 0.5), entry(("crashed", "k"), ("expired", "k"))),
        (lambda dump: ends(dump, "w", LATER + 0.5), entry(("cancelled", "w"), ("purged", "1"))),
        (lambda dump: dump.high.update(w=LATER + 1), entry(("rescheduled", "w"))),
        (lambda dump: dump.leases.update(k=LATER + 1), []),
        (lambda dump: dump.runs.update(k="1:1:N:n2"), entry(("crashed", "k"), ("claimed", "k"))),
        (lambda dump: dump.finished.pop("s"), []),
    ],
)
def test_a_change_that_is_told_is_good(change: Callable[[Dump], object], events: list[Entry]) -> None:
    assert untold(good(), moved(change), events) == ""


@pytest.mark.parametrize(
    ("change", "events", "sentence"),
    [
        (lambda dump: ends(dump, "k"), [], "without an event"),
        (lambda dump: dump.high.update(w=LATER + 1), [], "without an event"),
        (lambda dump: dump.runs.update(k="1:1:N:n2"), [], "without an event"),
        (lambda dump: dump.cancels.clear(), [], "without an event"),
        (lambda dump: ends(dump, "f"), [], "without an event"),
        (lambda dump: None, entry(("succeeded", "k")), "end in succeeded"),
        (lambda dump: None, entry(("cancel_requested", "k")), "another cancel request"),
        (lambda dump: dump.cancels.update(w="boss"), entry(("cancel_requested", "w")), "is scheduled, and got another cancel request"),
        (lambda dump: None, entry(("merged", "w")), "merged into another"),
        (lambda dump: ends(dump, "w"), entry(("succeeded", "w")), "its event says succeeded"),
        (lambda dump: dump.runs.update(k="1:0:N:n2"), entry(("claimed", "k")), "its event says claimed"),
        (lambda dump: ends(dump, "k"), entry(("cancelled", "k")), "end in cancelled"),
    ],
)
def test_a_change_that_is_not_told_as_it_was_is_noticed(change: Callable[[Dump], object], events: list[Entry], sentence: str) -> None:
    assert sentence in untold(good(), moved(change), events)


def test_a_cancel_may_be_asked_for_of_a_job_that_waits_in_an_epoch_of_which_nobody_knows() -> None:
    asked = moved(lambda dump: dump.cancels.update(w="boss"))
    look = Look(before=good(), after=asked, entries=entry(("cancel_requested", "w")), noted=frozenset({"w"}))
    assert said(Sees.CHANGES, look) == ""


def test_tidy_may_drop_failed_jobs_and_tombstones_untold() -> None:
    dropped = moved(lambda dump: (ends(dump, "f"), dump.finished.clear()))
    assert untold(good(), dropped, [], forgetting=True) == ""


@pytest.mark.parametrize(
    ("script", "change", "events"),
    [
        ("settle", lambda dump: ends(dump, "k", LATER + 0.25), entry(("succeeded", "k"))),
        ("claim", lambda dump: ends(dump, "k", LATER + 0.5), entry(("crashed", "k"), ("expired", "k"))),
        ("claim", lambda dump: dump.runs.update(k="1:1:N:n2"), entry(("crashed", "k"), ("claimed", "k"))),
        ("schedule", lambda dump: ends(dump, "w", LATER + 0.5), entry(("cancelled", "w"))),
        ("schedule", lambda dump: ends(dump, "p"), entry(("merged", "p", "w", "keep"))),
        ("pause", lambda dump: None, entry(("paused",))),
        ("cancel", lambda dump: dump.cancels.update(k="boss"), entry(("cancel_requested", "k"))),
        ("cancel", lambda dump: dump.cancels.update(k="\1boss"), entry(("cancel_requested", "k", "abort"))),
    ],
)
def test_a_move_of_the_table_is_good(script: str, change: Callable[[Dump], object], events: list[Entry]) -> None:
    assert unlisted(good(), moved(change), events, script) == ""


@pytest.mark.parametrize(
    ("script", "change", "events"),
    [
        ("purge", lambda dump: ends(dump, "k", LATER + 0.5), entry(("cancelled", "k"))),
        ("settle", lambda dump: ends(dump, "w", LATER + 0.25), entry(("succeeded", "w"))),
        ("requeue", lambda dump: dump.low.update(s=LATER), entry(("requeued", "s"))),
        ("claim", lambda dump: None, entry(("rescheduled", "w"))),
        ("extend", lambda dump: ends(dump, "k", LATER + 0.25), []),
        ("pause", lambda dump: ends(dump, "w"), []),
    ],
)
def test_a_move_that_is_not_in_the_table_is_noticed(script: str, change: Callable[[Dump], object], events: list[Entry]) -> None:
    assert "not in the table" in unlisted(good(), moved(change), events, script)


SCHEDULED, CLAIMED = ("scheduled", "j", "5"), ("claimed", "j", "1", "0", "n1")


def told(*items: tuple[str, ...], at_ms: int = 5, body: bytes = b"") -> str:
    """The violations in a sequence of events."""
    events = [Item(kind, tuple(fields), body) for kind, *fields in items]
    pages = Story().read([Entry("1-0", at_ms, "w", "", tuple(events))])
    return said(Sees.STORY, Look(after=Dump(), pages=pages))


@pytest.mark.parametrize(
    "events",
    [
        [SCHEDULED, CLAIMED, ("succeeded", "j", "1", "0", "n1")],
        [SCHEDULED, CLAIMED, ("cancel_requested", "j"), ("cancelled", "j", "1", "0", "n1"), ("requeued", "j", "5"), CLAIMED],
        [SCHEDULED, CLAIMED, ("crashed", "j", "1", "1", "n1", "5"), ("claimed", "j", "1", "1", "n2")],
        [SCHEDULED, CLAIMED, ("restored", "j", "5", "1", "0", "n1"), ("retried", "j", "1", "0", "n1", "5")],
        [("claimed", "never seen", "7", "0", "n1")],
        [SCHEDULED, ("cancelled", "j", "0", "0", "-")],
        [SCHEDULED, ("cancel_requested", "j"), ("cancelled", "j", "0", "0", "-")],
        [("restored", "j", "3005", "0", "0", "-"), ("cancel_requested", "j"), ("cancelled", "j", "0", "0", "-")],
        [("restored", "other", "3005", "0", "0", "-"), ("scheduled", "j", "7"), ("cancel_requested", "j")],
    ],
)
def test_a_story_that_may_be_is_good(events: list[tuple[str, ...]]) -> None:
    assert told(*events) == ""


@pytest.mark.parametrize(
    ("events", "sentence"),
    [
        ([SCHEDULED, SCHEDULED], "it is scheduled"),
        ([("scheduled", "j", "6"), ("cancel_requested", "j")], "asked before: False"),
        ([("restored", "j", "3006", "0", "0", "-"), ("cancel_requested", "j")], "asked before: False"),
        ([("restored", "other", "3005", "0", "0", "n1"), ("scheduled", "j", "7"), ("cancel_requested", "j")], "asked before: False"),
        ([SCHEDULED, *[("cancel_requested", "j")] * 2], "asked before: True"),
        ([SCHEDULED, CLAIMED, ("cancel_requested", "j"), ("cancel_requested", "j")], "asked before: True"),
        ([SCHEDULED, CLAIMED, ("cancel_requested", "j", "abort"), ("cancel_requested", "j")], "asked before: True"),
        ([SCHEDULED, CLAIMED, *[("cancel_requested", "j", "abort")] * 2], "asked before: True"),
        ([SCHEDULED, ("claimed", "j", "2", "0", "n1")], "a claim counts one attempt"),
        ([SCHEDULED, ("claimed", "j", "1", "1", "n1")], "a claim counts one attempt"),
        ([("scheduled", "j", "6"), CLAIMED], "1 ms before its date"),
        ([SCHEDULED, CLAIMED, ("succeeded", "j", "1", "0", "n2")], "which is not"),
        ([SCHEDULED, CLAIMED, ("retried", "j", "2", "0", "n1", "5")], "which is not"),
        ([SCHEDULED, CLAIMED, ("snoozed", "j", "1", "0", "n1", "5", "2")], "has asked 2 times"),
        ([SCHEDULED, CLAIMED, ("cancelled", "j", "1", "0", "-")], "ended as if it did not"),
        ([SCHEDULED, CLAIMED, ("crashed", "j", "1", "0", "n1", "5")], "crashes are counted"),
        ([SCHEDULED, CLAIMED, ("succeeded", "j", "1", "1", "n1")], "crashes are counted"),
        ([("restored", "j", "5", "1", "1", "n1"), ("crashed", "j", "1", "2", "n1", "5")], "2 crashes of at most 1"),
        ([SCHEDULED, CLAIMED, ("cancel_requested", "j"), ("retried", "j", "1", "0", "n1", "5")], "its cancel was requested"),
        ([SCHEDULED, CLAIMED, ("restored", "j", "5", "0", "0", "-")], "a restored job keeps its progress"),
    ],
)
def test_a_story_that_cannot_be_is_noticed(events: list[tuple[str, ...]], sentence: str) -> None:
    assert sentence in told(*events)


def test_poison_before_its_time_is_noticed() -> None:
    assert "1 crashes of at most 1" in told(SCHEDULED, CLAIMED, ("failed", "j", "1", "1", "n1"), body=b'{"e":"poison-crashes"}')


def named() -> Dump:
    """As `good`; k holds a name, and b, which is due, waits for it."""
    dump = good()
    dump.jobs["b"] = record(5).encode()
    dump.blocked = {"b": LATER}
    dump.names = {"k": "1:7:1:order:1", "b": "1:0:0:order:1"}
    dump.holders, dump.waiters = [b"order:1\0k"], [b"order:1\x002" + b"0" * 15 + b"\0b"]
    return dump


def test_a_queue_with_names_is_good() -> None:
    assert broken(named()) == ""


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        (lambda dump: dump.holders.append(b"order:1\0w"), "holds a name and has no lease"),
        (lambda dump: dump.holders.append(b"order:1\0w"), "2 hold the name 'order:1', of which 1 may"),
        (lambda dump: dump.holders.clear(), "has a lease and does not hold its name"),
        (lambda dump: dump.waiters.clear(), "[] wait in order, ['b'] by date"),
        (lambda dump: dump.names.pop("b"), "waits for the name 'order:1' and does not have it"),
        (lambda dump: dump.normal.update(b=LATER), "a job is in exactly one"),
    ],
)
def test_a_name_that_is_held_wrongly_is_noticed(change: Callable[[Dump], object], sentence: str) -> None:
    dump = named()
    change(dump)
    assert sentence in broken(dump)


def held() -> Dump:
    """As `good`; w is due and held, because its task is paused."""
    dump = good()
    dump.blocked = {"w": -dump.high.pop("w")}
    dump.waiters, dump.pauses = [b"\1task:shop.close\x001" + b"0" * 15 + b"\0w"], {"task:shop.close": "0"}
    return dump


@pytest.mark.parametrize("value", ["0", "1800000000000", "r0"])
def test_a_queue_with_a_held_job_is_good(value: str) -> None:
    dump = held()
    dump.pauses = {"task:shop.close": value}
    dump.opens = {} if value == "0" else {"\1task:shop.close": LATER}
    assert broken(dump) == ""


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        (lambda dump: dump.pauses.clear(), "which is not paused, and nobody will return it"),
        (lambda dump: dump.pauses.update({"task:shop.close": "r0"}), "which ends, and nobody will return it"),
        (lambda dump: dump.pauses.update({"task:shop.close": "1800000000000"}), "which ends, and nobody will return it"),
        (lambda dump: dump.blocked.update(w=LATER), "and is not held by its date"),
        (lambda dump: dump.jobs.update(w=record(1, band="high", task="shop.open").encode()), "and has ['task:shop.open']"),
        (lambda dump: dump.waiters.clear(), "[] wait in order, ['w'] by date"),
    ],
)
def test_a_job_that_is_held_wrongly_is_noticed(change: Callable[[Dump], object], sentence: str) -> None:
    dump = held()
    change(dump)
    assert sentence in broken(dump)


def fair() -> Dump:
    """As `good`; r has the turn of its fair word, and b waits for it."""
    dump = good()
    dump.jobs["b"] = record(5).encode()
    dump.blocked = {"b": LATER}
    dump.names = dict.fromkeys(("r", "b"), f"0:0:{LATER:.0f}:\x03a")
    dump.holders, dump.waiters = [b"\x032a\0r"], [f"\x032a\x002{LATER:015.0f}\0b".encode()]
    return dump


def test_a_queue_with_fair_words_is_good() -> None:
    assert broken(fair()) == ""


def test_a_job_that_gets_its_turn_keeps_its_date() -> None:
    after = fair()
    after.normal["r"] = LATER + 7
    assert untold(fair(), after, []) == ""


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        (lambda dump: dump.holders.clear(), "r is in a band without the turn"),
        (lambda dump: dump.holders.clear(), "b waits for the turn of '\\x032a', which no job has"),
        (lambda dump: dump.holders.append(b"\x032a\0b"), "2 jobs have the turn"),
        (lambda dump: dump.holders.append(b"\x032a\0b"), "b has the turn of '\\x032a' and waits"),
        (lambda dump: dump.names.pop("r"), "r has the turn of '\\x032a', and its line is ''"),
        (lambda dump: dump.names.pop("b"), "b waits in the line '\\x032a', and its line is ''"),
    ],
)
def test_a_turn_that_is_wrong_is_noticed(change: Callable[[Dump], object], sentence: str) -> None:
    dump = fair()
    change(dump)
    assert sentence in broken(dump)


@pytest.mark.parametrize(("until", "noticed"), [("", True), ("1", True), ("-1", False)])
def test_a_claim_from_a_paused_queue_is_noticed(until: str, noticed: bool) -> None:
    before, after = good(), good()
    before.meta = {"paused": "5", **({"paused_until": until} if until else {})}
    look = Look(before=before, after=after, entries=entry(("claimed", "w", "1", "0", "n1")), script="claim")
    breaches = judge(History(sees=Sees.CHANGES | Sees.SCRIPT, looks=[look]))
    assert ("no paused job is claimed" in {breach.law for breach in breaches}) == noticed


@pytest.mark.parametrize(("value", "noticed"), [("0", True), ("1", True), ("r0", False), ("-1", False)])
def test_a_claim_of_a_paused_job_is_noticed(value: str, noticed: bool) -> None:
    before, after = good(), good()
    before.pauses = {"task:shop.close": value}
    look = Look(before=before, after=after, entries=entry(("claimed", "w", "1", "0", "n1")), script="claim")
    breaches = judge(History(sees=Sees.CHANGES | Sees.SCRIPT, looks=[look]))
    assert ("no paused job is claimed" in {breach.law for breach in breaches}) == noticed


@pytest.mark.parametrize(("left", "noticed"), [("ab", False), ("a", False), ("", False), ("b", True)])
def test_held_jobs_that_return_before_others_are_noticed(left: str, noticed: bool) -> None:
    before = Dump(waiters=[f"\1task:pay\0002{number:015d}\0{id}".encode() for number, id in enumerate("abc")])
    after = Dump(waiters=[one for one in before.waiters if one[-1:].decode() not in left])
    breaches = judge(History(sees=Sees.CHANGES | Sees.SCRIPT, looks=[Look(before=before, after=after, script="claim")]))
    assert ("held jobs return in order" in {breach.law for breach in breaches}) == noticed
