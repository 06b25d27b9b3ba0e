"""What `django.tasks` promises, as tests that any backend can be put under.

    class OurBackend(TaskBackendContract, TransactionTestCase):
        backend = "shop.backends.OurBackend"

        def run_tasks(self):
            work_off_what_is_due()

What a backend does not support it must refuse: the tests ask its `supports_…` which of the two they may expect. What differs between
good backends is not looked at: whether enqueueing waits for the commit, what ids look like, how often a task is tried again.
"""

from __future__ import annotations

from tests.contrib.contract.rules import TaskRules
from tests.contrib.contract.runs import TaskRuns


class TaskBackendContract(TaskRules, TaskRuns):
    """A mixin for the test cases of Django, whose class says which backend is meant.

    `backend`: its dotted path; `options`: its OPTIONS; `queues`: two that it may use, the first named "default". `runs`: what is
    enqueued runs at all. `at_once`: it has run when `enqueue` returns. Runs go by `run_tasks`.
    """
