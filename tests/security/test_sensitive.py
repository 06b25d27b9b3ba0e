"""Sensitive arguments are masked wherever people look, and no argument at all appears in a log."""

from __future__ import annotations

import logging

import pytest

import django_delayq as delayq
from django_delayq import clock
from django_delayq.console import masking
from django_delayq.exceptions import ConfigError
from django_delayq.models import Attempt, Job
from django_delayq.producer.task import Registry, Task
from tests.admin.conftest import JOBS, OPERATIONS, choose, page, staff
from tests.mirror.conftest import Orders
from tests.tasks_for_tests import close_order, ping
from tests.worker.bench import Bench, task

__all__ = ["staff"]
SECRET = "DE89370400440532013000"


@pytest.fixture
def payouts(monkeypatch):
    """Registers functions as tasks for one test: `payouts(fn, sensitive=["iban"])`."""
    registry = Registry()
    monkeypatch.setattr(masking, "registry", registry)

    def register(fn, **options) -> str:
        made = Task(fn, name=fn.__name__, queue="orders", priority=0, max_attempts=None, backoff=None, timeout=None, **options)
        registry.add(made)
        return made.name

    return register


def test_a_task_names_its_sensitive_parameters(payouts):
    def pay(order, iban, *, token=""): ...

    name = payouts(pay, sensitive=["iban", "token"])
    assert masking.arguments(name, [1, SECRET], {"token": SECRET}) == ([1, "***"], {"token": "***"})
    assert masking.arguments(name, [1], {"iban": SECRET}) == ([1], {"iban": "***"})


def test_positional_arguments_of_another_version_are_all_masked(payouts):
    def pay(order, iban): ...

    name = payouts(pay, sensitive=["iban"], version=2, upgrade={1: lambda iban, order: {}})
    assert masking.arguments(name, [SECRET, 7], {}, version=1) == (["***"] * 2, {})
    assert masking.arguments(name, [SECRET, 7], {}) == (["***"] * 2, {}), "the version is not known"
    assert masking.arguments(name, [7, SECRET], {}, version=2) == ([7, "***"], {})
    assert masking.arguments(name, [7, SECRET], {}, version=masking.UPGRADED) == ([7, "***"], {})
    assert masking.arguments(name, [], {"order": 7, "iban": SECRET}) == ([], {"order": 7, "iban": "***"})
    assert masking.by_name(name, [SECRET, 7], {}, version=1) == [("", SECRET), ("", 7)]
    assert masking.by_name(name, [7, SECRET], {}, version=2) == [("order", 7), ("iban", SECRET)]


def test_what_lies_deeper_is_masked_too(payouts, settings):
    settings.DELAYQ = {**settings.DELAYQ, "SENSITIVE": ["iban"]}

    def pay(order, accounts): ...

    name = payouts(pay)
    given = [{"order": 1, "to": [{"iban": SECRET, "sum": 5}]}, []]
    assert masking.arguments(name, given, {}) == ([{"order": 1, "to": [{"iban": "***", "sum": 5}]}, []], {})


def test_all_that_a_star_takes_is_called_by_its_name(payouts):
    def pay(order, *ibans, note="", **tokens): ...

    name = payouts(pay, sensitive=["ibans", "tokens"])
    masked = masking.arguments(name, [1, SECRET, SECRET], {"note": "n", "a": SECRET, "b": SECRET})
    assert masked == ([1, "***", "***"], {"note": "n", "a": "***", "b": "***"})


def test_a_name_of_a_keyword_only_parameter_masks_no_positional_one(payouts):
    def pay(order, *rest, iban=""): ...

    assert masking.arguments(payouts(pay, sensitive=["iban"]), [1, 2, 3], {}) == ([1, 2, 3], {})


def test_of_a_task_that_is_gone_everything_is_masked(payouts):
    def pay(iban): ...

    assert masking.arguments("gone", [1], {"a": 2}) == ([1], {"a": 2})
    payouts(pay, sensitive=["iban"])
    assert masking.arguments("gone", [1], {"a": 2}) == (["***"], {"a": "***"})


def test_where_the_task_takes_other_arguments_than_the_job_has_all_are_masked(payouts):
    def pay(iban): ...

    name = payouts(pay, sensitive=["iban"])
    assert masking.arguments(name, [1, SECRET], {}) == (["***", "***"], {})  # from a release with pay(order, iban)
    assert masking.arguments(name, [], {"iban": SECRET, "order": 1}) == ([], {"iban": "***", "order": "***"})


def test_a_name_that_is_no_parameter_is_refused():
    with pytest.raises(ConfigError, match="did you mean 'iban'"):

        @delayq.task(name="pay", sensitive=["ibam"])
        def pay(iban): ...

    with pytest.raises(ConfigError, match="a list of parameters"):
        delayq.task(name="pay", sensitive="iban")(pay_plain)


