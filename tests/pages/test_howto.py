"""Pages whose code blocks make a project. Each project is built, and tests of the page's statements run in it."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from django_delayq.targets import answers, webhook
from tests.pages.blocks import DOCS, blocks, project
from tests.testing.projects import run_pytest

PAGES = [
    "howto/call-a-url",
    "howto/alerts",
    "howto/asgi",
    "howto/audit",
    "howto/close-unpaid-orders",
    "howto/django-tenants",
    "howto/one-at-a-time",
    "howto/recipes",
    "howto/reminders",
    "howto/run-every-night",
    "howto/send-email",
    "howto/test-your-tasks",
    "howto/wagtail",
    "more/django-tasks",
    "topics/periodic-tasks",
]


def project_tests(page: str) -> Path:
    return Path(__file__).parent / f"of_{page.rpartition('/')[2].replace('-', '_')}.py"


@pytest.mark.parametrize("page", PAGES)
def test_a_page_does_what_it_says(tmp_path, redis_server, shop_database, page):
    home = project(tmp_path, DOCS / f"{page}.md", project_tests(page))
    done = run_pytest(home, DELAYQ_TEST_REDIS_URL=redis_server.url, SHOP_DATABASE=shop_database)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "skipped" not in done.stdout or page == "more/django-tasks", done.stdout  # the contract skips features that a backend lacks


@pytest.mark.parametrize("page", PAGES)
def test_every_python_block_is_part_of_the_project(page):
    text = (DOCS / f"{page}.md").read_text()
    assert len(re.findall(r"^ *```(?:python|django)$", text, flags=re.MULTILINE)) == len(list(blocks(DOCS / f"{page}.md")))


@pytest.mark.parametrize("page", PAGES)
def test_every_task_of_a_page_is_run(page):
    text = "\n".join(code for _, code in blocks(DOCS / f"{page}.md"))
    tasks = set(re.findall(r"^@delayq\.task.*\n(?:async )?def (\w+)", text, flags=re.MULTILINE))
    tests = project_tests(page).read_text()
    assert tasks == {name for name in tasks if re.search(rf"\b{name}\b[.,()]", text.replace(f"def {name}(", "") + tests)}


PAGE = (DOCS / "howto/call-a-url.md").read_text()


def test_every_way_in_which_a_delivery_fails_is_described():
    named = set(re.findall(r"`([^`\n]+)`", PAGE))
    assert {*answers.TEXTS, *webhook.TEXTS} <= named
