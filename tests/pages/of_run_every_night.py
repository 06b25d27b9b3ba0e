"""Tests the statements of docs/howto/run-every-night.md that its test does not cover, in the project that the page builds."""

from orders import tasks
from orders.models import DailyReport, Order


def test_a_night_has_one_row_and_it_is_that_of_its_tick(delayq):
    Order.objects.create(state="paid")
    of_a_tick = {"delayq.periodic": {"name": "orders.tasks.write_report", "tick": "2031-05-01T01:00:00+00:00"}}
    for attempt in (1, 2):
        assert delayq.perform(tasks.write_report.using(meta=of_a_tick), attempt=attempt) == "2031-04-30"
    assert [(report.date.isoformat(), report.paid) for report in DailyReport.objects.all()] == [("2031-04-30", 1)]


def test_it_can_be_scheduled_by_hand(delayq):
    tasks.write_report.schedule()
    assert [run.outcome for run in delayq.run_due()] == ["ack"]


def test_a_night_without_a_worker_is_made_up_for_once(delayq):
    delayq.follow(tasks.write_report)
    delayq.travel(delayq.upcoming(tasks.write_report, count=3)[-1])
    assert DailyReport.objects.count() == 0
    delayq.run_due()
    assert DailyReport.objects.count() >= 1
