"""The contract of `django.tasks`, first part: valid tasks, and how to enqueue them."""

from __future__ import annotations

import logging
from datetime import datetime
from functools import partial

from django.test import override_settings

from django_delayq import clock
from tests.contrib.contract.case import ContractCase, InvalidTask, InvalidTaskBackend, api, base, signals


class TaskRules(ContractCase):
    """The tasks that a backend must accept, and the tasks that it must refuse."""

    # which tasks are valid

    def test_the_backend_is_found_by_its_alias_and_knows_its_settings(self) -> None:
        self.assertEqual(f"{type(self.ours).__module__}.{type(self.ours).__qualname__}".split(".")[0], self.backend.split(".")[0])
        self.assertEqual((self.ours.alias, self.ours.queues, self.ours.options), ("default", set(self.queues), self.options))
        self.assertEqual(api.default_task_backend, self.ours)

    def test_the_backend_starts_anew_with_other_settings(self) -> None:
        with override_settings(TASKS=self.settings_of([])):
            self.assertIsNot(api.task_backends["default"], self.ours)
            self.assertEqual(api.task_backends["default"].queues, set())

    def test_right_settings_pass_its_checks(self) -> None:
        self.assertEqual(list(self.ours.check()), [])

    def test_a_decorated_function_is_a_task_of_the_backends_class(self) -> None:
        made = api.task(self.tasks.give.func)
        self.assertIsInstance(made, self.ours.task_class)
        self.assertIsInstance(made, base.Task)
        self.assertEqual((made.priority, made.queue_name, made.run_after, made.takes_context), (0, "default", None, False))

    def test_a_task_is_called_as_the_function_that_it_is(self) -> None:
        self.assertEqual(self.tasks.give.call(1, two=2), [[1], {"two": 2}])

    async def test_a_task_is_awaited_as_the_function_that_it_is(self) -> None:
        self.assertEqual(await self.tasks.give.acall(1, two=2), [[1], {"two": 2}])

    def test_a_function_within_another_is_refused(self) -> None:
        self.refused(lambda: api.task(lambda: None), "must be defined at a module level")

    def test_what_is_no_function_of_a_module_is_refused(self) -> None:
        self.refused(lambda: api.task(any), "must be defined at a module level")
        self.refused(lambda: api.task(self.test_what_is_no_function_of_a_module_is_refused))

    def test_a_task_that_takes_a_context_names_its_first_parameter_so(self) -> None:
        self.refused(lambda: api.task(takes_context=True)(self.tasks.give_nothing.func), "first argument of 'context'")

    def test_a_date_does_not_stand_in_the_decorator(self) -> None:
        with self.assertRaises(TypeError):
            api.task(run_after=clock.now())(self.tasks.give.func)

    def test_an_unknown_option_of_the_decorator_is_refused(self) -> None:
        with self.assertRaises(TypeError):
            api.task(no_such_option=1)(self.tasks.give.func)

    def test_coroutines_are_taken_or_refused_as_it_says(self) -> None:
        async def coroutine() -> None: ...

        coroutine.__qualname__ = "coroutine"
        if self.ours.supports_async_task:
            self.assertIs(api.task(coroutine).func, coroutine)
        else:
            self.refused(lambda: api.task(coroutine), "does not support async")

    def test_priorities_are_taken_or_refused_as_it_says(self) -> None:
        for priority in (100, 1, -1, -100):
            with self.subTest(priority):
                if self.ours.supports_priority:
                    self.assertEqual(self.tasks.give.using(priority=priority).priority, priority)
                else:
                    self.refused(lambda: self.tasks.give.using(priority=1), "does not support setting priority")

    def test_a_priority_is_a_whole_number_from_minus_100_to_100(self) -> None:
        for priority in (101, -101, 3.1):
            with self.subTest(priority):
                self.refused(partial(self.tasks.give.using, priority=priority))

    def test_dates_are_taken_or_refused_as_it_says(self) -> None:
        date = clock.now()
        if self.ours.supports_defer:
            self.assertEqual(self.tasks.give.using(run_after=date).run_after, date)
        else:
            self.refused(lambda: self.tasks.give.using(run_after=date), "does not support run_after")

    def test_a_naive_date_is_refused(self) -> None:
        self.need("defer")
        with override_settings(USE_TZ=True):
            self.refused(lambda: self.tasks.give.using(run_after=datetime(2030, 1, 1)), "must be an aware datetime")  # that is the case

    def test_a_queue_that_is_not_listed_is_refused(self) -> None:
        self.refused(lambda: self.tasks.give.using(queue_name="no-such-queue"), "is not valid for backend")
        self.assertEqual(self.tasks.give.using(queue_name=self.queues[1]).queue_name, self.queues[1])

    def test_with_an_empty_list_of_queues_any_is_valid(self) -> None:
        with override_settings(TASKS=self.settings_of([])):
            self.assertEqual(self.tasks.give.using(queue_name="no-such-queue").queue_name, "no-such-queue")

    def test_using_gives_another_task_and_changes_nothing(self) -> None:
        self.assertEqual(self.tasks.give.using(), self.tasks.give)
        self.assertIsNot(self.tasks.give.using(), self.tasks.give)
        other = self.tasks.give.using(queue_name=self.queues[1])
        self.assertEqual((other.queue_name, self.tasks.give.queue_name), (self.queues[1], "default"))
        self.assertEqual(other.using(queue_name="default"), self.tasks.give)

    def test_using_names_a_backend_that_is_there(self) -> None:
        with self.assertRaises(InvalidTaskBackend):
            self.tasks.give.using(backend="no-such-alias")

    def test_a_task_is_validated_again_when_it_is_enqueued(self) -> None:
        other = self.tasks.give.using(queue_name=self.queues[1])
        with override_settings(TASKS=self.settings_of(["default"])):
            self.refused(other.enqueue, "is not valid for backend")

    async def test_a_task_is_validated_again_when_it_is_enqueued_by_await(self) -> None:
        other = self.tasks.give.using(queue_name=self.queues[1])
        with override_settings(TASKS=self.settings_of(["default"])), self.assertRaises(InvalidTask):
            await other.aenqueue()

    # enqueue

    def test_what_is_enqueued_has_a_result(self) -> None:
        self.assert_fresh(self.tasks.give.enqueue(1, two=2))

    async def test_what_is_enqueued_by_await_has_a_result(self) -> None:
        self.assert_fresh(await self.tasks.give.aenqueue(1, two=2))

    def test_the_backend_itself_takes_positions_and_names(self) -> None:
        self.assert_fresh(self.ours.enqueue(self.tasks.give, (1,), {"two": 2}))
        self.assert_fresh(self.ours.enqueue(task=self.tasks.give, args=[1], kwargs={"two": 2}))

    async def test_the_backend_itself_takes_positions_and_names_by_await(self) -> None:
        self.assert_fresh(await self.ours.aenqueue(self.tasks.give, (1,), {"two": 2}))
        self.assert_fresh(await self.ours.aenqueue(task=self.tasks.give, args=[1], kwargs={"two": 2}))

    def test_each_result_has_an_id_of_its_own(self) -> None:
        self.assertEqual(len({self.tasks.give.enqueue().id for _ in range(20)}), 20)

    def test_arguments_become_json(self) -> None:
        result = self.tasks.give.enqueue((1, b"two"), three={"four": (5.5, None, True)})
        self.assertEqual((result.args, result.kwargs), ([[1, "two"]], {"three": {"four": [5.5, None, True]}}))

    def test_arguments_that_cannot_become_json_are_refused_and_nothing_is_enqueued(self) -> None:
        for wrong, error in ((clock.now(), TypeError), ({1, 2}, TypeError), (object(), TypeError), (b"\xff", ValueError)):
            with self.subTest(wrong), self.assertRaises(error):
                self.tasks.give.enqueue(wrong)
        self.assertEqual(self.told, [])

    async def test_arguments_that_cannot_become_json_are_refused_by_await(self) -> None:
        with self.assertRaises(TypeError):
            await self.tasks.give.aenqueue(clock.now())

    def test_it_is_told_that_a_task_is_enqueued(self) -> None:
        result = self.tasks.give.enqueue()
        told = [one for one in self.told if one[0] == "task_enqueued"]
        self.assertEqual(told, [("task_enqueued", type(self.ours), "READY", None, result.id)])

    def test_it_is_logged_that_a_task_is_enqueued(self) -> None:
        with self.assertLogs(signals.logger.name, logging.DEBUG) as logs:
            result = self.tasks.give.enqueue()
        first = logs.records[0].getMessage()
        self.assertEqual(logs.records[0].levelno, logging.DEBUG)
        for word in (result.id, self.tasks.give.module_path, "enqueued"):
            self.assertIn(word, first)
