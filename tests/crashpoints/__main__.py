"""`python -m tests.crashpoints`: plays all cases, many at once on one server; `--tenth` those of every day."""

from __future__ import annotations

import argparse
import json
import os
import shutil
import sys
import tempfile
import time
from collections import Counter, deque
from pathlib import Path

from tests.crashpoints.cases import LEASE, cases, tenth
from tests.deployments import DEPLOYMENTS, Deployment, deployed
from tests.laws.history import CRASHPOINTS
from tests.laws.judge import unjudged
from tests.stage import manage, project, sqlite

SETTINGS = {"QUEUES": {"default": {}}, "LEASE": LEASE, "BACKOFF": "200ms", "MAX_CRASHES": 50, "RETENTION": {"set_aside": "30d"}}
PAUSE = 0.05  # seconds between looks


def options(words: list[str] | None) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(prog="python -m tests.crashpoints", description=__doc__)
    parser.add_argument("--tenth", action="store_true", help="at most one case in ten, always the same")
    parser.add_argument("--only", default="", help="a part of the name, as in 'mover.claimed / atomic'")
    parser.add_argument("--at-once", type=int, default=8 * (os.cpu_count() or 2), help="cases side by side")
    parser.add_argument("--partitions", type=int, default=1, help="how many partitions the queue of each case has")
    parser.add_argument("--on", choices=DEPLOYMENTS, default="server", help="what Redis is here; see tests/deployments.py")
    parser.add_argument("--keep", action="store_true", help="keep the folder when all is well, too")
    return parser.parse_args(words)


def main(words: list[str] | None = None) -> int:
    """Returns the exit code: 0 when nothing is wrong."""
    given = options(words)
    folder = Path(tempfile.mkdtemp(prefix="crashpoints-"))
    with deployed(given.on, "default") as found:
        failed = _play(given, folder, found)
    if failed or given.keep:
        print(f"folder: {folder}")
    else:
        shutil.rmtree(folder, ignore_errors=True)
    return 1 if failed else 0


def _play(given: argparse.Namespace, folder: Path, found: Deployment) -> bool:
    template = folder / "template.sqlite3"
    database = sqlite(template, pragmas="PRAGMA synchronous=OFF;")  # processes are killed here, hosts are not
    os.environ |= project(folder, found.shared, database, SETTINGS) | {"APP_PARTITIONS": str(given.partitions)}
    os.environ["APP_SERVERS"] = json.dumps(found.own)
    manage("migrate", "--run-syncdb", "-v", "0", environment={})
    import django

    django.setup()
    from django_delayq.store.connection.places import Nodes
    from tests.crashpoints.play import Play

    chosen = [case for case in (tenth() if given.tenth else cases()) if given.only in case.name]
    there = Nodes(found.shared, found.own, name="crashpoints", timeout=20)
    began = time.monotonic()
    waiting = deque(enumerate(chosen))
    playing: list[tuple[Play, object]] = []
    bad: list[Play] = []
    slowest = Counter[str]()
    while waiting or playing:
        while waiting and len(playing) < given.at_once:
            number, case = waiting.popleft()
            play = Play(
                case, folder=folder / str(number), template=template, prefix=f"c{number}", places=there, partitions=given.partitions
            )
            playing.append((play, play.steps()))
        for play, steps in list(playing):
            if next(steps, play) is play:
                playing.remove((play, steps))
                slowest[play.case.name] = round(play.seconds)
                if play.wrong:
                    bad.append(play)
                    print(f"{play.case.name}  ({play.folder})", *play.wrong[:6], sep="\n    ", flush=True)
                elif not given.keep:
                    shutil.rmtree(play.folder, ignore_errors=True)
        time.sleep(PAUSE)
    there.close()
    print("not judged: " + ", ".join(unjudged(CRASHPOINTS)))
    points = len({case.point.name for case in chosen})
    print(
        f"{len(chosen)} cases at {points} failpoints in {time.monotonic() - began:.0f} s: {len(bad)} went wrong. "
        "Slowest: " + ", ".join(f"{name} {seconds} s" for name, seconds in slowest.most_common(3))
    )
    return bool(bad)


if __name__ == "__main__":
    sys.exit(main())
