"""Each promise is on its page, and each has tests that exist."""

from __future__ import annotations

import re
from pathlib import Path

from tests.promises import PROMISES, plain

ROOT = Path(__file__).parents[2]


def headings(page: str) -> list[str]:
    return [plain(heading) for heading in re.findall(r"^### (.+)$", (ROOT / "docs" / "topics" / page).read_text("utf-8"), re.MULTILINE)]


def test_every_promise_of_the_page_has_tests_and_every_promise_with_tests_is_on_a_page():
    guarantees, security = headings("guarantees.md"), headings("security.md")
    listed = [promise.heading for promise in PROMISES.values()]
    assert len(listed) == len(set(listed)) > 80
    assert set(guarantees) <= set(listed)
    assert set(listed) <= {*guarantees, *security}
    assert not [slug for slug, promise in PROMISES.items() if not promise.tests]


def test_every_test_of_a_promise_exists():
    missing = [
        test
        for promise in PROMISES.values()
        for test in promise.tests
        for path, _, name in [test.partition("::")]
        if not (ROOT / path).is_file() or f"def {name}(" not in (ROOT / path).read_text("utf-8")
    ]
    assert not missing
