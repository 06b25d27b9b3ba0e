"""Django tasks that run as jobs: the guarantees of delayq beyond the contract."""

from __future__ import annotations

import enum
import subprocess
import sys
import traceback
from datetime import date, datetime, timedelta

import pytest
from django.db import transaction
from django.test import override_settings
from django.utils import timezone

import django_delayq
from django_delayq import ids
from django_delayq.exceptions import ConfigError, JobFailed, PayloadError, PayloadTooLarge
from django_delayq.models import Attempt, Job
from django_delayq.producer.stores import stores
from django_delayq.producer.task import registry
from django_delayq.states import Change
from tests.contrib.conftest import BACKEND, TASKS

USUAL = {"priority": 0, "backend": "default", "queue_name": "default", "run_after": None}  # Django 6.0 wants them all
FAILED_SOMEHOW = {"status": "FAILED", "attempts": 0, "is_finished": True}


@pytest.fixture
def mail():
    from tests.contrib import mail

    return mail


@pytest.fixture
def finished(backend):
    """Collects what `task_finished` sent: id, status, and the classes of the errors."""
    from django_delayq.contrib.tasks import api

    told = []

    def note(task_result, **_):
        told.append((task_result.id, str(task_result.status), [error.exception_class_path for error in task_result.errors]))

    api.OURS.task_finished.connect(note)
    yield told
    api.OURS.task_finished.disconnect(note)


@pytest.fixture
def unknown():
    from django_delayq.contrib.tasks.api import OURS

    return OURS.TaskResultDoesNotExist


def with_options(**options):
    return override_settings(TASKS={"default": {**TASKS["default"], "OPTIONS": options}})


# the transaction


@pytest.fixture
def enqueued(backend):
    """For each `task_enqueued`: the id of the task, whether its row was written, and its job in Redis."""
    from django_delayq.contrib.tasks import api

    seen = []

    def note(task_result, **_):
        id = ids.parse(task_result.id)
        seen.append((task_result.id, Job.objects.filter(pk=id).exists(), stores.inspector().job(task_result.task.queue_name, id)))

    api.OURS.task_enqueued.connect(note)
    yield seen
    api.OURS.task_enqueued.disconnect(note)


@pytest.mark.parametrize(("options", "row"), [({}, True), ({"key": "k"}, True), ({"durability": "redis"}, False)])
@pytest.mark.django_db(transaction=True)
def test_task_enqueued_is_sent_when_the_row_is_written_and_no_worker_can_know_the_task(delayq, mail, enqueued, options, row):
    from django_delayq.contrib.tasks import using

    result = using(mail.send, **options).enqueue(1)
    assert enqueued == [(result.id, row, None)]
    assert stores.inspector().job("default", ids.parse(result.id)) is not None


@pytest.mark.django_db(transaction=True)
def test_a_rollback_leaves_a_signal_without_a_task(delayq, mail, enqueued, unknown):
    with pytest.raises(LookupError), transaction.atomic():
        lost = mail.send.enqueue(1)
        assert enqueued == [(lost.id, True, None)]
        raise LookupError
    with pytest.raises(unknown):
        mail.send.get_result(lost.id)
    with transaction.atomic():
        kept = mail.send.enqueue(2)
    assert [id for id, *_ in enqueued] == [lost.id, kept.id]


@pytest.mark.django_db(transaction=True)
def test_a_receiver_of_task_enqueued_that_fails_does_not_lose_a_task_that_is_committed(delayq, mail, backend):
    from django_delayq.contrib.tasks import api

    def fail(**_):
        raise LookupError("a receiver's own error")

    api.OURS.task_enqueued.connect(fail)
    try:
        with pytest.raises(LookupError):
            mail.send.enqueue(1)
    finally:
        api.OURS.task_enqueued.disconnect(fail)
    delayq.run_due()
    assert mail.SEEN == [("send", 1, "")]


