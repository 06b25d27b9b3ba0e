"""The form with one field per argument: what it shows, what it accepts, and where it shows errors."""

from __future__ import annotations

import json
from typing import Any

import pytest
from django.urls import reverse

import django_delayq as delayq
from django_delayq.admin.argument_forms import EditForm
from django_delayq.exceptions import PayloadTooLarge
from django_delayq.models import Event, Job
from django_delayq.states import MESSAGE
from tests.admin.arguments_given import sent
from tests.admin.conftest import page, said

NAME = "shop.form"


def every_kind(
    order_id: int,
    title: str,
    price: float,
    paid: bool,
    note: str | None = None,
    *,
    tags: list = ["new"],  # noqa: B006  # a default that the form is to show; nothing calls this
    extra: dict | None = None,
    free=3,
) -> None: ...


def row_of(args: Any, kwargs: Any, **more: Any) -> Job:
    return Job(task=NAME, queue="orders", state="failed", args=args, kwargs=kwargs, **more)


def form_of(args: Any = (), kwargs: Any = None, given: Any = None, *, sensitive: bool = True) -> EditForm:
    """Returns the form of a job with these arguments. `given` has the format of `sent`."""
    job = row_of(list(args), kwargs or {})
    form = EditForm(job, sensitive=sensitive)
    return form if given is None else EditForm(job, sent(form, **given), sensitive=sensitive)


def made(args: Any, kwargs: Any, **given: Any) -> tuple[Any, Any]:
    """Returns the arguments that result."""
    form = form_of(args, kwargs, given)
    assert form.is_valid(), form.errors
    return form.cleaned_data["args"], form.cleaned_data["kwargs"]


def complaints(args: Any, kwargs: Any, **given: Any) -> dict[str, list[str]]:
    form = form_of(args, kwargs, given)
    assert not form.is_valid()
    return {name: list(map(str, errors)) for name, errors in form.errors.items()}


FULL = [7, "A lamp", 12.5, True]


@pytest.fixture
def kinds(more_tasks) -> None:
    more_tasks(NAME, every_kind)


def test_each_argument_has_a_field_with_what_its_task_says_of_it(kinds):
    rows = {row["argument"].label: row for row in form_of(FULL).rows}
    assert {name: row["argument"].says for name, row in rows.items()} == {
        "order_id": "int",
        "title": "str",
        "price": "float",
        "paid": "bool",
        "note": "str | None = None",
        "tags": "list = ['new']",
        "extra": "dict | None = None",
        "free": "= 3",
    }
    ways = {name: [value for value, _ in row["way"].field.choices] if row["way"] else [] for name, row in rows.items()}
    assert ways == {
        "order_id": [],
        "title": [],
        "price": [],
        "paid": ["true", "false"],
        "note": ["text", "none", "left"],
        "tags": ["json", "left"],
        "extra": ["json", "none", "left"],
        "free": ["text", "json", "left"],
    }
    boxes = {name: row["box"].value() if row["box"] else None for name, row in rows.items()}
    assert boxes == {
        "order_id": "7",
        "title": "A lamp",
        "price": "12.5",
        "paid": None,
        **dict.fromkeys(("note", "tags", "extra", "free"), ""),
    }


@pytest.mark.parametrize(
    ("given", "args", "kwargs"),
    [
        ({"order_id": "8"}, [8, *FULL[1:]], {}),
        ({"order_id": " 8 "}, [8, *FULL[1:]], {}),
        ({"title": ""}, [7, "", 12.5, True], {}),
        ({"title": "None"}, [7, "None", 12.5, True], {}),
        ({"price": "7"}, [7, "A lamp", 7, True], {}),
        ({"price": "-0.25"}, [7, "A lamp", -0.25, True], {}),
        ({"paid": ("false", "")}, [*FULL[:3], False], {}),
        ({"note": ("none", "")}, FULL, {"note": None}),
        ({"note": ("text", "")}, FULL, {"note": ""}),
        ({"note": "written without choosing"}, FULL, {"note": "written without choosing"}),
        ({"tags": ("json", '["a", 1]')}, FULL, {"tags": ["a", 1]}),
        ({"tags": "[]"}, FULL, {"tags": []}),
        ({"extra": ("json", '{"a": null}')}, FULL, {"extra": {"a": None}}),
        ({"free": ("text", "7")}, FULL, {"free": "7"}),
        ({"free": ("json", "7")}, FULL, {"free": 7}),
    ],
)
def test_what_is_written_becomes_a_value_of_the_type_that_the_task_names(kinds, given, args, kwargs):
    found = made(FULL, {}, **given)
    assert json.dumps(found) == json.dumps((args, kwargs))


