"""What a job's meta holds for this package: the concurrency name, which limits how many jobs run at a time, the rate, which limits how
many start in a period, the tasks of whose jobs the sender may know, and the version of its task. They travel in the payload, so that
every process that publishes or runs the job applies them.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any, Final, NamedTuple

MAX_NAME: Final = 200  # characters
MOST: Final = 1000  # of a name at a time
# The key of a job's meta under which it travels, as [text, most] or [text, most, rate]: workers of an older release take it as meta.
NAMED: Final = "delayq.name"
_MARK: Final = json.dumps(NAMED).encode()
ONLY: Final = "delayq.only"  # the key of a job's meta: a list of task names
ONLY_MARK: Final = json.dumps(ONLY).encode()
VERSION: Final = "delayq.version"  # the key of a job's meta: the version of its task, if that is not the first
_TEXT: Final = re.compile(f"[^\x00-\x1f\x7f-\x9f\u2028\u2029\ud800-\udfff]{{1,{MAX_NAME}}}")


MOST_TOKENS: Final = 999_999
PERIODS_MS: Final = {"s": 1_000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}
_RATE: Final = re.compile(r"([1-9]\d{0,5})/([smhd])")


class Quota(NamedTuple):
    """`tokens` come in `per_ms`, one after the other. `burst`: the most that can be there at once."""

    tokens: int
    per_ms: int
    burst: int

    @classmethod
    def read(cls, text: object, burst: object = None) -> Quota | None:
        """A rate such as "100/m". Without a burst, as many tokens as come in 100 ms, but at least one. None if it is not valid."""
        found = _RATE.fullmatch(text) if isinstance(text, str) else None
        if found is None or not (burst is None or (type(burst) is int and 1 <= burst <= MOST_TOKENS)):
            return None
        tokens, per_ms = int(found[1]), PERIODS_MS[found[2]]
        return cls(tokens, per_ms, burst if isinstance(burst, int) else max(1, tokens * 100 // per_ms))

    def __str__(self) -> str:
        unit = next((unit for unit, ms in PERIODS_MS.items() if ms == self.per_ms), f"{self.per_ms}ms")
        return f"{self.tokens}/{unit}"

    @property
    def each_ms(self) -> float:
        """The time between two tokens."""
        return self.per_ms / self.tokens

    def told(self) -> str:
        """The format of the scripts, see limits.lua."""
        return f"{self.tokens}:{self.per_ms}:{self.burst}"


class Rate(NamedTuple):
    """The rate of a job: its name, and the pace that its task declares for it."""

    text: str
    pace: Quota


class SharedName(NamedTuple):
    """A concurrency name: `most` jobs of a queue with this text can hold a lease at a time. A job can have a rate as well, or only a
    rate: then the text is empty and `most` is 0.
    """

    text: str
    most: int = 1
    rate: Rate | None = None

    @property
    def home(self) -> str:
        """The text that chooses the partition: in a queue with several partitions, name and rate are the same."""
        return self.text or (self.rate.text if self.rate else "")

    def told(self) -> str:
        """The format of the scripts, see lines.lua."""
        name = f"{self.most}:{self.text}"
        return name if self.rate is None else f"{name}\2{self.rate.pace.told()}:{self.rate.text}"

    def packed(self) -> list[Any]:
        """The value in the job's meta."""
        return [self.text, self.most] if self.rate is None else [self.text, self.most, [self.rate.text, *self.rate.pace]]


def version_in(meta: Mapping[str, Any] | None) -> int:
    """The version of the task of a job with this meta. 0: somebody else has written another thing there."""
    found = meta.get(VERSION, 1) if meta else 1
    return found if type(found) is int and found >= 1 else 0


def is_text(value: object) -> bool:
    """Whether that can be a name: 1 to 200 characters, none of them a control character."""
    return isinstance(value, str) and _TEXT.fullmatch(value) is not None


def in_meta(meta: Mapping[str, Any] | None) -> SharedName | None:
    """The name that a job's meta carries; None without one, or where somebody else has written another thing there."""
    match (meta or {}).get(NAMED):
        case [str() as text, int() as most] if is_text(text) and type(most) is int and 1 <= most <= MOST:
            return SharedName(text, most)
        case [str() as text, int() as most, [str() as rate, *numbers]] if is_text(rate) and _are_tokens(numbers):
            if (text, most) == ("", 0) or (is_text(text) and type(most) is int and 1 <= most <= MOST):
                return SharedName(text, most, Rate(rate, Quota(*numbers)))
    return None


def _are_tokens(numbers: list[Any]) -> bool:
    return len(numbers) == 3 and all(type(one) is int and 1 <= one <= max(MOST_TOKENS, *PERIODS_MS.values()) for one in numbers)


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
