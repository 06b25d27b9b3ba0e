"""The attributes, metrics and options in docs/howto/monitor.md exist, and its code runs."""

from __future__ import annotations

import importlib
import inspect
import logging
import re
from pathlib import Path

import pytest

from django_delayq import signals
from tests.contrib import shipping

PAGE = (Path(__file__).parents[2] / "docs" / "howto" / "monitor.md").read_text()


def section(heading):
    return PAGE.partition(f"\n{heading}\n")[2].partition(f"\n{heading.partition(' ')[0]} ")[0]


def block(heading, beginning):
    """Returns the code of the section that begins with this text."""
    found = re.findall(r"```python\n(.+?)```", section(heading), flags=re.DOTALL)
    return next(code for code in found if code.startswith(beginning))


def test_the_page_lists_all_attributes_and_metrics():
    pytest.importorskip("opentelemetry")
    otel = importlib.import_module("django_delayq.contrib.otel")
    used = set(re.findall(r'"((?:messaging|error|delayq)\.[a-z_.]+)"', inspect.getsource(otel)))
    named = set(re.findall(r"`((?:messaging|error|delayq)\.[a-z_.]+)`", section("## OpenTelemetry")))
    assert named == used
    assert f"version {otel.SCHEMA.rpartition('/')[2].removesuffix('.0')}" in section("## OpenTelemetry")


def test_the_page_lists_the_options_of_the_integration():
    pytest.importorskip("sentry_sdk")
    from django_delayq.contrib.sentry import DelayqIntegration

    for name, value in vars(DelayqIntegration()).items():
        assert f"DelayqIntegration({name}={not value})" in section("## Sentry")


def test_the_filter_adds_the_job_to_what_a_task_logs(delayq, db, looks, caplog):
    code: dict = {}
    exec(block("## Logs", "# shop/logs.py"), code)
    settings: dict = {}
    exec(block("## Logs", "# shop/settings.py"), settings)
    form = settings["LOGGING"]["formatters"]["line"]
    formatter = logging.Formatter(form["format"], defaults=form["defaults"])
    logger = logging.getLogger("shop")
    looks.append(lambda: logger.warning("sent"))
    caplog.handler.addFilter(job_filter := code["JobFilter"]())
    try:
        job = shipping.ship.schedule(1)
        delayq.run_due()
        logger.warning("later")
    finally:
        caplog.handler.removeFilter(job_filter)
    lines = [formatter.format(record) for record in caplog.records if record.name == "shop"]
    assert lines == [f"WARNING [{job.short_id}] sent", "WARNING [-] later"]


def test_structlog_has_the_job_in_its_context(delayq, db, looks):
    structlog = pytest.importorskip("structlog")
    code: dict = {}
    exec(block("## Logs", "import structlog"), code)
    try:
        looks.append(lambda: structlog.contextvars.get_contextvars())
        job = shipping.ship_later.schedule(1)
        delayq.run_due()
        assert shipping.SEEN[0] == {"job_id": job.short_id, "task": "tests.contrib.shipping.ship_later", "attempt": 1}
    finally:
        signals.job_started.disconnect(code["bind_job"])
        structlog.contextvars.clear_contextvars()


def test_the_health_check_says_what_the_doctor_finds(delayq_redis, transactional_db, settings):
    pytest.importorskip("health_check")
    code: dict = {}
    exec(block("### django-health-check", "# shop/checks.py"), code)
    check = code["DelayqCheck"]()
    check.run()
    settings.DELAYQ = {**settings.DELAYQ, "CARRIERS": ["nowhere.Carrier"]}
    with pytest.raises(code["ServiceUnavailable"], match=r"delayq doctor: .*E008"):
        check.run()
