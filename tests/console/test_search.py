"""The words of a search, the jobs that they find, and the error for an unknown word."""

from __future__ import annotations

from datetime import timedelta

import pytest
from django.core.management import CommandError, call_command

import django_delayq as delayq
from django_delayq import clock, ids
from django_delayq.console import keyset, search_parser
from django_delayq.console.selection import Selection
from django_delayq.models import Attempt, Job
from django_delayq.states import DELIVERY, OFFER
from tests.admin.conftest import JOBS, QUEUES, lose_redis
from tests.admin.test_dashboard import vital
from tests.tasks_for_tests import close_order

TASK = "tests.tasks_for_tests.close_order"


def found(text: str, **parts: str) -> list[int]:
    """Returns the first arguments of the matching jobs."""
    selection = Selection(text=text, **parts)
    assert not selection.search.complaints
    jobs = [job for job in selection.rows(Job.objects.all()) if selection.search.exact(job)]
    return sorted(job.args[0] if job.args else job.kwargs["order_id"] for job in jobs)


def test_every_word_finds_what_it_names(orders):
    one = delayq.schedule(close_order, 1, key="close-order:1", delay="1h")
    delayq.schedule(close_order, 2, key="close order 2", delay="3h")
    delayq.schedule(close_order, 3, delay="5h")
    orders.fold()
    Job.objects.filter(pk=one.id).update(error="TimeoutError: No Answer", fingerprint="abc")
    for text, numbers in {
        f"id:{one.id}": [1],
        f"id:{ids.short(one.id)}": [1],
        "key:close-order:1": [1],
        'key:"close order 2"': [2],
        "key:close*": [1, 2],
        "key:close": [],
        f"task:{TASK}": [1, 2, 3],
        "task:close_or": [1, 2, 3],
        "task:nothing": [],
        "queue:orders state:scheduled": [1, 2, 3],
        "queue:default": [],
        "state:failed": [],
        "error:answer": [1],
        "fingerprint:abc": [1],
        "before:+2h": [1],
        "after:+2h": [2, 3],
        "after:+2h before:+4h": [2],
        "after:2020-01-01": [1, 2, 3],
        'before:"2020-01-01 18:30"': [],
        "close-order:1": [1],
        "close-order:1 state:scheduled": [1],
    }.items():
        assert found(text) == numbers, text


def placed(task: str, number: int, **kwargs) -> None:
    now = clock.now()
    Job.objects.create(
        queue="orders", task=task, args=[number], kwargs=kwargs, state="failed", run_at=now, created_at=now, published=now
    )


def test_deliveries_are_found_by_host_and_offers_by_target(orders, settings):
    placed(DELIVERY, 1, url="https://Partner.example:8443/a", host="partner.example")
    placed(DELIVERY, 2, url="http://[::1]/", host="::1")
    placed(OFFER, 3, to="shipping")
    placed(TASK, 4, host="partner.example", to="shipping")
    for text, numbers in {
        "host:partner.example": [1],
        "host:Partner.Example:8443": [1],
        "host:[::1]:80": [2],
        "host:::1": [2],
        "host:partner": [],
        "host:shipping": [],
        "target:shipping state:failed": [3],
        "target:ship": [],
        "target:shipping state:scheduled": [],
        "target:shipping host:partner.example": [],
    }.items():
        assert found(text) == numbers, text
        page = keyset.page(Selection(text=text), Job.objects.all(), 50)
        assert sorted(job.args[0] for job in page.jobs) == numbers, text
    settings.DELAYQ = {**settings.DELAYQ, "SENSITIVE": ["host"]}
    assert found("host:partner.example") == []
    assert found("host:***") == []


def test_arguments_are_found_by_name_wherever_they_stand_and_only_when_they_are_equal(orders):
    delayq.schedule(close_order, 7, delay="1h")
    delayq.schedule(close_order, 77, note="7", delay="1h")
    delayq.schedule(close_order, order_id=77, note='say "7"', delay="1h")
    delayq.schedule(close_order, 8, note="order_id", delay="1h")
    orders.fold()
    assert found("arg:order_id=7") == [7]
    assert found("arg:order_id=77") == [77, 77]
    assert found("arg:note=7") == [77]
    assert found('arg:note="7"') == [77]
    assert found("arg:order_id=77 arg:note=7") == [77]
    assert found("arg:note=order_id") == [8]
    assert found("arg:order_id=true") == []


