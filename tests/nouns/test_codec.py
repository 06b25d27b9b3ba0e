"""Payloads: an accepted value comes back equal and with the same types. A refused value is reported with its place and a remedy."""

from __future__ import annotations

import dataclasses
import enum
import json
import math
import uuid
from collections import OrderedDict, UserDict
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from django_delayq import codec
from django_delayq.exceptions import PayloadError, PayloadTooLarge

TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
SCALARS = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | TEXT
VALUES = st.recursive(SCALARS, lambda inner: st.lists(inner, max_size=4) | st.dictionaries(TEXT, inner, max_size=4))
OPTIONS = st.fixed_dictionaries(
    {},
    optional={
        "backoff": st.just("15s 3m ~10%"),
        "timeout": st.integers(min_value=1, max_value=10**9) | st.floats(min_value=0.001, max_value=1e9),
        "meta": st.dictionaries(TEXT, VALUES, max_size=3),
    },
)
# Also what does not survive, at any depth.
ANYTHING = st.recursive(
    SCALARS
    | st.floats()
    | st.text(st.characters(), max_size=5)
    | st.sampled_from([(), (1,), {1}, b"x", Decimal(1), datetime(2026, 1, 1, tzinfo=UTC), uuid.UUID(int=1), object(), 1j, int]),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.lists(inner, max_size=2).map(tuple)
        | st.dictionaries(st.text(st.characters(), max_size=5) | st.integers() | st.booleans() | st.none(), inner, max_size=4)
    ),
)


class Number(enum.IntEnum):
    ONE = 1


class Word(enum.StrEnum):
    A = "a"


class Loud(str):
    __slots__ = ()


class Count(int):
    pass


class Share(float):
    __slots__ = ()


class Bag(dict[str, int]):
    pass


class Row(list[int]):
    pass


class Order:
    _meta = "options"
    pk = 7


class Lazy:
    """Like SimpleLazyObject: a different type that answers for the object it wraps."""

    def __getattr__(self, name: str) -> object:
        return getattr(Order(), name)


class Angry:
    @property
    def pk(self) -> int:
        raise RuntimeError("no")

    _meta = pk


class Orders:
    def values_list(self) -> None: ...


@dataclasses.dataclass
class Point:
    x: int


def nested(levels: int) -> list[Any]:
    value: list[Any] = []
    for _ in range(levels - 1):
        value = [value]
    return value


def same(one: object, other: object) -> bool:
    """Returns whether two values are equal, with equal types at every level. 1, 1.0 and True differ here, and 0.0 and -0.0 do too."""
    if type(one) is not type(other):
        return False
    if isinstance(one, list) and isinstance(other, list):
        return len(one) == len(other) and all(map(same, one, other))
    if isinstance(one, dict) and isinstance(other, dict):
        return list(one) == list(other) and all(same(one[key], other[key]) for key in one)
    return one == other and repr(one) == repr(other)


def encode(*args: object, **kwargs: object) -> bytes:
    return codec.encode_payload(args, kwargs, None, limit=65_536, task="orders.close_order")


@given(st.lists(VALUES, max_size=3), st.dictionaries(TEXT, VALUES, max_size=3), OPTIONS)
def test_a_payload_comes_back_as_it_was(args: list[Any], kwargs: dict[str, Any], options: dict[str, Any]) -> None:
    raw = codec.encode_payload(tuple(args), kwargs, options, limit=10**9, task="t")
    assert same(list(codec.decode_payload(raw)), [args, kwargs, options])


@given(VALUES)
def test_what_json_can_hold_passes_and_comes_back(value: object) -> None:
    codec.check(value, "args[0]")
    assert same(codec.loads(codec.dumps(value)), value)


def test_spaces_around_a_value_change_nothing() -> None:
    assert codec.loads(b' [1, "a"]') == codec.loads(b'[1, "a"] \n') == codec.loads(b'[1, "a"]') == [1, "a"]


