"""Replacements for Django's immediate and dummy backend in Django's own tests, and for the test case classes of these tests."""

from __future__ import annotations

from typing import Any

from django.test import TestCase, TransactionTestCase

from django_delayq import conf, under_test
from django_delayq.contrib.tasks import DelayqBackend
from django_delayq.models import Job
from django_delayq.producer.queues import purge
from django_delayq.testing.kit import one_kit


class AtOnce(DelayqBackend):
    """Runs a task before `enqueue` returns."""

    def enqueue(self, task: Any, args: Any, kwargs: Any) -> Any:
        """See Django."""
        result = super().enqueue(task, args, kwargs)
        one_kit().run_due()
        result.refresh()
        return result


class Remembering(DelayqBackend):
    """Stores the enqueued tasks."""

    def __init__(self, alias: str, params: Any) -> None:
        super().__init__(alias, params)
        self.results: list[Any] = []

    def enqueue(self, task: Any, args: Any, kwargs: Any) -> Any:
        """See Django."""
        result = super().enqueue(task, args, kwargs)
        self.results.append(result)
        return result

    def clear(self) -> None:
        """See Django."""
        self.results.clear()
        list(purge("default"))
        Job.objects.all().delete()


class WithKit:
    """Jobs go to the test kit, and run when the test runs them."""

    def _callSetUp(self) -> None:  # Django's tests define setUp and do not call ours
        under_test.ISOLATES = True
        case: Any = self
        one_kit().start()
        case.addCleanup(setattr, conf, "_config", None)
        case.addCleanup(one_kit().stop)
        super()._callSetUp()  # type: ignore[misc]  # the method of Django's class, which is next in the MRO


class Case(WithKit, TestCase):
    """Replaces Django's SimpleTestCase, which may not query the database."""


class TransactionCase(WithKit, TransactionTestCase):
    """Replaces Django's TransactionTestCase."""
