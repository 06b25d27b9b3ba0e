"""`make demo-cluster`: masters die while orders are placed, paid and closed, and the ledgers are right."""

from __future__ import annotations

import os
import signal
import sqlite3
import subprocess
import sys
from contextlib import closing

import pytest

from tests.example.partners import EXAMPLE
from tests.ports import free_port


@pytest.mark.slow
def test_masters_are_killed_and_the_audit_finds_nothing(tmp_path):
    told = {
        **{name: value for name, value in os.environ.items() if not name.startswith(("DJANGO_", "DELAYQ_", "DATABASE_URL"))},
        "DEMO_HOME": str(tmp_path),
        "DEMO_SECONDS": "12",
        "DEMO_PORT": str(free_port()),
        "PARTNER_URL": f"http://127.0.0.1:{free_port()}",
    }
    command = [sys.executable, str(EXAMPLE / "demo_cluster.py")]
    demo = subprocess.Popen(command, cwd=EXAMPLE, env=told, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    try:
        said, _ = demo.communicate(timeout=240)
    finally:
        if demo.poll() is None:
            demo.send_signal(signal.SIGTERM)  # it ends what it has started
            demo.wait(60)
    assert demo.returncode == 0, said
    assert "cluster   | kills the master on port " in said, said
    assert "cluster   | a replica had its place after " in said, said
    assert "unpaid orders that were not closed" in said, "the audit"
    assert "WRONG" not in said, said
    with closing(sqlite3.connect(tmp_path / "shop.sqlite3")) as shop:
        [(partitions,)] = shop.execute("SELECT COUNT(DISTINCT partition) FROM delayq_job WHERE queue = 'orders'")
    assert partitions == 16
