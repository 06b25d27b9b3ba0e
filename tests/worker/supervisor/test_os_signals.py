"""The positions of threads are shown by a process that continues to run."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from functools import partial
from pathlib import Path

import pytest

from tests.stage import ROOT
from tests.worker.conftest import Shop, eventually

pytestmark = pytest.mark.slow

# Frames come and go, of code that comes and goes: faulthandler reads what is gone within 20 of such looks.
BUSY = """
import select, sys, threading, time
from contextvars import copy_context
from django_delayq.worker.supervisor import os_signals

def down(depth):
    if depth:
        return down(depth - 1)
    eval("time.monotonic()")

def work():
    while True:
        copy_context().run(down, 20)
        exec(compile("def f(a):\\n  return a\\nf(1)", "x", "exec"), {})
        time.sleep(0)

os_signals.show_when_stuck()
for _ in range(6):
    threading.Thread(target=work, daemon=True).start()
print("ready", flush=True)
while not select.select([sys.stdin], [], [], 0.05)[0]:  # as a task process sleeps, at most so long
    pass
print("still here", flush=True)
"""
LOOKS = 100


def test_threads_that_run_meanwhile_end_no_process(tmp_path: Path) -> None:
    environment = {**os.environ, "DJANGO_SETTINGS_MODULE": "tests.settings"}
    with (
        open(tmp_path / "told", "wb") as told,
        subprocess.Popen(
            [sys.executable, "-c", BUSY], cwd=ROOT, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=told
        ) as process,
    ):
        assert process.stdout is not None
        assert process.stdin is not None
        assert process.stdout.readline() == b"ready\n"
        for look in range(LOOKS):
            process.send_signal(signal.SIGQUIT)
            eventually(partial(shown, process, tmp_path / "told", look + 1))
        process.stdin.close()
        assert process.wait(60) == 0
        assert process.stdout.read() == b"still here\n"
    assert " in work\n" in (tmp_path / "told").read_text()


def shown(process: subprocess.Popen[bytes], told: Path, looks: int) -> bool:
    return process.poll() is not None or told.read_text().count("Current thread 0x") >= looks


def test_a_deaf_task_that_is_alone_in_its_process_shows_where_it_hangs(shop: Shop) -> None:
    deaf = shop.put("deaf", 1, max_attempts=1)
    worker = shop.work()
    eventually(lambda: "failed" in shop.happened(deaf))
    assert " in deaf\n" in worker.text()


def test_a_task_that_keeps_the_interpreter_to_itself_shows_where_it_hangs(shop: Shop) -> None:
    deaf = shop.put("seize", max_attempts=1)
    worker = shop.work()
    eventually(lambda: "failed" in shop.happened(deaf))
    assert shop.detail(deaf, "failed")["c"] == "HardTimeout"
    assert " in seize\n" in worker.text()
