"""What JSON would give back of a value that Django has normalised: texts and numbers of plain types."""

from __future__ import annotations

from typing import Any


def plain(value: Any) -> Any:
    """The value without subclasses, such as members of `TextChoices`. Keys that are no text stay, and are refused later: JSON would
    make text of them, and tell nobody.
    """
    if isinstance(value, dict):
        return {plain(key): plain(inner) for key, inner in value.items()}
    if isinstance(value, list):
        return [plain(inner) for inner in value]
    if type(value) in (bool, str, int, float):
        return value
    # By the methods of the kind itself, since a subclass has its own idea of what it is as text.
    if isinstance(value, str):
        return str.__str__(value)
    if isinstance(value, int):
        return int.__int__(value)
    return float.__float__(value) if isinstance(value, float) else value
