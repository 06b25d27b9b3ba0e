"""A web process of another site: another database and another SECRET_KEY, with the Redis and the prefix of the campaign, as after a
copied `.env`. It tries to change what the campaign's own site has in Redis, and records each answer.

`python -m tests.campaign.rival FOLDER SEED` works until its input is closed. FOLDER is that of the campaign; its own is APP_FOLDER.
"""

from __future__ import annotations

import os
import random
import select
import sys
from collections.abc import Callable
from io import StringIO
from pathlib import Path
from typing import Any

import django

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "tests.app.settings")
django.setup()

from django.conf import settings  # noqa: E402  # Django first
from django.core.management import call_command  # noqa: E402  # Django first
from django.core.management.base import CommandError  # noqa: E402  # Django first
from django.db import DatabaseError  # noqa: E402  # Django first

import django_delayq as delayq  # noqa: E402  # Django first
from django_delayq.exceptions import DelayqError, StoreUnavailable  # noqa: E402  # Django first
from django_delayq.producer import acts  # noqa: E402  # Django first
from tests.app import tasks  # noqa: E402  # Django first
from tests.app.record import Recorder  # noqa: E402  # Django first
from tests.campaign.load import KEYS, ORDERS  # noqa: E402  # Django first

PAUSE = 0.2  # seconds between two attempts
NEWEST = 1 << 16  # bytes of the records of a web process, in which ids are looked for
CHANGES = ("cancel", "reschedule", "run_now", "requeue")
COMMANDS = (("purge", "default", "--yes"), ("restore", "--yes"), ("pause", "orders"), ("resume", "orders"))


class Rival:
    """Attempts one act after the other."""

    def __init__(self, folder: Path, seed: str) -> None:
        self.folder = folder
        self.random = random.Random(seed)
        self.record = Recorder(folder, "rival")
        self.acts: list[tuple[str, Callable[[], Any]]] = [
            ("schedule", lambda: delayq.schedule(tasks.quick, "rival")),
            ("schedule in redis", lambda: tasks.quick.using(queue="redis").schedule("rival")),
            ("schedule by key", lambda: tasks.keyed.using(queue=ORDERS, key=self._key(), on_conflict="replace").schedule("rival")),
            ("cancel by key", lambda: acts.cancel(key=self._key(), queue=ORDERS, actor="rival")),
            ("pause", lambda: delayq.pause("default", reason="rival")),
            ("resume", lambda: delayq.resume("default")),
            ("lock", self._lock),
            *((f"command {words[0]}", lambda words=words: self._command(*words)) for words in COMMANDS),
            *((name, lambda name=name: self._change(name)) for name in CHANGES for _ in range(3)),
        ]

    def step(self) -> None:
        """One attempt, and its answer."""
        what, attempt = self.random.choice(self.acts)
        try:
            reply = attempt()
            # The rows of a pause are its own; a partition that it could not reach has not refused it.
            answer = "away" if getattr(reply, "unconfirmed", ()) or "cannot be reached" in str(reply) else str(reply)
        except (DelayqError, CommandError) as error:
            code = getattr(error, "code", "")
            refused = code.startswith("site_") or "of another site" in str(error)
            away = isinstance(error, StoreUnavailable) or isinstance(error.__cause__, StoreUnavailable)  # of a command
            answer = "refused" if refused else "away" if away else repr(error)[:200]
        except DatabaseError:
            answer = "away"
        self.record.write(what=what, answer=answer)

    def _key(self) -> str:
        return f"k{self.random.randrange(KEYS)}"

    def _lock(self) -> str:
        with delayq.lock("rival"):
            return "held"

    def _command(self, *words: str) -> str:
        out = StringIO()
        try:
            call_command("delayq", *words, stdout=out, stderr=out)
        except SystemExit as ended:
            return f"exit code {ended.code}: {out.getvalue()[:200]}"
        return out.getvalue()[:200]

    def _change(self, name: str) -> str:
        """Of a job scheduled by the campaign's site."""
        job, queue = self._job()
        given = {"delay": 1} if name == "reschedule" else {}
        return str(getattr(acts, name)(job, queue=queue, actor="rival", **given))

    def _job(self) -> tuple[str, str]:
        queue, found = "default", []
        for path in self.folder.glob("web-*.jsonl"):
            with path.open("rb") as file:
                file.seek(max(0, path.stat().st_size - NEWEST))
                for line in file.read().splitlines()[1:]:
                    found += [part[:32].decode() for part in line.split(b'"jobs":[["')[1:]]
        return (self.random.choice(found) if found else "0" * 32), queue


def main(folder: str, seed: str) -> None:
    """Works until the input is closed."""
    rival = Rival(Path(folder), seed)
    assert Path(settings.APP_FOLDER) != Path(folder), "tasks that it runs would be taken for runs of the campaign's own site"
    while not select.select([sys.stdin], [], [], PAUSE)[0]:
        rival.step()
    rival.record.close()


if __name__ == "__main__":
    main(*sys.argv[1:])
