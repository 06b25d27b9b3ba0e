"""The addresses that a delivery may go to, and that it goes to no other address."""

from __future__ import annotations

import socket
from ipaddress import ip_address, ip_network

import pytest
from hypothesis import given
from hypothesis import strategies as some

import django_delayq
from django_delayq import TargetRefused, clock
from django_delayq.models import Attempt
from django_delayq.targets import addresses, answers
from tests.targets.receivers import answer

PUBLIC = "93.184.216.34"
real = socket.getaddrinfo


@pytest.mark.parametrize(
    ("address", "kind"),
    [
        (PUBLIC, ""),
        ("2606:2800:220:1::1", ""),
        ("127.0.0.1", "loopback"),
        ("127.255.0.3", "loopback"),
        ("::1", "loopback"),
        ("0.0.0.0", "this host"),
        ("0.1.2.3", "this host"),
        ("::", "this host"),
        ("10.1.2.3", "private"),
        ("172.16.0.1", "private"),
        ("172.31.255.255", "private"),
        ("192.168.1.1", "private"),
        ("100.64.0.1", "private"),
        ("fd12::1", "private"),
        ("fec0::1", "private"),
        ("169.254.0.1", "link-local"),
        ("fe80::1", "link-local"),
        ("169.254.169.254", "metadata"),
        ("fd00:ec2::254", "metadata"),
        ("100.100.100.200", "metadata"),
        ("168.63.129.16", "metadata"),
        ("224.0.0.1", "multicast"),
        ("239.255.255.250", "multicast"),
        ("ff02::1", "multicast"),
        ("240.0.0.1", "reserved"),
        ("255.255.255.255", "reserved"),
        ("192.0.2.1", "reserved"),
        ("198.18.0.1", "reserved"),
        ("2001:db8::1", "reserved"),
        ("4000::1", "reserved"),
        # what carries another one
        ("::ffff:127.0.0.1", "loopback"),
        ("::ffff:169.254.169.254", "metadata"),
        ("::ffff:0:10.0.0.1", "private"),
        ("::127.0.0.1", "loopback"),
        ("64:ff9b::10.0.0.1", "private"),
        ("64:ff9b::7f00:1", "loopback"),
        ("64:ff9b:1::1", "reserved"),
        ("2002:7f00:1::1", "loopback"),
        ("2002:a00:1::", "private"),
        ("2002:a9fe:a9fe::", "metadata"),
        ("2001:0:4136:e378:8000:63bf:3fff:fdd2", "reserved"),
        (f"::ffff:{PUBLIC}", ""),
        (f"64:ff9b::{PUBLIC}", ""),
    ],
)
def test_an_address_is_what_it_stands_for(address, kind):
    assert addresses.kind_of(ip_address(address)) == kind


@pytest.mark.parametrize("address", ["10.1.2.3", "::ffff:10.1.2.3", "64:ff9b::10.1.2.3", "2002:a01:203::"])
def test_what_is_allowed_is_allowed_in_each_of_its_forms_and_nothing_beside_it(address):
    assert addresses.kind_of(ip_address(address), [ip_network("10.1.0.0/16")]) == ""
    assert addresses.kind_of(ip_address(address), [ip_network("10.2.0.0/16"), ip_network("fd00::/8")]) == "private"


def test_who_allows_a_network_that_carries_others_has_allowed_none_of_these():
    allowed = [ip_network(one) for one in ("64:ff9b::/96", "2002::/16", "::ffff:0:0/96")]
    for address in ("64:ff9b::a9fe:a9fe", "2002:a9fe:a9fe::1", "::ffff:169.254.169.254"):
        assert addresses.kind_of(ip_address(address), allowed) == "metadata"


def test_a_network_of_ipv6_may_be_allowed():
    assert addresses.kind_of(ip_address("fd00::7"), [ip_network("fd00::/64")]) == ""


def test_an_address_of_ipv6_is_told_in_brackets():
    with pytest.raises(django_delayq.TargetRefused, match=r"^\[::1\]:9 is the address ::1 "):
        addresses.resolve("::1", 9, ())


@pytest.mark.parametrize("host", ["127.1", "0x7f.1", "2130706433", "0177.0.0.1", "localhost", "[::1]", "[::ffff:7f00:1]", "127.0.0.1."])
@pytest.mark.django_db
def test_no_way_to_write_it_gets_past(delayq, http, host):
    http(ALLOW=[])
    try:
        job = django_delayq.deliver(f"http://{host}:9/", json=1)
    except django_delayq.TargetRefused:
        return
    (ran,) = delayq.run_due()
    assert ran.outcome in ("fail", "retry")  # or nobody could look it up
    message = Attempt.objects.get(job_id=job.id).message
    assert "(loopback)" in message or "has no address" in message


@pytest.mark.django_db
def test_a_name_that_answers_otherwise_when_it_is_looked_up_again_is_connected_to_where_it_was_judged(delayq, host, monkeypatch):
    good, bad = host(), host()
    asked: list[str] = []

    def changing(name, port, *args, **options):
        if name != "rebinds.example":
            return real(name, port, *args, **options)
        asked.append(name)
        to = good.port if len(asked) == 1 else bad.port
        return real("127.0.0.1", to, *args, **options)

    monkeypatch.setattr(socket, "getaddrinfo", changing)
    django_delayq.deliver("http://rebinds.example/hook", json=1)
    assert [ran.outcome for ran in delayq.run_due()] == ["ack"]
    assert asked == ["rebinds.example"]
    assert (len(good.requests), bad.connections) == (1, 0)
    assert good.requests[0].headers["host"] == "rebinds.example"


