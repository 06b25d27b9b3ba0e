"""docs/howto/admin.md names every permission and every word of the search."""

from __future__ import annotations

import re
from pathlib import Path

from django.apps import apps

from django_delayq.console.search_fields import WORDS

PAGE = (Path(__file__).parents[2] / "docs" / "howto" / "admin.md").read_text()


def first_column(heading: str) -> set[str]:
    """The code words of the first column of a section's tables."""
    section = PAGE.partition(f"\n## {heading}\n")[2].partition("\n## ")[0]
    return {word for row in re.findall(r"^\| (`.+?) \|", section, flags=re.MULTILINE) for word in re.findall(r"`([^`]+)`", row)}


def test_the_page_names_every_permission() -> None:
    models = [model._meta for model in apps.get_app_config("delayq").get_models()]
    ours = {f"delayq.{name}" for meta in models for name, _ in meta.permissions}
    ours |= {f"delayq.{action}_{meta.model_name}" for meta in models for action in meta.default_permissions}
    assert first_column("Permissions") == ours


def test_the_page_names_every_word_of_the_search() -> None:
    assert {example.partition(":")[0] for example in first_column("Find a job")} == set(WORDS)
