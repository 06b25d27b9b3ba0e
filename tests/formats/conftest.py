from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.conftest import missing
from tests.formats.stage import Stage, unpack
from tests.worker.conftest import new_database

__all__ = ["new_database"]

FORMAT_0 = "a1927ea"  # the last commit that knew no format


@pytest.fixture(scope="session")
def old_tree(tmp_path_factory) -> Path:
    """The package as it was before formats had numbers."""
    tree = unpack(FORMAT_0, tmp_path_factory.mktemp("old"))
    if tree is None:
        missing(f"{FORMAT_0} is not here: no git history, or a shallow one")
    return tree


@pytest.fixture
def stage(own_redis, new_database: Callable[[dict[str, object]], dict[str, object]], tmp_path) -> Iterator[Stage]:
    """A Redis and an empty database of the kind that DELAYQ_TEST_DB says, both its own; without tables."""
    server = json.loads(os.environ["DELAYQ_TEST_DATABASE"])
    database = {**server, "NAME": str(tmp_path / "db.sqlite3")} if server["ENGINE"].endswith("sqlite3") else new_database(server)
    stage = Stage(own_redis(), database, tmp_path)
    yield stage
    stage.close()