def test_jobs_that_ask_are_found_as_long_as_they_have_not_ended(orders):
    jobs = [delayq.schedule(close_order, number, delay="1h") for number in range(5)]
    orders.fold()
    asked = {0: ("scheduled", 2), 1: ("running", 1), 2: ("failed", 9), 3: ("scheduled", 0)}
    for number, (state, times) in asked.items():
        Job.objects.filter(pk=jobs[number].id).update(state=state, asked=times)
    assert found("is:asking") == [0, 1]
    assert found("is:Asking state:scheduled") == [0]
    assert found("is:asking", view="running") == [1]
    assert not Selection(text="is:asking").indexed, "no index leads to them"


def test_the_jobs_that_a_dead_worker_held_are_found(orders):
    jobs = [delayq.schedule(close_order, number) for number in range(4)]
    orders.fold()
    for number, worker in ((0, "vm-2:9"), (1, "vm-1:7"), (2, "vm-2:9")):
        Job.objects.filter(pk=jobs[number].id).update(worker=worker, crashes=number)
    for number, worker, outcome in ((1, "vm-1:6", "crashed"), (2, "vm-1:7", "crashed"), (3, "vm-1:7", "failed")):
        Attempt.objects.create(
            job_id=jobs[number].id, number=1, fence=f"f{number}", worker=worker, started_at=clock.now(), outcome=outcome
        )
    assert found("worker:vm-1:7") == [1, 2]
    assert found('is:crashed worker:"vm-1:7"') == [1, 2]
    assert found("is:crashed") == [1, 2]
    assert found("worker:vm-1:7 arg:order_id=2") == [2], "also where each row is looked at"
    assert found("-worker:vm-1:7") == [0, 3]


def test_jobs_that_wait_for_their_name_are_found_as_long_as_they_do(orders):
    named = close_order.using(serial="shop")
    for number in range(4):
        named.schedule(number)
    close_order.schedule(9)
    orders.fold()
    assert found("is:blocked") == []
    first = orders.claim(want=5)
    assert len(first) == 2
    assert found("is:blocked") == [1, 2, 3]
    assert found("is:Blocked task:close_order state:due") == [1, 2, 3]
    assert found("is:blocked queue:mail") == []
    assert Selection(text="is:blocked").indexed, "Redis says which they are"


def test_who_is_blocked_cannot_be_said_without_redis(orders, settings):
    lose_redis(settings)
    selection = Selection(text="is:blocked")
    assert "Redis cannot be reached" in selection.search.complaints[0]
    assert not selection.rows(Job.objects.all()).exists()


def test_what_is_masked_cannot_be_searched_for(orders, settings):
    settings.DELAYQ = {**settings.DELAYQ, "SENSITIVE": ["note"]}
    delayq.schedule(close_order, 7, note="secret", delay="1h")
    orders.fold()
    assert found("arg:note=secret") == []
    assert found("arg:order_id=7") == [7]


