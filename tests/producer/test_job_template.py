"""The values that task and options determine are computed once, and again if one of them or a setting changes."""

from __future__ import annotations

import inspect

import pytest

import django_delayq as delayq
from django_delayq.producer.options import NONE, OPTIONS, OWN, JobOptions, JobTemplates, Options, templates
from django_delayq.producer.schedule import plan
from django_delayq.producer.task import DEFAULTS, TASK_OPTIONS
from django_delayq.store.scripts.record import JobRecord
from tests.tasks_for_tests import close_order, ping


def made(task=ping, using=None, **options):
    return templates.get(task, NONE.but(options, "here"), using)


def test_jobs_that_differ_by_date_key_expiry_and_meta_share_a_template():
    first = made(priority=3, delay="1h", key="a", expires="2h", meta={"who": "a"})
    assert made(priority=3, delay="2h", key="b", expires="3h", meta={"who": "b"}) is first
    assert made(priority=4) is not first
    assert made(close_order, priority=3) is not first


def test_the_first_options_differ_from_job_to_job():
    assert Options._fields[:OWN] == ("delay", "run_at", "key", "expires", "meta")


def test_an_option_is_in_the_table_the_types_and_the_signature():
    keywords = [one.name for one in inspect.signature(delayq.schedule).parameters.values() if one.kind is one.KEYWORD_ONLY]
    assert set(keywords) == set(OPTIONS) == set(Options._fields) == set(JobOptions.__annotations__)


def test_the_signature_of_task_has_its_options():
    keywords = [one.name for one in inspect.signature(delayq.task).parameters.values() if one.kind is one.KEYWORD_ONLY]
    assert keywords == list(TASK_OPTIONS)
    assert set(DEFAULTS) < set(TASK_OPTIONS)


@pytest.mark.parametrize("option", ["priority", "max_attempts"])
def test_a_value_that_only_equals_a_valid_one_is_refused(option):
    made(**{option: 1})
    for value in (True, 1.0):
        with pytest.raises(delayq.ConfigError, match="whole number"):
            made(**{option: value})


def test_a_formula_that_fails_is_an_error_of_the_option():
    for step in (lambda n: 1 / 0, lambda n: -n):
        with pytest.raises(delayq.ConfigError, match="backoff: step 1 of the ladder"):
            made(backoff=delayq.Ladder.formula(step, times=3))


def test_tasks_bound_to_the_same_options_are_equal():
    assert ping.using(delay=3) == ping.using(delay=3)
    assert len({ping.using(delay=3), ping.using(delay=3), ping.using(delay=4), close_order.using(delay=3), ping}) == 4
    assert ping != ping.using(delay=3)


def test_one_binding_where_many_are_wanted_says_what_to_pass(settings):
    with pytest.raises(delayq.ConfigError, match="a list or a generator"):
        delayq.schedule_many(ping.bind())


def test_a_template_depends_on_the_settings(settings):
    before = made()
    settings.DELAYQ = {**settings.DELAYQ, "MAX_ATTEMPTS": 77}
    assert made().max_attempts == 77 != before.max_attempts


def test_a_changed_task_has_another_template(monkeypatch):
    made()
    monkeypatch.setattr(ping, "max_attempts", 2)
    assert made().max_attempts == 2


def test_an_option_that_cannot_be_compared_is_looked_at_each_time():
    with pytest.raises(delayq.ConfigError, match="not a ladder"):
        made(backoff=["15s"])


def test_the_cache_of_templates_has_a_limit(monkeypatch):
    monkeypatch.setattr("django_delayq.producer.options.MAX_TEMPLATES", 5)
    own = JobTemplates()
    for priority in range(20):
        own.get(ping, Options(priority=priority), None)
    assert len(own._made[1]) <= 5


@pytest.mark.parametrize(
    "options",
    [{}, {"key": "a b"}, {"expires": "2h"}, {"key": "a", "expires": "2h", "max_attempts": 3, "priority": 1}, {"max_attempts": 10}],
    ids=lambda options: " ".join(options) or "none",
)
@pytest.mark.parametrize("durability", ["redis", "outbox"])
def test_the_header_in_the_template_equals_the_header_of_the_record(options, durability, delayq_redis, db):
    planned = plan(ping, Options(durability=durability, **options), (), {}, None)
    record = JobRecord.decode(planned.id, planned.encode())
    assert (record.key, record.max_attempts) == (options.get("key", ""), planned.max_attempts)
    assert (record.band, record.durable, bool(record.expires_ms)) == (planned.band, durability == "outbox", "expires" in options)
    assert record.encode() == planned.encode()


def test_attempts_that_no_record_carries_are_refused_before_anything_is_kept():
    with pytest.raises(delayq.PayloadError, match="max_attempts"):
        made(max_attempts=10**9)
