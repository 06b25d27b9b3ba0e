"""Tasks as objects: they travel by name."""

from __future__ import annotations

import pickle

from tests.tasks_for_tests import close_order


def test_a_task_survives_pickling_as_itself():
    assert pickle.loads(pickle.dumps(close_order)) is close_order
