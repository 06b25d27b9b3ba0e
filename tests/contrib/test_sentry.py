"""Jobs in Sentry, as its SDK sends them."""

from __future__ import annotations

import json
import logging
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest
from asgiref.sync import async_to_sync
from django.contrib.auth.models import User
from django.utils.module_loading import import_string

import django_delayq
from django_delayq import signals
from django_delayq.exceptions import PayloadError
from django_delayq.models import Job
from django_delayq.producer import carriers
from django_delayq.states import CARRIED
from django_delayq.worker.process import executor
from django_delayq.worker.supervisor import fork
from tests.contrib import shipping

sentry_sdk = pytest.importorskip("sentry_sdk", reason="sentry_sdk is not installed")
DelayqIntegration = import_string("django_delayq.contrib.sentry.DelayqIntegration")
WATCHER_NAME = "django_delayq.sentry"
SHIP = "tests.contrib.shipping.ship"


def propagated_context(job):
    return Job.objects.get(pk=job.id).options.get("meta", {}).get(CARRIED, {}).get(WATCHER_NAME)


def trace(transaction):
    return transaction["contexts"]["trace"]


def status(span):
    return span.get("status") or span["tags"]["status"]  # the latter in older releases


def kinds(event):
    return [value["type"] for value in event["exception"]["values"]]


# spans


def test_a_schedule_is_a_span_and_its_run_a_transaction_of_the_same_trace(delayq, db, sentry):
    sent = sentry()
    with sentry_sdk.start_transaction(name="request") as request:
        job = shipping.ship.using(delay="3d").schedule(7)
    delayq.advance("4d")
    web, run = sent.transactions
    (span,) = web["spans"]
    assert (span["op"], span["description"], span["origin"], status(span)) == ("queue.publish", SHIP, "auto.queue.delayq", "ok")
    size = span["data"]["messaging.message.body.size"]
    expected = {
        "messaging.system": "delayq",
        "messaging.destination.name": "orders",
        "messaging.message.id": job.short_id,
        "messaging.message.body.size": size,
    }
    assert {name: value for name, value in span["data"].items() if name.startswith("messaging.")} == expected
    assert size > 100  # the arguments, and the context that travels with them
    assert propagated_context(job)["sentry-trace"] == f"{request.trace_id}-{span['span_id']}-1"
    assert (run["transaction"], run["transaction_info"]["source"]) == (SHIP, "task")
    assert trace(run)["op"] == "queue.process"
    assert trace(run)["status"] == "ok"
    assert trace(run)["trace_id"] == request.trace_id
    assert trace(run)["parent_span_id"] == span["span_id"]
    data = trace(run)["data"]
    assert data["messaging.message.id"] == job.short_id
    assert data["messaging.destination.name"] == "orders"
    assert data["messaging.message.retry.count"] == 0
    assert data["messaging.message.receive.latency"] >= 0
    assert run["tags"] == {"delayq.task": SHIP, "delayq.queue": "orders", "delayq.job": job.short_id}


def test_many_jobs_are_one_span_with_their_count(delayq, db, sentry):
    sent = sentry()
    with sentry_sdk.start_transaction(name="request"):
        django_delayq.schedule_many(shipping.ship.bind(n) for n in range(3))
    delayq.run_due()
    web, *runs = sent.transactions
    (span,) = web["spans"]
    assert span["data"]["messaging.batch.message_count"] == 3
    assert span["data"]["messaging.destination.name"] == "orders"
    assert {trace(run)["parent_span_id"] for run in runs} == {span["span_id"]}
    assert len(runs) == 3


def test_a_schedule_that_is_refused_says_so(delayq, db, sentry):
    sent = sentry()
    with sentry_sdk.start_transaction(name="request"), pytest.raises(django_delayq.PayloadError):
        shipping.ship.schedule({1})
    assert status(sent.transactions[0]["spans"][0]) == "internal_error"