def test_a_task_belongs_to_the_transaction_of_its_caller(delayq, db, mail, unknown):
    with pytest.raises(LookupError), transaction.atomic():
        lost = mail.send.enqueue(1)
        assert mail.send.get_result(lost.id).status == "READY"
        raise LookupError
    with transaction.atomic():
        kept = mail.send.enqueue(2)
        assert delayq.run_due() == []
        assert mail.send.get_result(kept.id).args == [2]
    delayq.run_due()
    assert mail.SEEN == [("send", 2, "")]
    with pytest.raises(unknown):
        mail.send.get_result(lost.id)


def test_redis_may_be_away_when_a_task_is_enqueued(delayq, db, mail):
    with delayq.redis_down():
        result = mail.send.enqueue(1)
        assert mail.send.get_result(result.id).status == "READY"
    delayq.run_due()
    result.refresh()
    assert result.return_value == "sent 1"


def test_the_id_is_the_short_one_and_each_form_is_taken(delayq, db, mail):
    result = mail.send.enqueue(1)
    full = ids.parse(result.id)
    assert result.id == ids.short(full)
    for form in (result.id, str(full), full.hex):
        assert mail.send.get_result(form).id == result.id
    assert django_delayq.get(result.id).task == mail.send.module_path


# attempts


def test_a_task_has_one_attempt_unless_somebody_says_more(delayq, db, mail):
    from django_delayq.contrib.tasks import using

    mail.fail.enqueue()
    assert Job.objects.get().max_attempts == 1
    with with_options(max_attempts=4):
        mail.fail.enqueue()
        mail.look.enqueue()
        using(mail.look, max_attempts=7).enqueue()
    assert list(Job.objects.order_by("id").values_list("max_attempts", flat=True)) == [1, 4, 3, 7]


def test_the_ladder_is_that_of_the_call_else_of_the_function_else_of_the_options(delayq, db, mail):
    from django_delayq.contrib.tasks import using

    def pause(task, *args):
        """Returns the whole minutes until the next try, including the time that the run took."""
        result = task.enqueue(*args)
        delayq.run_due()
        job = Job.objects.get(pk=ids.parse(result.id))
        return (job.run_at - job.created_at) // timedelta(minutes=1)

    with with_options(max_attempts=2, backoff="5m"):
        assert pause(mail.fail) == 5
        assert pause(using(mail.fail, backoff="7m")) == 7
        assert pause(mail.look, 1) == 60


def test_a_task_that_is_tried_again_is_ready_meanwhile_and_has_finished_once(delayq, db, mail, finished):
    result = mail.look.enqueue(2)
    delayq.run_due()
    result.refresh()
    assert (result.status, result.attempts, len(result.errors), finished) == ("READY", 1, 1, [])
    assert result.errors[0].exception_class is ConnectionError
    assert result.errors[0].traceback.endswith("ConnectionError: the server is away, 1\n")
    delayq.advance("5h")
    result.refresh()
    assert (result.status, result.attempts) == ("SUCCESSFUL", 3)
    assert [error.traceback[-2] for error in result.errors] == ["1", "2"]
    assert [one[:2] for one in finished] == [(result.id, "SUCCESSFUL")]
    assert result.started_at < result.last_attempted_at <= result.finished_at


def test_a_later_attempt_knows_the_earlier_ones(delayq, db, mail):
    mail.look.enqueue(2)
    for hours in (0, 1, 3):  # the mirror has seen the last attempt when the next one begins
        delayq.advance(timedelta(hours=hours))
    first, second, third = mail.SEEN
    worker = first["workers"][0]
    assert worker
    assert worker == Attempt.objects.first().worker
    assert (first["attempt"], second["attempt"], third["attempt"]) == (1, 2, 3)
    assert third["workers"] == [worker] * 3
    assert third["errors"] == ["builtins.ConnectionError"] * 2
    assert first["first"] == third["first"]


@override_settings(DELAYQ={"QUEUES": {"default": {"AUDIT": "outcomes"}, "orders": {}, "redis": {}}, "REDIS": "redis://nowhere"})
def test_without_rows_of_attempts_none_is_forgotten(delayq, db, mail):
    result = mail.look.enqueue(2)
    delayq.advance("5h")
    assert [seen["attempt"] for seen in mail.SEEN] == [1, 2, 3]
    result.refresh()
    assert (result.status, result.attempts) == ("SUCCESSFUL", 3)


