"""A Django project on a server of the benchmarks': its settings as environment, and its tables."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import Any

from benchmarks.systems import ROOT


def project(server: Any, **settings: str) -> dict[str, str]:
    """Migrates that server's database; returns the environment that `benchmarks.settings` reads."""
    database = server.database()
    try:
        __import__("psycopg" if "postgres" in database["ENGINE"] else "MySQLdb" if "mysql" in database["ENGINE"] else "sqlite3")
    except ImportError as error:
        from benchmarks.servers import ServerMissing

        raise ServerMissing(f"the driver for {database['ENGINE']} is not installed: {error}") from error
    given = {"DJANGO_SETTINGS_MODULE": "benchmarks.settings", "BENCH_DATABASE": json.dumps(database)}
    given |= {f"BENCH_{name}": value for name, value in settings.items()}
    done = subprocess.run(
        [sys.executable, "-m", "django", "migrate", "--verbosity", "0"],
        cwd=ROOT,
        env={**os.environ, **given, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        raise RuntimeError(f"migrate failed: {done.stderr[-1000:]}")
    return given
