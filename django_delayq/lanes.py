"""The three lanes of a queue, which priorities lead to, and the letters by which records name them."""

from __future__ import annotations

from typing import Final, Literal, get_args

Lane = Literal["high", "normal", "low"]
LANES: Final[tuple[Lane, ...]] = get_args(Lane)
LETTERS: Final[dict[str, str]] = {lane: lane[0] for lane in LANES}
BY_LETTER: Final[dict[str, Lane]] = {lane[0]: lane for lane in LANES}


def lane_of(priority: int) -> Lane:
    """The lane of a priority: above 0 high, 0 normal, below 0 low."""
    if priority > 0:
        return "high"
    return "low" if priority < 0 else "normal"
