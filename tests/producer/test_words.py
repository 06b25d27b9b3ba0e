"""Words of other queues, slips of the pen, and options at the wrong place are refused with what to write instead."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

import django_delayq as delayq
from django_delayq.models import Job
from tests.tasks_for_tests import close_order, takes_all

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"dely": "5m"}, "'dely' is an unknown option .did you mean 'delay'"),
        ({"runat": 5}, "did you mean 'run_at'"),
        ({"eta": datetime(2030, 1, 1, tzinfo=UTC)}, "here it is run_at="),
        ({"countdown": 5}, "here it is delay="),
        ({"args": [1]}, "here it is the arguments themselves"),
    ],
)
@pytest.mark.parametrize("task", [close_order, takes_all])
def test_a_word_that_means_an_option_is_refused(delayq_redis, task, given, said):
    with pytest.raises(delayq.DelayqError, match=said):
        delayq.schedule(task, 1, **given)
    assert Job.objects.count() == 0


def test_a_task_that_takes_any_keyword_gets_what_is_no_option(delayq_redis):
    delayq.schedule(takes_all, 1, colour="red", usr=3)
    takes_all.schedule(1, dely="5m", eta=5)  # here stand arguments alone
    assert [row.kwargs for row in Job.objects.order_by("pk")] == [{"colour": "red", "usr": 3}, {"dely": "5m", "eta": 5}]


@pytest.mark.parametrize("task", [close_order, takes_all])
@pytest.mark.parametrize("call", ["schedule", "bind"])
def test_an_option_among_the_arguments_is_refused(delayq_redis, task, call):
    name = task.fn.__name__
    with pytest.raises(delayq.DelayqError, match=rf"'delay' is an option: write {name}\.using\(delay=…\)\.schedule"):
        delayq.schedule_many([task.bind(1, delay="5m")]) if call == "bind" else task.schedule(1, delay="5m")
    assert Job.objects.count() == 0


@pytest.mark.parametrize("policy", ["replace", "earliest", "latest", "error"])
def test_a_policy_for_a_key_needs_the_key(delayq_redis, policy):
    with pytest.raises(delayq.ConfigError, match=rf"on_conflict='{policy}' .*Pass key="):
        delayq.schedule(close_order, 1, on_conflict=policy)


@pytest.mark.parametrize(
    ("method", "said"),
    [
        ("delay", r"close_order\.schedule\(1\)"),
        ("enqueue", r"close_order\.schedule\(1\)"),
        ("send", r"close_order\.schedule\(1\)"),
        ("apply_async", r"close_order\.using\(delay='30m'\)"),
        ("send_with_options", r"close_order\.using\("),
        ("aenqueue", r"await close_order\.aschedule\(1\)"),
        ("s", r"schedule_many\(\[close_order\.bind\(1\)"),
    ],
)
@pytest.mark.parametrize("task", [close_order, close_order.using(delay=5)], ids=["task", "with options"])
def test_a_method_of_another_queue_names_its_equivalent(task, method, said):
    with pytest.raises(AttributeError, match=rf"A task has no '{method}'\. Here it is .*{said}"):
        getattr(task, method)


def test_any_other_attribute_is_merely_not_there():
    assert not hasattr(close_order, "colour")
    with pytest.raises(AttributeError, match=r"^A task has no 'colour'$"):
        close_order.colour  # noqa: B018  # reading it raises
    with pytest.raises(AttributeError, match=r"^A task has no 'scedule' \(did you mean 'schedule'\?\)$"):
        close_order.scedule  # noqa: B018  # reading it raises


@pytest.mark.parametrize(
    ("option", "said"),
    [
        ("retries", "max_attempts="),
        ("bind", r"delayq\.current\(\)"),
        ("autoretry_for", "backoff=f"),
        ("time_limit", "timeout="),
        ("quue", "did you mean 'queue'"),
    ],
)
def test_an_unknown_option_of_a_task_names_what_it_is_here(option, said):
    with pytest.raises(delayq.ConfigError, match=rf"@task: '{option}' is an unknown option.*{said}.*The options are: name, queue"):
        delayq.task(**{option: 1})


def test_an_object_that_can_be_called_needs_a_name():
    class Call:
        def __call__(self) -> None: ...

    with pytest.raises(delayq.ConfigError, match="Pass name="):
        delayq.task(Call())


def test_a_date_without_its_name_is_refused(delayq_redis):
    job = delayq.schedule(close_order, 1, delay="1h")
    with pytest.raises(delayq.ConfigError, match=r"positional argument '10m'. Use delay='10m'"):
        job.reschedule("10m")


def test_many_jobs_are_not_a_task_and_its_arguments(delayq_redis):
    with pytest.raises(delayq.ConfigError, match=r"schedule_many\(task\.bind\(pk\) for pk in pks\)"):
        delayq.schedule_many(close_order, [1, 2])


def test_a_task_with_options_lacks_its_arguments(delayq_redis):
    with pytest.raises(delayq.ConfigError, match=r"<<Task .*close_order>\.using\(delay=1\)>, which is not bound to arguments"):
        delayq.schedule_many([close_order.using(delay=1)])


def test_a_list_of_delays_is_spelled_as_a_ladder(delayq_redis):
    with pytest.raises(delayq.ConfigError, match=r"did you mean '1s 2s 1m30s'"):
        delayq.schedule(close_order, 1, backoff=[1, "2s", 90])
    with pytest.raises(delayq.ConfigError, match=r"A function belongs to the task: @task\(backoff=…\)\.$"):
        delayq.schedule(close_order, 1, backoff=lambda attempt, error: 1)


@pytest.mark.parametrize(
    ("text", "meant"),
    [
        ("30", "30s"),
        ("5min", "5m"),
        ("5 minutes", "5m"),
        ("1 hour", "1h"),
        ("90 sec", "90s"),
        ("2 Days", "2d"),
        ("250 msec", "250ms"),
        ("1h 30m", "1h30m"),
    ],
)
def test_a_duration_in_other_words_is_guessed(text, meant, delayq_redis):
    with pytest.raises(delayq.ConfigError, match=f"did you mean '{meant}'"):
        delayq.schedule(close_order, 1, delay=text)
    delayq.schedule(close_order, 1, delay=meant)


def test_a_class_is_no_task():
    with pytest.raises(delayq.ConfigError, match="a class cannot be a task"):
        delayq.task(name="t")(int)


def test_a_signature_is_told_as_it_was_written(delayq_redis):
    with pytest.raises(delayq.PayloadError, match=r"close_order\(order_id: int, \*, note: str = ''\) -> int cannot"):
        delayq.schedule(close_order)


def test_effects_outside_a_task_say_how_they_are_tested():
    with pytest.raises(RuntimeError, match=r"delayq\.once\(\) was called outside .*perform\(task"):
        delayq.once("x")


def test_what_is_given_stands_over_what_the_task_was_bound_to(delayq_redis):
    bound = close_order.using(delay="1h", key="a", meta={"by": "bound"})
    job = delayq.schedule(bound, 1, key="b")
    row = Job.objects.get(pk=job.id)
    assert (row.key, row.meta) == ("b", {"by": "bound"})
    assert job.run_at is not None
