"""Makes the tables, for a judge's database."""

from __future__ import annotations

import pytest


@pytest.mark.django_db
def test_there_are_tables():
    from django_delayq.models import Job

    assert not Job.objects.exists()