@pytest.mark.parametrize(
    ("given", "field", "complaint"),
    [
        ({"order_id": "seven"}, "value-order_id", "Enter a whole number, such as 7."),
        ({"order_id": "7.5"}, "value-order_id", "Enter a whole number, such as 7."),
        ({"order_id": ""}, "value-order_id", "Enter a whole number, such as 7."),
        ({"order_id": "true"}, "value-order_id", "Enter a whole number, such as 7."),
        ({"price": "cheap"}, "value-price", "Enter a number, such as 7 or 0.5."),
        ({"price": "NaN"}, "value-price", "Enter a number, such as 7 or 0.5."),
        ({"paid": ("maybe", "")}, "as-paid", "Select a valid choice."),
        ({"tags": ("json", '["a"')}, "value-tags", "is not valid JSON."),
        ({"tags": ("json", '{"a": 1}')}, "value-tags", "The argument tags must be list, not dict."),
        ({"extra": ("json", "[" * 101 + "]" * 101)}, "value-extra", "must be dict | None"),
        ({"extra": ("json", '{"a": ' * 101 + "1" + "}" * 101)}, "value-extra", "is nested more than 100 levels deep"),
        ({"free": "7"}, "value-free", "Select text / JSON, or clear the field."),
        ({"title": "\0"}, "value-title", "Null characters are not allowed."),
    ],
)
def test_what_is_no_such_value_is_said_at_its_field(kinds, given, field, complaint):
    found = complaints(FULL, {}, **given)
    assert list(found) == [field]
    assert complaint in found[field][0]


def test_a_value_and_a_choice_that_contradict_each_other_are_not_guessed_about(kinds):
    found = complaints([*FULL, "first"], {}, note=("none", "second"))
    assert found == {"value-note": ["You entered a value but selected “no value (None)”. Select text, or clear the field."]}
    assert made([*FULL, "first"], {}, note=("none", "first")) == ([*FULL, None], {})
    assert made([*FULL, "first"], {}, note=("left", "first")) == (FULL, {})


@pytest.mark.parametrize(
    ("args", "kwargs"),
    [
        (FULL, {}),
        ([], {"paid": False, "order_id": 7, "title": "x", "price": 1e300}),
        ([True, "x", 1, False, None], {"tags": [], "free": {"b": [1.0, 1e-9]}}),
        (["not a number", 5, "nor this", None], {"tags": "no list", "extra": 3, "free": "text"}),
        ([2**70, "two\nlines\tand a tab", 0.1, True, "\u202eturned\r\n\x1b"], {"free": "\nbegins with a line"}),
        ([7, " spaces around ", 12.0, True, ""], {"free": None}),
    ],
)
def test_what_nobody_touches_stays_as_it_is_whatever_it_is(kinds, args, kwargs):
    form = form_of(args, kwargs)
    browser = {name: value.replace("\n", "\r\n") for name, value in sent(form).items()}  # as a textarea sends lines
    form = EditForm(row_of(args, kwargs), browser, sensitive=True)
    form.is_valid()
    assert json.dumps([form.cleaned_data["args"], form.cleaned_data["kwargs"]]) == json.dumps([args, kwargs])


def test_arguments_that_it_has_are_no_change(kinds):
    assert "The arguments have not changed" in complaints(FULL, {})["__all__"][0]
    assert made(FULL, {}, paid=("true", ""), order_id="8")[0][3] is True


def test_a_number_in_place_of_true_is_a_change(more_tasks):
    more_tasks(NAME, lambda value: None)
    assert made([True], {}, value="1") == ([1], {})