@pytest.mark.parametrize("raw", [b"[1] [2]", b"[1]]", b" ", b"", b"[1] x"])
def test_what_is_not_one_value_is_refused(raw: bytes) -> None:
    with pytest.raises(PayloadError):
        codec.loads(raw)


@given(ANYTHING)
@example([[math.nan]])
@example({"a": {True: 1}})
def test_a_value_comes_back_as_it_was_or_is_refused_below_its_path(value: object) -> None:
    try:
        codec.check(value, "args[0]")
    except PayloadError as error:
        said = str(error)
        assert said.startswith("args[0]")
        assert "; " in said
        assert "cannot be stored as JSON" not in said
        said.encode()
    else:
        assert same(codec.loads(codec.dumps(value)), value)


@given(ANYTHING)
def test_the_fast_check_and_the_slow_one_agree(value: object) -> None:
    with pytest.raises(PayloadError) as caught:
        codec.refuse(value, "it")
    assert ("cannot be stored as JSON" in str(caught.value)) == codec._survives(value, 0)


@given(VALUES)
def test_what_is_written_is_what_the_public_encoder_writes(value: object) -> None:
    encoder = json.JSONEncoder(ensure_ascii=False, allow_nan=False, check_circular=False, separators=(",", ":"))
    assert codec.dumps(value) == encoder.encode(value).encode()


@pytest.mark.parametrize("missing", [{"c_make_encoder": None}, {"c_make_encoder": lambda one: one}, {}])
def test_another_python_without_that_encoder_writes_the_same(monkeypatch: pytest.MonkeyPatch, missing: Any) -> None:
    if not missing:
        monkeypatch.delattr(json.encoder, "c_make_encoder")
    for name, value in missing.items():
        monkeypatch.setattr(json.encoder, name, value)
    writer = codec._writer(codec._ENCODER)
    assert "".join(writer([1, {"ü": [None, 0.5, "x"]}], 0)) == '[1,{"ü":[null,0.5,"x"]}]'


def test_a_payload_is_compact_utf8() -> None:
    assert encode(7, "é", paid=True) == '[[7,"é"],{"paid":true}]'.encode()
    assert encode() == b"[[]]"
    with_options = codec.encode_payload((), {}, {"timeout": 30}, limit=100, task="t")
    assert with_options == b'[[],{},{"timeout":30}]'
    assert codec.encode_payload((), {}, {}, limit=100, task="t") == b"[[]]"


def test_integers_beyond_64_bit_stay_exact() -> None:
    big = 3**200
    assert codec.decode_payload(encode(big, -big)) == ([big, -big], {}, {})


def test_an_integer_too_long_for_python_to_print_is_refused() -> None:
    with pytest.raises(PayloadError, match=r"args\[0\] is an int of more than 4,000 digits; pass it as text"):
        encode(10**5_000)
    assert encode(2**14_000 - 1)