def test_a_run_that_was_put_off_is_no_attempt(delayq, db, mail, finished):
    result = mail.put_off.enqueue()
    delayq.run_due()
    result.refresh()
    assert (result.status, result.attempts, result.errors, finished) == ("READY", 0, [], [])
    assert result.started_at == result.last_attempted_at is not None


def test_a_task_that_a_worker_knows_with_other_parameters_waits_and_runs_when_it_knows_them(delayq, db, mail, finished):
    from django_delayq.contrib.tasks import backend
    from django_delayq.contrib.tasks.declared import altered

    def look(context): ...

    look.__module__, look.__qualname__ = mail.look.func.__module__, mail.look.func.__qualname__
    result = mail.look.enqueue(0)
    backend.register(altered(mail.look, func=look))
    assert [run.outcome for run in delayq.run_due()] == ["park"]
    result.refresh()
    assert (result.status, result.attempts, finished) == ("READY", 0, [])
    backend.register(mail.look)
    assert [run.outcome for run in delayq.advance("1m")] == ["ack"]
    result.refresh()
    assert (result.status, result.attempts) == ("SUCCESSFUL", 1)


def test_the_signals_are_sent_in_a_process_whose_settings_lack_the_backend_of_the_task(delayq, db, mail, finished, settings):
    settings.TASKS = {"default": TASKS["default"], "later": TASKS["default"]}
    result = mail.send.using(backend="later").enqueue(1)
    settings.TASKS = TASKS
    delayq.run_due()
    assert [(id, status) for id, status, _ in finished] == [(result.id, "SUCCESSFUL")]


def test_who_looks_at_an_error_after_it_was_told_sees_the_frames_of_the_task_last(delayq, db, mail):
    mail.fail.enqueue()
    (ran,) = delayq.run_due()
    frames = [frame.f_code.co_name for frame, _ in traceback.walk_tb(ran.error.__traceback__)]
    assert "failed" not in frames
    assert frames[-1] == "fail"


# ends without a run


def test_a_cancelled_task_has_failed_with_an_error_of_ours(delayq, db, mail, backend, finished):
    from django_delayq.contrib.tasks import TaskCancelled

    result = mail.send.enqueue(1)
    assert backend.cancel(result.id, reason="not needed") is Change.DONE
    assert backend.cancel(result.id) is Change.DONE
    result.refresh()
    assert {name: getattr(result, name) for name in FAILED_SOMEHOW} == FAILED_SOMEHOW
    assert result.errors[0].exception_class is TaskCancelled
    assert result.errors[0].traceback == "django_delayq.contrib.tasks.task_errors.TaskCancelled: not needed\n"
    delayq.run_due()
    assert (mail.SEEN, finished) == ([], [(result.id, "FAILED", ["django_delayq.contrib.tasks.task_errors.TaskCancelled"])])
    with pytest.raises(ValueError, match="Task failed"):
        _ = result.return_value


def test_a_task_that_expires_has_failed_with_an_error_of_ours(delayq, db, mail, finished):
    from django_delayq.contrib.tasks import TaskExpired, using

    result = using(mail.send, expires="1m").enqueue(1)
    delayq.travel(delayq.now + timedelta(minutes=2))
    delayq.run_due()
    result.refresh()
    assert {name: getattr(result, name) for name in FAILED_SOMEHOW} == FAILED_SOMEHOW
    assert result.errors[0].exception_class is TaskExpired
    assert [one[:2] for one in finished] == [(result.id, "FAILED")]


def test_a_task_whose_worker_vanishes_too_often_has_failed_with_an_error_of_ours(delayq, db, mail, finished):
    from django_delayq.contrib.tasks import TaskCrashed

    result = mail.send.enqueue(1)
    for _ in range(4):
        delayq.crash_next(mail.send)
    delayq.advance("1h")
    result.refresh()
    assert (result.status, mail.SEEN) == ("FAILED", [])
    assert result.errors[-1].exception_class is TaskCrashed
    assert [one[:2] for one in finished] == [(result.id, "FAILED")]