def test_values_stay_by_place_and_by_name_as_they_were_given(kinds):
    named = {"price": 1, "paid": True, "title": "x"}
    args, kwargs = made([7], named, order_id="8", note=("text", "new"))
    assert (args, kwargs, list(kwargs)) == ([8], {**named, "note": "new"}, ["price", "paid", "title", "note"])


def test_behind_a_value_that_is_left_out_the_others_are_given_by_name(more_tasks):
    more_tasks(NAME, lambda one=1, two=2, three=3: None)
    assert made([5, 6, 7], {}, two=("left", "6")) == ([5], {"three": 7})


def test_a_value_that_only_its_place_tells_needs_those_before_it(more_tasks):
    def placed(one: int = 1, two: int = 2, /) -> None: ...

    more_tasks(NAME, placed)
    assert made([5, 6], {}, two=("left", "6")) == ([5], {})
    assert complaints([5, 6], {}, one=("left", "5")) == {
        "value-one": ["This field is required because arguments after it are positional."]
    }


def any_number(first: int, *items: int, **options: str) -> None: ...


def test_what_takes_many_is_written_as_json(more_tasks):
    more_tasks(NAME, any_number)
    assert [row["argument"].label for row in form_of([1], {}).rows] == ["first", "*items", "**options"]
    assert made([1, 2, 3], {"a": "b"}, items="[4]", options='{"c": "d"}') == ([1, 4], {"c": "d"})
    assert made([], {"first": 1}, items="[2]") == ([1, 2], {})
    assert complaints([1], {}, items='{"a": 1}') == {"value-items": ["The argument *items must be list, not dict."]}
    assert complaints([1], {}, options='{"first": 2}') == {
        "value-options": ["The argument first was given twice, by position and by name."]
    }


def test_the_types_of_an_item_are_checked_where_they_are_checked_at_all(more_tasks, settings):
    more_tasks(NAME, any_number)
    settings.DELAYQ = {**settings.DELAYQ, "CHECK_TYPES": True}
    assert complaints([1, 2], {}, items='["x"]') == {"value-items": ["The argument items must be int, not str."]}
    settings.DELAYQ = {**settings.DELAYQ, "CHECK_TYPES": False}
    assert made([1, 2], {}, items='["x"]') == ([1, "x"], {})


def test_what_the_task_misses_is_said_at_its_field(kinds):
    form = form_of([7], {"title": "x"})
    assert {row["argument"].label: row["way"].value() for row in form.rows if row["argument"].label in ("price", "paid")} == {
        "price": "left",
        "paid": "left",
    }
    found = complaints([7], {"title": "x"}, title="y")
    assert found == {"value-price": ["The argument price is missing."]}
    assert made([7], {"title": "x"}, price="2", paid=("true", "")) == ([7], {"title": "x", "price": 2, "paid": True})


def test_what_is_too_long_for_the_queue_is_refused(kinds):
    assert "The limit is" in complaints(FULL, {}, title="x" * 70_000)["__all__"][0]


def test_a_form_of_which_a_part_is_lost_changes_nothing(kinds):
    given = sent(form_of(FULL), order_id="8")
    del given["value-title"]
    form = EditForm(row_of(FULL, {}), given, sensitive=True)
    assert form.errors == {"__all__": ["The form was incomplete. Try again."]}


def test_a_message_is_edited_by_its_body(delayq_redis):
    job = Job(task=MESSAGE, queue="orders", state="failed", args=[{"a": 1}], kwargs={})
    form = EditForm(job, sensitive=True)
    assert [row["argument"].label for row in form.rows] == ["body"]
    form = EditForm(job, sent(form, body='{"a": 2}'), sensitive=True)
    assert form.is_valid()
    assert (form.cleaned_data["args"], form.cleaned_data["kwargs"]) == ([{"a": 2}], {})


# JSON, where fields are not possible


