"""Why a call does not fit a signature: the code says what Python says."""

from __future__ import annotations

import inspect
import itertools
import re

import pytest

from django_delayq.producer.argument_error import argument_error

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