def test_a_task_whose_function_is_gone_waits_and_is_not_found_by_its_id(delayq, db, mail, unknown, monkeypatch):
    result = mail.send.enqueue(1)
    monkeypatch.delitem(registry._tasks, mail.send.module_path)
    delayq.run_due()
    assert Job.objects.get().state == "scheduled"
    with pytest.raises(unknown):
        api_of(result).get_result(result.id)


def api_of(result):
    from django_delayq.contrib.tasks import api

    return api.OURS.task_backends[result.backend]


# values


class Colour(enum.StrEnum):
    RED = "red"


def test_members_of_text_enums_are_texts(delayq, db, mail):
    result = mail.give.enqueue({Colour.RED: [Colour.RED, True, 1.5]})
    delayq.run_due()
    result.refresh()
    assert result.return_value == {"red": ["red", True, 1.5]}
    assert type(Job.objects.get().args[0]["red"][0]) is str


@pytest.mark.parametrize("value", [float("nan"), {1: 2}, "\ud800"], ids=["nan", "int key", "half a pair"])
def test_what_json_would_change_is_refused_and_nothing_is_enqueued(delayq, db, mail, value):
    with pytest.raises(PayloadError):
        mail.give.enqueue(value)
    assert not Job.objects.exists()


def test_arguments_are_compared_with_the_function_when_they_are_enqueued(delayq, db, mail):
    for args, kwargs in (((), {}), ((1, 2), {}), ((1,), {"nota": "x"})):
        with pytest.raises(PayloadError):
            mail.send.enqueue(*args, **kwargs)
    with pytest.raises(PayloadError):
        mail.look.enqueue("context", 1)  # the worker gives the context
    mail.send.enqueue(1, note="x")


def test_parameters_may_bear_the_names_of_our_options(delayq, db, mail):
    result = mail.delay_all.enqueue(1, key="k", meta=2, queue="q")
    delayq.run_due()
    result.refresh()
    assert result.return_value == [1, "k", {"meta": 2, "queue": "q"}]


def test_a_value_that_cannot_be_kept_is_a_failure(delayq, db, mail):
    nan, key, much = mail.give_nan.enqueue(), mail.give_number_as_key.enqueue(), mail.give_much.enqueue()
    delayq.run_due()
    for result, error in ((nan, PayloadError), (key, PayloadError), (much, PayloadTooLarge)):
        result.refresh()
        assert (result.status, result.errors[0].exception_class) == ("FAILED", error)


# options for the worker


def test_priorities_are_bands_and_the_number_is_kept(delayq, db, mail):
    for priority in (-100, -1, 0, 1, 100):
        mail.look.using(priority=priority).enqueue()
    delayq.run_due()
    assert [seen["priority"] for seen in mail.SEEN] == [1, 100, 0, -100, -1]  # within a band, in order of arrival
    assert list(Job.objects.order_by("id").values_list("priority", flat=True)) == [-100, -1, 0, 1, 100]


def test_a_run_knows_by_which_task_it_was_enqueued(delayq, db, mail):
    date = delayq.now + timedelta(minutes=5)
    result = mail.look.using(queue_name="orders", run_after=date).enqueue()
    delayq.assert_scheduled(mail.look, run_at=date, queue="orders")
    delayq.advance("10m")
    assert (mail.SEEN[0]["queue"], mail.SEEN[0]["run_after"]) == ("orders", date.isoformat())
    result.refresh()
    assert result.task.run_after == date


# options that Django's API does not have


def test_more_options_are_taken_by_a_task_and_kept_by_using(delayq, db, mail):
    from django_delayq.contrib.tasks import using

    keyed = using(mail.send, key="mail:7", delay="30m", meta={"by": "night"}).using(priority=5)
    first, second = keyed.enqueue(7), keyed.enqueue(7)
    assert first.id == second.id
    (job,) = Job.objects.filter(state="scheduled")
    assert (job.key, job.priority, job.meta["by"]) == ("mail:7", 5, "night")
    delayq.assert_scheduled(mail.send, key="mail:7", delay="30m")


def test_an_unknown_option_is_refused_with_the_nearest_one(mail):
    from django_delayq.contrib.tasks import options, using

    with pytest.raises(ConfigError, match="did you mean 'delay'"):
        using(mail.send, dely="1m")
    with pytest.raises(ConfigError, match="did you mean 'max_attempts'"):
        options(max_attempt=3)