@pytest.mark.parametrize(
    ("args", "kwargs", "complaint"),
    [
        ([], {}, "The argument order_id is missing."),
        ([7, 8], {}, "There are more positional arguments than the task accepts."),
        ([7], {"colour": "blue"}, "The task does not accept the argument colour."),
        ({}, {}, "Enter a JSON list"),
        ([7], [], "Enter a JSON object"),
        ([7], {"colour": "red"}, "The task does not accept the argument colour."),
    ],
)
def test_what_fits_the_task_no_longer_is_edited_as_json(orders, staff, args, kwargs, complaint):
    job, client = orders.ended("fail", max_attempts=1), staff()
    Job.objects.update(kwargs={"colour": "red"})
    shown = client.get(edit_of(job))
    assert "do not match the current task" in shown.content.decode()
    digest = shown.context["form"].digest
    given = {"args": json.dumps(args), "kwargs": json.dumps(kwargs), "digest": digest, "confirmed": "1"}
    answer = client.post(edit_of(job), given)
    assert (answer.status_code, complaint in answer.content.decode()) == (400, True)
    assert orders.in_redis(job) == "failed"
    assert said(client.post(edit_of(job), {**given, "args": "[8]", "kwargs": "{}"}, follow=True)) == [
        "The job was requeued with the new arguments."
    ]


def test_a_task_that_is_not_here_is_shown_as_json_and_refused(orders, staff):
    job, client = orders.ended("fail", max_attempts=1), staff()
    Job.objects.update(task="gone")
    shown = client.get(edit_of(job))
    given = {"args": "[8]", "kwargs": "{}", "digest": shown.context["form"].digest}
    assert "No task named gone is registered" in client.post(edit_of(job), given).content.decode()


def test_arguments_that_a_function_of_this_package_makes_are_no_persons_to_edit(orders, staff):
    job, client = orders.ended("fail", max_attempts=1), staff()
    Job.objects.update(task="django_delayq.deliver", args=[], kwargs={"url": "https://example.com/"})
    assert "/edit/" not in client.get(page(job)).content.decode()
    assert "cannot be edited" in said(client.get(edit_of(job), follow=True))[0]


# what is hidden


SECRET = "DE02 1203 0000 0000 2020 51"
HIDING = ("view_job", "edit_job", "schedule_job")


def pay(order_id: int, iban: str, *, data: dict | None = None, pin: str = "0000") -> None: ...


@pytest.fixture
def paid(orders, more_tasks, settings) -> delayq.Job:
    """A failed job with secrets: one positional, one within an object, and one argument that the job does not have."""
    settings.DELAYQ = {**settings.DELAYQ, "SENSITIVE": ["iban", "pin"]}
    more_tasks(NAME, pay)
    job = orders.ended("fail", max_attempts=1)
    Job.objects.update(task=NAME, args=[7, SECRET], kwargs={"data": {"iban": SECRET, "to": "kim"}})
    return job


def edit_of(job: delayq.Job) -> str:
    return reverse("admin:delayq_job_edit", args=[job.id])


def test_what_is_hidden_stays_hidden_and_keeps_its_value(orders, staff, paid):
    client = staff(*HIDING)
    shown = client.get(edit_of(paid))
    form, text = shown.context["form"], shown.content.decode()
    assert {row["argument"].label: row["hidden"] for row in form.rows} == {
        "order_id": "",
        "iban": "***",
        "data": '{\n  "iban": "***",\n  "to": "kim"\n}',
        "pin": "***",
    }
    assert SECRET not in text
    given = sent(form, order_id="8")
    assert not {name for name in given if "iban" in name or "pin" in name or "data" in name}
    asked = client.post(edit_of(paid), given)
    assert SECRET not in asked.content.decode()
    changed = [line["text"].strip() for line in asked.context["difference"].lines if line["mark"] != " "]
    assert changed == ['"order_id": 7,', '"order_id": 8,']
    done = client.post(edit_of(paid), {**given, "confirmed": "1"}, follow=True)
    assert said(done) == ["The job was requeued with the new arguments."]
    assert SECRET not in done.content.decode()
    row = Job.objects.get()
    assert (row.args, row.kwargs) == ([8, SECRET], {"data": {"iban": SECRET, "to": "kim"}})
    assert Event.objects.get(kind="edited").detail["args"] == [7, SECRET]