@pytest.mark.parametrize(
    ("value", "remedy"),
    [
        (Order(), "pass its pk"),
        (Lazy(), "pass its pk"),
        (SimpleNamespace(_meta=1, pk=1), "pass its pk"),
        (Orders(), "values_list"),
        (Order, "dotted name"),
        (datetime(2026, 1, 2, tzinfo=UTC), "isoformat"),
        (date(2026, 1, 2), "isoformat"),
        (time(1), "isoformat"),
        (timedelta(1), "total_seconds"),
        (Decimal("1.10"), r"str\(value\)"),
        (uuid.UUID(int=1), r"str\(value\)"),
        (Path("/x"), r"str\(value\)"),
        ({1}, "pass a list"),
        (frozenset(), "pass a list"),
        ((1, 2), "pass a list"),
        (b"x", "base64"),
        (bytearray(), "base64"),
        (memoryview(b""), "base64"),
        (1j, "two parts"),
        (math.nan, "pass None"),
        (math.inf, "pass None"),
        (-math.inf, "pass None"),
        (Number.ONE, r"\.value"),
        (Word.A, r"\.value"),
        (Loud("x"), "plain str"),
        (Count(1), "plain int"),
        (Share(1), "plain float"),
        (Bag(), "plain dict"),
        (Row(), "plain list"),
        (OrderedDict(), "plain dict"),
        (UserDict(), "pass a list|dict"),
        (range(3), "pass a list"),
        (iter([]), "pass a list"),
        (print, "dotted name"),
        (lambda: 1, "dotted name"),
        (Point(1), "asdict"),
        (ValueError("x"), r"str\(value\)"),
        (object(), "pass an id"),
        (Angry(), "pass an id"),
        ("\ud800", "valid text"),
        ("a\udfffb", "valid text"),
        ({1: 2}, "pass str keys"),
        ({None: 2}, "pass str keys"),
        ({Word.A: 2}, "pass str keys"),
        ({Loud("x"): 2}, "pass str keys"),
        ({(1, 2): 2}, "pass str keys"),
        pytest.param({10**5_000: 2}, "pass str keys", id="vast key"),
        ({"\ud800": 2}, "keys of valid text"),
    ],
)
def test_what_does_not_survive_is_refused_with_its_place_and_what_to_pass(value: object, remedy: str) -> None:
    for call, path in (
        (lambda: encode(value), r"args\[0\]"),
        (lambda: encode(1, value), r"args\[1\]"),
        (lambda: encode(1, {"when": value}), r"args\[1\]\['when'\]"),
        (lambda: encode(order=value), r"kwargs\['order'\]"),
        (lambda: encode(order=[0, {"a": [value]}]), r"kwargs\['order'\]\[1\]\['a'\]\[0\]"),
    ):
        with pytest.raises(PayloadError, match=rf"^orders\.close_order: {path} .*; .*({remedy})") as caught:
            call()
        str(caught.value).encode()


def test_a_value_that_contains_itself_is_refused() -> None:
    knot: list[Any] = [1]
    knot.append({"again": knot})
    with pytest.raises(PayloadError, match=r"args\[0\]\[1\]\['again'\] contains itself"):
        encode(knot)
    twice = [1]
    assert encode([twice, twice]) == b"[[[[1],[1]]]]"


def test_a_hundred_levels_are_allowed_and_one_more_is_not() -> None:
    assert codec.decode_payload(encode(nested(100), deep=nested(100)))
    options = {"meta": {"deep": nested(99)}}
    raw = codec.encode_payload((), {}, options, limit=10_000, task="t")
    assert codec.decode_payload(raw) == ([], {}, options)
    for call in (
        lambda: encode(nested(101)),
        lambda: encode(deep=nested(101)),
        lambda: codec.check(nested(101), "result"),
    ):
        with pytest.raises(PayloadError, match="more than 100 levels deep; pass a flatter value"):
            call()


def test_a_vast_depth_is_refused_and_not_followed() -> None:
    with pytest.raises(PayloadError, match="more than 100 levels"):
        encode(nested(100_000))
    for raw in (b"[" * 100_000, b"[" * 100_000 + b"]" * 100_000, b'{"a":' * 100_000):
        with pytest.raises(PayloadError):
            codec.decode_payload(raw)


def test_a_long_path_is_cut() -> None:
    value: object = math.nan
    for _ in range(90):
        value = {"k" * 70: value}
    with pytest.raises(PayloadError) as caught:
        encode(value)
    assert len(str(caught.value)) < 600


