"""Tasks as objects: they travel by name."""

from __future__ import annotations

import pickle

from tests.tasks_for_tests import close_order


def test_a_task_survives_pickling_as_itself():
    assert pickle.loads(pickle.dumps(close_order)) is close_order


def test_a_task_that_an_older_release_has_pickled_is_found_by_its_name():
    """Tasks stood in `django_delayq.task` then."""
    old = b"cdjango_delayq.task\n_by_name\n(X" + len(close_order.name).to_bytes(4, "little") + close_order.name.encode() + b"tR."
    assert pickle.loads(old) is close_order
