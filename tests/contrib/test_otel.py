"""Traces and metrics of jobs, as OpenTelemetry's SDK receives them."""

from __future__ import annotations

import importlib
import sys
from importlib.metadata import EntryPoint
from threading import Event

import pytest
from asgiref.sync import async_to_sync
from django.db import transaction

import django_delayq
from django_delayq import ids, signals
from django_delayq.models import Job
from django_delayq.producer import carriers
from django_delayq.states import CARRIED
from tests.contrib import shipping

otel = pytest.importorskip("opentelemetry", reason="OpenTelemetry is not installed")
WATCHER_NAME = "django_delayq.otel"


def propagated_context(job):
    return Job.objects.get(pk=job.id).options.get("meta", {}).get(CARRIED, {}).get(WATCHER_NAME)


def key(span):
    return span.get_span_context().trace_id, span.get_span_context().span_id


def linked(span):
    return [(link.context.trace_id, link.context.span_id) for link in span.links]


def exceptions(span):
    return [event.attributes["exception.type"] for event in span.events if event.name == "exception"]


# schedule


def test_a_schedule_is_a_span_whose_context_travels_with_the_job(delayq, db, exported):
    with exported.tracer.start_as_current_span("request") as request:
        job = shipping.ship.schedule(7)
    (span,) = exported.of("send")
    assert span.name == "send orders"
    assert span.kind.name == "PRODUCER"
    assert span.parent.span_id == request.get_span_context().span_id
    assert dict(span.attributes) == {
        "messaging.system": "delayq",
        "messaging.operation.name": "send",
        "messaging.operation.type": "send",
        "messaging.destination.name": "orders",
        "messaging.message.id": job.short_id,
        "messaging.message.body.size": span.attributes["messaging.message.body.size"],
        "delayq.task": "tests.contrib.shipping.ship",
    }
    assert span.attributes["messaging.message.body.size"] > 10
    trace, own = key(span)
    packed = propagated_context(job)
    assert set(packed) == {"traceparent"}
    assert packed["traceparent"].startswith(f"00-{trace:032x}-{own:016x}-0")


def test_the_queue_of_a_span_is_that_of_the_call(delayq, db, exported):
    django_delayq.schedule(shipping.ship, 1, queue="redis")
    shipping.ship.using(queue="default").schedule(1)
    assert [span.name for span in exported.of("send")] == ["send redis", "send default"]


def test_many_jobs_are_one_span_with_their_count_and_all_of_them_link_to_it(delayq, db, exported):
    django_delayq.schedule_many(shipping.ship.bind(n) for n in range(3))
    (span,) = exported.of("send")
    assert span.name == "send orders"
    assert span.attributes["messaging.batch.message_count"] == 3
    assert span.attributes["delayq.task"] == "tests.contrib.shipping.ship"
    assert "messaging.message.id" not in span.attributes
    delayq.run_due()
    assert [linked(run) for run in exported.of("process")] == [[key(span)]] * 3


def test_many_jobs_of_several_queues_are_a_span_without_destination(delayq, db, exported):
    django_delayq.schedule_many([shipping.ship.bind(1), shipping.ship.using(queue="default").bind(2), shipping.tell.bind("x")])
    (span,) = exported.of("send")
    assert span.name == "send"
    assert "messaging.destination.name" not in span.attributes
    sent = exported.points("messaging.client.sent.messages")
    assert {point.attributes["messaging.destination.name"]: point.value for point in sent} == {"orders": 2, "default": 1}


def test_in_a_transaction_the_span_is_that_of_the_call_not_of_the_commit(delayq, db, exported):
    with transaction.atomic():
        job = shipping.ship.schedule(1)
        assert [span.attributes["messaging.message.id"] for span in exported.of("send")] == [job.short_id]
        assert job.created is None
    delayq.run_due()
    assert len(exported.of("send")) == 1
    assert linked(exported.of("process")[0]) == [key(exported.of("send")[0])]


def test_a_job_that_an_unfinished_one_has_taken_in_says_so(delayq, db, exported):
    first = django_delayq.schedule(shipping.ship, 1, key="order:1", delay="1h")
    again = django_delayq.schedule(shipping.ship, 1, key="order:1", delay="1h")
    created, merged = exported.of("send")
    assert again.id == first.id
    assert "delayq.created" not in created.attributes
    assert merged.attributes["delayq.created"] is False
    assert merged.attributes["messaging.message.id"] == first.short_id


