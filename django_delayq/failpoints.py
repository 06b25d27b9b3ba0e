"""Named places at which a test can make a process die, stall or err; nothing happens unless the environment arms them.

`DELAYQ_FAILPOINTS="settler.settle=kill@3 mover.claimed=sleep:0.5"`: the third time `settler.settle` is passed, the process ends
as by `kill -9`; each time `mover.claimed` is passed, it sleeps half a second. Actions: `kill`, `sleep:<seconds>`,
`raise:<text>`, `lose` (as if the reply of Redis had not come), `hold` (until the file of DELAYQ_FAILPOINTS_ONCE is not empty)
and `hold-lose`. With DELAYQ_FAILPOINTS_ONCE only the process that creates this file acts, once: so a test sees that a place was
reached, and what starts after a crash is not armed again; to sleep is no such act. Production code only ever calls `failpoint(name)`.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

from django_delayq import clock
from django_delayq.exceptions import StoreUnavailable

VARIABLE: Final = "DELAYQ_FAILPOINTS"
ONCE: Final = "DELAYQ_FAILPOINTS_ONCE"
ACTIONS: Final = ("kill", "sleep", "raise", "lose", "hold", "hold-lose")


class FailpointError(Exception):
    """The exception that an armed `raise` raises."""


class _Point:
    def __init__(self, action: str, argument: str, nth: int) -> None:  # nth 0: every time
        self.action, self.argument, self.nth, self.passed = action, argument, nth, 0


_armed: dict[str, _Point] | None = None


def failpoint(name: str) -> None:
    """Marks a place. Costs a comparison when nothing is armed."""
    armed = _armed
    if armed is None:
        armed = arm(os.environ.get(VARIABLE, ""))
    if armed and name in armed:
        _act(armed[name], name)


def arm(text: str) -> dict[str, _Point]:
    """Arms what the text says, and disarms everything else. ValueError for text that says nothing sensible."""
    global _armed
    points = {}
    for word in text.split():
        name, found, what = word.partition("=")
        what, _, nth = what.partition("@")
        action, _, argument = what.partition(":")
        if not found or action not in ACTIONS:
            raise ValueError(f"{word!r} in {VARIABLE} is not a failpoint; write name=kill, name=sleep:0.5 or name=raise:text@3")
        points[name] = _Point(action, argument, int(nth or 0))
    _armed = points
    return points


def _act(point: _Point, name: str) -> None:
    point.passed += 1
    if point.nth and point.passed != point.nth:
        return
    if point.action == "sleep":
        clock.sleep(float(point.argument))
        return
    if not _first():
        return
    if point.action == "kill":
        os._exit(137)  # no handlers, no buffers, no goodbye: what SIGKILL leaves behind
    elif point.action == "raise":
        raise FailpointError(f"failpoint {name}: {point.argument}")
    if point.action.startswith("hold"):
        _hold()
    if point.action.endswith("lose"):
        raise StoreUnavailable(f"failpoint {name}: the reply is lost")


def _first() -> bool:
    """Whether this is the first hit, if only the first one counts."""
    path = os.environ.get(ONCE)
    if not path:
        return True
    try:
        os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY))
    except FileExistsError:
        return False
    return True


def _hold() -> None:
    path = Path(os.environ[ONCE])
    while path.stat().st_size == 0:
        clock.sleep(0.01)
