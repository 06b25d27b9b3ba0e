"""The audit of `simulate` finds each of its faults when a ledger is broken, and no other fault."""

from __future__ import annotations

import importlib.util
import json
import logging
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.example.partners import EXAMPLE
from tests.servers import RedisServer

ROOT = EXAMPLE.parent


def environment(home: Path, **more: str) -> dict[str, str]:
    """Returns the environment of a process of the example, with separate data."""
    paths = os.pathsep.join((str(EXAMPLE), str(ROOT)))
    return {**os.environ, "DJANGO_SETTINGS_MODULE": "settings", "DEMO_HOME": str(home), "DATABASE_URL": "", "PYTHONPATH": paths, **more}


def test_the_audit_names_each_wrong_and_no_other(tmp_path):
    command = [sys.executable, "-m", "tests.example.broken"]
    done = subprocess.run(command, cwd=ROOT, env=environment(tmp_path), capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    said = json.loads(done.stdout.splitlines()[-1])
    seen = set()
    for case, (wanted, faults) in said.items():
        found = {what: number for what, number in faults.items() if number}
        assert all(number == 1 for number in found.values()), (case, found)
        unexpected = [what for what in found if not what.startswith(tuple(wanted))] if wanted else list(found)
        assert not unexpected, (case, found)
        assert len(found) == len(wanted), (case, wanted, found)
        seen |= found.keys()
    assert seen == set(faults), "these can never be seen"


@pytest.mark.slow
def test_a_simulation_ends_with_1_when_a_ledger_shows_a_wrong_and_else_with_0(tmp_path, own_redis):
    server: RedisServer = own_redis()
    told = environment(tmp_path, DELAYQ_REDIS=server.url)

    def run(*words: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, str(EXAMPLE / "manage.py"), *words]
        return subprocess.run(command, env=told, capture_output=True, text=True, check=False)

    assert run("migrate", "--verbosity", "0").returncode == 0
    assert run("stock").returncode == 0
    simulate = ("simulate", "--orders", "40", "--within", "3s", "--spread", "2s")
    refused = run(*simulate, "--pay-rate", "2")
    assert refused.returncode == 1
    assert "--pay-rate between 0 and 1" in refused.stderr
    good = run(*simulate, "--worker")
    assert good.returncode == 0, good.stdout + good.stderr + logs(tmp_path)
    assert "WRONG" not in good.stdout

    # The partner already has an entry for an order that is not placed yet. The sender is unknown.
    stray = "import sqlite3; from django.conf import settings; "
    stray += "sqlite3.connect(settings.PARTNER_LEDGER, isolation_level=None).execute(\"INSERT INTO taken VALUES ('stray', 41, 0)\")"
    assert run("shell", "-v", "0", "-c", stray).returncode == 0
    bad = run(*simulate, "--worker")
    assert bad.returncode == 1, bad.stdout + bad.stderr + logs(tmp_path)
    assert [text.split("  ")[-1] for text in bad.stdout.splitlines() if "WRONG" in text] in (
        ["orders that were not paid, but of which the partner has heard"],
        ["orders that the partner has taken more than once"],
    )


def logs(home: Path) -> str:
    return "".join(f"\n--- {log.name}\n{log.read_text()[-3000:]}" for log in sorted(home.glob("*.log")))


SPEC = importlib.util.spec_from_file_location("visits_of_the_example", EXAMPLE / "shop" / "visits.py")
visits = importlib.util.module_from_spec(SPEC)
SPEC.loader.exec_module(visits)


def shown(line: str, status: int = 200, level: int = logging.INFO) -> bool:
    """Logs a request as Django's development server does."""
    record = logging.LogRecord("django.server", level, __file__, 1, '"%s" %s %s', (f"{line} HTTP/1.1", str(status), "17"), None)
    return bool(visits.Visits().filter(record))


@pytest.mark.parametrize(
    "line", ["GET /", "POST /checkout/3/", "GET /orders/5/", "GET /admin/delayq/job/?q=static", "POST /orders/5/pay/"]
)
def test_what_people_do_is_shown(line):
    assert shown(line)


@pytest.mark.parametrize(
    "line",
    [
        "GET /static/shop/shop.css",
        "GET /static/admin/css/base.css?v=1",
        "GET /favicon.ico",
        "GET /orders/5/state/",
        "GET /provider/refunds/5/",
        "POST /queue/v1/queues/warehouse/pull",
    ],
)
def test_what_pages_and_programs_ask_for_is_left_out_unless_it_goes_wrong(line):
    assert not shown(line)
    assert shown(line, 404, logging.WARNING)
    assert shown(line, 500, logging.ERROR)


def test_a_record_that_is_no_request_is_shown():
    record = logging.LogRecord("django.server", logging.INFO, __file__, 1, "Broken pipe from %s", ("127.0.0.1",), None)
    assert visits.Visits().filter(record)