def test_a_schedule_that_is_refused_is_an_error_of_its_span_and_of_its_caller(delayq, db, exported):
    with pytest.raises(django_delayq.PayloadError):
        shipping.ship.schedule({1, 2})
    (span,) = exported.of("send")
    assert span.status.status_code.name == "ERROR"
    assert span.attributes["error.type"] == "django_delayq.exceptions.PayloadError"
    assert exceptions(span) == ["django_delayq.exceptions.PayloadError"]
    assert exported.points("messaging.client.sent.messages") == []


def test_the_span_of_aschedule_is_under_that_of_its_caller(delayq, transactional_db, exported):
    async def request():
        with exported.tracer.start_as_current_span("request"):
            await shipping.ship.aschedule(1)
            await django_delayq.aschedule(shipping.ship, 2)
            await django_delayq.aschedule_many([shipping.ship.bind(3)])

    async_to_sync(request)()  # in this thread: a new thread would keep its database connection
    *sends, caller = exported.spans
    assert [span.parent.span_id for span in sends] == [caller.get_span_context().span_id] * 3


def test_a_task_of_django_is_traced_like_others(delayq, db, exported):
    from tests.contrib import mail

    result = mail.send.enqueue(1)
    delayq.run_due()
    (sent,), (run,) = exported.of("send"), exported.of("process")
    assert sent.attributes["messaging.message.id"] == run.attributes["messaging.message.id"] == result.id
    assert sent.attributes["delayq.task"] == "tests.contrib.mail.send"
    assert linked(run) == [key(sent)]


def test_what_follows_a_failure_links_to_who_put_the_failed_job_in(delayq, db, exported):
    shipping.break_off.schedule()
    delayq.drain()
    (sent,) = exported.of("send")
    assert [run.attributes["delayq.task"].rpartition(".")[2] for run in exported.of("process")] == ["break_off", "tell"]
    assert [linked(run) for run in exported.of("process")] == [[key(sent)]] * 2


# runs


def test_a_run_is_a_trace_of_its_own_linked_to_the_schedule(delayq, db, exported, looks):
    from opentelemetry import trace

    looks.append(lambda: trace.get_current_span().get_span_context().span_id)
    job = shipping.ship.using(delay="3d").schedule(7)
    delayq.advance("4d")
    (sent,), (run,) = exported.of("send"), exported.of("process")
    assert run.name == "process orders"
    assert run.kind.name == "CONSUMER"
    assert run.parent is None
    assert run.get_span_context().trace_id != sent.get_span_context().trace_id
    assert linked(run) == [key(sent)]
    assert [run.get_span_context().span_id] == shipping.SEEN
    lateness = run.attributes["delayq.lateness"]
    assert isinstance(lateness, float)
    assert dict(run.attributes) == {
        "messaging.system": "delayq",
        "messaging.operation.name": "process",
        "messaging.operation.type": "process",
        "messaging.destination.name": "orders",
        "messaging.message.id": job.short_id,
        "messaging.client.id": "test:1:kit",
        "delayq.task": "tests.contrib.shipping.ship",
        "delayq.attempt": 1,
        "delayq.lateness": lateness,
        "delayq.outcome": "ack",
    }
    assert run.status.status_code.name == "UNSET"


def test_behind_a_run_nothing_is_left_in_the_context(delayq, db, exported):
    from opentelemetry import context

    before = context.get_current()
    shipping.ship.schedule(1)
    shipping.lose.schedule(1)
    delayq.run_due()
    assert context.get_current() == before


def test_baggage_comes_back_in_the_run(delayq, db, exported, looks):
    from opentelemetry import baggage, context

    looks.append(lambda: baggage.get_baggage("tenant"))
    token = context.attach(baggage.set_baggage("tenant", "acme"))
    job = shipping.ship.schedule(1)
    shipping.ship_later.schedule(1)
    context.detach(token)
    delayq.run_due()
    assert propagated_context(job)["baggage"] == "tenant=acme"
    assert shipping.SEEN == ["acme"] * 3
    assert baggage.get_baggage("tenant") is None