def test_large_numbers_are_compared_exactly(orders):
    large = 2**63 + 1
    delayq.schedule(close_order, large, delay="1h")
    orders.fold()
    assert found(f"arg:order_id={large}") == [large]
    assert found(f"arg:order_id={large - 1}") == []


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("stat:failed", "Did you mean state:?"),
        ("tasks:close_order", "Did you mean task:?"),
        ("state:failed colour:red", "Unknown search term colour:"),
        ("state:broken", "possible states: scheduled"),
        ("id:7", "an id has 22 letters and digits"),
        ("arg:order_id", "arg:order_id=77"),
        ("is:waiting", "possible values: asking, blocked, crashed"),
        ("is:asking is:asking", "is: can be used only once"),
        ("after:soon", "two hours ago"),
        ("before:2026-13-45", "two hours ago"),
        ("after:-9999999999d", "two hours ago"),
        ("state:failed state:running", "state: can be used only once"),
        ('error:""', "error: needs a value"),
        ('task:""', "task: needs a value"),
        ('key:" "', "key: needs a value"),
        ('state:scheduled ""', "needs a value"),
        ('queue:"orders"colour:red', "Unknown search term colour:"),
        ("x" * 1001, "longer than 1000"),
        ("order\x00", "a character that no job can contain"),
        ("state:failed OR key:a\x00*", "a character that no job can contain"),
        ('error:"no \x00 answer"', "a character that no job can contain"),
    ],
)
def test_what_cannot_be_understood_is_said_and_finds_nothing(orders, staff, text, complaint):
    orders.scheduled()
    response = staff().get(JOBS, {"q": text})
    assert complaint in response.content.decode()
    assert list(response.context["cl"].result_list) == []


@pytest.mark.parametrize("text", ["order\x00", "order\udcff"])
def test_what_no_database_takes_is_said_on_a_command_line_too(orders, text):
    with pytest.raises(CommandError, match="a character that no job can contain"):
        call_command("delayq", "list", text)


def test_a_key_with_a_colon_is_a_key_and_no_word(orders):
    delayq.schedule(close_order, 1, key="client:9", delay="1h")
    orders.fold()
    assert found("client:9") == [1]
    assert search_parser.parse("client:9").complaints == ()


def test_a_view_and_the_words_hold_together(orders):
    orders.scheduled(2)
    assert found("queue:orders", view="scheduled") == [0, 1]
    assert found("state:scheduled", view="failed") == []


def test_dates_are_meant_in_the_time_zone_of_the_admin(orders, settings):
    settings.TIME_ZONE = "Asia/Tokyo"
    delayq.schedule(close_order, 1, run_at=clock.from_ms(1_900_000_000_000))  # 2030-03-17 17:46:40 UTC, the 18th there
    orders.fold()
    assert found("after:2030-03-18") == [1]
    assert found("after:2030-03-19") == []
    assert found("before:2030-03-18") == []


@pytest.mark.parametrize(
    ("parts", "indexed"),
    [
        ({}, True),
        ({"view": "failed"}, True),
        ({"view": "failed", "queue": "orders"}, True),
        ({"task": TASK}, True),
        ({"view": "scheduled", "text": "after:+1h"}, True),
        ({"text": "state:failed task:close"}, True),
        ({"text": "key:a"}, True),
        ({"text": "after:+1h"}, False),
        ({"queue": "orders", "task": TASK}, False),
        ({"view": "retrying", "queue": "orders"}, False),
        ({"view": "failed", "text": "fingerprint:a"}, True),
        ({"view": "failed", "text": "fingerprint:a after:-1h"}, False),
        ({"text": "fingerprint:a"}, False),
        ({"text": "error:x"}, False),
        ({"view": "failed", "text": "arg:a=1"}, False),
    ],
)
def test_it_is_known_what_an_index_serves(parts, indexed):
    assert Selection(**parts).indexed == indexed


def test_what_was_just_due_is_due(orders):
    [job] = orders.scheduled(1, delay=0)
    assert found("state:due") == [0]
    Job.objects.filter(pk=job.id).update(run_at=clock.now() + timedelta(minutes=1))
    assert found("state:due") == []


@pytest.mark.parametrize("zone", ["America/New_York", "Asia/Tokyo"])
@pytest.mark.parametrize("word", ["after", "before"])
@pytest.mark.parametrize("date", ["0001-01-01", '"9999-12-31 23:00"', "9999-12-31"])
def test_a_date_at_the_end_of_time_ends_no_page(orders, staff, settings, zone, word, date):
    settings.TIME_ZONE = zone
    response = staff().get(JOBS, {"q": f"{word}:{date}"})
    assert response.status_code == 200
    assert list(response.context["cl"].result_list) == []


