"""`delayq schedule`, `push`, `deliver` and `offer`: jobs that projects enqueue in code, enqueued by hand."""

from __future__ import annotations

import getpass
from datetime import UTC, datetime, timedelta

import pytest

import django_delayq as delayq
from django_delayq import clock, ids
from django_delayq.models import Job
from django_delayq.producer.stores import stores
from django_delayq.states import CARRIED
from tests.management.conftest import lose_redis
from tests.tasks_for_tests import close_order

TASK = close_order.name
WHO = f"cli:{getpass.getuser()}"


@pytest.fixture
def shop(orders, settings):
    """Queues of jobs and of messages, a host to deliver to, and a target."""
    settings.DELAYQ = {
        **settings.DELAYQ,
        "QUEUES": {**settings.DELAYQ["QUEUES"], "mail": {"CONSUMER": "pull"}},
        "HTTP": {"SECRETS": {"partner": "whsec_c2VjcmV0LW9mLXRoZS1wYXJ0bmVy", "token": "abc"}},
        "TARGETS": {"shipping": {"KEY": "shipping-out", "KIND": "stream", "MAXLEN": None}},
    }
    return orders


def test_a_job_of_a_task_with_arguments_a_date_and_who_and_why(run, shop):
    answer = run("schedule", TASK, "--args", "[7]", "--kwargs", '{"note": "paid"}', "--delay", "10m", "--reason", "asked by phone")
    row = Job.objects.get()
    assert (answer.code, answer.out[:50]) == (0, f"{ids.short(row.pk)}: a job of {TASK}, due "[:50])
    assert (row.task, row.args, row.kwargs, row.queue) == (TASK, [7], {"note": "paid"}, "orders")
    assert abs(row.run_at - clock.now() - timedelta(minutes=10)) < timedelta(minutes=1)
    assert row.meta == {"scheduled_by": WHO, "scheduled_why": "asked by phone"}
    assert shop.in_redis(row.pk) == "scheduled"


@pytest.mark.parametrize("words", [("schedule", TASK, "--args", "[7]"), ("deliver", "https://partner.example/hook")])
def test_a_job_of_a_tenant_runs_as_this_tenant(run, shop, settings, words):
    settings.DELAYQ = {**settings.DELAYQ, "CARRIERS": ["tests.carriers.Tenant"], "SCOPE": "Tenant"}
    for name in ("a", "b"):
        answer = run(*words, "--key", "k", "--scope", name, "--json")
        assert (answer.json["scope"], answer.json["key"], answer.json["created"]) == (name, "k", True)
    assert {row.scope: row.options["meta"][CARRIED] for row in Job.objects.all()} == {name: {"Tenant": name} for name in ("a", "b")}


@pytest.mark.parametrize(
    ("scope", "said", "setting"),
    [("", "--scope is empty.", "Tenant"), ("a b", "the scope 'a b' holds a space", "Tenant"), ("a", "jobs have no scopes", None)],
)
def test_a_scope_that_cannot_be_one_is_refused(run, shop, settings, scope, said, setting):
    settings.DELAYQ = {**settings.DELAYQ, "CARRIERS": ["tests.carriers.Tenant"], "SCOPE": setting}
    answer = run("schedule", TASK, "--args", "[7]", "--scope", scope)
    assert (answer.code, said in answer.error) == (2, True), answer.error
    assert not Job.objects.exists()


def test_all_options_of_schedule(run, shop):
    words = ["--key", "close:7", "--queue", "default", "--priority", "-5", "--max-attempts", "3", "--backoff", "1m 2m"]
    words += ["--timeout", "45s", "--run-at", "2040-01-31T18:00:00+01:00", "--expires", "2040-02-01T18:00:00+01:00"]
    words += ["--meta", '{"batch": 7}', "--on-conflict", "replace", "--durability", "outbox"]
    answer = run("schedule", TASK, "--args", "[7]", *words, "--json")
    row = Job.objects.get()
    assert answer.json == {
        "id": ids.short(row.pk),
        "uuid": str(row.pk),
        "queue": "default",
        "task": TASK,
        "key": "close:7",
        "scope": "",
        "run_at": "2040-01-31T17:00:00+00:00",
        "created": True,
    }
    assert (row.key, row.queue, row.priority, row.max_attempts) == ("close:7", "default", -5, 3)
    assert (row.options["backoff"], row.options["timeout"]) == ("1m 2m", 45)
    assert row.run_at == datetime(2040, 1, 31, 17, tzinfo=UTC)
    assert row.meta == {"batch": 7, "scheduled_by": WHO}