def test_what_a_run_schedules_is_under_its_span(delayq, db, exported, looks):
    looks.append(lambda: shipping.tell.schedule("x"))
    shipping.ship.schedule(1)
    delayq.run_due()
    run = next(span for span in exported.of("process") if span.attributes["delayq.task"].endswith("ship"))
    assert exported.of("send")[1].parent.span_id == run.get_span_context().span_id


@pytest.mark.parametrize("name", ["lose", "lose_later"])
def test_a_failed_attempt_is_an_error_once(delayq, db, exported, name):
    task = getattr(shipping, name)
    task.schedule(5)
    delayq.advance("2h")
    runs = exported.of("process")
    expected = [("retry", 1), ("fail", 2)] if name == "lose" else [("fail", 1)]
    assert [(run.attributes["delayq.outcome"], run.attributes["delayq.attempt"]) for run in runs] == expected
    for run in runs:
        assert run.status.status_code.name == "ERROR"
        assert run.status.description == "tests.contrib.shipping.Lost: order 5 is gone"
        assert run.attributes["error.type"] == "tests.contrib.shipping.Lost"
        assert exceptions(run) == ["tests.contrib.shipping.Lost"]


def test_an_error_that_cannot_say_what_it_is_is_told_by_its_class(delayq, db, exported):
    shipping.lose_words.schedule()
    delayq.run_due()
    (run,) = exported.of("process")
    assert (run.status.status_code.name, run.status.description) == ("ERROR", "tests.contrib.shipping.Wordless")
    assert run.attributes["error.type"] == "tests.contrib.shipping.Wordless"
    assert len(exported.points("messaging.process.duration")) == 1


@pytest.mark.parametrize(("name", "outcome"), [("retry", "retry"), ("snooze", "snooze"), ("ask", "ask"), ("give_up", "cancel")])
def test_an_end_that_the_task_has_chosen_is_no_error(delayq, db, exported, name, outcome):
    getattr(shipping, name).schedule()
    delayq.run_due()
    run = exported.of("process")[0]
    assert run.attributes["delayq.outcome"] == outcome
    assert run.status.status_code.name == "UNSET"
    assert exceptions(run) == []
    assert "error.type" not in run.attributes


def test_who_gives_up_asking_has_failed_by_that_error(delayq, db, exported):
    shipping.ask.schedule()
    delayq.advance("1h")
    first, last = exported.of("process")
    assert (first.status.status_code.name, last.status.status_code.name) == ("UNSET", "ERROR")
    assert last.attributes["error.type"] == "django_delayq.exceptions.GaveUp"


@pytest.mark.parametrize(("cause", "told"), [("", "django_delayq.exceptions.Retry"), ("a flat tyre", "tests.contrib.shipping.Lost")])
def test_a_retry_on_the_last_attempt_is_an_error_by_its_cause(delayq, db, exported, cause, told):
    shipping.retry.schedule(cause)
    delayq.advance("2h")
    assert [exceptions(run) for run in exported.of("process")] == [[], [told]]


def test_fail_is_an_error(delayq, db, exported):
    shipping.fail.schedule()
    delayq.run_due()
    assert exceptions(exported.of("process")[0]) == ["django_delayq.exceptions.Fail"]


def test_metrics_count_and_measure(delayq, db, exported):
    shipping.ship.schedule(1)
    shipping.ship.schedule(2)
    shipping.lose_later.schedule(3)
    delayq.run_due()
    place = {"messaging.system": "delayq", "messaging.destination.name": "orders"}
    process = {**place, "messaging.operation.name": "process"}
    shipped = {**process, "delayq.task": "tests.contrib.shipping.ship"}
    lost = {**process, "delayq.task": "tests.contrib.shipping.lose_later", "error.type": "tests.contrib.shipping.Lost"}
    (sent,) = exported.points("messaging.client.sent.messages")
    assert (dict(sent.attributes), sent.value) == ({**place, "messaging.operation.name": "send"}, 3)
    assert [(dict(p.attributes), p.value) for p in exported.points("messaging.client.consumed.messages")] == [(shipped, 2), (lost, 1)]
    typed = {"messaging.operation.type": "process"}
    points = exported.points("messaging.process.duration")
    assert [(dict(p.attributes), p.count) for p in points] == [({**shipped, **typed}, 2), ({**lost, **typed}, 1)]
    assert points[0].explicit_bounds[0] == 0.005
    (took,) = exported.points("messaging.client.operation.duration")
    assert (took.count, dict(took.attributes)["messaging.operation.type"]) == (3, "send")


