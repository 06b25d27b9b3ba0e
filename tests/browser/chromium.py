"""A headless Chromium. Its pages record everything that a reader of the browser's console would see."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

try:
    from playwright.sync_api import expect, sync_playwright
except ImportError:  # the fixtures report it
    expect = sync_playwright = None

if TYPE_CHECKING:
    from playwright.sync_api import Browser, ConsoleMessage, Page, Request, Response

PATIENCE_MS = 30_000  # the machine may be busy
PROGRAMS = ("chromium", "chromium-browser", "google-chrome")
OPTIONS = ["--no-sandbox", "--disable-gpu", "--disable-background-networking"]
LISTEN = """
document.addEventListener("securitypolicyviolation", (event) =>
  console.error(`policy: ${event.effectiveDirective} forbids ${event.blockedURI || "inline"} at ${event.sourceFile}`));
"""


class ChromiumMissing(Exception):
    """The browser or its driver is not installed."""


@contextmanager
def launched() -> Iterator[Browser]:
    if sync_playwright is None:
        raise ChromiumMissing("Playwright for Python is not installed")
    expect.set_options(timeout=PATIENCE_MS)
    with sync_playwright() as playwright:
        found = next(filter(None, map(shutil.which, PROGRAMS)), playwright.chromium.executable_path)
        if not os.path.exists(found):
            raise ChromiumMissing("no Chromium: neither on PATH nor brought by Playwright")
        browser = playwright.chromium.launch(executable_path=found, args=OPTIONS)
        yield browser
        browser.close()


class Watch:
    """Records errors in the console, uncaught exceptions, failed requests, and violations of the content security policy."""

    def __init__(self, page: Page) -> None:
        self.seen: list[str] = []
        self.forgiving = False  # whether only exceptions and answers from 500 on count: for pages that are not only ours
        page.add_init_script(LISTEN)
        page.on("console", self._console)
        page.on("pageerror", lambda error: self.seen.append(f"exception: {error}"))
        page.on("requestfailed", self._failed)
        page.on("response", self._answered)

    def forgive(self, text: str) -> None:
        """Removes an error that a test caused on purpose. The error must be there."""
        found = [line for line in self.seen if text in line]
        assert found, f"{text!r} was expected; seen: {self.seen}"
        self.seen = [line for line in self.seen if text not in line]

    def _console(self, message: ConsoleMessage) -> None:
        if message.type in ("error", "warning") and not self.forgiving:
            self.seen.append(f"console: {message.text} ({message.location.get('url')})")

    def _failed(self, request: Request) -> None:
        if request.failure != "net::ERR_ABORTED" and not self.forgiving:  # a page aborts its requests when the browser leaves it
            self.seen.append(f"request: {request.failure} {request.url}")

    def _answered(self, response: Response) -> None:
        if response.status >= 500:
            self.seen.append(f"answer: {response.status} {response.url}")


def shoot(page: Page, name: str, *, whole: bool = True) -> None:
    """Takes a picture of the page, or of the visible part of it, if DELAYQ_SHOTS names a folder."""
    if folder := os.environ.get("DELAYQ_SHOTS"):
        page.screenshot(path=Path(folder) / f"{name}.png", full_page=whole)


def sideways(page: Page) -> int:
    """Returns by how many pixels the page is wider than its window."""
    wider: Any = page.evaluate("Math.max(0, document.documentElement.scrollWidth - innerWidth)")
    return int(wider)
