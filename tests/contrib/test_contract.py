"""The contract of `django.tasks`: Django's own backends, and ours in the thread of a test."""

from __future__ import annotations

from importlib.util import find_spec

import pytest
from django.test import SimpleTestCase, TestCase

from django_delayq.testing import DelayqMixin
from tests.contrib.conftest import BACKEND

if not find_spec("django.tasks") and not find_spec("django_tasks"):
    pytest.skip("Neither Django's tasks nor the package django-tasks are installed", allow_module_level=True)

from tests.contrib.contract import TaskBackendContract

DJANGOS = "django.tasks.backends" if find_spec("django.tasks") else "django_tasks.backends"


class TestImmediate(TaskBackendContract, SimpleTestCase):
    backend = f"{DJANGOS}.immediate.ImmediateBackend"
    at_once = True


class TestDummy(TaskBackendContract, SimpleTestCase):
    backend = f"{DJANGOS}.dummy.DummyBackend"
    runs = False


class TestDelayq(DelayqMixin, TaskBackendContract, TestCase):
    backend = BACKEND
    queues = ("default", "orders")

    def run_tasks(self) -> None:
        self.delayq.run_due()