# on and off


def test_without_a_provider_nothing_is_carried_and_all_goes_on(delayq, db):
    from django_delayq.contrib.otel import DelayqInstrumentor

    DelayqInstrumentor().instrument()
    try:
        job = shipping.ship.schedule(1)
        assert propagated_context(job) is None
        assert [ran.outcome for ran in delayq.run_due()] == ["ack"]
    finally:
        DelayqInstrumentor().uninstrument()


def test_an_exporter_that_hangs_holds_up_no_end_of_a_process(delayq, db, exported, monkeypatch):
    from django_delayq.contrib import otel

    released, asked = Event(), []

    def hang(*_: object) -> bool:
        asked.append("spans")
        return released.wait(60)

    monkeypatch.setattr(otel, "FLUSH", 0.1)
    monkeypatch.setattr(exported.tracer_provider, "force_flush", hang)
    monkeypatch.setattr(exported.meter_provider, "force_flush", lambda: asked.append("metrics"))
    signals.process_stopped.send(sender=None, worker="w", process="task-1")
    assert not released.is_set()
    assert set(asked) == {"spans", "metrics"}
    released.set()


def test_who_instruments_twice_has_each_span_once(delayq, db, exported):
    from django_delayq.contrib.otel import DelayqInstrumentor

    assert DelayqInstrumentor().is_instrumented_by_opentelemetry
    DelayqInstrumentor().instrument(tracer_provider=exported.tracer_provider, skip_dep_check=True)
    shipping.ship.schedule(1)
    delayq.run_due()
    assert [span.name for span in exported.spans] == ["send orders", "process orders"]


def test_switched_off_it_leaves_nothing_behind(delayq, db, exported):
    from django_delayq.contrib.otel import DelayqInstrumentor

    DelayqInstrumentor().uninstrument()
    job = shipping.ship.schedule(1)
    delayq.run_due()
    assert propagated_context(job) is None
    assert exported.spans == []
    assert carriers.watchers == {}
    assert not signals.process_stopped.receivers


def test_a_run_that_began_before_has_no_span(delayq, db, exported, looks):
    from django_delayq.contrib.otel import DelayqInstrumentor

    instrumentor = DelayqInstrumentor()
    instrumentor.uninstrument()
    looks.append(lambda: instrumentor.instrument(tracer_provider=exported.tracer_provider))
    shipping.ship.schedule(1)
    assert [ran.outcome for ran in delayq.run_due()] == ["ack"]
    assert exported.spans == []


@pytest.mark.parametrize("carried", [5, [], {"traceparent": 7}, {"traceparent": "00-x"}, {"baggage": "="}])
def test_a_propagated_context_of_another_shape_links_to_nothing(delayq, db, exported, monkeypatch, carried):
    monkeypatch.setattr(carriers.watchers[WATCHER_NAME], "pack", lambda: carried)
    assert propagated_context(shipping.ship.schedule(1)) == carried
    delayq.run_due()
    assert [linked(run) for run in exported.of("process")] == [[]]


def test_the_entry_point_names_the_instrumentor():
    from django_delayq.contrib.otel import DelayqInstrumentor

    point = EntryPoint("delayq", "django_delayq.contrib.otel:DelayqInstrumentor", "opentelemetry_instrumentor")
    assert point.load() is DelayqInstrumentor


def test_without_the_package_the_import_names_the_extra(monkeypatch):
    for name in [name for name in sys.modules if name.startswith(("opentelemetry", "django_delayq.contrib.otel"))]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "opentelemetry", None)
    with pytest.raises(ModuleNotFoundError, match=r"pip install \"django-delayq\[otel\]\""):
        importlib.import_module("django_delayq.contrib.otel")


def test_ids_of_spans_are_those_that_people_see(delayq, db, exported):
    job = shipping.ship.schedule(1)
    assert ids.parse(exported.of("send")[0].attributes["messaging.message.id"]) == job.id
