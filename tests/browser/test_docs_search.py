"""The search of the documentation finds the page that answers a question within the first three hits."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from importlib.util import find_spec
from threading import Thread
from typing import TYPE_CHECKING
from urllib.parse import quote

import pytest

from tests.browser.chromium import PATIENCE_MS, Watch
from tests.conftest import missing
from tests.stage import ROOT

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

pytestmark = pytest.mark.browser
MOST = 3
# A question -> the page that answers it. Words that a page does not use are in docs/_ext/search_words.py.
QUESTIONS = {
    "retry": "topics/delivery-and-retries",
    "retries": "topics/delivery-and-retries",
    "backoff": "topics/delivery-and-retries",
    "cancel": "topics/keys",
    "cron": "howto/run-every-night",
    "periodic": "topics/periodic-tasks",
    "e-mail": "howto/send-email",
    "email": "howto/send-email",
    "Docker": "howto/deploy",
    "PgBouncer": "howto/pgbouncer",
    "idempotent": "topics/delivery-and-retries",
    "dead letter": "howto/troubleshoot",
    "graceful shutdown": "howto/deploy",
    "unique job": "topics/keys",
    "Windows": "howto/windows-and-macos",
    "webhook": "howto/call-a-url",
    "delay": "howto/close-unpaid-orders",
    "priority": "topics/scaling",
    "timeout": "topics/delivery-and-retries",
    "test": "howto/test-your-tasks",
    "pytest": "howto/test-your-tasks",
    "migrate celery": "howto/move-from-another-queue",
    "celery": "howto/move-from-another-queue",
    "kubernetes": "howto/deploy",
    "prometheus": "howto/monitor",
    "multi tenant": "howto/django-tenants",
    "lock": "howto/one-at-a-time",
    "job runs twice": "topics/guarantees",
    "debounce": "howto/reminders",
    "async": "howto/asgi",
    "upgrade": "howto/upgrade",
    "job does not run": "howto/troubleshoot",
    "admin": "howto/admin",
    "retry a job": "topics/delivery-and-retries",
    "cancel a job": "topics/keys",
    "send email": "howto/send-email",
    "unique jobs": "topics/keys",
    "jobs run twice": "topics/guarantees",
    "graceful shutdown kubernetes": "howto/deploy",
    "migrate from celery": "howto/move-from-another-queue",
    "test with pytest": "howto/test-your-tasks",
    "settings": "reference/settings",
    "max_attempts": "reference/tasks",
}


class Quiet(SimpleHTTPRequestHandler):
    def log_message(self, *args: object) -> None:
        """Logs nothing."""


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Returns the address of the documentation, built again."""
    if find_spec("furo") is None:
        missing("Sphinx and its theme are not installed")
    folder = tmp_path_factory.mktemp("docs")
    quick = ["-D", "html_show_search_summary=0"]  # otherwise each hit is a request
    subprocess.run([sys.executable, "-m", "sphinx", "-q", *quick, "-b", "html", ROOT / "docs", folder], check=True, capture_output=True)
    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(Quiet, directory=folder))
    thread = Thread(target=server.serve_forever)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    server.server_close()
    thread.join()


@pytest.fixture(scope="module")
def reader(chromium: Browser, site: str) -> Iterator[Page]:
    """A reader who has only the built pages."""
    page = chromium.new_page(base_url=site)
    page.set_default_timeout(PATIENCE_MS)
    watch = Watch(page)
    watch.forgiving = True  # of warnings: the theme has its own
    yield page
    page.close()
    assert watch.seen == []


def hits(reader: Page, question: str) -> list[str]:
    """Returns the pages that the search lists first, each once."""
    reader.goto(f"/search.html?q={quote(question)}")
    reader.get_by_text("Search finished").or_(reader.get_by_text("did not match")).wait_for()
    links = reader.locator("#search-results ul.search > li > a").all()[: 4 * MOST]
    return list(dict.fromkeys((link.get_attribute("href") or "").partition(".html")[0] for link in links))


@pytest.mark.parametrize(("question", "answer"), QUESTIONS.items())
def test_a_question_finds_its_page_and_no_glossary_comes_first(reader, question, answer):
    found = hits(reader, question)
    assert answer in found[:MOST], found
    assert found[0] != "reference/glossary"


def test_captions_of_the_sidebar_are_headings_with_a_level(reader):
    reader.goto("/index.html")
    captions = reader.locator(".sidebar-tree .caption").all()
    assert len(captions) > 3
    assert {caption.get_attribute("aria-level") for caption in captions} == {"2"}
