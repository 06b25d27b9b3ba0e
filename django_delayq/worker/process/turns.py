"""Whose turn it is among the lines of a mover."""

from __future__ import annotations

from collections.abc import Iterable, Sequence


class Turns:
    """Queue after queue, each as often as its weight, however many partitions it has; and of a queue one partition after the other. It
    begins behind the one that has had its turns last, so that each with due jobs gets some however much the others have.

    Args:
        queues: of each line its queue.
        weights: of each line the weight of its queue.
    """

    def __init__(self, queues: Sequence[str], weights: Sequence[int]) -> None:
        lines: dict[str, list[int]] = {}
        for line, queue in enumerate(queues):
            lines.setdefault(queue, []).append(line)
        self._lines = list(lines.values())  # by queue; those that come next in front
        self._of = {line: queue for queue, mine in enumerate(self._lines) for line in mine}
        self._weights = weights
        self._first = 0  # the queue whose turn it is
        self._had = [0] * len(lines)  # by queue, the turns that it has had, one behind the other

    def order(self) -> Iterable[int]:
        """The numbers of all lines, those first whose turn it is."""
        queues = [*self._lines[self._first :], *self._lines[: self._first]]
        if len(self._of) == len(queues):
            return [line for mine in queues for line in mine]
        most = max(map(len, queues))
        return [mine[turn] for turn in range(most) for mine in queues if turn < len(mine)]

    def had(self, line: int, *, more: bool) -> None:
        """That line has been asked. `more`: it may have more; what a queue leaves of its turns is not kept for later."""
        queue = self._of[line]
        mine = self._lines[queue]
        place = mine.index(line)
        mine[:] = [*mine[place + 1 :], *mine[: place + 1]]
        self._had[queue] += 1
        if self._had[queue] < self._weights[line] and more:
            self._first = queue
        else:
            self._first, self._had[queue] = (queue + 1) % len(self._lines), 0
