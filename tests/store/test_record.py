"""The job record: what goes in comes out, and any other bytes are a PayloadError and nothing else."""

from __future__ import annotations

import dataclasses
from typing import Any
from uuid import UUID

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from django_delayq import clock, ids
from django_delayq.exceptions import PayloadError
from django_delayq.job_meta import bare, scope_of
from django_delayq.job_meta import scoped as in_scope
from django_delayq.store.scripts.record import (
    MAX_ATTEMPTS,
    MAX_KEY,
    MAX_SCOPE,
    ClaimedJob,
    JobRecord,
    band_of,
    validate_key,
    validate_scope,
)

ID = UUID("01980000-0000-7000-8000-000000000001")

PRINTABLE = st.characters(exclude_categories=["Cc", "Cs", "Zl", "Zp"])
KEYS = st.text(PRINTABLE, max_size=MAX_KEY)
TASKS = st.text(PRINTABLE.filter(lambda letter: not letter.isspace()), min_size=1, max_size=200)
SCOPES = st.text(PRINTABLE.filter(lambda letter: not letter.isspace() and letter not in "/@{}"), max_size=MAX_SCOPE)


def scoped(scope: str, key: str, **fields: Any) -> JobRecord:
    return JobRecord(scope=scope, key=in_scope(scope, key), **fields)


RECORDS = st.builds(
    scoped,
    scope=st.just("") | SCOPES,
    id=st.uuids(),
    task=TASKS,
    band=st.sampled_from(["high", "normal", "low"]),
    durable=st.booleans(),
    max_attempts=st.integers(min_value=1, max_value=MAX_ATTEMPTS),
    expires_ms=st.integers(min_value=0, max_value=clock.LAST_MS),
    key=KEYS,
    payload=st.binary(),
)


def record(**fields: Any) -> JobRecord:
    return JobRecord(**({"id": ID, "task": "orders.close_order", "payload": b"[[7]]"} | fields))


def test_the_bytes_are_those_that_lua_reads() -> None:
    assert record().encode() == b"1no orders.close_order\n[[7]]"
    full = record(band="high", durable=False, max_attempts=3, expires_ms=1_750_000_000_000, key="close order: 7 é")
    assert full.encode() == "1hr3:1750000000000 orders.close_order close order: 7 é\n[[7]]".encode()
    assert record(band="low", max_attempts=3).encode().startswith(b"1lo3 orders")
    assert record(expires_ms=5).encode().startswith(b"1no10:5 orders")
    assert record(scope="tenant_a").encode() == b"1no@tenant_a orders.close_order\n[[7]]"
    keyed = record(scope="tenant_a", key="tenant_a\u2028close 7", max_attempts=3)
    assert keyed.encode() == b"1no3@tenant_a orders.close_order close 7\n[[7]]"


@given(RECORDS)
def test_a_record_reads_back(record: JobRecord) -> None:
    assert JobRecord.decode(record.id, record.encode()) == record


@given(RECORDS)
def test_a_header_is_one_line_of_two_fields_or_three(record: JobRecord) -> None:
    header, _, payload = record.encode().partition(b"\n")
    assert payload == record.payload
    assert header.split(b" ", 2)[1:] == [part.encode() for part in (record.task, bare(record.key)) if part]


@given(SCOPES, SCOPES, KEYS)
def test_a_key_of_two_scopes_is_two_keys(one: str, other: str, key: str) -> None:
    assert (in_scope(one, key) == in_scope(other, key)) == (one == other or not key)
    assert (scope_of(in_scope(one, key)), bare(in_scope(one, key))) == (one if key else "", key)


@pytest.mark.parametrize("scope", ["a b", "a/b", "a@b", "{a}", "a\n", "\x1f", "a" * 64, 7])
def test_a_scope_that_a_header_cannot_hold_is_refused(scope: Any) -> None:
    with pytest.raises(PayloadError, match="the scope"):
        validate_scope(scope)
    with pytest.raises(PayloadError, match="the scope"):
        record(scope=scope)


def test_a_key_of_another_scope_is_refused() -> None:
    with pytest.raises(PayloadError, match="is not of the scope 'a'"):
        record(scope="a", key="b\u2028close")
    with pytest.raises(PayloadError, match="control character"):
        record(key="b\u2028close")


@given(st.binary() | st.from_regex(rb"\A1[hnl][or][0-9]{0,12}(:[0-9]{1,18})? [^\n]{0,20}\n[^x]{0,5}\Z"))
@example(b"1no10:999999999999999 t\n")
@example(b"1no t\xff\n")
@example(b"1no t k\x00\n")
def test_any_bytes_are_a_record_or_a_payload_error(raw: bytes) -> None:
    try:
        decoded = JobRecord.decode(ID, raw)
    except PayloadError:
        return
    assert decoded.encode() == raw