def test_without_tracing_the_trace_goes_on_and_there_are_errors_only(delayq, db, sentry):
    sent = sentry(traces_sample_rate=None)
    job = shipping.lose_later.schedule(1)
    delayq.run_due()
    assert sent.transactions == []
    assert trace(sent.errors[0])["trace_id"] == propagated_context(job)["sentry-trace"][:32]


def test_a_task_of_django_has_one_publish_span(delayq, db, sentry):
    from tests.contrib import mail

    sent = sentry()
    with sentry_sdk.start_transaction(name="request"):
        result = mail.send.enqueue(1)
    assert [(span["op"], span["data"]["messaging.message.id"]) for span in sent.transactions[0]["spans"]] == [
        ("queue.publish", result.id)
    ]


def test_spans_may_be_streamed(delayq, db, sentry):
    if not hasattr(sentry_sdk, "traces"):
        pytest.skip("this SDK does not stream spans")
    sent = sentry(trace_lifecycle="stream")
    with sentry_sdk.traces.start_span(name="request"):
        shipping.ship.schedule(1)
        shipping.lose.schedule(2)
    delayq.run_due()
    sentry_sdk.flush()
    found = [span for payload in sent.of("span") for span in payload["items"]]
    by_op = {}
    for span in found:
        op = span["attributes"].get("sentry.op", {}).get("value")
        by_op.setdefault(op, []).append(span)
    assert len(by_op["queue.publish"]) == 2
    published = {span["attributes"]["messaging.message.id"]["value"]: span for span in by_op["queue.publish"]}
    for span in by_op["queue.process"]:
        sender = published[span["attributes"]["messaging.message.id"]["value"]]
        assert (span["trace_id"], span["parent_span_id"]) == (sender["trace_id"], sender["span_id"])
    assert sorted(span["status"] for span in by_op["queue.process"]) == ["error", "ok"]
    assert sent.transactions == []


def test_what_a_run_schedules_is_part_of_its_trace(delayq, db, sentry, looks):
    sent = sentry()
    looks.append(lambda: shipping.tell.schedule("x"))
    shipping.ship.schedule(1)
    delayq.run_due()
    first, second = sent.transactions
    assert trace(second)["parent_span_id"] == first["spans"][0]["span_id"]


def test_the_span_of_aschedule_is_under_that_of_its_caller(delayq, transactional_db, sentry):
    sent = sentry()

    async def request():
        with sentry_sdk.start_transaction(name="request"):
            await shipping.ship.aschedule(1)

    async_to_sync(request)()  # in this thread: a new thread would keep its database connection
    assert [span["op"] for span in sent.transactions[0]["spans"]] == ["queue.publish"]


# errors


@pytest.mark.parametrize("name", ["lose", "lose_later"])
def test_an_error_is_reported_once_when_the_job_has_failed(delayq, db, sentry, name):
    sent = sentry()
    job = getattr(shipping, name).schedule(5)
    delayq.advance("2h")
    (event,) = sent.errors
    assert kinds(event) == ["Lost"]
    assert event["level"] == "error"
    mechanism = event["exception"]["values"][0]["mechanism"]
    assert (mechanism["type"], mechanism["handled"]) == ("delayq", False)
    assert event["tags"]["delayq.job"] == job.short_id
    context = event["contexts"]["delayq"]
    attempts = 2 if name == "lose" else 1
    assert (context["job"], context["attempt"], context["max_attempts"]) == (job.short_id, attempts, attempts)
    assert [trace(run)["status"] for run in sent.transactions] == ["internal_error"] * attempts
    assert trace(event)["span_id"] == trace(sent.transactions[-1])["span_id"]


def test_attempts_that_are_retried_are_reported_as_warnings_if_wanted(delayq, db, sentry):
    sent = sentry({"report_retried": True})
    shipping.lose.schedule(5)
    delayq.advance("2h")
    assert [(event["level"], event["contexts"]["delayq"]["attempt"]) for event in sent.errors] == [("warning", 1), ("error", 2)]
    assert [event["exception"]["values"][0]["mechanism"]["handled"] for event in sent.errors] == [True, False]