def pay_plain(iban): ...


# where people look


@pytest.fixture
def secret_job(orders, settings) -> delayq.Job:
    settings.DELAYQ = {**settings.DELAYQ, "SENSITIVE": ["note"]}
    job = delayq.schedule(close_order, 1, note=SECRET, meta={"note": SECRET, "who": "shop"})
    [claimed] = orders.claim()
    orders.settle(claimed, "ack", detail=f'{{"r":{{"note":"{SECRET}","ok":1}}}}'.encode())
    orders.fold()
    assert Job.objects.get().kwargs == {"note": SECRET}
    return job


def test_the_job_page_masks_unless_one_may_see(secret_job, staff):
    masked = staff("view_job").get(page(secret_job)).content.decode()
    assert SECRET not in masked
    assert masked.count("***") == 3
    assert staff("view_job", "view_sensitive").get(page(secret_job)).content.decode().count(SECRET) == 3


@pytest.mark.parametrize("sensitive", [(), ("view_sensitive",)])
def test_the_permission_decides_on_every_page_with_jobs(secret_job, staff, sensitive):
    client = staff("view_job", "view_operation", "start_operation", "requeue_job", "export_job", *sensitive)
    Job.objects.update(state="failed")
    start = f"{OPERATIONS}start/requeue/?q={close_order.name}"
    answers = {
        "list": client.get(JOBS),
        "search": client.get(JOBS, {"q": secret_job.short_id}),
        "question": choose(client, "requeue", [secret_job]),
        "preview": client.get(start),
        "operation": client.post(start, {}, follow=True),
    }
    texts = {name: answer.content.decode() for name, answer in answers.items()}
    texts["export"] = client.post(f"{JOBS}export/", {"kind": "json"}).getvalue().decode()
    assert {name: (SECRET in text, "***" in text) for name, text in texts.items()} == dict.fromkeys(
        texts, (bool(sensitive), not sensitive)
    )


def test_inspect_masks_the_problem_of_a_run(secret_job, run, settings):
    Attempt.objects.create(
        job_id=secret_job.id, number=2, started_at=clock.now(), outcome="retried", problem={"code": "http", "fields": {"note": SECRET}}
    )
    assert run("inspect", secret_job.id, "--json").json["attempts"][-1]["problem"] == {"code": "http", "fields": {"note": "***"}}


@pytest.mark.parametrize("words", [("inspect",), ("inspect", "--json"), ("list",), ("list", "--json")])
def test_commands_mask(secret_job, run, words):
    job = [secret_job.id] if words[0] == "inspect" else []
    said = run(words[0], *job, *words[1:]).out
    assert SECRET not in said
    assert "***" in said or words == ("list",)


# logs


@pytest.fixture
def everything_logged(caplog):
    """Returns all log output of the package, at every level."""
    caplog.set_level(logging.DEBUG, logger="django_delayq")
    return caplog


def shown(caplog) -> str:
    formatter = logging.Formatter("%(message)s")
    return "\n".join(f"{formatter.format(record)} {vars(record)}" for record in caplog.records)


def test_no_argument_comes_into_a_log_of_the_worker(redis_server, everything_logged):
    bench = Bench(redis_server.link, threads=1, rows=40)

    def well(secret): ...

    def badly(secret):
        raise ValueError("no")

    def later(secret):
        raise delayq.Snooze("1m", reason="closed")

    for fn in (well, badly, later):
        bench.tasks[fn.__name__] = task(fn)
        bench.put(fn.__name__, SECRET)
    bench.put("well", SECRET, 5)  # cannot be called with that
    bench.put("gone", SECRET)
    for payload in (f'["{SECRET}"]', f'[["{SECRET}"],{{}}', f'[["{SECRET}"],{{}},{{"x":"{SECRET}"}}]'):
        bench.put("well", payload=payload.encode())
    for _ in range(8):
        bench.run()
    bench.close()
    assert len(everything_logged.records) >= 8
    assert SECRET not in shown(everything_logged)


def test_no_argument_comes_into_a_log_of_producer_mirror_and_relay(orders, everything_logged, monkeypatch):
    monkeypatch.setattr("django_delayq.producer.outbox.rows.new_row", _refuse)
    delayq.schedule(ping, SECRET)
    Orders("redis").fold()
    monkeypatch.undo()
    job = delayq.schedule(close_order, 1, note=SECRET)
    Job.objects.filter(pk=job.id).update(key="\n")
    orders.relay.poll()
    assert everything_logged.records
    assert SECRET not in shown(everything_logged)


def _refuse(*_, **__):
    raise ValueError("this row is refused")


def test_an_error_of_an_argument_does_not_quote_it(delayq_redis, db):
    with pytest.raises(delayq.PayloadError) as refused:
        delayq.schedule(close_order, 1, note={SECRET})
    assert SECRET not in str(refused.value)
