"""The changelog and the version agree, and its lines speak to users."""

from __future__ import annotations

import re
from pathlib import Path

import django_delayq

TEXT = (Path(__file__).parents[1] / "CHANGELOG.md").read_text()
HEADING = re.compile(r"^## \[(?P<version>\d+\.\d+\.\d+)\] - (?P<date>Unreleased|\d{4}-\d{2}-\d{2})$")
KINDS = {"Added", "Changed", "Deprecated", "Removed", "Fixed", "Security"}  # of Keep a Changelog


def headings() -> list[re.Match[str]]:
    found = [HEADING.match(line) for line in TEXT.splitlines() if line.startswith("## ")]
    assert all(found), "a heading is `## [1.2.3] - 2027-01-31` or `## [1.2.3] - Unreleased`"
    return [match for match in found if match]


def test_the_newest_entry_is_of_this_version():
    assert headings()[0]["version"] == django_delayq.__version__


def test_versions_go_down_and_only_the_newest_may_be_unreleased():
    found = headings()
    versions = [tuple(map(int, match["version"].split("."))) for match in found]
    assert versions == sorted(set(versions), reverse=True)
    assert all(match["date"] != "Unreleased" for match in found[1:])


def test_every_version_says_something():
    for section in re.split(r"^## ", TEXT, flags=re.M)[1:]:
        assert re.search(r"^- \S", section, flags=re.M), f"nothing under {section.splitlines()[0]}"


def test_changes_are_of_the_kinds_that_the_format_knows():
    assert set(re.findall(r"^### (.+)$", TEXT, flags=re.M)) <= KINDS
