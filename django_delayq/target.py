"""The target of offers: one entry of `DELAYQ["TARGETS"]`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal

TargetKind = Literal["stream", "list"]
KINDS: Final[tuple[TargetKind, ...]] = ("stream", "list")


@dataclass(frozen=True, slots=True, kw_only=True)
class OfferTarget:
    """A list or a stream on the server of the queues. `name`: how offers call it; `key`: how Redis does; `maxlen`: how many entries it
    may hold, of which the oldest go; None: any number.
    """

    name: str
    key: str
    kind: TargetKind
    maxlen: int | None
