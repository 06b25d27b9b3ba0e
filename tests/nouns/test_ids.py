"""Ids: version 7 or 8, always increasing, safe across threads and fork. The short form loses nothing and sorts in the same order."""

from __future__ import annotations

import os
import threading
import uuid
from uuid import UUID

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from django_delayq import clock, ids

UUIDS = st.integers(min_value=0, max_value=2**128 - 1).map(lambda number: UUID(int=number))


@pytest.fixture
def own(monkeypatch: pytest.MonkeyPatch) -> ids._Sequence:
    """A new generator of our own, also where Python has one."""
    sequence = ids._Sequence()
    monkeypatch.setattr(ids, "_standard", None)
    monkeypatch.setattr(ids, "_sequence", sequence)
    return sequence


def test_an_id_is_a_uuid_of_version_7_with_its_time(own: ids._Sequence) -> None:
    before = clock.wall_ms()
    made = ids.new()
    assert made.version == 7
    assert made.variant == uuid.RFC_4122
    assert before <= ids.created_ms(made) <= clock.wall_ms() + 1_000


def test_ids_grow_also_within_a_millisecond(own: ids._Sequence, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(clock, "wall_ms", lambda: 1_750_000_000_000)
    made = [ids.new() for _ in range(2_000)]
    assert made == sorted(set(made))
    assert {ids.created_ms(id) for id in made} == {1_750_000_000_000}
    assert {(id.version, id.variant) for id in made} == {(7, uuid.RFC_4122)}


def test_ids_grow_when_the_clock_steps_back(own: ids._Sequence, monkeypatch: pytest.MonkeyPatch) -> None:
    times = iter([5_000, 4_000, 4_999, 5_000, 5_001])
    monkeypatch.setattr(clock, "wall_ms", lambda: next(times))
    made = [ids.new() for _ in range(5)]
    assert made == sorted(set(made))
    assert [ids.created_ms(id) for id in made] == [5_000, 5_000, 5_000, 5_000, 5_001]


def test_a_used_up_millisecond_borrows_from_the_next(own: ids._Sequence, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(clock, "wall_ms", lambda: 5_000)
    first = ids.new()
    own.tail = 2**74 - 1
    second = ids.new()
    assert second > first
    assert second.version == 7
    assert ids.created_ms(second) == 5_001


def test_ids_of_two_processes_differ_in_the_same_millisecond(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(clock, "wall_ms", lambda: 5_000)
    assert ids._Sequence().several(1, 5_000) != ids._Sequence().several(1, 5_000)


def test_the_standard_generator_is_used_where_there_is_one(monkeypatch: pytest.MonkeyPatch) -> None:
    theirs = UUID("01980000-0000-7000-8000-000000000001")
    monkeypatch.setattr(ids, "_standard", lambda: theirs)
    assert ids.new() == theirs


def test_threads_never_share_an_id() -> None:
    made: list[list[UUID]] = [[] for _ in range(8)]
    start = threading.Barrier(8)

    def work(mine: list[UUID]) -> None:
        start.wait()
        mine.extend(ids.new() for _ in range(500))

    threads = [threading.Thread(target=work, args=(mine,)) for mine in made]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len({id for mine in made for id in mine}) == 4_000
    assert all(mine == sorted(mine) for mine in made)


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # Python 3.12 warns about a fork with threads: this test does that
def test_a_forked_child_makes_its_own_ids_and_waits_for_no_lock_of_its_parent(own: ids._Sequence) -> None:
    ids.new()
    reader, writer = os.pipe()
    with own.lock:  # as if another thread of the parent were making an id at the moment of the fork
        child = os.fork()
        if child == 0:
            try:
                os.write(writer, ids.new().bytes)
            finally:
                os._exit(0)
    os.close(writer)
    with os.fdopen(reader, "rb") as pipe:
        theirs = UUID(bytes=pipe.read())
    os.waitpid(child, 0)
    assert theirs.version == 7
    assert theirs != ids.new()


@given(UUIDS)
def test_the_short_form_reads_back(id: UUID) -> None:
    short = ids.short(id)
    assert len(short) == 22
    assert short.isascii()
    assert short.isalnum()
    assert ids.full(short) == id


@given(UUIDS, UUIDS)
def test_the_short_form_sorts_as_the_id_does(one: UUID, other: UUID) -> None:
    assert (ids.short(one) < ids.short(other)) == (one < other)
    assert (ids.short(one).encode() < ids.short(other).encode()) == (one.bytes < other.bytes)


@pytest.mark.parametrize(
    ("number", "short"),
    [(0, "0" * 22), (61, "0" * 21 + "z"), (62, "0" * 20 + "10"), (2**128 - 1, "7n42DGM5Tflk9n8mt7Fhc7")],
)
def test_the_short_form_is_the_number_in_base_62(number: int, short: str) -> None:
    assert ids.short(UUID(int=number)) == short


@pytest.mark.parametrize(
    "text", ["", "0" * 21, "0" * 23, "z" * 22, "7n42DGM5Tflk9n8mt7Fhc8", "0" * 21 + "-", "0" * 21 + "é", "\n" * 22]
)
def test_what_is_no_short_form_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="is not a job id"):
        ids.full(text)


@given(st.text(max_size=30) | st.text(alphabet=ids._ALPHABET, min_size=22, max_size=22))
def test_any_text_is_a_short_form_or_a_value_error(text: str) -> None:
    try:
        id = ids.full(text)
    except ValueError:
        return
    assert ids.short(id) == text


@given(st.text(max_size=30) | st.text(alphabet=ids._ALPHABET, min_size=22, max_size=22))
@example(ids.short(UUID(int=2**128 - 1)))
@example("z" * 22)
def test_the_cheap_check_says_what_reading_would_say(text: str) -> None:
    try:
        ids.full(text)
    except ValueError:
        with pytest.raises(ValueError, match="is not a job id"):
            ids.check(text)
    else:
        ids.check(text)


@given(UUIDS)
def test_every_spelling_is_parsed(id: UUID) -> None:
    for spelling in (id, ids.short(id), str(id), id.hex, str(id).upper(), f" {id}\n"):
        assert ids.parse(spelling) == id


@pytest.mark.parametrize(
    "value",
    [
        "",
        "abc",
        "{01980000-0000-7000-8000-000000000001}",
        "urn:uuid:01980000-0000-7000-8000-000000000001",
        "g" * 32,
        "0-1980000-0000-7000-8000-00000000000",
        "\u0660" * 32,
        "x" * 1_000,
        None,
        5,
        b"0" * 22,
        ["0" * 22],
    ],
)
def test_what_is_no_id_is_refused_with_what_to_pass(value: object) -> None:
    with pytest.raises(ValueError, match="is not a job id") as caught:
        ids.parse(value)
    assert "22" in str(caught.value)
    assert len(str(caught.value)) < 250


def test_a_uuid_without_a_time_has_no_date() -> None:
    with pytest.raises(ValueError, match=r"version 4.*version 6 or 7"):
        ids.created_ms(uuid.uuid4())
    with pytest.raises(ValueError, match="version 6 or 7"):
        ids.created_ms(UUID(int=0))


@pytest.mark.parametrize("partition", [1, 3, 511, 1023])
def test_an_id_of_version_6_says_its_partition_and_its_time(
    own: ids._Sequence, monkeypatch: pytest.MonkeyPatch, partition: int
) -> None:
    monkeypatch.setattr(clock, "wall_ms", lambda: 1_750_000_000_000)
    made = ids.several(2_000, partition)
    assert {(id.version, id.variant) for id in made} == {(6, uuid.RFC_4122)}
    assert {ids.partition(id) for id in made} == {partition}
    assert {ids.created_ms(id) for id in made} == {1_750_000_000_000}
    assert made == sorted(set(made))
    assert {ids.full(ids.short(id)) for id in made} == set(made)


def test_an_id_of_version_7_is_of_the_first_partition(own: ids._Sequence) -> None:
    made = ids.several(500)
    assert {id.int & 1023 for id in made} != {0}, "its lowest bits are not looked at"
    assert {ids.partition(id) for id in (*made, ids.derived("a seed", 5_000))} == {0}


def test_ids_that_differ_by_their_partition_only_are_never_made(own: ids._Sequence, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(clock, "wall_ms", lambda: 5_000)
    monkeypatch.setattr(os, "urandom", lambda count: bytes(count))  # the smallest steps that there are
    made = [*ids.several(3, 2), *ids.several(3), *ids.several(3, 1)]
    assert len({id.int >> 10 for id in made if id.version == 6}) == 6
    assert len(set(made)) == 9


def test_a_used_up_millisecond_of_a_partition_borrows_from_the_next(own: ids._Sequence, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(clock, "wall_ms", lambda: 5_000)
    first = ids.several(1, 3)[0]
    own.tail = 2**74 - 1024
    second = ids.several(1, 3)[0]
    assert second > first
    assert (second.version, ids.partition(second), ids.created_ms(second)) == (6, 3, 5_001)


def test_the_standard_generator_is_asked_for_the_first_partition_only(monkeypatch: pytest.MonkeyPatch) -> None:
    theirs = UUID("01980000-0000-7000-8000-000000000001")
    monkeypatch.setattr(ids, "_standard", lambda: theirs)
    assert [ids.partition(id) for id in (*ids.several(1), *ids.several(1, 5))] == [0, 5]


@pytest.mark.parametrize("partition", [-1, 1024])
def test_a_partition_that_no_id_can_say_is_refused(partition: int) -> None:
    with pytest.raises(ValueError, match=f"partition {partition}; use a number from 0 to 1023"):
        ids.several(1, partition)


def test_a_uuid_that_is_no_job_id_is_looked_for_in_the_first_partition() -> None:
    foreign = [uuid.uuid4(), uuid.uuid1(), uuid.UUID(int=2**128 - 1), uuid.UUID(int=0)]
    assert [ids.partition(id) for id in foreign] == [0] * 4
