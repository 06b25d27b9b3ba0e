"""The base of the contract tests: the backend under test, its tasks, and the signals that it sent about them."""

from __future__ import annotations

import sys
from collections.abc import Callable
from datetime import timedelta
from importlib import import_module
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, ClassVar, Final

from asgiref.sync import sync_to_async
from django.test import SimpleTestCase, override_settings
from django.utils import timezone

if TYPE_CHECKING:
    Case = SimpleTestCase
else:
    Case = object

PACKAGE = "django.tasks" if find_spec("django.tasks") else "django_tasks"  # Django 5.2
api: Any = import_module(PACKAGE)
base: Any = import_module(f"{PACKAGE}.base")
exceptions: Any = import_module(f"{PACKAGE}.exceptions")
signals: Any = import_module(f"{PACKAGE}.signals")
InvalidTask: Any = getattr(exceptions, "InvalidTask", None) or exceptions.InvalidTaskError
InvalidTaskBackend: Any = getattr(exceptions, "InvalidTaskBackend", None) or exceptions.InvalidTaskBackendError
HOUR = timedelta(hours=1)
TASKS: Final = "tests.contrib.contract.tasks"
COROUTINES: Final = "tests.contrib.contract.coroutines"


class ContractCase(Case):
    """A mixin for Django's test cases. A subclass names the backend. `backend`: its dotted path; `options`: its OPTIONS; `queues`:
    two queues that it may use, the first named "default". `runs`: whether enqueued tasks run at all. `at_once`: whether a task has
    run when `enqueue` returns.
    """

    backend: ClassVar[str]
    options: ClassVar[dict[str, Any]] = {}
    queues: ClassVar[tuple[str, str]] = ("default", "second")
    runs: ClassVar[bool] = True
    at_once: ClassVar[bool] = False

    def run_tasks(self) -> None:
        """Runs the tasks that are enqueued and due, and returns when they have ended. A backend that runs tasks at once leaves this
        empty.
        """

    def setUp(self) -> None:
        """Puts the backend into the settings, and records signals."""
        super().setUp()
        changed = override_settings(TASKS=self.settings_of(list(self.queues)))
        changed.enable()
        self.addCleanup(changed.disable)
        for name in (TASKS, COROUTINES):  # a task has the class of the backend that the settings name at its declaration
            sys.modules.pop(name, None)
        self.tasks: Any = import_module(TASKS)
        self.ours: Any = api.task_backends["default"]
        self.told: list[tuple[Any, ...]] = []
        for name in ("task_enqueued", "task_started", "task_finished"):
            self._note(name)

    def settings_of(self, queues: list[str]) -> dict[str, Any]:
        """Returns the setting TASKS with these queues."""
        return {"default": {"BACKEND": self.backend, "QUEUES": queues, "OPTIONS": self.options}}

    def _note(self, name: str) -> None:
        def note(sender: Any, task_result: Any, **_: Any) -> None:
            self.told.append((name, sender, str(task_result.status), sys.exc_info()[0], task_result.id))

        sent = getattr(signals, name)
        sent.connect(note)
        self.addCleanup(sent.disconnect, note)

    def done(self, result: Any) -> Any:
        """Returns the result after its task has run."""
        if not self.runs:
            self.skipTest("nothing runs")
        self.run_tasks()
        if self.ours.supports_get_result:
            result.refresh()
        return result

    async def adone(self, result: Any) -> Any:
        """Async version of `done`."""
        if not self.runs:
            self.skipTest("nothing runs")
        await sync_to_async(self.run_tasks)()
        if self.ours.supports_get_result:
            await result.arefresh()
        return result

    def need(self, ability: str) -> None:
        """Skips the test if the backend lacks this feature."""
        if not getattr(self.ours, f"supports_{ability}"):
            self.skipTest(f"supports_{ability} is False")

    def refused(self, make: Callable[[], Any], words: str = "") -> None:
        """Checks that this is not a valid task."""
        with self.assertRaisesMessage(InvalidTask, words):
            make()

    def assert_fresh(self, result: Any) -> None:
        """Checks that `give` enqueued it, and that nothing more has happened if nothing can have."""
        self.assertIsInstance(result, base.TaskResult)
        self.assertEqual((result.task, result.args, result.kwargs), (self.tasks.give, [1], {"two": 2}))
        self.assertEqual(result.backend, "default")
        self.assertTrue(isinstance(result.id, str) and 0 < len(result.id) < 64)
        self.assertTrue(timezone.is_aware(result.enqueued_at))
        if not self.at_once:
            self.assertEqual((result.status, result.is_finished, result.attempts), (base.TaskResultStatus.READY, False, 0))
            self.assertEqual((result.errors, result.worker_ids), ([], []))
            self.assertEqual((result.started_at, result.last_attempted_at, result.finished_at), (None, None, None))
            with self.assertRaisesMessage(ValueError, "Task has not finished yet"):
                _ = result.return_value

    def assert_succeeded(self, result: Any, value: Any) -> None:
        """Checks that its task returned this value in one attempt."""
        self.assertEqual((result.status, result.is_finished), (base.TaskResultStatus.SUCCESSFUL, True), result.errors)
        self.assertEqual((result.return_value, result.errors), (value, []))
        self.assertEqual((result.attempts, len(result.worker_ids)), (1, 1))
        self.assertTrue(all(isinstance(worker, str) and worker for worker in result.worker_ids))
        self.assertLessEqual(result.started_at, result.finished_at)
        self.assertEqual(result.started_at, result.last_attempted_at)
        self.assertTrue(timezone.is_aware(result.finished_at))

    def assert_failed(self, result: Any, error: type[BaseException], words: str) -> None:
        """Checks that its task raised this error in one attempt."""
        self.assertEqual((result.status, result.is_finished), (base.TaskResultStatus.FAILED, True))
        self.assertEqual((len(result.errors), result.attempts), (1, 1))
        self.assertIs(result.errors[0].exception_class, error)
        self.assertIn(words, result.errors[0].traceback)
        self.assertIsNotNone(result.finished_at)
        with self.assertRaisesMessage(ValueError, "Task failed"):
            _ = result.return_value
