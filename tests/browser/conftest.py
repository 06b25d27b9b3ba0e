"""Fixtures: the running example project, and browser pages that fail the test for any error."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

from tests.browser.chromium import PATIENCE_MS, ChromiumMissing, Watch, launched
from tests.browser.example import PEOPLE, Example
from tests.conftest import missing
from tests.servers import ServerMissing

if TYPE_CHECKING:
    from playwright.sync_api import Browser, BrowserContext, Page

Desks = dict[str, "BrowserContext"]  # by the name of the user
WIDE, NARROW = 1280, 390


@pytest.fixture(scope="package")
def chromium() -> Iterator[Browser]:
    """Ends with the tests of this folder. Playwright's event loop would disturb other tests that use the database."""
    try:
        with launched() as browser:
            yield browser
    except ChromiumMissing as error:
        missing(str(error))


@pytest.fixture(scope="module")
def example(request: pytest.FixtureRequest, chromium: Browser, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Example]:
    """The example project, started once per module. The module sets PAY_WITHIN, the seconds that a customer has to pay. It may set
    ENVIRONMENT, more variables for the processes, and OTHERS, to start the partner and the warehouse too.
    """
    try:
        environment = getattr(request.module, "ENVIRONMENT", {})
        others = getattr(request.module, "OTHERS", False)
        example = Example(tmp_path_factory.mktemp("example"), request.module.PAY_WITHIN, others=others, **environment)
    except ServerMissing as error:
        missing(str(error))
    try:
        example.start()
        yield example
        assert "Internal Server Error" not in example.web.log(), example.web.log()
    finally:
        example.stop()


@pytest.fixture(scope="module")
def desks(chromium: Browser, example: Example) -> Iterator[Desks]:
    """The browser contexts of the admin's users. Each user logs in once per module and keeps the browser's cache."""
    desks: Desks = {}
    yield desks
    for context in desks.values():
        context.close()


class Tabs:
    """Opens pages. `close` fails if any of them had an error."""

    def __init__(self, browser: Browser, example: Example, desks: Desks) -> None:
        self.browser = browser
        self.example = example
        self.desks = desks
        self.watches: dict[Page, Watch] = {}

    def open(self, person: str = "", *, narrow: bool = False, javascript: bool = True, locale: str = "", site: str = "") -> Page:
        """Opens a blank page of this person, who is logged in, or of a visitor with new cookies. `site`: the address of another web
        server on the same database, where a user who is logged in here is logged in too.
        """
        if not person:
            context = self.browser.new_context(base_url=self.example.url, java_script_enabled=javascript)
        elif locale or site:
            cookies = self.open(person).context.cookies()
            context = self.browser.new_context(base_url=site or self.example.url, locale=locale or "en-US")
            context.add_cookies(cookies)
        elif person in self.desks:
            context = self.desks[person]
        else:
            context = self.desks[person] = self.browser.new_context(base_url=self.example.url)
            log_in(self._watched(context), person)
        page = self._watched(context)
        page.set_viewport_size({"width": NARROW if narrow else WIDE, "height": 900})
        return page

    def watch(self, page: Page) -> Watch:
        """Returns what was recorded for that page."""
        return self.watches[page]

    def close(self) -> None:
        for page in self.watches:
            page.close() if page.context in self.desks.values() else page.context.close()
        seen = [line for watch in self.watches.values() for line in watch.seen]
        assert not seen, "\n".join(seen)

    def _watched(self, context: BrowserContext) -> Page:
        page = context.new_page()
        page.set_default_timeout(PATIENCE_MS)
        self.watches[page] = Watch(page)
        return page


def log_in(page: Page, person: str) -> None:
    page.goto("/admin/")
    page.get_by_label("Username").fill(person)
    page.get_by_label("Password").fill(PEOPLE[person])
    page.get_by_role("button", name="Log in").click()
    page.get_by_role("link", name="Jobs", exact=True).first.wait_for()


@pytest.fixture
def tabs(chromium: Browser, example: Example, desks: Desks) -> Iterator[Tabs]:
    tabs = Tabs(chromium, example, desks)
    yield tabs
    tabs.close()


@pytest.fixture
def page(tabs: Tabs) -> Page:
    """A page of a visitor whom the shop does not know."""
    return tabs.open()


@pytest.fixture
def admin(tabs: Tabs) -> Page:
    """A page of a superuser."""
    return tabs.open("admin")
