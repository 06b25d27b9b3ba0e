"""Garbage in a URL, a Location or a Retry-After is read in one way or refused."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as some

from django_delayq import TargetRefused, clock
from django_delayq.targets import addresses, answers

URLS = [
    "http://",
    "https://",
    "[",
    "]",
    "@",
    ":",
    "//",
    "\\",
    "%",
    "?",
    "#",
    "a.example",
    "127.0.0.1",
    "::ffff:1.2.3.4",
    "é",
    "ß",
    "。",
    "%00",
    "xn--",
    "xn--a",
    "..",
    "80",
    "99999",
    "-",
    "_",
    "①",
    "/",
]
DATES = ["Mon, ", "31 Dec ", "99999 ", "2026 ", "00:00:00 ", "GMT", "+9999", "-2460", "0", "-", "٣", ",", ":", "1e9", " "]


@given(some.lists(some.sampled_from(URLS), max_size=7).map("".join) | some.text())
def test_a_url_is_refused_or_means_the_same_when_it_is_read_again(url):
    try:
        found = addresses.read_url(url)
    except TargetRefused:
        return
    assert addresses.read_url(found.url) == found


@given(some.lists(some.sampled_from(URLS), max_size=7).map("".join) | some.text())
def test_a_location_leads_to_an_endpoint_or_is_refused(location):
    try:
        assert addresses.joined(addresses.read_url("https://a.example/x"), location).scheme in ("http", "https")
    except TargetRefused:
        pass


@given(*[some.lists(some.sampled_from(DATES), max_size=8).map("".join) | some.text()] * 2)
def test_a_retry_after_is_a_second_to_a_day_or_nothing(asked, date):
    wait = answers.wait(asked, date, clock.now())
    assert wait is None or 1 <= wait <= 86_400
