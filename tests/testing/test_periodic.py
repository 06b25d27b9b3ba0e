"""Schedules in a project's own tests: each schedule that a test follows ticks at its dates."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo

import pytest
import time_machine
from django.test import TestCase, TransactionTestCase
from django.utils import timezone

import django_delayq
from django_delayq.exceptions import ConfigError, PayloadError
from django_delayq.models import Job, Periodic, Tick
from django_delayq.periodic import schedules
from django_delayq.periodic.declarations import declarations
from django_delayq.testing import DelayqMixin
from tests.testing import shop
from tests.testing.shop import SEEN, look_at_the_clock, settle_cart

BERLIN = ZoneInfo("Europe/Berlin")


@pytest.fixture(autouse=True)
def own_declarations(monkeypatch):
    monkeypatch.setattr(declarations, "_all", dict(declarations._all))


def declare(name: str = "nightly", cron: str = "0 3 * * *", task=settle_cart, args=(7,), **options) -> None:
    given = {"timezone": "Europe/Berlin", **options}
    if "every" in given:
        cron, given = "", {key: value for key, value in given.items() if key != "timezone"}
    django_delayq.periodic(cron, name=name, args=args, **given)(task)


def dates(runs) -> list[datetime]:
    return list(Tick.objects.order_by("at").filter(job_id__in=[run.id for run in runs]).values_list("at", flat=True))


def test_a_schedule_that_is_followed_ticks_while_time_passes(delayq):
    declare()
    delayq.travel(datetime(2031, 5, 1, 12, tzinfo=UTC))
    delayq.follow("nightly")
    assert delayq.advance("12h") == []
    (ran,) = delayq.advance("2h")
    assert (ran.task, ran.args, ran.outcome) == (settle_cart.name, [7], "ack")
    assert dates(delayq.advance("3d")) == [datetime(2031, 5, day, 3, tzinfo=BERLIN) for day in (3, 4, 5)]


def test_five_lines(delayq):
    declare()
    delayq.follow("nightly")
    delayq.assert_scheduled(settle_cart, args=[7], run_at=delayq.upcoming("nightly")[0])
    assert len(delayq.advance("7d")) == 7
    assert SEEN == [("settle_cart", 7, 1)] * 7


def test_a_schedule_that_is_not_followed_does_nothing(delayq):
    declare()
    declare("other", "0 4 * * *", args=[8])
    assert delayq.advance("3d") == []
    assert not Periodic.objects.exists()
    delayq.follow("other")
    assert {ran.args[0] for ran in delayq.advance("3d")} == {8}


def test_nothing_of_a_test_is_left_in_the_next(delayq):
    declare()
    delayq.follow("nightly")
    delayq.stop()
    delayq.start()
    Periodic.objects.all().delete()
    Job.objects.all().delete()
    assert delayq.advance("3d") == []


def test_a_task_stands_for_all_its_schedules(delayq):
    declare("eu", "0 8 * * 1", args=[1])
    declare("us", "0 8 * * 1", args=[2], timezone="America/New_York")
    delayq.follow(settle_cart)
    assert [ran.args for ran in delayq.advance("7d")].count([1]) == 1
    assert {ran.args[0] for ran in delayq.advance("7d")} == {1, 2}
    with pytest.raises(ConfigError, match="several schedules: eu, us"):
        delayq.upcoming(settle_cart)


def test_dates_are_asked_for_without_following(delayq):
    declare("dst", "30 2 * * *")
    delayq.travel(datetime(2031, 3, 28, 12, tzinfo=UTC))
    told = [moment.astimezone(BERLIN) for moment in delayq.upcoming("dst", 3)]
    assert [f"{moment:%d %H:%M %z}" for moment in told] == ["29 02:30 +0100", "30 03:00 +0200", "31 02:30 +0200"]
    assert not Periodic.objects.exists()


def test_each_tick_runs_at_its_date(delayq):
    declare("clock", task=look_at_the_clock, args=(), every="10m")
    with time_machine.travel("2031-05-01 12:03Z", tick=False):
        delayq.follow("clock")
        delayq.advance("35m")
        assert timezone.now() == datetime(2031, 5, 1, 12, 38, tzinfo=UTC)
    assert len(SEEN) == 3


def test_a_period_of_seconds(delayq):
    declare("often", every="2s")
    delayq.follow("often")
    assert len(delayq.advance("1m")) == 30


def test_what_fell_due_while_nobody_was_there_follows_the_policy(delayq):
    declare("once", args=[1])
    declare("all", args=[2], missed="all")
    declare("skip", args=[3], missed="skip")
    delayq.travel(datetime(2031, 5, 1, 12, tzinfo=UTC))
    delayq.follow("once", "all", "skip")
    delayq.travel(datetime(2031, 5, 5, 12, tzinfo=UTC))
    ran = [one.args[0] for one in delayq.run_due()]
    assert sorted(ran) == [1, 1, 2, 2, 2, 2, 3]  # the first of each waited in Redis already


def test_while_redis_is_away_ticks_are_written_in_their_time_and_run_late(delayq):
    declare(missed="skip")
    delayq.follow("nightly")
    with delayq.redis_down():
        assert delayq.advance("5d") == []
    assert [run.outcome for run in delayq.run_due()] == ["ack"] * 5


def test_drain_runs_the_next_tick_and_ends(delayq):
    declare()
    delayq.travel(datetime(2031, 5, 1, 12, tzinfo=UTC))
    delayq.follow("nightly")
    assert dates(delayq.drain()) == [datetime(2031, 5, 2, 3, tzinfo=BERLIN)]
    assert dates(delayq.drain()) == [datetime(2031, 5, 3, 3, tzinfo=BERLIN)]
    assert dates(delayq.advance("1d")) == [datetime(2031, 5, 4, 3, tzinfo=BERLIN)]


def test_a_tick_that_fails_is_retried_and_the_next_comes_all_the_same(delayq):
    declare(task=shop.fail_twice, cron="0 3 * * *")
    delayq.follow("nightly")
    outcomes = [ran.outcome for ran in delayq.advance("2d")]
    assert outcomes == ["retry", "retry", "ack"] * 2


def test_people_may_turn_it_off_and_give_it_other_dates(delayq):
    declare()
    delayq.travel(datetime(2031, 5, 1, 12, tzinfo=UTC))
    delayq.follow("nightly")
    schedules.turn_off("nightly", actor="ann")
    assert delayq.upcoming("nightly") == []
    assert delayq.advance("3d") == []
    schedules.turn_on("nightly", actor="ann")
    schedules.override("nightly", cron="0 5 * * *", timezone="Europe/Berlin", actor="ann")
    assert dates(delayq.advance("1d")) == [datetime(2031, 5, 5, 5, tzinfo=BERLIN)]


def test_a_schedule_of_the_admin_is_followed_by_its_name(delayq):
    schedules.create("made", settle_cart.name, every="1h", args=[9], actor="ann")
    schedules.create("other", settle_cart.name, every="1h", args=[10], actor="ann")
    delayq.follow("made")
    assert [ran.args for ran in delayq.advance("2h")] == [[9], [9]]


def test_runs_that_may_not_overlap_know_it_here_too(delayq):
    declare("lonely", every="10m", overlap="skip")
    delayq.follow("lonely")
    assert [ran.outcome for ran in delayq.advance("30m")] == ["ack"] * 3


def test_what_is_no_schedule_is_refused(delayq):
    declare()
    with pytest.raises(ConfigError, match=r"No schedule is named 'nihgtly' \(did you mean 'nightly'\?\)"):
        delayq.follow("nihgtly")
    with pytest.raises(ConfigError, match="No schedule is declared for"):
        delayq.follow(shop.greet)


@pytest.mark.parametrize("name", ["\ud800", "a\x00b", ""])
def test_a_name_that_no_schedule_can_have_is_unknown(delayq, name):
    with pytest.raises(ConfigError, match="No schedule is named"):
        delayq.follow(name)


@pytest.mark.parametrize("thing", [None, 5, [settle_cart], b"nightly"])
def test_what_is_neither_a_name_nor_a_task_is_no_schedule(delayq, thing):
    with pytest.raises(ConfigError, match="is not a schedule"):
        delayq.follow(thing)


@pytest.mark.parametrize("count", [None, -1, "a", 2.5, True])
def test_so_many_dates_are_a_whole_number(delayq, count):
    declare()
    with pytest.raises(ValueError, match=r"^upcoming\(count="):
        delayq.upcoming("nightly", count)
    assert delayq.upcoming("nightly", 0) == []


@pytest.mark.parametrize(
    ("to", "said"),
    [
        (None, "None is not a datetime"),
        (5, "5 is not a datetime"),
        ("2030-01-01", "'2030-01-01' is not a datetime"),
        (datetime(2030, 1, 1), "naive"),
        (datetime(1, 1, 1, tzinfo=UTC), "is before 1970"),
        (datetime.max.replace(tzinfo=UTC), "the year 9999 or later"),
    ],
)
def test_who_travels_says_to_which_moment(delayq, to, said):
    before = delayq.now
    with pytest.raises(ValueError, match=rf"^travel\(\): to: .*{said}"):
        delayq.travel(to)
    assert timedelta(0) <= delayq.now - before < timedelta(days=1)


def test_what_cannot_be_written_is_told_to_the_test(delayq):
    schedules.create("made", settle_cart.name, every="1h", args=[9], actor="ann")
    Periodic.objects.update(args=[1, 2, 3])
    with pytest.raises(PayloadError, match="cannot be called with these arguments"):
        delayq.follow("made")


def test_within_a_task_nothing_is_followed(delayq):
    declare()
    shop.KIT.append(delayq)
    with pytest.raises(RuntimeError, match="follow"):
        delayq.perform(shop_follow)


@django_delayq.task(name="tests.testing.shop_follow")
def shop_follow() -> None:
    shop.KIT.pop().follow("nightly")


class NightlyTests(DelayqMixin, TestCase):
    def test_under_the_test_case(self):
        declare()
        self.delayq.follow("nightly")
        assert len(self.delayq.advance("2d")) == 2
        assert Tick.objects.count() == 3


class NightlyTransactionTests(DelayqMixin, TransactionTestCase):
    def test_with_real_commits(self):
        declare()
        self.delayq.follow("nightly")
        assert len(self.delayq.advance("2d")) == 2
        assert Tick.objects.count() == 3
        assert timedelta(0) < self.delayq.upcoming("nightly")[0] - self.delayq.now <= timedelta(days=1, hours=1)
