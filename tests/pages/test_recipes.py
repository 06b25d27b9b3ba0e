"""docs/recipes.md: every recipe is run as it stands there."""

from __future__ import annotations

import re
from pathlib import Path

from tests.pages.blocks import DOCS, project
from tests.testing.projects import run_pytest

PAGE = DOCS / "recipes.md"
TESTS = Path(__file__).parent / "of_recipes.py"


def test_every_recipe_does_what_it_says(tmp_path, redis_server, shop_database):
    done = run_pytest(project(tmp_path, PAGE, TESTS), DELAYQ_TEST_REDIS_URL=redis_server.url, SHOP_DATABASE=shop_database)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "skipped" not in done.stdout, done.stdout


def test_every_task_of_a_recipe_is_run():
    page, tests = PAGE.read_text(), TESTS.read_text()
    tasks = set(re.findall(r"^@delayq\.task.*\ndef (\w+)", page, flags=re.MULTILINE))
    assert len(tasks) > 10
    called = {name for name in tasks if re.search(rf"\b{name}\b\)?[.,(]", page.replace(f"def {name}(", "") + tests)}
    assert tasks == called
