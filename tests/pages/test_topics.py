"""The examples of docs/topics do what their pages describe, and the tables of these pages match the code."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from django.conf import settings

from django_delayq import conf
from django_delayq.producer.options import POLICIES
from django_delayq.states import AttemptOutcome, State
from tests.pages.blocks import DOCS, blocks, project
from tests.pages.topic_project import complete
from tests.testing.projects import run_pytest

PAGES = ["keys", "transactions", "delivery-and-retries"]
WRITTEN = [*PAGES, "scaling"]


def text(page: str) -> str:
    return (DOCS / f"{page}.md").read_text("utf-8")


@pytest.mark.parametrize("page", PAGES)
def test_the_examples_do_what_the_page_promises(tmp_path, redis_server, shop_database, page):
    tests = Path(__file__).parent / f"of_{page.replace('-', '_')}.py"
    home = project(tmp_path, DOCS / "topics" / f"{page}.md", tests)
    complete(home)
    done = run_pytest(home, DELAYQ_TEST_REDIS_URL=redis_server.url, SHOP_DATABASE=shop_database)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "skipped" not in done.stdout, done.stdout


@pytest.mark.parametrize("page", WRITTEN)
def test_every_block_names_its_file(page):
    assert text(f"topics/{page}").count("```python\n") == len(list(blocks(DOCS / "topics" / f"{page}.md"))) > 0


def test_the_settings_of_the_scaling_page_are_valid(monkeypatch):
    found = 0
    for _, code in blocks(DOCS / "topics" / "scaling.md"):
        names: dict[str, object] = {}
        exec(code, names)
        monkeypatch.setattr(settings, "DELAYQ", names["DELAYQ"])
        assert not conf.problems()
        found += 1
    assert found == 5


def test_every_conflict_policy_is_described():
    assert set(re.findall(r'^\| `"(\w+)"` \|', text("topics/keys"), flags=re.MULTILINE)) == set(POLICIES)


def test_every_state_and_every_outcome_of_an_attempt_is_described():
    page = text("reference/states")
    assert set(re.findall(r"^\| `(\w+)` \|", page.partition("## Transitions")[0], flags=re.MULTILINE)) == {*State}
    named = set(re.findall(r"`(\w+)`", page.partition("The outcomes of an attempt are ")[2].partition(".")[0]))
    assert named == {*AttemptOutcome}