@pytest.mark.parametrize(
    ("name", "status"), [("retry", "aborted"), ("snooze", "aborted"), ("ask", "aborted"), ("give_up", "cancelled"), ("fail", "aborted")]
)
def test_an_end_that_the_task_has_chosen_is_no_error(delayq, db, sentry, name, status):
    sent = sentry({"report_retried": True})
    getattr(shipping, name).schedule()
    delayq.run_due()
    assert sent.errors == []
    wanted = "internal_error" if name == "fail" else status
    assert trace(sent.transactions[0])["status"] == wanted


def test_who_gives_up_asking_is_reported_once(delayq, db, sentry):
    sent = sentry({})
    shipping.ask.schedule()
    delayq.advance("1h")
    [event] = sent.errors
    assert event["exception"]["values"][-1]["type"] == "GaveUp"


def test_fail_is_an_error_if_wanted(delayq, db, sentry):
    sent = sentry({"report_fail": True})
    shipping.fail.schedule()
    delayq.run_due()
    assert [kinds(event) for event in sent.errors] == [["Fail"]]


@pytest.mark.parametrize(("cause", "told"), [("", "Retry"), ("a flat tyre", "Lost")])
def test_a_retry_on_the_last_attempt_is_reported_by_its_cause(delayq, db, sentry, cause, told):
    sent = sentry()
    shipping.retry.schedule(cause)
    delayq.advance("2h")
    assert [kinds(event) for event in sent.errors] == [[told]]


@pytest.fixture
def lines():
    """The levels of the log's lines about ends of runs."""
    found = []
    handler = logging.Handler()
    handler.emit = lambda record: found.append(record.levelname)
    logger = logging.getLogger("django_delayq.worker.job")
    logger.addHandler(handler)
    yield found
    logger.removeHandler(handler)


def test_the_log_line_about_a_failure_is_no_second_event(delayq, db, sentry, lines):
    sent = sentry()
    shipping.lose_later.schedule(1)
    delayq.run_due()
    assert lines == ["ERROR"]
    assert [kinds(event) for event in sent.errors] == [["Lost"]]


def test_of_poison_the_log_line_is_the_event(delayq, db, sentry, lines, monkeypatch):
    def unreadable(record):
        raise PayloadError("garbage")

    sent = sentry()
    job = shipping.ship.schedule(1)
    monkeypatch.setattr(executor, "read", unreadable)
    delayq.run_due()
    assert lines == ["ERROR"]
    (event,) = sent.errors
    assert event["logger"] == "django_delayq.worker.job"
    assert job.short_id in json.dumps(event)
    assert sent.transactions == []


def test_what_a_task_reports_itself_is_about_its_job(delayq, db, sentry, looks):
    sent = sentry()
    looks.append(lambda: sentry_sdk.capture_message("odd parcel"))
    job = shipping.ship.schedule(1)
    delayq.run_due()
    (event,) = sent.errors
    assert event["tags"]["delayq.job"] == job.short_id
    assert trace(event)["trace_id"] == trace(sent.transactions[0])["trace_id"]


@pytest.mark.parametrize("task", [shipping.ship, shipping.ship_later])
def test_a_run_has_a_scope_of_its_own(delayq, db, sentry, looks, task):
    sent = sentry()
    before = sentry_sdk.get_isolation_scope(), sentry_sdk.get_current_scope()
    sentry_sdk.add_breadcrumb(message="outside")

    def look():
        sentry_sdk.set_tag("parcel", "heavy")
        sentry_sdk.add_breadcrumb(message="inside")
        return sentry_sdk.get_isolation_scope()

    looks.append(look)
    task.schedule(1)
    delayq.run_due()
    assert shipping.SEEN[0] is not before[0]
    assert (sentry_sdk.get_isolation_scope(), sentry_sdk.get_current_scope()) == before
    assert sent.transactions[0]["tags"]["parcel"] == "heavy"
    sentry_sdk.capture_message("later")
    later = sent.errors[0]
    assert "parcel" not in later.get("tags", {})
    messages = [crumb.get("message") for crumb in later["breadcrumbs"]["values"]]
    assert "inside" not in messages
    assert "outside" in messages