def test_a_key_that_an_unfinished_job_has_puts_nothing_in_and_says_whose_it_is(run, shop):
    holder = delayq.schedule(close_order, 1, key="close:1", delay="1h")
    answer = run("schedule", TASK, "--args", "[2]", "--key", "close:1")
    assert (answer.code, answer.out) == (0, f"{holder.short_id} already has the key 'close:1'. Nothing was scheduled.\n")
    assert run("schedule", TASK, "--args", "[2]", "--key", "close:1", "--json").json["created"] is False
    refused = run("schedule", TASK, "--args", "[2]", "--key", "close:1", "--on-conflict", "error")
    assert (refused.code, holder.short_id in refused.error) == (1, True)
    assert Job.objects.count() == 1


def test_while_redis_is_away_the_row_waits_and_the_command_says_so(run, shop, settings):
    lose_redis(settings)
    answer = run("schedule", TASK, "--args", "[7]")
    assert (answer.code, "The relay will publish it" in answer.out) == (0, True)
    assert Job.objects.get().published is None


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["shop.close"], "TASK shop.close: no such task"),
        (["close_ordr"], f"did you mean '{TASK}'"),
        (["django_delayq.deliver", "--kwargs", '{"url": "http://x"}'], "manage.py delayq deliver"),
        (["django_delayq.offer"], "manage.py delayq offer"),
        ([TASK], "cannot be called with these arguments"),
        ([TASK, "--args", "7"], "--args must be a list"),
        ([TASK, "--args", "[7"], "--args: these bytes are not strict JSON"),
        ([TASK, "--args", "[NaN]"], "--args"),
        ([TASK, "--kwargs", "[]"], "--kwargs must be an object"),
        ([TASK, "--args", "[7]", "--kwargs", '{"colour": 1}'], "colour"),
        ([TASK, "--args", "[7]", "--delay", "soon"], "--delay soon"),
        ([TASK, "--args", "[7]", "--delay", "1h", "--run-at", "2040-01-31T18:00:00+01:00"], "pass delay or run_at, not both"),
        ([TASK, "--args", "[7]", "--run-at", "2040-13-31"], "use a date such as"),
        ([TASK, "--args", "[7]", "--expires", "2040-02-31"], "--expires 2040-02-31"),
        ([TASK, "--args", "[7]", "--expires", "5x"], "--expires 5x: use a duration such as 90s, 1h30m or 2d, or a date such as"),
        ([TASK, "--args", "[7]", "--expires", "1h", "--delay", "2h"], "not after the job's date"),
        ([TASK, "--args", "[7]", "--backoff", "often"], "backoff"),
        ([TASK, "--args", "[7]", "--queue", "oders"], "did you mean 'orders'"),
        ([TASK, "--args", "[7]", "--queue", "mail"], "holds messages"),
        ([TASK, "--args", "[7]", "--key", ""], "--key is empty"),
        ([TASK, "--args", "[7]", "--on-conflict", "error"], "Pass key= as well"),
        ([TASK, "--args", "[7]", "--meta", '{"scheduled_by": "me"}'], "--meta cannot contain scheduled_by"),
        ([TASK, "--args", "[7]", "--max-attempts", "0"], "Pass expires= as well"),
    ],
)
def test_what_cannot_be_is_said_and_puts_nothing_in(run, shop, words, said):
    answer = run("schedule", *words)
    assert answer.code == 2
    assert said in answer.error
    assert not Job.objects.exists()


