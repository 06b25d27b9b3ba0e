"""Failing hosts get no requests for a while, and this costs no attempt."""

from __future__ import annotations

import json
from dataclasses import replace
from datetime import timedelta

import pytest

import django_delayq
from django_delayq import conf
from django_delayq.targets.circuits import MOST_REPORTED, Circuits, HostHeld, circuits
from tests.targets.receivers import answer, drop

deliver = django_delayq.deliver
HOST = "partner.example:443"
visited = Circuits.visit


class Clock:
    """Seconds that a test moves. `put_back`: by how many Redis' clock was."""

    now = 1_000_000.0
    put_back = 0.0

    @property
    def redis_ms(self) -> int:
        return int((self.now - self.put_back) * 1000)


@pytest.fixture
def clock(monkeypatch) -> Clock:
    from django_delayq import clock as real

    made = Clock()
    monkeypatch.setattr(real, "monotonic", lambda: made.now)
    monkeypatch.setattr(Circuits, "visit", lambda *given, **more: visited(*given, now_ms=made.redis_ms, **more))
    return made


def config(**changes):
    return replace(conf.get().http, breaker=3, pause=30.0, **changes)


def visit(hosts: Circuits, well: bool | None, **options) -> None:
    with hosts.visit(HOST, config(), **options) as one:
        one.well = well


def held(hosts: Circuits, **options) -> HostHeld:
    with pytest.raises(HostHeld) as error, hosts.visit(HOST, config(**options)):
        pass
    return error.value


def state(hosts: Circuits) -> list[tuple[str, int]]:
    return [(one.state, one.failures) for one in hosts.snapshot()]


def test_a_host_that_is_well_is_not_remembered(clock):
    hosts = Circuits()
    visit(hosts, True)
    visit(hosts, None)
    assert hosts.snapshot() == []


def test_of_more_hosts_than_are_remembered_who_failed_longest_ago_is_forgotten(clock):
    hosts = Circuits(most=3)
    with hosts.visit("asked now", config()):
        for name in ("a", "b", "a", "c"):
            with hosts.visit(name, config()) as one:
                one.well = False
        assert {one.target: one.failures for one in hosts.snapshot()} == {"asked now": 0, "a": 2, "c": 1}


def test_it_opens_after_so_many_failures_in_a_row_and_one_success_between_them_begins_anew(clock):
    hosts = Circuits()
    for well in (False, False, True, False, False):
        visit(hosts, well)
    assert state(hosts) == [("closed", 2)]
    visit(hosts, False)
    (circuit,) = hosts.snapshot()
    assert (circuit.target, circuit.state, circuit.failures, circuit.seconds, circuit.running) == (HOST, "open", 3, 30.0, 0)


def test_while_it_is_open_all_are_held_at_scattered_moments_behind_the_pause(clock):
    hosts = Circuits()
    for _ in range(3):
        visit(hosts, False)
    asked = {held(hosts).seconds for _ in range(50)}
    assert len(asked) == 50
    assert all(30 <= seconds <= 60 for seconds in asked)


def test_behind_the_pause_one_is_the_probe_and_its_success_closes(clock):
    hosts = Circuits()
    for _ in range(3):
        visit(hosts, False)
    clock.now += 30
    with hosts.visit(HOST, config()) as probe:
        assert state(hosts) == [("probing", 3)]
        assert held(hosts).code == "open"
        probe.well = True
    assert hosts.snapshot() == []
    visit(hosts, True)


def test_a_probe_that_fails_opens_it_for_twice_as_long_up_to_ten_minutes(clock):
    hosts = Circuits()
    for _ in range(3):
        visit(hosts, False)
    pauses = []
    for _ in range(7):
        clock.now += hosts.snapshot()[0].seconds
        visit(hosts, False)
        pauses.append(hosts.snapshot()[0].seconds)
    assert pauses == [60, 120, 240, 480, 600, 600, 600]


def test_a_probe_of_which_nothing_is_learnt_makes_way_for_the_next(clock):
    hosts = Circuits()
    for _ in range(3):
        visit(hosts, False)
    clock.now += 30
    with pytest.raises(KeyboardInterrupt), hosts.visit(HOST, config()):
        raise KeyboardInterrupt
    visit(hosts, True)
    assert hosts.snapshot() == []


def test_those_that_began_before_it_opened_do_not_make_its_pause_longer(clock):
    hosts = Circuits()
    under_way = [hosts.visit(HOST, config()) for _ in range(6)]
    visits = [one.__enter__() for one in under_way]
    for one, entered in zip(under_way, visits, strict=True):
        entered.well = False
        one.__exit__(None, None, None)
    assert [(one.state, one.seconds) for one in hosts.snapshot()] == [("open", 30.0)]


def test_a_clock_that_is_put_back_makes_no_pause_longer(clock):
    hosts = Circuits()
    for _ in range(3):
        visit(hosts, False)
    clock.put_back = 86_400
    held(hosts)
    assert [one.seconds for one in hosts.snapshot()] == [30.0]
    clock.now += 30
    visit(hosts, True)
    assert hosts.snapshot() == []