# what must stay hidden


def test_arguments_are_not_sent_unless_the_project_allows_it(delayq, db, sentry):
    sent = sentry()
    shipping.lose_later.schedule(5, iban="DE89370400440532013000")
    delayq.run_due()
    context = sent.errors[0]["contexts"]["delayq"]
    assert (context["args"], context["kwargs"]) == ("[Filtered]", "[Filtered]")
    assert "DE89" not in json.dumps(sent.items)


@pytest.mark.parametrize("name", ["lose", "lose_later"])
def test_what_is_sensitive_is_never_sent(delayq, db, sentry, name):
    sent = sentry({"report_retried": True}, arguments=True)
    getattr(shipping, name).schedule(5, "DE89370400440532013000")
    delayq.run_due()
    context = sent.errors[0]["contexts"]["delayq"]
    assert (context["args"], context["kwargs"]) == ([5, "***"], {})
    frames = sent.errors[0]["exception"]["values"][0]["stacktrace"]["frames"]
    own = next(frame for frame in frames if frame["function"] == name)
    assert own["vars"]["order"] == "5"
    assert own["vars"]["iban"] == "[Filtered]"
    assert all("vars" not in frame for frame in frames if frame["module"].startswith("django_delayq"))
    assert "DE89" not in json.dumps(sent.items)


def test_what_is_sensitive_is_found_by_its_value_under_another_name(delayq, db, sentry):
    sent = sentry(arguments=True)
    shipping.lose_wrapped.schedule(5, "DE89370400440532013000", "ING")
    delayq.run_due()
    frames = sent.errors[0]["exception"]["values"][0]["stacktrace"]["frames"]
    wrapper = next(frame for frame in frames if frame["function"] == "inner")
    assert wrapper["vars"] == {"args": ["[Filtered]", "'ING'"], "copied": ["[Filtered]", "'ING'"]}
    assert "DE89" not in json.dumps(sent.items)


def test_an_error_of_a_schedule_is_sent_without_what_it_was_given(delayq, db, sentry):
    sent = sentry()
    try:
        shipping.ship.schedule(5, "DE89370400440532013000", "ING")
    except PayloadError as error:
        sentry_sdk.capture_exception(error)
    frames = sent.errors[0]["exception"]["values"][0]["stacktrace"]["frames"]
    ours = [frame for frame in frames if frame["module"].startswith("django_delayq")]
    assert ours
    assert "DE89" not in json.dumps([frame.get("vars") for frame in ours])


def test_arguments_are_not_sent_as_values_of_statements(delayq, db, sentry):
    from sentry_sdk.integrations.django import DjangoIntegration

    if not hasattr(sentry_sdk, "data_collection"):
        pytest.skip("this release of the SDK sends no values of statements")
    sent = sentry(arguments=True, more=[DjangoIntegration()])
    with sentry_sdk.start_transaction(name="request"):
        list(User.objects.filter(username="somebody"))
        shipping.ship.schedule(5, "DE89370400440532013000")
        sentry_sdk.capture_message("a look")
    assert "DE89" not in json.dumps(sent.items)
    assert "somebody" in json.dumps(sent.items), "values of other statements are the project's own affair"


