"""Runs the shop's own tests in a process with the shop's settings, on the database and the server of this run."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path

import pytest
from django.db import connection

from tests import servers
from tests.testing.projects import run_pytest

PROJECT = Path(__file__).parent / "project"


@pytest.mark.django_db(transaction=True)
def test_a_shop_that_was_written_from_the_docs_passes_its_own_tests(redis_server):
    folder = servers.folder()  # with a short name, because sockets need it
    environment = {"TMPDIR": str(folder), "SHOP_REDIS": redis_server.url, "DELAYQ_TEST_REDIS_URL": redis_server.url}
    if connection.vendor != "sqlite":
        live = "shop_live"  # beside the database that Django makes for tests
        with connection.cursor() as cursor:
            cursor.execute(f"DROP DATABASE IF EXISTS {live}")
            cursor.execute(f"CREATE DATABASE {live}")
        server = json.loads(os.environ["DELAYQ_TEST_DATABASE"])
        environment["SHOP_DATABASE"] = json.dumps({**server, "NAME": "shop"})
        environment["SHOP_LIVE_DATABASE"] = json.dumps({**server, "NAME": live})
    done = run_pytest(PROJECT, **environment)
    shutil.rmtree(folder)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "skipped" not in done.stdout, done.stdout