@pytest.mark.django_db
def test_a_name_that_turns_to_the_inside_between_two_attempts_ends_it(delayq, host, http, monkeypatch):
    http(ALLOW=["127.0.0.1/32"])
    partner = host(answer(500))
    found = iter(["127.0.0.1", "127.0.0.2"])
    monkeypatch.setattr(socket, "getaddrinfo", lambda _name, _port, *args, **options: real(next(found), partner.port, *args, **options))
    job = django_delayq.deliver("http://rebinds.example/hook", json=1, backoff="1m")
    partner.script[0] = lambda exchange: (answer(500, Connection="close")(exchange), "close")[1]
    assert [ran.outcome for ran in [*delayq.run_due(), *delayq.advance("1m")]] == ["retry", "fail"]
    assert "127.0.0.2 (loopback)" in Attempt.objects.get(job_id=job.id, number=2).message


@pytest.mark.django_db
def test_a_name_with_a_good_address_and_a_bad_one_is_refused(delayq, host, http, monkeypatch):
    http(ALLOW=["127.0.0.1/32"])
    partner = host()
    monkeypatch.setattr(
        socket,
        "getaddrinfo",
        lambda _name, _port, *args, **options: [
            *real("127.0.0.1", partner.port, *args, **options),
            *real("10.0.0.1", partner.port, *args, **options),
        ],
    )
    django_delayq.deliver("http://both.example/hook", json=1)
    assert [ran.outcome for ran in delayq.run_due()] == ["fail"]
    assert partner.connections == 0


@pytest.mark.django_db
def test_the_next_address_is_tried_where_the_first_one_does_not_answer(delayq, host, monkeypatch):
    partner = host()
    with socket.create_server(("127.0.0.1", 0)) as nobody:
        closed = nobody.getsockname()[1]
    monkeypatch.setattr(
        socket,
        "getaddrinfo",
        lambda _name, _port, *args, **options: [
            *real("127.0.0.1", closed, *args, **options),
            *real("127.0.0.1", partner.port, *args, **options),
        ],
    )
    django_delayq.deliver("http://two.example/hook", json=1)
    assert [ran.outcome for ran in delayq.run_due()] == ["ack"]


@pytest.mark.django_db
def test_ipv6_is_delivered_to(delayq, host, http):
    http(ALLOW=["::1/128"])
    try:
        partner = host(family=socket.AF_INET6)
    except OSError:
        pytest.skip("no IPv6 here")
    django_delayq.deliver(f"http://[::1]:{partner.port}/hook", json=1)
    assert [ran.outcome for ran in delayq.run_due()] == ["ack"]
    assert partner.requests[0].headers["host"] == f"[::1]:{partner.port}"


# proxies


@pytest.mark.django_db
def test_a_proxy_of_the_environment_is_not_asked(delayq, host, monkeypatch):
    proxy, partner = host(), host()
    for name in ("http_proxy", "HTTP_PROXY", "https_proxy", "HTTPS_PROXY", "all_proxy", "ALL_PROXY"):
        monkeypatch.setenv(name, proxy.url(""))
    django_delayq.deliver(partner.url(), json=1)
    assert [ran.outcome for ran in delayq.run_due()] == ["ack"]
    assert (proxy.connections, len(partner.requests)) == (0, 1)


@pytest.mark.django_db
def test_the_proxy_of_the_settings_gets_all_of_it_and_is_the_guard(delayq, host, http):
    proxy = host()
    http(PROXY=proxy.url(""), ALLOW=[])
    django_delayq.deliver("http://partner.example/hook?a=1", json=1)
    assert [ran.outcome for ran in delayq.run_due()] == ["ack"]
    (request,) = proxy.requests
    assert request.line == "POST http://partner.example/hook?a=1 HTTP/1.1"
    assert request.headers["host"] == "partner.example"


@pytest.mark.django_db
def test_what_is_sealed_goes_through_the_proxy_unread(delayq, host, http):
    proxy = host(answer(502))
    http(PROXY=proxy.url(""))
    django_delayq.deliver("https://partner.example/hook", json={"order": 7})
    assert [ran.outcome for ran in delayq.run_due()] == ["retry"]
    (request,) = proxy.requests
    assert request.line.startswith("CONNECT partner.example:443 HTTP/1.")
    assert request.body == b""


@pytest.mark.django_db
def test_a_proxy_may_ask_who_is_there(delayq, host, http):
    proxy = host()
    http(PROXY=proxy.url("").replace("http://", "http://user:w%40rd@"))
    django_delayq.deliver("http://partner.example/hook", json=1)
    assert [ran.outcome for ran in delayq.run_due()] == ["ack"]
    assert proxy.requests[0].headers["proxy-authorization"] == "Basic dXNlcjp3QHJk"


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
