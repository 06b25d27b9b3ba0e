"""Arguments are compared with what a task's annotations say of them, where the project wants that."""

from __future__ import annotations

import inspect
import itertools
import re
from typing import TYPE_CHECKING, Any, Optional

import pytest

import django_delayq as delayq
from django_delayq import conf, under_test
from django_delayq.models import Job
from django_delayq.producer.edit import check
from django_delayq.producer.signatures import argument_error
from tests.tasks_for_tests import close_order, takes_all

if TYPE_CHECKING:
    from decimal import Decimal


@delayq.task(queue="orders")
def pay(
    order_id: int,
    note: str = None,  # noqa: RUF013  # as many write it
    *,
    share: float = 1,
    lines: list[int] | dict[str, int] | None = None,
) -> None: ...


@delayq.task(queue="orders")
def pack(
    kind: Optional[str],  # noqa: UP045  # both spellings are read
    /,
    *numbers: int,
    price: Decimal = 0,
    anything: Any = None,
    **flags: bool,
) -> None: ...


@pytest.fixture(autouse=True)
def checked(db, settings):
    settings.DELAYQ = {**settings.DELAYQ, "CHECK_TYPES": True}


FITTING: list[tuple[Any, tuple[Any, ...], dict[str, Any]]] = [
    (pay, (7,), {}),
    (pay, (True, None), {"share": 2}),
    (pay, (7, "x"), {"share": True, "lines": {"a": 1}}),
    (pay, (7,), {"note": "x", "lines": ["the items of a list are not looked at"]}),
    (pack, (None,), {}),
    (pack, ("x", 1, 2), {"price": "9.90", "anything": [1], "fragile": True}),
    (takes_all, ("x", 1), {"y": None}),
]
MISFITS: list[tuple[Any, tuple[Any, ...], dict[str, Any], tuple[str, str, str]]] = [
    (pay, ("7",), {}, ("order_id", "int", "str")),
    (pay, (7.0,), {}, ("order_id", "int", "float")),
    (pay, (None,), {}, ("order_id", "int", "None")),
    (pay, (), {"order_id": [7]}, ("order_id", "int", "list")),
    (pay, (7, 8), {}, ("note", "str", "int")),
    (pay, (7,), {"share": "1"}, ("share", "float", "str")),
    (pay, (7,), {"lines": "1"}, ("lines", "list[int] | dict[str, int] | None", "str")),
    (pack, (7,), {}, ("kind", "Optional[str]", "int")),
    (pack, ("x", 1, "2"), {}, ("numbers", "int", "str")),
    (pack, ("x",), {"fragile": 1}, ("fragile", "bool", "int")),
]


@pytest.mark.parametrize(("task", "args", "kwargs"), FITTING)
def test_what_an_annotation_says_or_does_not_say_is_taken(task, args, kwargs):
    task.schedule(*args, **kwargs)
    assert Job.objects.count() == 1


@pytest.mark.parametrize(("task", "args", "kwargs", "told"), MISFITS)
def test_what_an_annotation_excludes_is_refused_with_task_parameter_and_both_types(task, args, kwargs, told):
    with pytest.raises(delayq.PayloadError) as caught:
        task.schedule(*args, **kwargs)
    names = ("argument", "annotation", "given")
    assert caught.value.code == "argument_type"
    assert caught.value.fields == {"task": task.name, **dict(zip(names, told, strict=True))}
    assert all(word in str(caught.value) for word in (task.name, *told))
    assert Job.objects.count() == 0


def test_what_json_does_not_have_is_refused_by_the_codec_which_says_what_to_pass():
    with pytest.raises(delayq.PayloadError, match="pass a list, sorted"):
        pay.schedule({7})


def test_the_error_quotes_no_argument():
    with pytest.raises(delayq.PayloadError) as caught:
        pay.schedule("DE89370400440532013000")
    assert "DE89" not in str(caught.value)


def test_a_batch_and_an_edit_are_compared_too():
    with pytest.raises(delayq.PayloadError, match="order_id"):
        delayq.schedule_many([pay.bind(7), pay.bind("8")])
    with pytest.raises(delayq.PayloadError, match="order_id"):
        check(pay.name, "orders", ["8"], {})
    assert Job.objects.count() == 0


@pytest.mark.parametrize("given", [{"CHECK_TYPES": False}, {}])
def test_in_production_nothing_is_compared_unless_the_project_says_so(settings, given):
    settings.DELAYQ = {**{key: value for key, value in settings.DELAYQ.items() if key != "CHECK_TYPES"}, **given}
    pay.schedule("7")
    check(pay.name, "orders", ["7"], {})
    assert Job.objects.count() == 1


def test_unless_the_project_says_otherwise_it_is_on_in_development_and_in_tests(settings):
    settings.DELAYQ = {key: value for key, value in settings.DELAYQ.items() if key != "CHECK_TYPES"}
    assert not conf.get().check_types
    settings.DEBUG = True
    assert conf.get().check_types
    assert under_test.own({"TEST_REDIS": "redis://x"}, "p")["CHECK_TYPES"] is True
    assert under_test.own({"TEST_REDIS": "redis://x", "CHECK_TYPES": False}, "p")["CHECK_TYPES"] is False


def test_a_follower_that_takes_no_text_is_refused_where_it_is_named():
    with pytest.raises(delayq.ConfigError, match=r"on_failure is called with one argument, .* order_id has the annotation int"):
        delayq.task(on_failure=close_order, name="t")(lambda: None)


SAYS = {
    r"missing a required (?:keyword-only )?argument: '(.+)'": "argument_missing",
    r"too many positional arguments": "argument_surplus",
    r"got an unexpected keyword argument '(.+)'": "argument_unknown",
    r"multiple values for argument '(.+)'": "argument_twice",
}


def plain(a, b): ...
def defaults(a, b=1): ...
def rest(a, *more): ...
def named(a, *, b, c=1): ...
def anything(a, **others): ...
def placed(a, /, b): ...  # of these Pythons say different things
def nothing(): ...


@pytest.mark.parametrize("task", [plain, defaults, rest, named, anything, nothing], ids=lambda task: task.__name__)
def test_the_code_says_what_python_says(task):
    signature = inspect.signature(task)
    for count, size in itertools.product(range(4), range(4)):
        for names in itertools.combinations("abcd", size):
            args, kwargs = (7,) * count, dict.fromkeys(names, 7)
            try:
                signature.bind(*args, **kwargs)
            except TypeError as error:
                cause = str(error)
            else:
                continue
            refused = argument_error("t", signature, args, kwargs, cause=cause)
            found = next((match, code) for text, code in [*SAYS.items(), (".*", "arguments")] if (match := re.fullmatch(text, cause)))
            assert refused.code == found[1], (args, kwargs, cause)
            if found[0].groups():
                assert refused.fields["argument"] == found[0][1], (args, kwargs, cause)
            assert str(refused) == f"t{signature} cannot be called with these arguments: {cause}."


def test_an_argument_that_goes_by_place_only_is_named():
    refused = argument_error("t", inspect.signature(placed), (7,), {"a": 7, "b": 7}, cause="said otherwise by each Python")
    assert (refused.code, refused.fields["argument"]) == ("argument_unknown", "a")
