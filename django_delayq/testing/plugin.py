"""The pytest plugin, which pytest finds by its entry point: the fixture `delayq`. It does nothing until a test uses the fixture."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from django_delayq.testing.kit import Kit


def pytest_configure() -> None:
    """The processes of pytest-xdist share the server of the process that starts them: this one, unless an earlier one is set."""
    os.environ.setdefault("DELAYQ_TEST_RUN", str(os.getpid()))


@pytest.fixture
def delayq(db: None) -> Iterator[Kit]:
    """The test kit of django-delayq, with the database: by `transactional_db` if the test asks for that, too."""
    from django_delayq.testing.kit import one_kit  # there are no models when this module is imported

    kit = one_kit()
    kit.start()
    try:
        yield kit
    finally:
        kit.stop()
