"""The effects of atomic tasks and of tasks in steps."""

from __future__ import annotations

from django.db import models


class Effect(models.Model):
    """One effect of one run. A job that succeeded has one of each of its steps in the end, however often it was run."""

    job = models.UUIDField(db_index=True)
    fence = models.CharField(max_length=64)
    step = models.CharField(max_length=20, default="")

    def __str__(self) -> str:
        return f"{self.job} {self.fence} {self.step}"
