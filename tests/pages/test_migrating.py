"""docs/migrating.md: the words of others are those that errors answer, and what it says is written here, is there."""

from __future__ import annotations

import inspect
import re

import django_delayq
from django_delayq.producer import equivalents
from tests.pages.blocks import DOCS

PAGE = (DOCS / "migrating.md").read_text()
LIST = PAGE.partition("\n## Word by word\n")[2]


def test_the_list_of_words_is_that_of_the_errors():
    listed = set(re.findall(r"`(\w+)`", re.sub(r"\|[^|]*\|$", "|", LIST, flags=re.MULTILINE)))
    assert listed == set(equivalents._OPTIONS)
    methods = set(re.findall(r"`\.(\w+)\(…\)`", re.sub(r"\|[^|]*\|$", "|", LIST, flags=re.MULTILINE)))
    assert methods == {"delay", *equivalents._NOW, *equivalents._LATER, *equivalents._AWAITED, *equivalents._BUNDLES}


def test_what_is_written_here_is_there():
    named = set(re.findall(r"\bdelayq\.([A-Za-z]\w*)", "\n".join(re.findall(r"`[^`\n]+`", PAGE))))
    there = {*django_delayq.__all__, "advance", "run_due"}
    assert not named - there


def test_options_that_are_proposed_are_accepted():
    """Each `Ladder…` of the page is one."""
    made = re.findall(r"delayq\.(Ladder\.\w+\([^`]*?\))[`,]", PAGE)
    assert len(made) == 2
    for text in made:
        assert list(eval(text, {"Ladder": django_delayq.Ladder}).steps())
    assert "times" in inspect.signature(django_delayq.Ladder.exponential).parameters


def test_words_of_others_lead_to_ours():
    """The index sees from each of these to a term of the glossary."""
    glossary = (DOCS / "glossary.md").read_text()
    seen = dict(re.findall(r"^   see: ([\w ]+); (\w+)$", glossary, flags=re.MULTILINE))
    assert {"ETA", "countdown", "backoff", "dead letter", "visibility timeout", "revoke", "result backend", "defer"} <= set(seen)
    assert set(seen.values()) <= set(re.findall(r"^(\w[\w ]*)\n  \S", glossary, flags=re.MULTILINE))
