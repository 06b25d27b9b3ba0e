"""Makes a dump with the code of a release: `python -m tests.formats.make COMMIT tests/formats/format0.json`. With --signed behind it
the records are signed.

It takes the package from the history, starts a Redis and a SQLite of its own, runs `rolling.fill` of `project/` there under that
release, and writes down what is in both. Each format has its dump, made by the last release that wrote it; a dump is not made again.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from pathlib import Path

from tests.formats import dump
from tests.formats.stage import ROOT, Stage, unpack
from tests.servers import RedisServer

ROWS = """
import django, json, sys
django.setup()
from django.apps import apps
sys.path.append(sys.argv[1])
from tests.formats.dump import read_rows
json.dump(read_rows(apps, "default"), sys.stdout)
"""


def make(commit: str, to: Path, *, signed: bool = False) -> None:
    """Writes the dump of that commit."""
    with tempfile.TemporaryDirectory() as folder, RedisServer() as redis:
        tree = Path(folder) / "tree"
        tree.mkdir()
        if unpack(commit, tree) is None:
            sys.exit(f"{commit} is not in the history of {ROOT}")
        database = {"ENGINE": "django.db.backends.sqlite3", "NAME": f"{folder}/db.sqlite3"}
        stage = Stage(redis, database, Path(folder), signing=signed)
        stage.manage(tree, "migrate", "-v", "0")
        filled = json.loads(stage.run(tree, "rolling.fill"))
        rows = subprocess.run(
            [sys.executable, "-c", ROWS, str(ROOT)],
            env=stage.environment(tree, "make"),
            capture_output=True,
            text=True,
            check=True,
            cwd=folder,
        )
        whole = {
            "made_ms": filled["now_ms"],
            "expected": filled["expected"],
            "redis": dump.read_redis(stage.link),
            "rows": json.loads(rows.stdout),
        }
        stage.close()
    to.write_text(json.dumps(whole, indent=1, sort_keys=True) + "\n")


if __name__ == "__main__":
    make(sys.argv[1], Path(sys.argv[2]), signed="--signed" in sys.argv)
