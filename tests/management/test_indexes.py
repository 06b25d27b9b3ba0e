"""`delayq indexes`: the index of unpublished rows without far ones."""

from __future__ import annotations

import pytest
from django.db import connection

from django_delayq.management import indexes_command
from django_delayq.models import UNPUBLISHED, Job


@pytest.fixture
def indexes(transactional_db):
    """Whatever the test makes of the index, it is afterwards as the migrations have made it."""
    yield
    [index] = [one for one in Job._meta.indexes if one.name == indexes_command.INDEX]
    with connection.schema_editor() as editor:
        editor.remove_index(Job, index)
        editor.add_index(Job, index)


@pytest.mark.usefixtures("indexes")
def test_it_is_made_anew_once(run):
    assert not indexes_command.is_for_near_rows(connection)
    assert run("indexes", "--dry-run", "--json").json == {"index": "delayq_job_unpublished", "changed": False}
    assert not indexes_command.is_for_near_rows(connection)
    assert run("indexes", "--yes", "--json").json["changed"] is True
    assert indexes_command.is_for_near_rows(connection)
    assert run("indexes", "--yes").out == "delayq_job_unpublished leaves out far rows already.\n"


@pytest.mark.usefixtures("indexes")
def test_it_asks_first(run):
    assert run("indexes", typed="n").error == "Nothing was changed."
    assert not indexes_command.is_for_near_rows(connection)


@pytest.mark.skipif(connection.vendor != "sqlite", reason="others choose by how many rows there are")
@pytest.mark.usefixtures("indexes")
def test_the_look_of_a_relay_uses_it(run):
    run("indexes", "--yes")
    assert "delayq_job_unpublished" in Job.objects.filter(UNPUBLISHED).order_by("id").explain()
