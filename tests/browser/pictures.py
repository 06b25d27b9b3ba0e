"""Takes pictures of the console, to be looked at after a change of its looks, and those of the documentation.

python -m tests.browser.pictures FOLDER     every page: light, dark, narrow, German, Chinese, Hebrew, under themes, at its worst
python -m tests.browser.pictures --docs     the few that docs/ shows, into docs/pictures
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

from tests.browser.chromium import launched
from tests.browser.desk.load import load
from tests.browser.example import PEOPLE, ROOT, Example
from tests.browser.filled import addresses, fill
from tests.browser.pages import JOBS, QUEUES
from tests.browser.palette import small

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

WIDE, NARROW = 1280, 390
LARGEST = 150_000  # bytes of a picture of the documentation
LOOKS = {  # name of a set: what the browser says about itself
    "light": {},
    "dark": {"color_scheme": "dark"},
    "narrow": {"viewport": {"width": NARROW, "height": 844}},
    "german": {"locale": "de"},
    "chinese": {"locale": "zh-CN"},
    "hebrew": {"locale": "he"},
}
THEMES = ("unfold", "jazzmin", "grappelli")

# A busy hour and a week, written where the scripts count: picture by picture the same.
HOUR = """
import math, random, struct
from django_delayq import clock, conf
from django_delayq.spread import BUCKETS, SLOT, SLOTS, SLOT_MS
from django_delayq.store.scripts.queue import QueueStore
from django_delayq.producer.stores import stores
chance = random.Random(3)
latest = clock.wall_ms() // SLOT_MS
stores.link.execute("CONFIG", "SET", "appendonly", "yes")
for queue, height, broken in (("default", 6, 0), ("orders", 40, 0.002), ("partners", 15, 0.12)):
    slots = {}
    for slot in range(latest - SLOTS + 1, latest + 1):
        ended = []
        for minute in range(SLOT):
            done = int(height * (1.2 + math.sin((slot * SLOT + minute) / 7)) + chance.random() * height / 3)
            failed = sum(chance.random() < broken for _ in range(done))
            ended.append((done - failed, failed, failed))
        bells = [[int(50 * math.exp(-((n - middle) / 1.6) ** 2)) for n in range(BUCKETS)] for middle in (3, 6 + bool(broken))]
        slots[slot % SLOTS] = [slot, *bells[0], *bells[1], *(n for kinds in zip(*ended) for n in kinds)]
    numbers = [number for _, slot in sorted(slots.items()) for number in slot]
    key = QueueStore(stores.link, prefix=conf.get().prefix, queue=queue).keys["spread"]
    stores.link.execute("SET", key, struct.pack(f">{len(numbers)}I", *numbers))
    now, counts = clock.wall_ms() // 60_000, []
    for minute in range(now - 7 * 1440, now + 1):
        done = int(height * (1.1 + math.sin(minute / 1440 * 2 * math.pi)) + chance.random() * height / 3)
        failed = sum(chance.random() < broken for _ in range(done))
        counts += [f"{minute}:succeeded", done - failed, f"{minute}:failed", failed, f"{minute}:retried", 2 * failed]
    stats = QueueStore(stores.link, prefix=conf.get().prefix, queue=queue).keys["stats"]
    for start in range(0, len(counts), 6000):
        stores.link.execute("HSET", stats, *counts[start : start + 6000])
"""


@contextmanager
def running(**environment: str) -> Iterator[Example]:
    """Runs the example with a web server and a worker."""
    with tempfile.TemporaryDirectory() as home:
        example = Example(Path(home), 3600, **{"DJANGO_SETTINGS_MODULE": "tests.browser.dressed", **environment})
        try:
            example.start()
            yield example
        finally:
            example.stop()


def seat(browser: Browser, site: str, **look: object) -> Page:
    """Opens a page of an administrator who is logged in."""
    page = browser.new_context(base_url=site, **{"viewport": {"width": WIDE, "height": 800}, **look}).new_page()
    page.goto("/admin/login/?next=/admin/delayq/queue/remedies/")
    page.locator("[name=username]").fill("admin")
    page.locator("[name=password]").fill(PEOPLE["admin"])
    page.locator("[name=password]").press("Enter")
    page.wait_for_url("**/remedies/")
    return page


def every(folder: Path) -> None:
    """Takes a picture of each page in each look."""
    with launched() as browser, running(QUEUES="37") as example:
        ids = fill(example)
        example.run(HOUR)
        looks = [(name, example.url, look) for name, look in LOOKS.items()]
        sites = {theme: example.another(DRESS=theme) for theme in THEMES if find_spec(theme)}
        looks += [(theme, site.address, {}) for theme, site in sites.items()]
        try:
            for site in sites.values():
                site.start()
            for name, address, look in looks:
                page = seat(browser, address, **look)
                for what, path in addresses(ids).items():
                    page.goto(path)
                    page.screenshot(path=folder / f"{name}-{what}.png", full_page=True)
                page.context.close()
        finally:
            for site in sites.values():
                site.stop()


def few(folder: Path) -> None:
    """Takes the pictures of the documentation: one window each, on an ordinary day, in 256 colours."""
    with launched() as browser, running() as example:
        ids = fill(example, worst=False)
        example.run(HOUR)
        for name, path in (("queues", QUEUES), ("job", f"{JOBS}{ids['failed']}/change/")):
            page = seat(browser, example.url, **LOOKS["light"])
            page.goto(path)
            if name == "job":
                page.set_viewport_size({"width": WIDE, "height": 1440})
                page.locator("details.delayq-trace").last.evaluate("(node) => { node.open = true }")
            keep(page, folder, name)
    with launched() as browser, running(DJANGO_SETTINGS_MODULE="tests.browser.desk.settings") as example:
        load(example)
        page = seat(browser, example.url)
        page.goto(JOBS)
        keep(page, folder, "jobs")
        page.goto(f"{JOBS}failures/")
        keep(page, folder, "failures")
        page.locator("#failures").get_by_role("link", name="Requeue all").first.click()
        page.get_by_label("Spread over").fill("10m")
        page.get_by_label("Reason").fill("the partner is back")
        page.set_viewport_size({"width": WIDE, "height": page.evaluate("document.documentElement.scrollHeight")})
        page.evaluate("document.activeElement.blur()")
        keep(page, folder, "operation-preview")


def keep(page: Page, folder: Path, name: str) -> None:
    """Writes the visible part of the page to a file."""
    assert str(ROOT) not in (page.locator("body").text_content() or ""), f"{name} shows where this machine has its files"
    picture = small(page.screenshot())
    assert len(picture) < LARGEST, name
    (folder / f"{name}.png").write_bytes(picture)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", nargs="?", type=Path)
    parser.add_argument("--docs", action="store_true")
    options = parser.parse_args()
    folder = ROOT / "docs" / "pictures" if options.docs else options.folder
    if folder is None:
        parser.error("name a folder, or say --docs")
    folder.mkdir(parents=True, exist_ok=True)
    (few if options.docs else every)(folder)


if __name__ == "__main__":
    main()
