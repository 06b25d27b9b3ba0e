"""The POST data that a browser sends for a form with one field per argument."""

from __future__ import annotations

from typing import Any


def sent(form: Any, **changed: tuple[str, str] | str) -> dict[str, str]:
    """Returns the fields as a browser sends them. `changed` replaces fields: pass the text of an argument, or its input mode and its
    text.
    """
    found = {field.name: "" if field.value() is None else str(field.value()) for field in form}
    for name, given in changed.items():
        way, text = given if isinstance(given, tuple) else ("", given)
        if way:
            found[f"as-{name}"] = way
        if f"value-{name}" in found:
            found[f"value-{name}"] = text
    return {**found, "digest": form.digest}
