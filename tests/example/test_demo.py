"""`make demo`, as somebody sees it who has just found this: what it prints works, and it says what happens."""

from __future__ import annotations

import os
import signal
import subprocess
import sys

import pytest

from tests.example.partners import EXAMPLE
from tests.ports import free_port

ROOT = EXAMPLE.parent
LINES = (  # what is to be read, in plain words
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


@pytest.mark.slow
def test_the_demo_ends_well_by_itself_and_the_commands_that_it_prints_work_as_they_stand(tmp_path, own_redis):
    told = {
        **{name: value for name, value in os.environ.items() if not name.startswith(("DJANGO_", "DELAYQ_", "DATABASE_URL"))},
        "DEMO_HOME": str(tmp_path),
        "DEMO_SECONDS": "25",
        "DEMO_PORT": str(free_port()),
        "PARTNER_URL": f"http://127.0.0.1:{free_port()}",
        "DELAYQ_REDIS": own_redis().url,
    }
    command = [sys.executable, str(EXAMPLE / "demo.py")]
    demo = subprocess.Popen(command, cwd=ROOT, env=told, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    lines: list[str] = []
    try:
        printed = ""
        for line in demo.stdout:
            lines.append(line.rstrip("\n"))
            if "manage.py delayq status" in line:
                printed = line.strip()
                break
        plain = {name: told[name] for name in ("PATH", "HOME", "LANG") if name in told}
        plain["PYTHONPATH"] = str(ROOT)  # the package is installed where people try this
        done = subprocess.run(["bash", "-c", printed], cwd=ROOT, env=plain, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout + done.stderr
        assert "warehouse" in done.stdout
        lines += demo.stdout.read().splitlines()
        assert demo.wait(60) == 0, "\n".join(lines)
    finally:
        if demo.poll() is None:
            demo.send_signal(signal.SIGTERM)  # it ends what it has started
            demo.wait(60)
        demo.stdout.close()
    missing = [wanted for wanted in LINES if not any(line.startswith(wanted) for line in lines)]
    assert not missing, "\n".join(lines)
    assert not [line for line in lines if "/static/" in line or "/state/" in line or "Traceback" in line]