def test_other_backends_run_such_tasks_without_them(db, mail):
    from django_delayq.contrib.tasks import api, using

    immediate = f"{api.OURS.BaseTaskBackend.__module__.removesuffix('.base')}.immediate.ImmediateBackend"
    with override_settings(TASKS={**TASKS, "other": {"BACKEND": immediate, "QUEUES": []}}):
        result = using(mail.send, key="k", delay="1h", max_attempts=3).using(backend="other").enqueue(1)
        assert (result.status, result.return_value) == ("SUCCESSFUL", "sent 1")
        assert mail.look.using(backend="other").enqueue().status == "SUCCESSFUL"


def test_a_task_is_moved_by_its_id(delayq, db, mail, backend):
    result = mail.send.using(run_after=delayq.now + timedelta(hours=1)).enqueue(1)
    assert backend.reschedule(result.id, timedelta(minutes=10)) is Change.DONE
    delayq.assert_scheduled(mail.send, delay="10m")
    assert backend.reschedule(result.id, delayq.now + timedelta(minutes=20)) is Change.DONE
    delayq.assert_scheduled(mail.send, delay="20m")


@pytest.mark.parametrize("wrong", [None, 5, "1h", date(2031, 5, 1), datetime(2031, 5, 1)])
def test_what_is_no_moment_moves_no_task(delayq, db, mail, backend, wrong):
    result = mail.send.using(run_after=delayq.now + timedelta(hours=1)).enqueue(1)
    with pytest.raises(ConfigError, match=r"^reschedule\(\): run_a\w+=.*(aware|naive)"):
        backend.reschedule(result.id, wrong)
    delayq.assert_scheduled(mail.send, delay="1h")


def test_run_and_end_may_be_one_transaction(delayq, db, mail):
    result = mail.save.enqueue()
    delayq.run_due()
    result.refresh()
    assert result.return_value == str(ids.parse(result.id))
    assert registry.get(mail.save.module_path).atomic


def test_the_handle_of_delayq_tells_the_same(delayq, db, mail):
    good, bad = mail.send.enqueue(1), mail.fail.enqueue()
    delayq.run_due()
    assert django_delayq.get(good.id).result() == "sent 1"
    with pytest.raises(JobFailed):
        django_delayq.get(bad.id).result()


# whose tasks these are


def test_a_job_of_a_task_by_delayq_is_no_result(delayq, db, backend, unknown):
    from tests.contrib.shipping import ship

    with pytest.raises(unknown):
        backend.get_result(ids.short(django_delayq.schedule(ship, 1).id))


def test_a_name_that_a_task_by_delayq_has_is_refused(backend):
    from django_delayq.contrib.tasks.api import InvalidTask
    from tests.contrib.shipping import ship

    with pytest.raises(InvalidTask, match=r"A task defined with @delayq\.task has the same name"):
        backend.task_class(func=ship.fn, **USUAL)


def test_options_that_cannot_work_make_no_task(backend, mail):
    from django_delayq.contrib.tasks.api import InvalidTask

    def impossible():
        pass

    impossible.__qualname__ = "impossible"
    with pytest.raises(InvalidTask, match="backoff"):
        backend.task_class(func=impossible, backoff="soon", **USUAL)


def test_a_merged_task_has_the_result_of_the_other(delayq, db, mail):
    from django_delayq.contrib.tasks import using

    keyed = using(mail.send, key="one")
    with transaction.atomic():
        first = keyed.enqueue(1)
    with transaction.atomic():
        second = keyed.enqueue(2)
    delayq.run_due()
    second.refresh()
    assert (mail.SEEN, second.return_value) == ([("send", 1, "")], "sent 1")
    first.refresh()
    assert first.return_value == "sent 1"


def test_of_redis_durability_a_result_is_found_before_its_row(delayq, db, mail):
    result = mail.send.using(queue_name="redis", priority=3).enqueue(7, note="x")
    assert not Job.objects.exists()
    found = mail.send.get_result(result.id)
    assert (found.status, found.args, found.kwargs, found.task.priority) == ("READY", [7], {"note": "x"}, 3)
    delayq.run_due()
    found.refresh()
    assert found.return_value == "sent 7"