@given(RECORDS, st.data())
def test_a_damaged_record_is_another_record_or_a_payload_error(record: JobRecord, data: st.DataObject) -> None:
    raw = bytearray(record.encode())
    place = data.draw(st.integers(min_value=0, max_value=len(raw) - 1))
    raw[place] = data.draw(st.integers(min_value=0, max_value=255))
    try:
        decoded = JobRecord.decode(record.id, bytes(raw))
    except PayloadError:
        return
    assert decoded.encode() == bytes(raw)


@pytest.mark.parametrize(
    "raw",
    [
        b"",
        b"\n",
        b"{}",
        b"1no t",
        b"1no\n",
        b"1no \n",
        b"1no  \n",
        b"1 no t\n",
        b"1no t \n",
        b" 1no t\n",
        b"1no  t\n",
        b"1xo t\n",
        b"1No t\n",
        b"1nx t\n",
        b"1n t\n",
        b"no t\n",
        b"01no t\n",
        b"1no0 t\n",
        b"1no010 t\n",
        b"1no-1 t\n",
        b"1no+1 t\n",
        b"1no1.0 t\n",
        b"1no10 t\n",
        b"1no10: t\n",
        b"1no:5 t\n",
        b"1no10:0 t\n",
        b"1no10:00 t\n",
        b"1no10:-1 t\n",
        b"1no9999999999 t\n",
        b"1no10:9999999999999999 t\n",
        b"1no t\r\n",
        b"1no\tt\n",
        "1no1\u0660 t\n".encode(),
        b"1no t\x00\n",
        b"1no " + b"t" * 201 + b"\n",
        b"1no t " + b"k" * 201 + b"\n",
        b"1no \xed\xa0\x80\n",
        "1no a\u00a0b\n".encode(),
    ],
)
def test_a_header_that_is_not_ours_is_refused(raw: bytes) -> None:
    with pytest.raises(PayloadError, match=f"the record of job {ids.short(ID)} cannot be read"):
        JobRecord.decode(ID, raw)


@pytest.mark.parametrize("raw", [b"2no t\n", b"10no t\n", b"2x"])
def test_a_record_of_a_newer_version_says_so(raw: bytes) -> None:
    with pytest.raises(PayloadError, match="newer django-delayq wrote it; upgrade this worker"):
        JobRecord.decode(ID, raw)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("task", ""),
        ("task", "a b"),
        ("task", "a\nb"),
        ("task", "a\u2003b"),
        ("task", "t" * 201),
        ("task", None),
        ("task", "\ud800"),
        ("key", "a\nb"),
        ("key", None),
        ("key", 7),
        ("key", "k" * 201),
        ("key", "\ud800"),
        ("band", "urgent"),
        ("band", "h"),
        ("max_attempts", 0),
        ("max_attempts", True),
        ("max_attempts", 1.0),
        ("max_attempts", None),
        ("max_attempts", 10**9),
        ("expires_ms", -1),
        ("expires_ms", 1.5),
        ("expires_ms", clock.LAST_MS + 1),
        ("expires_ms", None),
        ("payload", "text"),
        ("payload", bytearray()),
    ],
)
def test_a_field_that_the_record_cannot_carry_is_refused_when_it_is_made(field: str, value: object) -> None:
    with pytest.raises(PayloadError, match="key" if field == "key" else "orders.close_order|task name|band"):
        record(**{field: value})


def test_a_record_has_no_room_for_more() -> None:
    made = record()
    assert not hasattr(made, "__dict__")
    assert dataclasses.replace(made, key="other").key == "other"
    assert hash(made) == hash(record())


@pytest.mark.parametrize(("priority", "band"), [(10, "high"), (1, "high"), (0, "normal"), (-1, "low"), (-10, "low"), (10**30, "high")])
def test_the_sign_of_the_priority_is_the_band(priority: int, band: str) -> None:
    assert band_of(priority) == band


@pytest.mark.parametrize("key", ["close-order:7", "close order 7", "ordre-é-😀", "k" * MAX_KEY, ""])
def test_a_key_that_can_be_stored_is_given_back(key: str) -> None:
    assert validate_key(key) == key


@pytest.mark.parametrize(
    ("key", "why"),
    [
        ("k" * 201, "has 201 characters"),
        ("a\nb", "control character"),
        ("a\x00b", "control character"),
        ("a\x7fb", "control character"),
        ("a\x85b", "control character"),
        ("a\u2028b", "control character"),
        ("a\n", "control character"),
        ("\udfff", "half"),
        (7, "is not text"),
        (None, "is not text"),
        (b"k", "is not text"),
    ],
)
def test_a_key_that_cannot_be_stored_is_refused_with_the_reason(key: object, why: str) -> None:
    with pytest.raises(PayloadError, match=why) as caught:
        validate_key(key)
    str(caught.value).encode()
    assert len(str(caught.value)) < 250


def test_a_claimed_job_is_frozen_and_slotted() -> None:
    claimed = ClaimedJob(id="0" * 22, attempt=1, crashes=0, due_ms=5, record=b"", fence="f", queue="orders")
    with pytest.raises(AttributeError):
        claimed.attempt = 2
    assert not hasattr(claimed, "__dict__")