def test_what_is_hidden_cannot_be_given_by_asking_for_its_field(staff, paid):
    client = staff(*HIDING)
    given = sent(client.get(edit_of(paid)).context["form"], order_id="8")
    more = {"value-iban": "mine", "as-pin": "text", "value-pin": "1", "as-data": "left", "value-data": "", "confirmed": "1"}
    assert said(client.post(edit_of(paid), {**given, **more}, follow=True)) == ["The job was requeued with the new arguments."]
    row = Job.objects.get()
    assert (row.args, row.kwargs) == ([8, SECRET], {"data": {"iban": SECRET, "to": "kim"}})


def test_who_may_see_what_is_hidden_from_others_may_change_it(staff, paid):
    client = staff(*HIDING, "view_sensitive")
    shown = client.get(edit_of(paid))
    assert SECRET in shown.content.decode()
    given = sent(shown.context["form"], iban="other", pin=("text", "1"))
    assert said(client.post(edit_of(paid), {**given, "confirmed": "1"}, follow=True)) == [
        "The job was requeued with the new arguments."
    ]
    row = Job.objects.get()
    assert (row.args, row.kwargs["pin"]) == ([7, "other"], "1")


def test_a_value_that_looks_like_the_mask_is_hidden_too(staff, paid):
    Job.objects.update(args=[7, "***"], kwargs={})
    assert {row["argument"].label: row["hidden"] for row in staff(*HIDING).get(edit_of(paid)).context["form"].rows}["iban"] == "***"


def test_an_error_about_what_is_hidden_does_not_tell_of_it(staff, paid, settings):
    settings.DELAYQ = {**settings.DELAYQ, "CHECK_TYPES": True}
    Job.objects.update(args=[7, 12345])
    client, texts = staff(*HIDING), []
    for secret in (12345, "x" * 70_000):
        Job.objects.update(args=[7, secret])
        given = sent(client.get(edit_of(paid)).context["form"], order_id="8")
        texts.append(list(client.post(edit_of(paid), given).context["form"].non_field_errors()))
    assert texts == [["The task or its queue does not accept these arguments. You do not have permission to view some of them."]] * 2


def test_what_is_hidden_and_fits_the_task_no_longer_cannot_be_edited(staff, paid):
    Job.objects.update(kwargs={"colour": "red"})
    client = staff(*HIDING)
    assert "you do not have permission to view its arguments" in said(client.get(edit_of(paid), follow=True))[0]
    assert "/edit/" not in client.get(page(paid)).content.decode()


def test_where_all_is_hidden_there_is_nothing_to_edit_but_a_copy_to_make(orders, staff, settings):
    settings.DELAYQ = {**settings.DELAYQ, "SENSITIVE": ["order_id", "note"]}
    job, client = orders.ended("fail", max_attempts=1), staff(*HIDING)
    text = client.get(page(job)).content.decode()
    assert ("/edit/" in text, "/copy/" in text) == (False, True)
    assert "you do not have permission to view its arguments" in said(client.get(edit_of(job), follow=True))[0]


def test_a_copy_takes_along_what_is_hidden(staff, paid):
    client, address = staff(*HIDING), reverse("admin:delayq_job_copy", args=[paid.id])
    context = client.get(address).context
    given = {**sent(context["form"], order_id="8"), "drawn": context["drawn"], "confirmed": "1"}
    assert said(client.post(address, given, follow=True))[0].startswith("The copy ")
    assert Job.objects.exclude(pk=paid.id).get().args == [8, SECRET]


def test_what_hinders_a_copy_says_nothing_of_what_is_hidden(staff, paid, monkeypatch):
    def refuses(*_: Any, **__: Any) -> None:
        raise PayloadTooLarge("DE89 3704 is in it, and that is 2,066 bytes.", size=2066, limit=2000)

    monkeypatch.setattr("django_delayq.admin.editing.edit.schedule_copy", refuses)
    monkeypatch.setattr("django_delayq.admin.editing.edit.edit_and_requeue", refuses)
    for client, tells in ((staff(*HIDING), False), (staff(*HIDING, "view_sensitive"), True)):
        for address in (edit_of(paid), reverse("admin:delayq_job_copy", args=[paid.id])):
            context = client.get(address).context
            given = {**sent(context["form"], order_id=9), "drawn": context["drawn"], "confirmed": "1"}
            texts = said(client.post(address, given, follow=True))
            assert any("2,066" in text or "DE89" in text for text in texts) == tells, texts
