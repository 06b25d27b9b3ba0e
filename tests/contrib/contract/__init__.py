"""The contract of `django.tasks`, as tests that you can run against any backend.

    class OurBackend(TaskBackendContract, TransactionTestCase):
        backend = "shop.backends.OurBackend"

        def run_tasks(self):
            work_off_what_is_due()

A backend must refuse each feature that it does not support. The tests read its `supports_…` attributes to know what to expect. The
tests ignore differences between correct backends: whether enqueueing waits for the commit, the format of ids, the number of retries.
"""

from __future__ import annotations

from tests.contrib.contract.rules import TaskRules
from tests.contrib.contract.runs import TaskRuns


class TaskBackendContract(TaskRules, TaskRuns):
    """A mixin for the test cases of Django, whose class says which backend is meant.

    `backend`: its dotted path; `options`: its OPTIONS; `queues`: two that it may use, the first named "default". `runs`: what is
    enqueued runs at all. `at_once`: it has run when `enqueue` returns. Runs go by `run_tasks`.
    """