def test_if_the_masks_fail_no_variable_is_sent(delayq, db, sentry, monkeypatch):
    from django_delayq.contrib import sentry as integration

    def broken(task):
        raise LookupError

    monkeypatch.setattr(integration.masking, "names_of", broken)
    sent = sentry(arguments=True)
    shipping.lose_later.schedule(5, "DE89370400440532013000")
    delayq.run_due()
    frames = sent.errors[0]["exception"]["values"][0]["stacktrace"]["frames"]
    assert [frame for frame in frames if "vars" in frame] == []


# on and off


def test_without_the_integration_nothing_is_sent_nor_carried(delayq, db, sentry):
    sentry()
    sent = sentry()
    sentry_sdk.get_client().integrations.pop("delayq")
    job = shipping.lose_later.schedule(1)
    delayq.run_due()
    assert propagated_context(job) is None
    assert sent.transactions == []
    assert all("exception" not in event for event in sent.errors)


def test_set_up_twice_it_listens_once(delayq, db, sentry):
    sentry()
    sent = sentry()
    shipping.lose_later.schedule(1)
    delayq.run_due()
    assert (len(sent.errors), len(sent.transactions)) == (1, 1)
    assert len(signals.job_started.receivers) == len({receiver[0] for receiver in signals.job_started.receivers})


def test_a_run_that_began_before_is_left_alone(delayq, db, sentry, looks):
    looks.append(lambda: shipping.SEEN.append(sentry()))
    shipping.ship.schedule(1)
    assert [ran.outcome for ran in delayq.run_due()] == ["ack"]
    assert shipping.SEEN[0].transactions == []


@pytest.mark.parametrize("carried", [5, [], {"sentry-trace": 7}, {"sentry-trace": "x", "baggage": "="}])
def test_a_propagated_context_of_another_shape_begins_a_trace(delayq, db, sentry, monkeypatch, carried):
    sent = sentry()
    monkeypatch.setattr(carriers.watchers[WATCHER_NAME], "pack", lambda: carried)
    assert propagated_context(shipping.ship.schedule(1)) == carried
    delayq.run_due()
    assert len(sent.transactions) == 1
    assert trace(sent.transactions[0]).get("parent_span_id") is None


def test_a_schedule_outside_of_any_transaction_begins_a_trace_for_its_run(delayq, db, sentry):
    sent = sentry()
    job = shipping.ship.schedule(1)
    delayq.run_due()
    (run,) = sent.transactions
    assert trace(run)["trace_id"] == propagated_context(job)["sentry-trace"][:32]


def test_both_may_trace(delayq, db, sentry, exported):
    sent = sentry()
    job = shipping.ship.schedule(1)
    delayq.run_due()
    carried = Job.objects.get(pk=job.id).options["meta"][CARRIED]
    assert set(carried) == {"django_delayq.otel", WATCHER_NAME}
    assert len(sent.transactions) == len(exported.of("process")) == 1


# forks


class Collector(BaseHTTPRequestHandler):
    """Receives events, and keeps the connection open."""

    protocol_version = "HTTP/1.1"

    def do_POST(self):
        self.rfile.read(int(self.headers["Content-Length"]))
        self.send_response(200)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, *_):
        """Logs nothing."""


def test_the_idle_connections_to_sentry_are_closed_before_a_fork(sentry):
    """The client uses a connection from its pool. Without the close, two processes would share that connection."""
    with ThreadingHTTPServer(("127.0.0.1", 0), Collector) as collector:
        threading.Thread(target=collector.serve_forever, daemon=True).start()
        sentry()
        sentry_sdk.init(
            dsn=f"http://key@127.0.0.1:{collector.server_port}/1", default_integrations=False, integrations=[DelayqIntegration()]
        )
        sentry_sdk.capture_message("an error of the supervisor")
        sentry_sdk.flush(30)
        line = f"to 127.0.0.1:{collector.server_port}"
        assert line in fork.described()
        signals.before_fork.send(sender=None, worker="w", process="task-1")
        assert line not in fork.described()
        sentry_sdk.capture_message("another one")  # it connects again
        sentry_sdk.flush(30)
        collector.shutdown()
