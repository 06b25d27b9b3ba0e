"""What a person sends with a form that has a field for each argument."""

from __future__ import annotations

from typing import Any


def sent(form: Any, **changed: tuple[str, str] | str) -> dict[str, str]:
    """The fields as a browser sends them, untouched but for these: the text of an argument, or its way and its text."""
    found = {field.name: "" if field.value() is None else str(field.value()) for field in form}
    for name, given in changed.items():
        way, text = given if isinstance(given, tuple) else ("", given)
        if way:
            found[f"as-{name}"] = way
        if f"value-{name}" in found:
            found[f"value-{name}"] = text
    return {**found, "digest": form.digest}
