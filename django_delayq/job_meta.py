"""What a job's meta holds for this package: the concurrency name, which limits how many jobs run at a time, and the tasks of whose
jobs the sender may know. They travel in the payload, so that every process that publishes the job applies them.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any, Final, NamedTuple

MAX_NAME: Final = 200  # characters
MOST: Final = 1000  # of a name at a time
# The key of a job's meta under which it travels, as [text, most]: workers of an older release take it as meta.
NAMED: Final = "delayq.name"
_MARK: Final = json.dumps(NAMED).encode()
ONLY: Final = "delayq.only"  # the key of a job's meta: a list of task names
ONLY_MARK: Final = json.dumps(ONLY).encode()
_TEXT: Final = re.compile(f"[^\x00-\x1f\x7f-\x9f\u2028\u2029\ud800-\udfff]{{1,{MAX_NAME}}}")


class SharedName(NamedTuple):
    """A concurrency name: `most` jobs of a queue with this text can hold a lease at a time."""

    text: str
    most: int = 1

    def told(self) -> str:
        """The format of the scripts, see lines.lua."""
        return f"{self.most}:{self.text}"


def is_text(value: object) -> bool:
    """Whether that can be a name: 1 to 200 characters, none of them a control character."""
    return isinstance(value, str) and _TEXT.fullmatch(value) is not None


def in_meta(meta: Mapping[str, Any] | None) -> SharedName | None:
    """The name that a job's meta carries; None without one, or where somebody else has written another thing there."""
    match (meta or {}).get(NAMED):
        case [str() as text, int() as most] if is_text(text) and type(most) is int and 1 <= most <= MOST:
            return SharedName(text, most)
    return None


def may_carry(raw: bytes) -> bool:
    """Whether a record, or a payload, may carry a name: mostly none does, and that is cheap to know."""
    return _MARK in raw


def in_payload(payload: bytes) -> SharedName | None:
    """The same of a payload, which is only read if it may carry one."""
    if not may_carry(payload):
        return None
    try:
        match json.loads(payload):
            case [_, _, {"meta": dict() as meta}]:
                return in_meta(meta)
    except (ValueError, RecursionError):
        pass  # it is found unreadable where it is to run
    return None


def told_of(payload: bytes) -> str:
    """The name of a job with this payload, in the format of the scripts; "" without a name."""
    name = in_payload(payload)
    return name.told() if name else ""


def allowed_tasks(payload: bytes) -> tuple[str, ...] | None:
    """The tasks of whose jobs the sender may know; None: of all jobs. A limit that cannot be read allows none."""
    if ONLY_MARK not in payload:
        return None
    try:
        match json.loads(payload):
            case [_, _, {"meta": {"delayq.only": list() as tasks}}]:
                return tuple(task for task in tasks if isinstance(task, str))
            case [_, _, {"meta": {"delayq.only": _}}]:
                return ()
    except (ValueError, RecursionError):
        return ()
    return None  # the text is in the arguments