def test_a_payload_above_the_limit_is_refused_with_both_numbers() -> None:
    with pytest.raises(PayloadTooLarge, match=r"orders\.close_order: .*10,000,007 bytes.*65,536 \(MAX_PAYLOAD\).*pass its id"):
        encode("x" * 10_000_000 + "y")
    assert codec.encode_payload(("xy",), {}, None, limit=8, task="t") == b'[["xy"]]'
    with pytest.raises(PayloadTooLarge):
        codec.encode_payload(("é",), {}, None, limit=7, task="t")


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({"colour": 1}, "option 'colour' is unknown"),
        ({"backoff": 5}, "backoff is a int"),
        ({"backoff": None}, "backoff"),
        ({"timeout": 0}, "timeout is 0"),
        ({"timeout": -1}, "seconds above 0"),
        ({"timeout": 1e300}, "100 years"),
        pytest.param({"timeout": -(10**5_000)}, "<int>", id="vast timeout"),
        ({"timeout": True}, "seconds above 0"),
        ({"timeout": math.inf}, "seconds above 0"),
        ({"timeout": math.nan}, "seconds above 0"),
        ({"timeout": "30s"}, "seconds"),
        ({"meta": []}, "meta is a list"),
        ({"meta": {"who": {1}}}, r"meta\['who'\] is of type set"),
        ({"meta": {1: 2}}, "meta has the key 1"),
    ],
)
def test_an_option_that_cannot_be_stored_is_refused(options: dict[str, Any], why: str) -> None:
    with pytest.raises(PayloadError, match=rf"^orders\.close_order: .*{why}"):
        codec.encode_payload((), {}, options, limit=1_000, task="orders.close_order")


@pytest.mark.parametrize(
    "raw",
    [
        b"",
        b"[]",
        b"{}",
        b"null",
        b"[[[]]",
        b"[[],[]]",
        b"[{},[]]",
        b"[[],{},{},{}]",
        b"[[],{},[]]",
        b"[[],{},null]",
        b'[[],{},{"colour":1}]',
        b'[[],{},{"timeout":"x"}]',
        b"[[NaN],{}]",
        b"[[Infinity],{}]",
        b"[[-Infinity],{}]",
        b"[[1e999],{}]",
        b"[[-1e999],{}]",
        b'[["\\ud800"],{}]',
        b'[["\\uDFFF"],{}]',
        b'[[],{"\\ud800":1}]',
        b"[[],{}] x",
        b"[[],{}",
        b"[[01],{}]",
        b"[['a'],{}]",
        b'[["\x00"],{}]',
        b'[["\xff"],{}]',
        b'[["\xed\xa0\x80"],{}]',
        b"\xef\xbb\xbf[[],{}]",
        b"\xff\xfe[\x00",
        b"[[" + b"9" * 5_000 + b"],{}]",
        b"[[],{}]\x00",
    ],
)
def test_what_is_no_payload_is_refused(raw: bytes) -> None:
    with pytest.raises(PayloadError):
        codec.decode_payload(raw)


@given(st.binary() | st.recursive(SCALARS, lambda inner: st.lists(inner)).map(lambda value: json.dumps(value).encode()))
def test_any_bytes_are_a_payload_or_a_payload_error(raw: bytes) -> None:
    try:
        args, kwargs, options = codec.decode_payload(raw)
    except PayloadError:
        return
    codec.encode_payload(tuple(args), kwargs, options, limit=10**9, task="t")


@pytest.mark.parametrize("raw", [None, "[]", 5, bytearray(b"[["), memoryview(b"[]x")])
def test_what_is_not_even_bytes_is_a_payload_error(raw: Any) -> None:
    with pytest.raises(PayloadError):
        codec.loads(raw)


def test_escapes_are_read_when_they_make_whole_characters() -> None:
    assert codec.decode_payload(b'[["\\ud83d\\ude00","\\u0000","\\\\ud800"],{}]') == (["😀", "\x00", "\\ud800"], {}, {})


@pytest.mark.parametrize("value", [{1}, math.nan, object(), "\ud800", {(1, 2): 3}, 10**5_000, nested(100_000)], ids=type)
def test_dumps_refuses_what_json_cannot_hold_at_all(value: object) -> None:
    with pytest.raises(PayloadError, match="cannot be written as JSON"):
        codec.dumps(value)


def test_a_refusal_never_shows_a_value() -> None:
    secret = SimpleNamespace(password="hunter2")
    for value in (secret, ("hunter2",), {"a": {"hunter2"}}, Loud("hunter2"), "hunter2\ud800"):
        with pytest.raises(PayloadError) as caught:
            encode(value)
        assert "hunter2" not in str(caught.value)