def test_a_message_from_the_line_and_from_standard_input(run, shop):
    answer = run("push", "mail", '{"to": "anna"}', "--key", "mail:1", "--json")
    assert (answer.code, answer.json["task"], answer.json["queue"]) == (0, "django_delayq.message", "mail")
    batch = delayq.pull("mail", 5)
    assert [(message.body, message.meta) for message in batch] == [({"to": "anna"}, {"scheduled_by": WHO})]
    assert run("push", "mail", "-", typed='"from a file"').code == 0
    assert [message.body for message in delayq.pull("mail", 5)] == ["from a file"]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["mial", "1"], "did you mean 'mail'"),
        (["orders", "1"], "served by workers"),
        (["mail", "hello"], "BODY: these bytes are not strict JSON"),
        (["mail", '"x"', "--delay", "-5"], "--delay"),
    ],
)
def test_what_is_no_message_is_said_and_puts_nothing_in(run, shop, words, said):
    answer = run("push", *words)
    assert (answer.code, said in answer.error) == (2, True)
    assert not Job.objects.exists()


def test_a_delivery(run, shop):
    words = ["--body", '{"order": 7}', "--secret", "partner", "--delay", "10m", "--method", "put", "--redirects", "1"]
    words += ["--header", "X-Shop: 7", "--secret-header", "Authorization: Bearer token", "--secret-header", "X-Token: token"]
    words += ["--timeout", "20s", "--on-failure", "tests.tasks_for_tests.look_after", "--queue", "orders"]
    answer = run("deliver", "https://partner.example/hook", *words, "--reason", "again")
    assert answer.code == 0, answer.error
    row = Job.objects.get()
    assert f"{ids.short(row.pk)}: a delivery to https://partner.example/hook, due " in answer.out
    told = row.kwargs
    assert (told["url"], told["method"], told["body"], told["secret"]) == (
        "https://partner.example/hook",
        "PUT",
        '{"order":7}',
        "partner",
    )
    assert told["headers"] == {
        "X-Shop": "7",
        "Authorization": {"secret": "token", "prefix": "Bearer "},
        "X-Token": {"secret": "token"},
        "Content-Type": "application/json",
    }
    assert (told["within"], told["redirects"], told["on_failure"]) == (20, 1, "tests.tasks_for_tests.look_after")
    assert row.meta == {"scheduled_by": WHO, "scheduled_why": "again"}


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["ftp://partner.example/"], "ftp"),
        (["https://partner.example/", "--secret", "partnr"], "did you mean 'partner'"),
        (["https://partner.example/", "--header", "X-Shop"], "--header X-Shop: write 'Name: value'"),
        (["https://partner.example/", "--header", "Authorization: abc"], "cannot contain a literal value"),
        (["https://partner.example/", "--body", "1", "--data", "x"], "json or data, not both"),
        (["https://partner.example/", "--on-failure", "look_aftr"], "did you mean 'tests.tasks_for_tests.look_after'"),
        (["https://partner.example/", "--redirects", "99"], "redirects=99"),
    ],
)
def test_what_is_no_delivery_is_said_and_puts_nothing_in(run, shop, words, said):
    answer = run("deliver", *words)
    assert (answer.code, said in answer.error) == (2, True), answer.error
    assert not Job.objects.exists()


def test_an_offer(run, shop):
    answer = run("offer", "shipping", '{"order": 7}', "--delay", "2m", "--queue", "orders")
    assert (answer.code, ": an offer to shipping, due " in answer.out) == (0, True), answer.error
    row = Job.objects.get()
    assert (row.task, row.args, row.kwargs) == ("django_delayq.offer", [{"order": 7}], {"to": "shipping"})
    assert row.meta == {"scheduled_by": WHO}
    refused = run("offer", "shiping", "1")
    assert (refused.code, "did you mean 'shipping'" in refused.error) == (2, True)


def test_a_job_of_redis_durability_that_redis_does_not_take_is_an_error(run, shop, settings):
    lose_redis(settings)
    answer = run("schedule", TASK, "--args", "[7]", "--durability", "redis")
    assert (answer.code, "not available" in answer.error) == (1, True)
    assert stores.breaker.open_until
