"""The example's warehouse: any program could be it."""

from __future__ import annotations

import ast
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.example.partners import EXAMPLE
from tests.ports import free_port

PROGRAM = EXAMPLE / "warehouse.py"


def test_it_imports_the_standard_library_only():
    tree = ast.parse(PROGRAM.read_text())
    names = {alias.name for node in ast.walk(tree) if isinstance(node, ast.Import) for alias in node.names}
    names |= {node.module for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)}
    assert names
    assert {name.partition(".")[0] for name in names} <= sys.stdlib_module_names


@pytest.mark.parametrize("missing", ["QUEUE_URL", "QUEUE_TOKEN"])
def test_it_says_what_it_was_not_told_and_how_to_get_it(tmp_path, missing):
    told = {"QUEUE_URL": "http://127.0.0.1:1", "QUEUE_TOKEN": "dqg_none"}
    del told[missing]
    done = started(tmp_path, told)
    assert done.wait(30) == 2
    assert f"{missing} is not set. A token: manage.py delayq_gateway make warehouse" in done.stderr.read()
    done.stderr.close()
    done.stdout.close()


@pytest.mark.parametrize("sign", [signal.SIGTERM, signal.SIGINT])
def test_it_waits_for_a_gateway_that_is_away_and_leaves_when_it_is_asked(tmp_path, sign):
    process = started(tmp_path, {"QUEUE_URL": f"http://127.0.0.1:{free_port()}/queue/v1", "QUEUE_TOKEN": "dqg_none"})
    try:
        lines = iter(process.stdout.readline, "")
        assert any("the gateway does not answer" in line for line in lines)
        process.send_signal(sign)
        assert process.wait(30) == 0
    finally:
        process.kill()
        process.wait()
        process.stdout.close()
        assert process.stderr.read() == ""
        process.stderr.close()


def started(folder: Path, told: dict[str, str]) -> subprocess.Popen[str]:
    """With nothing in its path but what Python brings: -I leaves out the environment's and this folder."""
    command = [sys.executable, "-I", str(PROGRAM), "--ledger", str(folder / "ledger.sqlite3")]
    return subprocess.Popen(command, env=told, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
