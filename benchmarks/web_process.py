"""The cost of the app for a web process: CPU and private memory of `django.setup()` and the first `schedule()`, beyond Django,
redis-py.

    python -m benchmarks.web_process [--rounds 20] [--modules]

Each round starts two processes in turn, one without the app, and takes the difference. Prints the median of the differences and its
95 % interval.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile

from benchmarks.compare import interval
from benchmarks.servers import Redis
from benchmarks.systems import ROOT

CHILD = """
import json, sys, time
began = time.process_time()
from django.conf import settings
url, file, which = sys.argv[1:]
ours = which != "without"
apps = ["django.contrib.contenttypes", "django.contrib.auth", *(["django_delayq"] if ours else [])]
database = {"ENGINE": "django.db.backends.sqlite3", "NAME": file}
settings.configure(INSTALLED_APPS=apps, DATABASES={"default": database}, USE_TZ=True, DELAYQ={"REDIS": url})
import django, redis
from django.db import connection
django.setup()
redis.Redis.from_url(url).ping()
connection.ensure_connection()
if which == "tables":
    from django.core.management import call_command
    call_command("migrate", verbosity=0)
elif ours:
    import django_delayq
    from benchmarks.adapters import base
    django_delayq.schedule(django_delayq.task(base.nothing, name="bench.nothing"), 1, delay=3600, durability="redis")
took = time.process_time() - began
with open("/proc/self/smaps_rollup") as lines:
    private = sum(int(line.split()[1]) for line in lines if line.startswith("Private_"))
print(json.dumps([took * 1000, private / 1024, sorted(sys.modules)]))
"""


def main() -> None:
    """Measures, prints."""
    options = argparse.ArgumentParser(
        prog="python -m benchmarks.web_process", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    options.add_argument("--rounds", type=int, default=20)
    options.add_argument("--modules", action="store_true", help="also print the modules that the app adds")
    given = options.parse_args()
    cpu, memory = [], []
    with Redis() as redis, tempfile.TemporaryDirectory(prefix="delayq-web-") as folder:
        place = redis.url, f"{folder}/db.sqlite3"
        one("tables", *place)
        one("with", *place)  # compiles
        for number in range(given.rounds):
            order = ("with", "without") if number % 2 else ("without", "with")
            found = {which: one(which, *place) for which in order}
            cpu.append(found["with"][0] - found["without"][0])
            memory.append(found["with"][1] - found["without"][1])
    added = sorted({*found["with"][2]} - {*found["without"][2]})
    print(f"CPU {said(cpu)} ms; private memory {said(memory)} MB; {len(added)} modules")
    if given.modules:
        print(*added, sep="\n")


def said(values: list[float]) -> str:
    """The median and its interval."""
    low, high = interval(values)
    return f"{statistics.median(values):.1f} ({low:.1f}-{high:.1f})"


def one(which: str, url: str, file: str) -> tuple[float, float, list[str]]:
    """One process."""
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    done = subprocess.run(
        [sys.executable, "-c", CHILD, url, file, which], cwd=ROOT, env=environment, capture_output=True, text=True, check=True
    )
    took, private, modules = json.loads(done.stdout.splitlines()[-1])
    return took, private, modules


if __name__ == "__main__":
    main()
