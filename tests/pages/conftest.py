"""Projects that pages build, on the database and the server of this run."""

from __future__ import annotations

import json

import pytest
from django.db import connection

collect_ignore = ["project", "of_recipes.py", "of_tutorial.py"]
collect_ignore_glob = ["of_*.py"]
GIVEN = ("ENGINE", "NAME", "USER", "PASSWORD", "HOST", "PORT", "OPTIONS")


@pytest.fixture
def shop_database(tmp_path) -> str:
    """The database of such a project as JSON. It is next to the database of these tests, on the same server."""
    given = {name: value for name, value in connection.settings_dict.items() if name in GIVEN}
    mine = {"NAME": str(tmp_path / "test.sqlite3")} if connection.vendor == "sqlite" else {"NAME": "delayq_pages"}
    return json.dumps({**given, **({"NAME": str(tmp_path / "shop.sqlite3")} if connection.vendor == "sqlite" else {}), "TEST": mine})