def test_signed_jobs_are_tasks_too_and_what_nobody_has_signed_is_not_told(delayq, db, mail, unknown, settings):
    settings.DELAYQ = {**settings.DELAYQ, "SIGNING": True}
    result = mail.send.using(queue_name="redis").enqueue(1)
    assert mail.send.get_result(result.id).args == [1]
    delayq.run_due()
    result.refresh()
    assert result.return_value == "sent 1"
    settings.DELAYQ = {**settings.DELAYQ, "SIGNING": False}
    forged = mail.send.using(queue_name="redis").enqueue(2)
    settings.DELAYQ = {**settings.DELAYQ, "SIGNING": True}
    with pytest.raises(unknown):
        mail.send.get_result(forged.id)


def test_the_key_of_meta_under_which_the_backend_packs_is_refused(delayq, db, mail):
    from django_delayq.contrib.tasks import using

    with pytest.raises(ConfigError, match="_task"):
        using(mail.send, meta={"_task": 1}).enqueue(1)


def test_who_does_not_use_it_does_not_import_it():
    code = (
        "import os, sys, django; os.environ['DJANGO_SETTINGS_MODULE'] = 'tests.settings'; from tests import settings;"
        "settings.INSTALLED_APPS.remove('django_delayq.contrib.gateway'); django.setup();"
        "import django_delayq.testing.kit, django_delayq.management.commands.delayq_worker;"
        "print([name for name in sys.modules if name.startswith(('django_delayq.contrib', 'django.tasks', 'django_tasks'))])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_the_dotted_path_is_the_one_that_the_documentation_gives(backend):
    assert f"{type(backend).__module__}.{type(backend).__qualname__}" == "django_delayq.contrib.tasks.backend.DelayqBackend"
    assert BACKEND == "django_delayq.contrib.tasks.DelayqBackend"
    assert timezone.is_aware(timezone.now())


# system checks of TASKS


def findings(**changes):
    from django_delayq.contrib.tasks import api

    with override_settings(TASKS={"default": {**TASKS["default"], **changes}}):
        return {one.id: f"{one.msg} {one.hint}" for one in api.OURS.task_backends["default"].check()}


def test_right_options_pass():
    assert findings() == {}
    assert findings(OPTIONS={"max_attempts": 3, "backoff": "15s 3m", "timeout": "1m", "durability": "redis"}) == {}
    assert findings(QUEUES=[]) == {}


def test_e030_an_unknown_option_names_the_nearest_one():
    (text,) = findings(OPTIONS={"max_attempt": 3}).values()
    assert "TASKS[\"default\"][\"OPTIONS\"] has an unknown option 'max_attempt' (did you mean 'max_attempts'?)" in text
    assert set(findings(OPTIONS={"retries": 3})) == {"delayq.E030"}


@pytest.mark.parametrize(
    ("name", "value"),
    [("max_attempts", 0), ("max_attempts", "3"), ("backoff", "soon"), ("timeout", -1), ("durability", "disk")],
)
def test_e031_a_value_that_cannot_work_names_its_place(name, value):
    (text,) = findings(OPTIONS={name: value}).values()
    assert 'TASKS["default"]["OPTIONS"]' in text
    assert set(findings(OPTIONS={name: value})) == {"delayq.E031"}


@pytest.mark.parametrize("options", [None, [1], "max_attempts"])
def test_e031_options_that_are_no_dict(options):
    (text,) = findings(OPTIONS=options).values()
    assert f'TASKS["default"]["OPTIONS"] must be a dict, not {options!r}.' in text
    assert set(findings(OPTIONS=options)) == {"delayq.E031"}


def test_e032_a_queue_that_is_not_in_the_settings():
    (text,) = findings(QUEUES=["default", "mails"]).values()
    assert "'mails'" in text
    assert set(findings(QUEUES=["default", "mails"])) == {"delayq.E032"}
    assert set(findings(QUEUES=["default", None, "mails"])) == {"delayq.E032"}
