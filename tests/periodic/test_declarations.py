"""The decorator: which arguments it accepts, what it makes, and what it refuses."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from datetime import timedelta
from decimal import Decimal
from typing import Any

import pytest

import django_delayq as delayq
from django_delayq.exceptions import ConfigError
from django_delayq.periodic import declarations as module
from django_delayq.periodic.dates import Dates
from django_delayq.periodic.declarations import Declaration, Declarations
from django_delayq.producer.task import Registry, Task


@pytest.fixture(autouse=True)
def tasks(monkeypatch) -> Registry:
    own = Registry()
    monkeypatch.setattr(sys.modules["django_delayq.producer.task"], "registry", own)
    return own


@pytest.fixture(autouse=True)
def declared(monkeypatch) -> Declarations:
    own = Declarations()
    monkeypatch.setattr(module, "declarations", own)
    return own


def nightly() -> None: ...


def weekly(region: str, *, top: int = 3) -> str:
    return region


def everything(*args: Any, **kwargs: Any) -> None: ...


def refused(*given: Any, on: Any = nightly, **options: Any) -> str:
    """Returns the error of a declaration that cannot work, with its hint."""
    with pytest.raises(ConfigError) as caught:
        delayq.periodic(*given, **options)(on)
    return str(caught.value)


# what it makes


def test_a_plain_function_becomes_a_task(declared, tasks):
    made = delayq.periodic("0 3 * * *", timezone="Europe/Berlin")(nightly)
    assert isinstance(made, Task)
    assert tasks.get(f"{__name__}.nightly") is made
    (one,) = declared.all()
    assert one == Declaration(name=made.name, task=made.name, dates=Dates("0 3 * * *", timezone="Europe/Berlin"))
    assert (one.missed, one.overlap, one.args, one.kwargs) == ("once", "allow", (), {})
    assert declared.get(made.name) is one
    assert declared.get("another") is None


def test_a_task_stays_the_task_that_it_is(declared):
    made = delayq.task(queue="orders", name="reports.nightly")(nightly)
    assert delayq.periodic(every="10m", missed="all", overlap="skip", jitter="1m")(made) is made
    (one,) = declared.all()
    assert (one.name, one.task) == ("reports.nightly", "reports.nightly")
    assert one.dates == Dates(every_ms=600_000, jitter_ms=60_000)
    assert (one.missed, one.overlap) == ("all", "skip")


def test_several_on_one_task_each_with_a_name(declared):
    @delayq.periodic("0 8 * * 1", name="weekly-us", kwargs={"region": "us"}, timezone="America/New_York")
    @delayq.periodic("0 8 * * 1", name="weekly-eu", args=["eu"], timezone="UTC")
    @delayq.task(name="weekly")
    def weekly(region: str) -> str:
        return region

    eu, us = declared.all()
    assert [(one.name, one.task, one.args, one.kwargs) for one in (eu, us)] == [
        ("weekly-eu", "weekly", ("eu",), {}),
        ("weekly-us", "weekly", (), {"region": "us"}),
    ]
    assert weekly("eu") == "eu"


def test_without_a_timezone_the_clock_is_that_of_the_project(declared, settings):
    settings.TIME_ZONE = "Asia/Tokyo"
    delayq.periodic("0 3 * * *")(nightly)
    delayq.periodic(every="1d", name="daily")(nightly)
    assert {one.name: one.dates.timezone for one in declared.all()} == {f"{__name__}.nightly": "Asia/Tokyo", "daily": "UTC"}


def test_the_place_is_that_of_the_decorator(declared):
    line = sys._getframe().f_lineno + 1
    delayq.periodic("0 3 * * *")(nightly)
    assert declared.all()[0].place == f"{__name__}, line {line}"


def test_a_function_that_is_scheduled_by_calendar_can_be_scheduled_by_hand():
    made = delayq.periodic(every="1h", args=("eu",))(weekly)
    assert made.bind("us").args == ("us",)
    assert made("asia") == "asia"


# fingerprints


def test_fingerprints_are_the_same_where_all_is_and_nowhere_else():
    one = Declaration(
        name="n", task="t", dates=Dates("0 3 * * *"), missed="once", overlap="allow", args=(1,), kwargs={"a": 1, "b": [2]}, place="here"
    )

    def drawn(**changes: Any) -> str:
        return replace(one, fingerprint="", **changes).fingerprint

    assert one.fingerprint == drawn() == drawn(place="there") == drawn(kwargs={"b": [2], "a": 1})
    others = {
        drawn(name="m"),
        drawn(task="s"),
        drawn(dates=Dates("0 4 * * *")),
        drawn(dates=Dates("0 3 * * *", timezone="Europe/Berlin")),
        drawn(dates=Dates("0 3 * * *", jitter_ms=1)),
        drawn(dates=Dates(every_ms=1_000)),
        drawn(missed="all"),
        drawn(overlap="skip"),
        drawn(args=(2,)),
        drawn(kwargs={"a": 1}),
    }
    assert len(others - {one.fingerprint}) == 10
    assert len(one.fingerprint) == 12


def test_a_fingerprint_is_for_good():
    one = Declaration(name="shop.nightly", task="shop.nightly", dates=Dates("0 3 * * *", timezone="Europe/Berlin"))
    assert one.fingerprint == "228b88140cb1"  # otherwise each release takes over every schedule again


# names


def test_two_of_one_name_are_refused_with_both_places(declared):
    first = delayq.periodic("0 3 * * *", name="report")(nightly)
    said = refused("0 4 * * *", name="report", on=weekly, args=("eu",))
    assert said.startswith("Two schedules have the name 'report': the one in tests.periodic.test_declarations, line ")
    assert said.count("line ") == 2
    assert "name=" in said
    assert declared.get("report").task == first.name


def test_two_on_one_task_need_names():
    made = delayq.periodic("0 3 * * *")(nightly)
    assert "Two schedules have the name" in refused("0 4 * * *", on=made)


def test_a_loop_that_gives_one_name_twice_is_refused():
    made = delayq.task(weekly)
    with pytest.raises(ConfigError, match="Two schedules have the name 'weekly'"):
        for region in ("eu", "us"):
            delayq.periodic("0 8 * * 1", name="weekly", args=(region,))(made)


def test_a_module_that_is_imported_again_declares_anew(declared):
    for cron in ("0 3 * * *", "0 4 * * *"):
        delayq.periodic(cron)(nightly)
    assert [one.dates.cron for one in declared.all()] == ["0 4 * * *"]


@pytest.mark.parametrize("name", ["", " a", "a ", "a\nb", "x" * 201, 5])
def test_a_name_that_no_page_could_show_is_refused(name):
    assert "must be 1 to 200 printable characters" in refused("0 3 * * *", name=name)


# what is refused


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"missed": "nonce"}, "missed='nonce' is not one of skip, once, all (did you mean 'once'?)"),
        ({"overlap": "skp"}, "overlap='skp' is not one of allow, skip, wait (did you mean 'skip'?)"),
        ({"missed": None}, "missed=None is not one of"),
        ({"overlap": ["skip"]}, "overlap=['skip'] is not one of"),
        ({"timezone": "Europe/Berln"}, "did you mean 'Europe/Berlin'"),
        ({"every": "10m"}, "both a cron and every="),
        ({"jitter": "-5m"}, "jitter='-5m' is negative"),
        ({"tz": "UTC"}, "'tz' is an unknown option (here it is timezone=)"),
        ({"hour": 3}, "'hour' is an unknown option (here it is the second field of the cron"),
        ({"overlaps": "skip"}, "'overlaps' is an unknown option (did you mean 'overlap'?)"),
        ({"queue": "orders"}, "an option of the task: @delayq.task(queue=…) below it"),
        ({"args": "eu"}, "args='eu' must be a list or tuple"),
        ({"args": {"eu"}}, "must be a list or tuple"),
        ({"kwargs": ["eu"]}, "kwargs=['eu'] must be a dict"),
    ],
)
def test_an_option_that_cannot_work_is_refused(options, said):
    found = refused("0 3 * * *", **options)
    assert said in found
    assert found.startswith("@periodic in tests.periodic.test_declarations, line ")


def test_dates_are_refused_where_they_are_written():
    assert "'61' as minute" in refused("61 3 * * *")
    assert "neither a cron nor every=" in refused()
    assert "neither a cron nor every=" in refused("")
    assert "every='10ms' is too short" in refused(every="10ms")
    assert "every=datetime.timedelta(0) is too short" in refused(every=timedelta(0))
    assert "timezone='Europe/Berlin' has no effect with every='1d'" in refused(every="1d", timezone="Europe/Berlin")
    assert "timezone='Europe/Berlin' has no effect with every=0" in refused(every=0, timezone="Europe/Berlin")


@pytest.mark.parametrize("given", [(nightly,), (5,), (None,), ("0 3 * * *", "Europe/Berlin")])
def test_what_is_no_cron_is_refused_with_what_to_write(given):
    found = refused(*given)
    assert "it was given" in found
    assert "@periodic(every='10m')" in found


@pytest.mark.parametrize(
    ("on", "options", "said"),
    [
        (weekly, {}, "region"),
        (weekly, {"args": ("eu", "us")}, "cannot be called with these arguments"),
        (weekly, {"args": ("eu",), "kwargs": {"topp": 3}}, "topp"),
        (nightly, {"args": (1,)}, "cannot be called with these arguments"),
        (everything, {"args": (Decimal(1),)}, "args[0] is of type decimal.Decimal"),
        (everything, {"kwargs": {"at": timedelta(1)}}, "of type datetime.timedelta"),
        (everything, {"kwargs": {5: 1}}, "JSON keys are text"),
    ],
)
def test_arguments_are_refused_as_schedule_would(declared, on, options, said):
    found = refused("0 3 * * *", on=on, **options)
    assert said in found
    assert "args=(…)" in found
    assert declared.all() == []


def test_an_option_of_jobs_among_the_arguments_is_refused_with_where_it_belongs(declared):
    found = refused("0 3 * * *", on=weekly, args=("eu",), kwargs={"delay": 5})
    assert "has no argument 'delay'. Set options of its jobs in @delayq.task" in found
    assert ".using(" not in found
    assert declared.all() == []


def test_each_sentence_about_arguments_has_its_end(declared):
    assert "pass its text, str(value). Jobs get" in refused("0 3 * * *", on=everything, args=(Decimal(1),))
    assert "a list or a dict. Jobs get" in refused("0 3 * * *", on=everything, args=(object(),))
    assert ". Jobs get" in refused("0 3 * * *", on=weekly)
    assert ".." not in refused("0 3 * * *", on=weekly)


class Report: ...


@pytest.mark.parametrize(
    ("on", "said"),
    [
        (Report, "a class cannot be a task"),
        ("shop.nightly", "decorates 'shop.nightly', which is not a function"),
        (None, "decorates None, which is not a function"),
    ],
)
def test_what_is_no_function_is_refused(on, said):
    assert said in refused("0 3 * * *", on=on)


def test_a_function_inside_a_function_has_no_name_that_workers_know():
    def inner() -> None: ...

    assert "defined inside a function" in refused("0 3 * * *", on=inner)


def test_task_above_periodic_is_refused_since_the_schedule_would_not_have_its_options():
    made = delayq.periodic("0 3 * * *")(nightly)
    with pytest.raises(ConfigError, match=r"already a task.*@periodic above it"):
        delayq.task(queue="orders")(made)


def test_who_declares_nothing_does_not_read_crons():
    code = "import sys, django_delayq; print(callable(django_delayq.periodic), 'cronsim' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split() == ["True", "False"]


def test_the_decorator_keeps_its_name_whatever_else_of_its_room_is_imported():
    code = "from django_delayq.periodic import dates; import django_delayq.periodic.dates; print(callable(django_delayq.periodic))"
    said = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert said.stdout.split() == ["True"], said.stderr
