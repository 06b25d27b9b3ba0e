"""There is one list of verbs for people. Everything that shows or runs a verb is made from it."""

from __future__ import annotations

import pytest

from django_delayq.admin import JobAdmin
from django_delayq.console import operation_loop
from django_delayq.console.verbs import ONCE, UNRESOLVED, VERBS
from django_delayq.models import Job
from django_delayq.states import Change, State


@pytest.mark.parametrize("verb", VERBS.values(), ids=lambda verb: verb.name)
def test_a_verb_has_its_permission_its_action_and_its_answers_everywhere(verb):
    assert verb.permission in dict(Job._meta.permissions)
    assert verb.name in JobAdmin.actions
    assert getattr(JobAdmin, verb.name).allowed_permissions == [verb.name]
    assert callable(getattr(JobAdmin, f"has_{verb.name}_permission"))
    assert operation_loop.VERBS[verb.name] is verb.each
    assert set(verb.answers) == set(Change) - {Change.PENDING}, "people act at once"
    assert verb.states <= set(State) | UNRESOLVED | ONCE
    assert verb.swept <= (set(State) if verb.states is ONCE else verb.states)
