"""The contract of `django.tasks`, second part: the outcome of a task, and where to find it."""

from __future__ import annotations

import logging
import pickle
from importlib import import_module
from typing import Any

import django

from django_delayq import clock
from tests.contrib.contract.case import COROUTINES, HOUR, ContractCase, base, exceptions, signals


class TaskRuns(ContractCase):
    """The results and signals that a backend must give for a task that runs."""

    # run

    def test_a_task_runs_with_its_arguments_and_its_value_is_kept(self) -> None:
        self.assert_succeeded(self.done(self.tasks.give.enqueue(1, two=[2])), [[1], {"two": [2]}])

    async def test_a_task_that_is_enqueued_by_await_runs(self) -> None:
        self.assert_succeeded(await self.adone(await self.tasks.give.aenqueue(1)), [[1], {}])

    def test_none_is_a_value_too(self) -> None:
        self.assert_succeeded(self.done(self.tasks.give_nothing.enqueue()), None)

    def test_a_value_becomes_json(self) -> None:
        self.assert_succeeded(self.done(self.tasks.give_pair.enqueue()), [1, "two"])

    def test_a_task_that_raises_has_failed(self) -> None:
        result = self.done(self.tasks.fail.enqueue())
        self.assert_failed(result, ValueError, "Traceback (most recent call last)")
        self.assertTrue(result.errors[0].traceback.endswith("ValueError: it was to be expected\n"), result.errors[0].traceback)

    def test_a_task_that_raises_something_complicated_has_failed(self) -> None:
        self.assert_failed(self.done(self.tasks.fail_within.enqueue()), ValueError, "ValueError")

    def test_a_task_cannot_end_its_worker(self) -> None:
        self.assert_failed(self.done(self.tasks.leave.enqueue()), SystemExit, "no more of this")

    def test_a_task_whose_value_cannot_become_json_has_failed(self) -> None:
        self.assert_failed(self.done(self.tasks.give_function.enqueue()), TypeError, "TypeError: ")

    def test_the_context_shows_the_run(self) -> None:
        result = self.done(self.tasks.look.enqueue(7))
        self.assertEqual(
            result.return_value,
            {
                "kind": "TaskContext",
                "attempt": 1,
                "id": result.id,
                "status": "RUNNING",
                "args": [7],
                "path": self.tasks.look.module_path,
                "backend": "default",
                "workers": 1,
                "started": True,
                "finished": False,
                "errors": 0,
            },
        )

    def test_it_is_told_that_a_task_starts_and_has_finished(self) -> None:
        result = self.done(self.tasks.give.enqueue())
        sender = type(self.ours)
        self.assertEqual(
            [one for one in self.told if one[0] != "task_enqueued"],
            [("task_started", sender, "RUNNING", None, result.id), ("task_finished", sender, "SUCCESSFUL", None, result.id)],
        )

    def test_it_is_told_that_a_task_has_failed_while_its_error_is_at_hand(self) -> None:
        result = self.done(self.tasks.fail.enqueue())
        self.assertEqual(self.told[-1], ("task_finished", type(self.ours), "FAILED", ValueError, result.id))

    def test_it_is_logged_what_becomes_of_a_task(self) -> None:
        with self.assertLogs(signals.logger.name, logging.INFO) as logs:
            self.done(self.tasks.give.enqueue())
        self.assertEqual([record.levelno for record in logs.records], [logging.INFO, logging.INFO])
        self.assertIn("state=RUNNING", logs.output[0])
        self.assertIn("state=SUCCESSFUL", logs.output[1])
        self.assertNotIn("None", "".join(logs.output))

    def test_an_error_is_logged_with_its_frames(self) -> None:
        with self.assertLogs(signals.logger.name, logging.ERROR) as logs:
            self.done(self.tasks.fail.enqueue())
        self.assertEqual(len(logs.records), 1)
        self.assertIn("state=FAILED", logs.records[0].getMessage())
        self.assertIn("it was to be expected", logs.output[0])

    async def test_coroutines_run(self) -> None:
        self.need("async_task")
        later: Any = import_module(COROUTINES)
        self.assert_succeeded(await self.adone(await later.give_later.aenqueue(1, 2)), [1, 2])
        looked = await self.adone(await later.look_later.aenqueue())
        self.assert_succeeded(looked, looked.id)
        self.assert_failed(await self.adone(await later.fail_later.aenqueue()), KeyError, "nobody has it")

    def test_a_task_does_not_run_before_its_date(self) -> None:
        self.need("defer")
        early, late = self.tasks.give.using(run_after=clock.now() + HOUR), self.tasks.give.using(run_after=clock.now() - HOUR)
        first, second = early.enqueue("early"), late.enqueue("late")
        self.assert_succeeded(self.done(second), [["late"], {}])
        self.assertEqual(self.done(first).status, base.TaskResultStatus.READY)
        self.assertEqual(self.tasks.RUN, [("late",)])

    def test_what_has_the_higher_priority_runs_first(self) -> None:
        self.need("priority")
        if self.at_once:
            self.skipTest("each has run before the next is enqueued")
        for priority in (-50, 0, 50):
            last = self.tasks.give.using(priority=priority).enqueue(priority)
        self.done(last)
        self.assertEqual(self.tasks.RUN, [(50,), (0,), (-50,)])

    # results

    def test_a_result_is_found_by_its_id(self) -> None:
        self.need("get_result")
        result = self.tasks.give.enqueue(1, two=2)
        self.assert_fresh(self.tasks.give.get_result(result.id))
        self.assert_fresh(self.ours.get_result(result_id=result.id))
        self.assertEqual(self.ours.get_result(result.id).id, result.id)
        self.assert_succeeded(self.done(self.ours.get_result(result.id)), [[1], {"two": 2}])

    async def test_a_result_is_found_by_its_id_by_await(self) -> None:
        self.need("get_result")
        result = await self.tasks.give.aenqueue(1, two=2)
        self.assert_fresh(await self.tasks.give.aget_result(result.id))
        self.assert_fresh(await self.ours.aget_result(result_id=result.id))
        self.assert_succeeded(await self.adone(await self.ours.aget_result(result.id)), [[1], {"two": 2}])

    def test_a_result_tells_by_which_task_it_was_enqueued(self) -> None:
        self.need("get_result")
        changes: dict[str, Any] = {"queue_name": self.queues[1]}
        if self.ours.supports_priority:
            changes["priority"] = 7
        if self.ours.supports_defer:
            changes["run_after"] = clock.now() + HOUR
        task = self.tasks.give.using(**changes)
        self.assertEqual(self.ours.get_result(task.enqueue().id).task, task)

    def test_a_failure_is_found_with_its_error(self) -> None:
        self.need("get_result")
        self.assert_failed(self.ours.get_result(self.done(self.tasks.fail.enqueue()).id), ValueError, "it was to be expected")

    def test_a_result_that_nobody_knows_does_not_exist(self) -> None:
        self.need("get_result")
        for unknown in ("123", "", "x" * 32, "0123456789ABCDEFGHIJKL", "0190163d-8694-739b-aea5-966c26f8ad91"):
            with self.subTest(unknown), self.assertRaises(exceptions.TaskResultDoesNotExist):
                self.ours.get_result(unknown)

    async def test_a_result_that_nobody_knows_does_not_exist_by_await(self) -> None:
        self.need("get_result")
        with self.assertRaises(exceptions.TaskResultDoesNotExist):
            await self.tasks.give.aget_result("123")

    def test_a_result_of_another_task_is_refused(self) -> None:
        self.need("get_result")
        result = self.tasks.give.enqueue()
        with self.assertRaisesMessage(exceptions.TaskResultMismatch, "Task does not match"):
            self.tasks.fail.get_result(result.id)

    async def test_a_result_of_another_task_is_refused_by_await(self) -> None:
        self.need("get_result")
        result = await self.tasks.give.aenqueue()
        with self.assertRaises(exceptions.TaskResultMismatch):
            await self.tasks.fail.aget_result(result.id)

    def test_results_are_not_found_by_who_says_so(self) -> None:
        if self.ours.supports_get_result or hasattr(self.ours, "results"):
            self.skipTest("it finds results")
        result = self.tasks.give.enqueue()
        for ask in (lambda: self.ours.get_result(result.id), result.refresh):
            with self.subTest(ask), self.assertRaises(NotImplementedError):
                ask()

    def test_a_refresh_without_news_changes_nothing(self) -> None:
        self.need("get_result")
        result = self.tasks.give.enqueue(1, two=2)
        result.refresh()
        self.assert_fresh(result)

    def test_tasks_and_results_can_be_pickled(self) -> None:
        if django.VERSION < (6, 1):
            self.skipTest("Django 6.1 brought it")
        self.assertEqual(pickle.loads(pickle.dumps(self.tasks.give)), self.tasks.give)
        result = self.tasks.give.enqueue(1)
        self.assertEqual(pickle.loads(pickle.dumps(result)), result)
