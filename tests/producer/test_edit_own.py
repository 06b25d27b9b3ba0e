"""Jobs of the package's own tasks are not edited: their arguments name secrets and keys of Redis."""

from __future__ import annotations

import pytest

import django_delayq as delayq
from django_delayq.admin.schedule_forms import ScheduleForm
from django_delayq.producer import edit
from django_delayq.producer.task import registry


@pytest.fixture
def offers(monkeypatch):
    from django_delayq.targets import offering

    monkeypatch.setitem(registry._tasks, offering.NAME, offering.offers)  # as where the settings have TARGETS
    return offering.offers


def test_their_arguments_are_given_by_their_functions_alone(offers):
    with pytest.raises(delayq.PayloadError, match="Call that function again") as caught:
        edit.check(offers.name, "default", ["elsewhere", {}], {})
    assert caught.value.code == "own_task"


def test_people_can_make_no_schedule_of_them(offers):
    offered = [name for name, _ in ScheduleForm().fields["task"].choices]
    assert offers.name in registry.names()
    assert offers.name not in offered
    assert len(offered) > 1