def test_no_breaker_never_opens(clock):
    hosts = Circuits()
    for _ in range(20):
        with hosts.visit(HOST, replace(config(), breaker=None)) as one:
            one.well = False
    assert state(hosts) == [("closed", 20)]


def test_a_host_gets_no_more_at_once_than_is_set(clock):
    hosts = Circuits()
    with hosts.visit(HOST, config(per_host=2)), hosts.visit(HOST, config(per_host=2)):
        assert held(hosts, per_host=2).code == "busy"
        with hosts.visit("other.example:443", config(per_host=2)):
            pass
    with hosts.visit(HOST, config(per_host=2)):
        pass
    assert hosts.snapshot() == []


def test_who_is_told_hears_of_each_change_of_what_is_open_and_of_nothing_else(clock):
    hosts, told = Circuits(), []
    hosts.tell_to(lambda text: told.append(json.loads(text)))
    for well in (True, False, False, None):
        visit(hosts, well)
    assert told == []
    visit(hosts, False)
    until = int((clock.now + 30) * 1000)
    assert told == [[{"target": HOST, "failures": 3, "until": until}]]
    clock.now += 30
    visit(hosts, False)
    assert told[1:] == [[{"target": HOST, "failures": 4, "until": until + 60_000}]]
    clock.now += 60
    visit(hosts, True)
    assert told[2:] == [[]]


def test_of_many_that_are_open_the_longest_are_told(clock):
    hosts, told = Circuits(), []
    hosts.tell_to(lambda text: told.append(json.loads(text)))
    for number in range(MOST_REPORTED + 5):
        clock.now += 1
        with hosts.visit(f"{number}.example:443", replace(config(), breaker=1)) as one:
            one.well = False
    assert [one["target"] for one in told[-1]] == [f"{number}.example:443" for number in range(MOST_REPORTED + 4, 4, -1)]


def fails(hosts: Circuits, *urls: str | None) -> list[tuple[str, int]]:
    for url in urls:
        with hosts.visit(HOST, config()) as one:
            one.well, one.failed_url = False, url
    return state(hosts)


def test_one_broken_url_does_not_open_the_circuit_of_its_host(clock):
    hosts = Circuits()
    assert fails(hosts, *["/a"] * 20, "/b") == [("closed", 21)]
    assert fails(hosts, "/c") == [("open", 22)]
    clock.now += 30
    assert fails(hosts, "/a") == [("open", 23)]  # the probe


def test_a_success_forgets_the_urls_that_have_failed(clock):
    hosts = Circuits()
    fails(hosts, "/a", "/b")
    visit(hosts, True)
    assert fails(hosts, "/c", "/c", "/c") == [("closed", 3)]


def test_a_host_that_does_not_respond_needs_no_other_url(clock):
    hosts = Circuits()
    assert fails(hosts, None, "/a", None, "/a") == [("closed", 4)]
    assert fails(hosts, None) == [("open", 5)]


# through jobs


@pytest.mark.django_db
def test_deliveries_to_an_open_host_are_snoozed_and_lose_no_attempt(delayq, host, http):
    http(BREAKER=3, PAUSE="1m")
    partner = host(drop, drop, drop, answer(200))
    jobs = [deliver(partner.url(), json=n, backoff="10s") for n in range(5)]
    assert [ran.outcome for ran in delayq.run_due()] == ["retry"] * 3 + ["snooze"] * 2
    assert [(one.state, one.failures) for one in circuits.snapshot()] == [("open", 3)]
    ran = delayq.advance("50s")
    assert {one.outcome for one in ran} == {"snooze"}
    assert len(partner.requests) == 3
    delayq.advance("10m")
    assert [job.state for job in jobs] == ["succeeded"] * 5
    assert circuits.snapshot() == []


@pytest.mark.django_db
def test_a_host_that_refuses_by_4xx_is_well(delayq, host, http):
    http(BREAKER=1)
    deliver(host(answer(404)).url(), json=1, max_attempts=1)
    delayq.run_due()
    assert circuits.snapshot() == []


@pytest.mark.django_db
def test_a_delivery_that_is_held_ends_by_its_expiry(delayq, host, http):
    http(BREAKER=1, PAUSE="2h")
    partner = host(drop)
    deliver(partner.url(), json=1, max_attempts=1)
    delayq.run_due()
    job = deliver(partner.url(), json=2, expires="10m")
    assert [ran.outcome for ran in delayq.run_due()] == ["snooze"]
    delayq.advance("5h")
    assert job.state == "cancelled"
    assert len(partner.requests) == 1


@pytest.mark.django_db
def test_three_days_behind_its_date_a_delivery_is_tried_whatever_its_host_did(delayq, host, http):
    http(BREAKER=1, PAUSE="30d")
    partner = host(drop)
    deliver(partner.url(), json=1, max_attempts=1)
    delayq.run_due()
    job = deliver(partner.url(), json=2, max_attempts=1)
    assert [ran.outcome for ran in delayq.run_due()] == ["snooze"]
    delayq.travel(delayq.now + timedelta(days=80))
    assert [ran.outcome for ran in delayq.run_due()] == ["fail"]
    assert job.state == "failed"
    assert len(partner.requests) == 2
