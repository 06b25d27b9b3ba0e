"""Sums of the counts per minute, for charts."""

from tests.store.board import NOW, Board


def test_the_counts_of_each_step_are_summed_and_what_is_no_number_counts_as_nothing(board: Board) -> None:
    minute = NOW // 60_000
    fields = {"0:failed": 1, "1:failed": "many", "2:failed": 4, "2:succeeded": 8, "3:failed": 16, "4:failed": 32}
    board.link.execute("HSET", board.keys["stats"], *(part for at, count in fields.items() for part in (_field(minute, at), count)))
    reply = board.store.run("counts", NOW, "", "", minute, minute + 3, 3, "succeeded", "failed")
    assert list(map(int, reply)) == [8, 5, 0, 16], "the last step ends with the last minute"


def _field(minute: int, at: str) -> str:
    after, _, kind = at.partition(":")
    return f"{minute + int(after)}:{kind}"
