"""The schedules of the sample project are of all kinds, and its two versions differ in all that versions can differ in."""

from __future__ import annotations

from itertools import product
from pathlib import Path

from tests.app.record import lines
from tests.campaign.stage import SETTINGS
from tests.laws.almanac import Plan
from tests.stage import manage, project, sqlite


def declared(folder: Path, version: str) -> dict[str, Plan]:
    """The declarations that a process of that version records."""
    environment = project(folder, "unix:///nowhere", sqlite(":memory:"), SETTINGS)
    manage("shell", "-c", "pass", environment={**environment, "APP_CALENDAR": f"{version}/50"})
    [line] = lines(folder, f"plans-{version}-*.jsonl")
    return {name: Plan(**plan) for name, plan in line["plans"].items()}


def test_the_new_code_drops_adds_and_changes_schedules_of_every_kind(tmp_path):
    old, new = declared(tmp_path, "old"), declared(tmp_path, "new")
    assert len(old.keys() | new.keys()) == 50
    assert len(old.keys() - new.keys()) == len(new.keys() - old.keys()) == 5
    both = old.keys() & new.keys()
    assert sum(old[name].dates != new[name].dates for name in both) == 10
    assert sum(old[name].dates == new[name].dates and old[name].mark != new[name].mark for name in both) == 5
    assert all((old[name].missed, old[name].overlap) == (new[name].missed, new[name].overlap) for name in both)
    kinds = {(plan.missed, plan.overlap) for plan in old.values()}
    assert kinds == set(product(("skip", "once", "all"), ("allow", "skip", "wait")))
    assert {plan.jitter > 0 for plan in old.values()} == {False, True}
    assert {min(plan.period for plan in old.values()), max(plan.period for plan in old.values())} == {1_000, 120_000}