@pytest.mark.parametrize("value", ["[" * 940, "[" * 51, '{"a":' * 60, "[" * 51 + "]" * 51])
def test_a_value_nested_too_deep_is_said_and_no_error_of_the_site(orders, staff, value):
    orders.scheduled()
    response = staff().get(JOBS, {"q": f"arg:x={value}"})
    assert response.status_code == 200
    assert "at most 50 brackets" in response.content.decode()
    assert list(response.context["cl"].result_list) == []


def test_a_value_with_some_brackets_is_found(orders):
    delayq.schedule(close_order, 7, note=[[1], {"a": [2]}], delay="1h")
    orders.fold()
    assert found('arg:note=[[1],{"a":[2]}]') == [7]


def test_no_argument_of_a_task_that_is_not_here_is_searched_for(orders):
    delayq.schedule(close_order, 7, note="open", delay="1h")
    orders.fold()
    assert found("arg:note=open") == [7]
    Job.objects.update(task="shop.gone")
    assert found("arg:note=open") == []


def test_arguments_are_found_among_many_jobs_page_by_page(orders, monkeypatch):
    monkeypatch.setattr(keyset, "WINDOW", 12)
    monkeypatch.setattr(keyset, "STEP", 5)
    for number in range(30):
        delayq.schedule(close_order, number, note="odd" if number % 2 else "even", delay="1h")
    orders.fold()
    wanted, numbers, after = Selection(text="arg:note=odd"), [], ""
    for _ in range(12):
        page = keyset.page(wanted, Job.objects.all(), 4, after=after)
        assert len(page.jobs) <= 4
        numbers += [job.args[0] for job in page.jobs]
        after = page.after
        if not after:
            break
    assert numbers == list(range(29, 0, -2))
    back = keyset.page(wanted, Job.objects.all(), 4, before=keyset.written(("-id",), (page.jobs[-1].pk,)))
    assert [job.args[0] for job in back.jobs] == [9, 7, 5, 3]


@pytest.mark.parametrize(("text", "counted"), [("key:a*", 3), ("key:a* arg:order_id=1", 1), ("arg:order_id=1", None)])
def test_a_count_is_exact_or_there_is_none(orders, text, counted):
    for number, key in enumerate(("ab", "abc", "a", "A", "b")):
        delayq.schedule(close_order, number, key=key, delay="1h")
    orders.fold()
    assert keyset.count_up_to(Selection(text=text), Job.objects.all(), 100) == counted


@pytest.fixture
def parked(orders) -> delayq.Job:
    delayq.schedule(close_order, 1, delay="1h")
    return orders.parked("parked-task")


def test_a_parked_job_is_listed_as_parked_and_not_as_plain_scheduled(parked, staff, run):
    client = staff()
    listed = client.get(f"{JOBS}?state=parked").content.decode()
    assert parked.short_id in listed
    assert "the worker says why" in listed
    assert Job.objects.get(pk=parked.id).derived == "parked"
    assert parked.short_id in client.get(f"{JOBS}?q=state:parked").content.decode()
    assert ">Parked" in client.get(JOBS).content.decode()
    [row] = run("list", "--state", "parked", "--json").json
    assert (row["id"], row["derived"]) == (parked.short_id, "parked")


def test_the_dashboard_and_status_count_it_and_lead_to_the_list(parked, staff, run):
    text = staff().get(QUEUES).content.decode()
    assert vital(text, "parked") == ("late", "1")
    assert "state=parked" in text
    assert run("status", "--json").json["parked"] == 1
    assert "Parked jobs: 1. For the reason, run manage.py delayq doctor." in run("status").out


def test_where_none_is_parked_neither_the_sign_nor_the_view_is_shown(orders, staff, run):
    client = staff()
    assert "parked" not in client.get(QUEUES).content.decode()
    assert ">Parked" not in client.get(JOBS).content.decode()
    assert run("status", "--json").json["parked"] == 0


def test_a_job_that_runs_again_is_no_longer_parked(parked, orders, run):
    delayq.reschedule(parked, delay="0s")
    orders.claim()
    orders.fold()
    row = Job.objects.get(pk=parked.id)
    assert (row.derived, row.fingerprint, row.error) == ("running", "", "")
