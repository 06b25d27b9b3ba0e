"""docs/howto/move-from-another-queue.md: each name of this package that the page shows exists, and each option works."""

from __future__ import annotations

import inspect
import re

import django_delayq
from tests.pages.blocks import DOCS

PAGE = (DOCS / "howto/move-from-another-queue.md").read_text()


def test_each_name_that_it_shows_exists():
    named = set(re.findall(r"\bdelayq\.([A-Za-z]\w*)", "\n".join(re.findall(r"`[^`\n]+`", PAGE))))
    assert named <= set(django_delayq.__all__)


def test_each_ladder_that_it_shows_is_accepted():
    made = re.findall(r"delayq\.(Ladder\.\w+\([^`]*?\))[`,]", PAGE)
    assert len(made) == 2
    for text in made:
        assert list(eval(text, {"Ladder": django_delayq.Ladder}).steps())
    assert "times" in inspect.signature(django_delayq.Ladder.exponential).parameters
