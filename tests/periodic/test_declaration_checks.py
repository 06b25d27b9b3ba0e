"""One test per check id."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import Any

import pytest
from django.apps import apps
from django.core.checks import run_checks

import django_delayq as delayq
from django_delayq.periodic import declarations as module
from django_delayq.periodic.dates import Dates
from django_delayq.periodic.declarations import Declaration, Declarations
from django_delayq.producer.task import Registry


@pytest.fixture(autouse=True)
def declared(monkeypatch) -> Declarations:
    own, tasks = Declarations(), Registry()
    monkeypatch.setattr(module, "declarations", own)
    monkeypatch.setattr(module, "registry", tasks)
    monkeypatch.setattr(sys.modules["django_delayq.producer.task"], "registry", tasks)
    return own


def report(region: str, year: int = 2026) -> None: ...


def declare(*dates_: Any, queue: str = "orders", **options: Any) -> None:
    delayq.periodic(*dates_, **{"args": ("eu",), **options})(delayq.task(name="shop.report", queue=queue)(report))


def found(settings, **delayq_) -> dict[str, str]:
    settings.DELAYQ = {**settings.DELAYQ, **delayq_}
    return {m.id: f"{m.msg} {m.hint}" for m in module.check_declarations()}


def test_schedules_that_can_run_are_clean(settings):
    declare("0 3 29 2 *", timezone="Europe/Berlin")
    declare(every="1s", name="often", kwargs={"year": 2027})
    assert found(settings) == {}
    assert found(settings, DURABILITY="redis", AUDIT="failures") == {}  # its jobs have rows, whether or not other jobs have


def test_django_runs_the_checks(declared):
    declare("0 0 30 2 *")
    assert "delayq.E033" in {message.id for message in run_checks(app_configs=list(apps.get_app_configs()))}


@pytest.mark.parametrize("cron", ["0 0 30 2 *", "0 0 31 4,6,9,11 *", "0 0 */15 2 MON#5"])
def test_e033_a_cron_that_never_fires(settings, cron):
    declare(cron)
    said = found(settings)["delayq.E033"]
    assert f"has the cron {cron!r}, which never fires" in said
    assert "shop.report (tests.periodic.test_declaration_checks, line " in said


def test_e033_a_time_that_no_clock_shows(settings):
    declare("*/30 2 * 3 7L", timezone="Europe/Berlin")
    assert "the clock skips that time" in found(settings)["delayq.E033"]


def test_e033_a_cron_that_was_declared_where_nothing_could_read_it(settings, declared):
    task = delayq.task(name="shop.report")(report)
    declared.add(Declaration(name="a", task="shop.report", dates=Dates("61 3 * * *"), args=("eu",)), task)
    assert "'61' as minute" in found(settings)["delayq.E033"]


def test_e034_nothing_reads_crons(settings, monkeypatch):
    declare("0 3 * * *")
    declare(every="10m", name="often")
    monkeypatch.setattr(module, "cronsim_installed", lambda: False)
    messages = module.check_declarations()
    assert [message.id for message in messages] == ["delayq.E034"]
    assert 'pip install "django-delayq[cron]"' in str(messages[0].hint)


def test_e035_arguments_that_are_not_as_the_annotations_say(settings):
    declare("0 3 * * *", args=("eu", "2026"))
    said = found(settings, CHECK_TYPES=True)["delayq.E035"]
    assert "its argument year has the annotation int" in said
    assert found(settings, CHECK_TYPES=False) == {}


def test_e035_arguments_that_are_too_large(settings):
    declare("0 3 * * *", args=("e" * 3_000,))
    assert "MAX_PAYLOAD" in found(settings, MAX_PAYLOAD=2_048)["delayq.E035"]


def test_e035_arguments_that_leave_no_room_for_what_a_tick_says_of_itself(settings):
    declare("0 3 * * *", args=("e" * 1_980,))
    assert "MAX_PAYLOAD" in found(settings, MAX_PAYLOAD=2_048)["delayq.E035"]


def test_a_queue_that_is_not_listed_is_told_once(settings):
    declare("0 3 * * *", queue="ordres")
    assert found(settings) == {}  # E004 reports the task


def test_settings_that_cannot_be_read_hide_no_dates(settings):
    declare("0 0 30 2 *", args=("e" * 3_000,))
    assert list(found(settings, LAESE=3)) == ["delayq.E033"]


def test_every_id_is_in_the_table_and_has_a_test():
    table = set(re.findall(r"delayq\.([EW]\d{3}) \|", module.__doc__ or ""))
    assert table == set(re.findall(r'"delayq\.([EW]\d{3})"', Path(module.__file__).read_text()))
    source = Path(__file__).read_text().lower()
    assert {id for id in table if f"test_{id.lower()}" not in source} == set()
