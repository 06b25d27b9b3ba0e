"""Two worlds that differ only in masked values look the same, byte by byte, on every page, fragment, search and command."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from difflib import unified_diff
from typing import Any

import pytest
from django.db import connection

from django_delayq import clock, ids
from django_delayq.models import Attempt, Event, Job, Operation, SetAside
from django_delayq.producer.stores import stores
from django_delayq.producer.task import registry
from tests.admin.conftest import ALL, JOBS, OPERATIONS, QUEUES, SET_ASIDE, WORKERS, beat, more_tasks, orders, staff
from tests.admin.test_operations import begin, work

__all__ = ["more_tasks", "orders", "staff"]
ONE, OTHER = "47~11", "08~15-and-longer"  # the masked value, in one world and in the other; no id, date or address contains it
STRANGE = "9999"  # in neither
PAYS = "shop.pay"
PINS = (ONE, OTHER, STRANGE, "47", "***", "1")


def pay(order: int, pin: Any, *, token: Any = "", data: Any = None, note: str = "") -> None: ...


def gone(order: int, pin: Any) -> None: ...


def set_aside(orders) -> SetAside:
    """The end of a job whose number of attempts is invalid, so that the row does not know it. The rejected stream entry contains the
    masked value.
    """
    job = orders.scheduled()[0]
    entry = f"{ids.short(job.id)} many 0 f\n" + json.dumps({"r": {"pin": ONE}})
    stores.link.execute("XADD", orders.store.keys["events"], "*", "at", 1_795_000_000_000, "by", "w", "failed", entry)
    orders.fold()
    return SetAside.objects.get()


@pytest.fixture
def jobs(orders, settings, more_tasks) -> list[Job]:
    """One job of each state, with a masked value in its arguments, meta, result and events, and one job whose task no longer exists."""
    settings.DELAYQ = {**settings.DELAYQ, "SENSITIVE": ["pin"]}
    more_tasks(PAYS, pay, sensitive=["token"])
    more_tasks("shop.gone", gone)
    hidden: dict[str, Any] = {"token": {"order": 7, "deep": [ONE]}, "data": {"pin": {"order": 7, "x": ONE}, "open": 5}}
    common: dict[str, Any] = {"meta": {"pin": ONE, "who": "shop"}, "max_attempts": 1}
    result = json.dumps({"r": {"pin": ONE, "ok": 1}}).encode()
    made = []
    for number, outcome in enumerate(("ack", "fail", "fail", "retry")):
        task = registry.get(PAYS).using(**{**common, "max_attempts": 3 if outcome == "retry" else 1})
        made.append(task.schedule(number, ONE, **hidden))
        [claimed] = orders.claim()
        detail = result if outcome == "ack" else json.dumps({"c": "E", "m": "no", "p": "same"}).encode()
        orders.settle(claimed, outcome, delay=10**9, detail=detail)
    made.append(registry.get("shop.gone").using(**common).schedule(4, ONE))
    [claimed] = orders.claim()
    orders.settle(claimed, "ack", detail=result)
    made += [registry.get(PAYS).using(delay="9d", key=f"k:{n}", **common).schedule(n, ONE, **hidden) for n in (5, 6)]
    orders.fold()
    Event.objects.create(
        job_id=made[1].id,
        queue="orders",
        at=clock.now(),
        kind="edited",
        actor="admin:clerk",
        reason="a typo",
        detail={"args": [1, ONE], "kwargs": hidden},
        stream_id="row:1",
    )
    registry._tasks.pop("shop.gone")
    set_aside(orders)
    long_ago = clock.now() - timedelta(days=400)  # so that durations stay the same for a day
    Job.objects.update(created_at=long_ago, started_at=long_ago, finished_at=long_ago, published=long_ago)
    Attempt.objects.update(started_at=long_ago, finished_at=long_ago)
    Job.objects.filter(pk=made[4].id).update(result={"answer": ONE})
    beat("orders")
    return list(Job.objects.order_by("id"))


def other_world() -> None:
    """Puts the other value in every place that had the first one, in the database and in Redis."""
    for model in (Job, Event, SetAside):
        columns = [field for field in model._meta.fields if field.get_internal_type() in ("TextField", "BinaryField")]
        for row in model.objects.all():
            for field in columns:
                setattr(row, field.attname, _replaced(getattr(row, field.attname)))
            row.save()
    SetAside.objects.update(length=len(OTHER) - len(ONE) + SetAside.objects.get().length)
    key = "delayq:{orders}:jobs"
    pairs = stores.link.execute("HGETALL", key)
    flat = list(pairs) if isinstance(pairs, list) else [part for pair in pairs.items() for part in pair]
    for id, record in zip(flat[::2], flat[1::2], strict=True):
        stores.link.execute("HSET", key, id, record.replace(ONE.encode(), OTHER.encode()))


def _replaced(value: Any) -> Any:
    if isinstance(value, (bytes, memoryview)):
        return bytes(value).replace(ONE.encode(), OTHER.encode())
    return json.loads(json.dumps(value).replace(ONE, OTHER))


CLOCKS = re.compile(
    r'csrfmiddlewaretoken" value="[^"]*"|data-etag="[^"]*"|name="preview" value="[^"]*"'
    r"|\d{4}-\d\d-\d\d[ T]\d\d:\d\d:\d\d[.\dZ+:]*|\d\d:\d\d(:\d\d)?(\.\d+)?|\b(\d+ms|<?\d+s|\d+ms?|(\d+[dhms])+)\b"
    r"|(&lt; )?\d+(\.\d+)? ms\b|\"duration\": \d+(\.\d+)?"
    # The dashboard draws the hours around now. These parts change with each minute.
    r"|\d+(\.\d+)?/min|<figure>.*?</figure>|<details [^>]*><summary>.*?</details>"
    r"|d=\"[^\"]*\"|\d+(\.\d+)?,? ?(MB|KB|bytes)|<time.*?</time>|<meter.*?</meter>|mirror \d+.*?behind[^<]*"
)


ASKED = re.compile(r"""["`](args|kwargs|result|options|raw|detail)["`]""")  # a column that may contain a masked value


@contextmanager
def statements() -> Iterator[list[str]]:
    """Collects the SQL that is sent to the database inside the block."""
    sent: list[str] = []

    def note(execute, sql, params, many, context):
        sent.append(sql)
        return execute(sql, params, many, context)

    with connection.execute_wrapper(note):
        yield sent


def searches() -> Iterator[str]:
    for pin in (ONE, OTHER, "47"):
        yield from (pin, f"arg:pin={pin}", f"arg:token={pin}", f"arg:x={pin}", f"arg:order={pin}", f"arg:note={pin}")
        yield from (
            f"arg:pin={pin} state:failed",
            f"key:k:* arg:pin={pin}",
            f"pay arg:pin={pin}",
            f'arg:data={{"pin":"{pin}"}}',
        )
    yield from (
        f"error:{ONE}",
        f"key:{ONE}*",
        "arg:pin=***",
        "arg:order=1",
        "arg:order=7",
        "task:pay",
        "fingerprint:same",
    )


def places(jobs: list[Job], operation: Operation) -> Iterator[tuple[str, dict[str, str]]]:
    kept = SetAside.objects.get()
    for job in jobs:
        for page in ("change", "edit", "history"):
            yield f"{JOBS}{job.pk}/{page}/", {}
        yield f"{JOBS}{job.pk}/change/", {"live": "1"}
    first, last = ids.short(jobs[0].pk), ids.short(jobs[-1].pk)
    for text in ("", *searches()):
        for more in ({}, {"behind": last}, {"ahead": first}):
            yield JOBS, {"q": text, **more} if text else more
        yield f"{OPERATIONS}start/cancel/", {"q": text}
    for field in ("args", "kwargs", "result", "options"):
        for verb in ("contains", "regex", "gt", "startswith"):
            yield JOBS, {f"{field}__{verb}": ONE}
    for state in ("scheduled", "failed", "succeeded", "retrying", "due", "cancelled", "running", "unpublished"):
        yield JOBS, {"state": state}
        yield f"{OPERATIONS}start/requeue/", {"state": state}
    yield from ((place, {}) for place in (f"{JOBS}failures/", QUEUES, WORKERS, OPERATIONS, SET_ASIDE, "/admin/", "/admin/delayq/"))
    yield from ((place, {"live": "1"}) for place in (QUEUES, WORKERS))
    yield from ((f"{SET_ASIDE}{kept.pk}/{page}/", {}) for page in ("change", "history"))
    yield from ((f"{OPERATIONS}{operation.pk}/{page}/", {}) for page in ("change", "history"))
    yield f"{OPERATIONS}{operation.pk}/change/", {"live": "1"}


@pytest.mark.slow
def test_what_is_masked_changes_no_byte_of_any_page(jobs, staff, monkeypatch):
    client, operation = staff(*(name for name in ALL if name != "view_sensitive")), begin(stage="paused")
    held = clock.now()
    monkeypatch.setattr(clock, "now", lambda: held)  # "now" and "1s ago" are not a difference between the worlds
    asked = list(places(jobs, operation))

    def look() -> list[tuple[int, str]]:
        found = []
        for place, query in asked:
            beat("orders")  # a worker that has been silent for a minute is gone
            with statements() as sent:
                answer = client.get(place, query)
            conditions = [sql.partition(" WHERE ")[2] for sql in sent]
            assert not [sql for sql in conditions if ASKED.search(sql)], (place, query)
            found.append((answer.status_code, CLOCKS.sub("", f"{answer.get('Location', '')}\n{answer.content.decode()}")))
        return found

    one = look()
    other_world()
    other = look()
    assert {status for status, _ in one} <= {200, 302, 400}
    for asked_for, before, after in zip(asked, one, other, strict=True):
        assert list(unified_diff(before[1].splitlines(), after[1].splitlines(), n=0)) == [], asked_for
        assert before == after, asked_for
        if not asked_for[1]:  # other answers contain what the person typed
            assert ONE not in before[1], asked_for


def test_no_search_tells_by_what_it_reads_whether_something_masked_is_there(jobs, staff):
    client = staff("view_job")
    found = {pin: client.get(JOBS, {"q": f"arg:pin={pin}"}) for pin in PINS}
    for pin, answer in found.items():
        shown = answer.context["cl"]
        assert (list(shown.result_list), shown.earlier, shown.later, shown.result_count) == ([], "", "", 0), pin
    at = ids.short(jobs[-1].pk)
    for pin in PINS:
        shown = client.get(JOBS, {"q": f"arg:pin={pin}", "behind": at}).context["cl"]
        assert re.findall(r"(behind|ahead)=(\w*)", f"{shown.earlier} {shown.later}") == [("ahead", at)], pin


@pytest.mark.parametrize("verb", ["cancel", "run_now"])
def test_an_operation_counts_nothing_by_what_is_masked(jobs, staff, verb):
    told = set()
    for pin in PINS:
        operation = begin(verb, selection={"text": f"arg:pin={pin}"}, seconds=3600)
        work()
        operation.refresh_from_db()
        told.add((operation.stage, operation.expected, operation.seen, json.dumps(operation.counts), operation.last == operation.upto))
    assert len(told) == 1


@pytest.mark.parametrize("words", [("list",), ("list", "--json"), ("list", "--state", "failed"), ("status",)])
def test_what_is_masked_changes_no_byte_of_a_list_that_a_command_prints(jobs, run, words):
    _compare(lambda: run(*words).out)


@pytest.mark.parametrize("words", [(), ("--json",)])
def test_what_is_masked_changes_no_byte_of_what_inspect_prints(jobs, run, words):
    _compare(lambda: "\n".join(run("inspect", job.id, *words).out for job in jobs))


def _compare(look: Callable[[], str]) -> None:
    one = CLOCKS.sub("", look())
    other_world()
    assert CLOCKS.sub("", look()) == one
    assert ONE not in one
