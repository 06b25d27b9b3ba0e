"""The admin in German and Chinese: every text is translated, and none stays English."""

from __future__ import annotations

import gettext
import re
from html.parser import HTMLParser
from pathlib import Path
from uuid import uuid4

import django
import pytest
from django.utils import translation

import django_delayq as delayq
from django_delayq import clock
from django_delayq.admin.job_admin import JobAdmin
from django_delayq.console.search_fields import FIELDS
from django_delayq.models import Periodic, Tick
from django_delayq.periodic import schedules
from tests.admin.conftest import JOBS, OPERATIONS, QUEUES, WORKERS, beat, choose, lose_redis, page, said
from tests.admin.strings import LANGUAGES, PACKAGE, Text, catalog, catalog_path, sources
from tests.admin.test_periodic import SCHEDULES, declared, made, past
from tests.admin.test_periodic import page as schedule
from tests.tasks_for_tests import close_order

PLACEHOLDER = re.compile(r"%\(\w+\)[sd]|\{terms\}")
SAID = frozenset({"title", "aria-label", "placeholder", "data-label", "data-held", "data-trouble", "value"})
LONG = 16  # characters: a text of this length is not on a page by accident


@pytest.fixture(params=LANGUAGES)
def language(request) -> str:
    return request.param


def test_every_text_of_the_sources_is_in_the_catalog_and_nothing_else(language):
    known, wanted = catalog(language)[0], sources()
    assert {text: places for text, places in wanted.items() if text not in known} == {}
    assert [text for text in known if text not in wanted] == []


def test_the_reader_finds_texts_in_every_form_that_the_sources_use():
    found = sources()
    for text in (
        ("Edit and requeue", ""),  # now(...)
        ("The job was requeued with the new arguments.", ""),  # _(...)
        ("%(count)d queue without one", "%(count)d queues without one"),  # ngettext(...)
        ("Why has it not run yet?", ""),  # {% translate %}
        ("%(late)s late", ""),  # {% blocktranslate %}
        ("%(counter)s crash", "%(counter)s crashes"),  # {% blocktranslate count %}
    ):
        assert text in found, text


def test_no_template_has_a_text_that_is_not_marked():
    marked = re.compile(
        r"{% blocktranslate.*?{% endblocktranslate %}|{% block bodyclass %}.*?{% endblock %}|{%.*?%}|{{.*?}}|<code>[^<{]*</code>",
        re.DOTALL,
    )
    for path in (PACKAGE / "templates").rglob("*.html"):
        found = Texts(marked.sub(" ", path.read_text())).found
        words = {word for text in found for word in re.findall(r"[^\W\d]{2,}", text)}
        assert words <= {"meta"}, path


def test_every_text_is_translated_in_every_form(language):
    known, header = catalog(language)
    assert f"nplurals={LANGUAGES[language]};" in header
    for (one, many), forms in known.items():
        assert len(forms) == (LANGUAGES[language] if many else 1), one
        assert all(form.strip() for form in forms), one
    assert "fuzzy" not in catalog_path(language, "po").read_text()


def test_a_translation_has_the_placeholders_of_its_text(language):
    for (one, many), forms in catalog(language)[0].items():
        for number, form in enumerate(forms):
            model = one if len(forms) > 1 and number == 0 else many or one
            assert sorted(PLACEHOLDER.findall(form)) == sorted(PLACEHOLDER.findall(model)), form
            assert form.count("%") - len(PLACEHOLDER.findall(form)) == model.count("%") - len(PLACEHOLDER.findall(model))


def test_the_compiled_catalog_says_what_the_written_one_says(language):
    known, header = catalog(language)
    with catalog_path(language, "mo").open("rb") as file:
        compiled = gettext.GNUTranslations(file)
    assert compiled.gettext("") == header
    told: dict[str | tuple[str, int], str] = {"": header}
    for (one, many), forms in known.items():
        told |= {(one, number): form for number, form in enumerate(forms)} if many else {one: forms[0]}
    assert compiled._catalog == told


def test_a_text_that_django_has_too_is_translated_as_there(language):
    """All apps share one catalog. A different translation of ours would show on pages of other apps."""
    ours = {one: forms for (one, many), forms in catalog(language)[0].items() if not many}
    for place in ("conf", "contrib/admin", "contrib/auth"):
        path = Path(django.__file__).parent / place / "locale" / language / "LC_MESSAGES" / "django.mo"
        with path.open("rb") as file:
            theirs = gettext.GNUTranslations(file)._catalog
        for text in ours.keys() & theirs.keys():
            assert ours[text] == [theirs[text]], text


