"""What the benchmarks run."""

from __future__ import annotations

import time

import django_delayq as delayq
from benchmarks.adapters import base

nothing = delayq.task(base.nothing, name="bench.nothing")
late = delayq.task(base.late, name="bench.late")
nap = delayq.task(base.nap, name="bench.nap")


def change(row: int) -> None:
    """One statement through the ORM."""
    from django.contrib.auth.models import User

    User.objects.filter(pk=row).update(first_name="updated")
    base.marks.add(time.time())


update = delayq.task(change, name="bench.update")
