"""The order in which a mover polls its lines."""

from __future__ import annotations

from collections import Counter

from django_delayq.worker.process.mover import WeightedRoundRobin


def given(turns: WeightedRoundRobin, many: int, *, more: bool = True) -> list[int]:
    """The lines that are polled if each pass has room for one."""
    asked = []
    for _ in range(many):
        line = next(iter(turns.order()))
        turns.polled(line, more=more)
        asked.append(line)
    return asked


def test_each_line_has_its_turn():
    assert given(WeightedRoundRobin(["a", "b", "c"], [1, 1, 1]), 7) == [0, 1, 2, 0, 1, 2, 0]


def test_a_queue_has_as_many_turns_as_its_weight_however_many_partitions_it_has():
    turns = WeightedRoundRobin(["a"] * 4 + ["b"], [2] * 4 + [1])
    asked = given(turns, 60)
    assert Counter(line == 4 for line in asked) == {False: 40, True: 20}
    assert Counter(asked) == {0: 10, 1: 10, 2: 10, 3: 10, 4: 20}


def test_a_queue_without_more_gives_up_its_turns():
    assert given(WeightedRoundRobin(["a", "b"], [5, 1]), 4, more=False) == [0, 1, 0, 1]


def test_all_lines_are_asked_in_a_pass_that_has_room_for_them():
    turns = WeightedRoundRobin(["a", "a", "a", "b"], [1] * 4)
    assert list(turns.order()) == [0, 3, 1, 2]
    turns.polled(0, more=True)
    assert list(turns.order()) == [3, 1, 2, 0]
    turns.polled(3, more=True)
    assert list(turns.order()) == [1, 3, 2, 0]
