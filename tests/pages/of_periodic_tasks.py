"""Tests the statements of docs/topics/periodic-tasks.md, in the project that the page builds."""

from orders import tasks


def test_ticks_become_jobs(delayq):
    delayq.follow(tasks.nightly_report, tasks.poll_bank, "weekly-eu", "weekly-us")
    runs = delayq.advance("8d")
    names = [run.task.rpartition(".")[2] for run in runs]
    assert names.count("nightly_report") in (7, 8, 9)
    assert names.count("poll_bank") > 1000
    assert sorted(run.args for run in runs if run.task.endswith("weekly"))[0] == ["eu"]


def test_a_tick_is_a_multiple_of_its_period(delayq):
    assert all(tick.minute % 10 == 0 for tick in delayq.upcoming(tasks.poll_bank, count=6))
    assert len(delayq.upcoming("weekly-us")) == 1


def test_a_task_can_have_several_schedules(delayq):
    tasks.weekly.schedule("by hand")
    assert [run.args for run in delayq.run_due()] == [["by hand"]]
    delayq.follow("weekly-eu")
    (tick,) = delayq.upcoming("weekly-eu")
    assert [run.args for run in delayq.advance(tick - delayq.now)] == [["eu"]]
