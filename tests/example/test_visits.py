"""The part of the example's terminal output that comes from the web server."""

from __future__ import annotations

import importlib.util
import logging

import pytest

from tests.example.partners import EXAMPLE

SPEC = importlib.util.spec_from_file_location("visits_of_the_example", EXAMPLE / "shop" / "visits.py")
visits = importlib.util.module_from_spec(SPEC)
SPEC.loader.exec_module(visits)


def shown(line: str, status: int = 200, level: int = logging.INFO) -> bool:
    """Logs a request as Django's development server does."""
    record = logging.LogRecord("django.server", level, __file__, 1, '"%s" %s %s', (f"{line} HTTP/1.1", str(status), "17"), None)
    return bool(visits.Visits().filter(record))


@pytest.mark.parametrize(
    "line", ["GET /", "POST /checkout/3/", "GET /orders/5/", "GET /admin/delayq/job/?q=static", "POST /orders/5/pay/"]
)
def test_what_people_do_is_shown(line):
    assert shown(line)


@pytest.mark.parametrize(
    "line",
    [
        "GET /static/shop/shop.css",
        "GET /static/admin/css/base.css?v=1",
        "GET /favicon.ico",
        "GET /orders/5/state/",
        "GET /provider/refunds/5/",
        "POST /queue/v1/queues/warehouse/pull",
    ],
)
def test_what_pages_and_programs_ask_for_is_left_out_unless_it_goes_wrong(line):
    assert not shown(line)
    assert shown(line, 404, logging.WARNING)
    assert shown(line, 500, logging.ERROR)


def test_a_record_that_is_no_request_is_shown():
    record = logging.LogRecord("django.server", logging.INFO, __file__, 1, "Broken pipe from %s", ("127.0.0.1",), None)
    assert visits.Visits().filter(record)
