"""The three bands of a queue, which priorities lead to, and the letters by which records name them."""

from __future__ import annotations

from typing import Final, Literal, get_args

Band = Literal["high", "normal", "low"]
BANDS: Final[tuple[Band, ...]] = get_args(Band)
LETTERS: Final[dict[str, str]] = {band: band[0] for band in BANDS}
BY_LETTER: Final[dict[str, Band]] = {band[0]: band for band in BANDS}


def band_of(priority: int) -> Band:
    """The band of a priority: above 0 high, 0 normal, below 0 low."""
    if priority > 0:
        return "high"
    return "low" if priority < 0 else "normal"