class Texts(HTMLParser):
    """Collects the texts that a page shows on the screen or gives to a screen reader."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.found: list[str] = []
        self.skipped = 0
        self.feed(html)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.skipped += tag in ("script", "style", "code")
        hidden = tag == "option" or ("type", "hidden") in attrs
        self.found += [value for name, value in attrs if name in SAID and value and not hidden]

    def handle_endtag(self, tag: str) -> None:
        self.skipped -= tag in ("script", "style", "code")

    def handle_data(self, data: str) -> None:
        if not self.skipped and data.strip():
            self.found.append(data.strip())


def left_in_english(html: str, known: dict[Text, list[str]]) -> list[str]:
    """Returns the texts of the sources that the page shows untranslated although a translation exists."""
    strange = {
        text.lower()
        for (one, many), forms in known.items()
        for text in (one, many)
        if text and text not in forms and text.lower() not in {form.lower() for form in forms}
    }
    parts = {part.strip(" ,.:…") for text in strange for part in PLACEHOLDER.split(text)}
    long = {part for part in parts if len(part) >= LONG}
    texts = [text.lower() for text in Texts(html).found]
    return [text for text in texts if text.strip(" ,:…") in strange or any(part in text for part in long)]


def test_english_that_is_left_on_a_page_is_found(language):
    known = catalog(language)[0]
    assert left_in_english('<p title="Slots in use">Why has it not run yet?</p>', known) == [
        "slots in use",
        "why has it not run yet?",
    ]
    assert left_in_english("<b>cancelled</b>", known) == ["cancelled"]


def every_schedule(monkeypatch: pytest.MonkeyPatch) -> list[Periodic]:
    """Four schedules: a disabled one from the admin with ticks of every fate, one from the code with changed dates, one in trouble,
    and a retired one.
    """
    own, other, broken, retired = (
        made(jitter="5m"),
        declared(monkeypatch, "weekly-eu", overlap="wait"),
        made("broken"),
        made("was-here"),
    )
    for number, fate in enumerate(Tick.Fate.values):
        past(own, number + 1, fate=fate, job_id=uuid4() if fate == "scheduled" else None)
    schedules.run_now(own.name, actor="admin:ann")
    schedules.turn_off(own.name, actor="admin:ann", reason="stock taking")
    schedules.override(other.name, every="10m", actor="admin:ann")
    Periodic.objects.filter(pk=other.pk).update(fingerprint="of another deploy")
    Periodic.objects.filter(pk=broken.pk).update(problem={"code": "task_unknown", "fields": {"name": "gone"}})
    Periodic.objects.filter(pk=retired.pk).update(retired_at=clock.now())
    return [own, other, broken, retired]


@pytest.mark.parametrize("down", [False, True], ids=["with Redis", "without Redis"])
def test_no_page_says_anything_of_ours_in_english(orders, staff, language, settings, monkeypatch, down):
    failed, running, done = orders.ended("fail"), orders.running(), orders.ended("ack")
    retried, waiting = orders.ended("retry"), delayq.schedule(close_order, 9, delay="1h", key="order:9")
    delayq.pause("orders", actor="admin:clerk", reason="flood")
    beat("orders")
    orders.fold()
    rows = every_schedule(monkeypatch)
    client, known = staff(), catalog(language)[0]
    with translation.override(language.replace("_", "-").lower()):
        start = f"{OPERATIONS}start/requeue/?state=failed"
        operation = client.post(start, {"reason": "fixed", "over": "20m"})["Location"]
        addresses = [
            JOBS,
            f"{JOBS}?q=queue%3Aorders",
            f"{JOBS}failures/",
            *map(page, (failed, running, done, retried, waiting)),
            f"{JOBS}{failed.id}/edit/",
            QUEUES,
            f"{QUEUES}remedies/",
            f"{QUEUES}orders/purge/",
            WORKERS,
            OPERATIONS,
            operation,
            start,
            f"{OPERATIONS}start/reschedule/",
            SCHEDULES,
            *(schedule(row) for row in rows),
            *(schedule(row, act) for row in rows[:1] for act in ("override", "edit", "delete")),
            f"{SCHEDULES}add/",
            "/admin/",
        ]
        if down:
            lose_redis(settings)
        for address in addresses:
            answer = client.get(address)
            assert answer.status_code == 200, address
            assert left_in_english(answer.content.decode(), known) == [], address
            assert f'lang="{language.replace("_", "-").lower()}"' in answer.content.decode(), address


def test_what_is_answered_to_an_action_is_translated(orders, staff):
    [job] = orders.scheduled()
    with translation.override("de"):
        assert said(choose(staff(), "cancel", [job], confirmed="1")) == ["1 abgebrochen."]
    orders.fold()
    with translation.override("zh-hans"):
        assert said(choose(staff(), "requeue", [job], confirmed="1")) == ["1 个已重新入队."]


def test_a_form_refuses_in_the_language_of_the_page(orders, staff):
    client = staff()
    with translation.override("de"):
        assert "Das ist nicht der Name der Warteschlange." in client.post(f"{QUEUES}orders/purge/", {"typed": "other"}).content.decode()
        form = schedule(made(), "override")
        assert "Zu diesem Cron-Ausdruck passt kein Datum" in client.post(form, {"cron": "0 0 30 2 *"}).content.decode()
        shown = client.post(form, {"cron": "0 3 * * *", "look": "1"}).content.decode()
        assert "Nächste Termine" in shown
        assert left_in_english(shown, catalog("de")[0]) == []


@pytest.mark.parametrize("language", ["en", "de", "zh-hans"])
def test_the_help_of_the_search_names_every_term(language):
    with translation.override(language):
        shown = str(JobAdmin.search_help_text)
    assert all(f" {word}:" in shown for word in FIELDS)
