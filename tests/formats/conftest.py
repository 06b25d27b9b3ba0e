from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator

import pytest

from tests.formats.stage import Stage
from tests.worker.conftest import new_database

__all__ = ["new_database"]


@pytest.fixture
def stage(own_redis, new_database: Callable[[dict[str, object]], dict[str, object]], tmp_path) -> Iterator[Stage]:
    """A Redis and an empty database of the kind that DELAYQ_TEST_DB says, both its own; without tables."""
    server = json.loads(os.environ["DELAYQ_TEST_DATABASE"])
    database = {**server, "NAME": str(tmp_path / "db.sqlite3")} if server["ENGINE"].endswith("sqlite3") else new_database(server)
    stage = Stage(own_redis(), database, tmp_path)
    yield stage
    stage.close()
