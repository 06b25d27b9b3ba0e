"""`make demo` and `make demo-cluster` run to their end, and their output is correct."""

from __future__ import annotations

import os
import signal
import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import pytest

from tests.example.partners import EXAMPLE
from tests.ports import free_port

ROOT = EXAMPLE.parent
LINES = (
    "worker    | ",
    "warehouse | pulls from http://127.0.0.1:",
    "warehouse | order 1: packed",
    "partner   | order 1: 503, we are busy (asked 1×)",
    "partner   | order 1: signature good, taken",
    "partner   | order 2: 429, not so fast",
    'web       | "POST /checkout/',
    "demo      | order 1: placed, paid, ",
    "demo      | order 3: closed, ",
    "demo      | all is as it should be",
)


def variables(folder: Path, seconds: str) -> dict[str, str]:
    """Returns the environment of a demo."""
    return {
        **{name: value for name, value in os.environ.items() if not name.startswith(("DJANGO_", "DELAYQ_", "DATABASE_URL"))},
        "DEMO_HOME": str(folder),
        "DEMO_SECONDS": seconds,
        "DEMO_PORT": str(free_port()),
        "PARTNER_URL": f"http://127.0.0.1:{free_port()}",
    }


def started(script: str, folder: Path, environment: dict[str, str]) -> subprocess.Popen[str]:
    command = [sys.executable, str(EXAMPLE / script)]
    return subprocess.Popen(command, cwd=folder, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


@pytest.mark.slow
def test_the_demo_ends_well_by_itself_and_the_commands_that_it_prints_work_as_they_stand(tmp_path, own_redis):
    environment = {**variables(tmp_path, "25"), "DELAYQ_REDIS": own_redis().url}
    demo = started("demo.py", ROOT, environment)
    lines: list[str] = []
    try:
        printed = ""
        for line in demo.stdout:
            lines.append(line.rstrip("\n"))
            if "manage.py delayq status" in line:
                printed = line.strip()
                break
        plain = {name: environment[name] for name in ("PATH", "HOME", "LANG") if name in environment}
        plain["PYTHONPATH"] = str(ROOT)  # as if the package were installed
        done = subprocess.run(["bash", "-c", printed], cwd=ROOT, env=plain, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout + done.stderr
        assert "warehouse" in done.stdout
        lines += demo.stdout.read().splitlines()
        assert demo.wait(60) == 0, "\n".join(lines)
    finally:
        if demo.poll() is None:
            demo.send_signal(signal.SIGTERM)  # it ends the processes that it started
            demo.wait(60)
        demo.stdout.close()
    missing = [wanted for wanted in LINES if not any(line.startswith(wanted) for line in lines)]
    assert not missing, "\n".join(lines)
    assert not [line for line in lines if "/static/" in line or "/state/" in line or "Traceback" in line]


@pytest.mark.slow
def test_masters_are_killed_and_the_audit_finds_nothing(tmp_path):
    demo = started("demo_cluster.py", EXAMPLE, variables(tmp_path, "12"))
    try:
        output, _ = demo.communicate(timeout=240)
    finally:
        if demo.poll() is None:
            demo.send_signal(signal.SIGTERM)  # it ends the processes that it started
            demo.wait(60)
    assert demo.returncode == 0, output
    assert "cluster   | kills the master on port " in output, output
    assert "cluster   | a replica had its place after " in output, output
    assert "unpaid orders that were not closed" in output, "the audit"
    assert "WRONG" not in output, output
    with closing(sqlite3.connect(tmp_path / "shop.sqlite3")) as shop:
        [(partitions,)] = shop.execute("SELECT COUNT(DISTINCT partition) FROM delayq_job WHERE queue = 'orders'")
    assert partitions == 16
