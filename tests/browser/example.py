"""The example project as it runs for its readers: a Redis, the web server and a worker, each a process of its own."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import urllib.request
from pathlib import Path

from tests.servers import RedisServer, Server, free_port

ROOT = Path(__file__).parents[2]
EXAMPLE = ROOT / "example_project"
PEOPLE = {"admin": "the admin's password", "viewer": "the viewer's password", "desk": "the desk's password"}

PREPARE = """
import json, os
from django.contrib.auth.models import Permission, User
from django.core.management import call_command
people = json.loads(os.environ["PEOPLE"])
call_command("migrate", verbosity=0)
call_command("stock", verbosity=0)
User.objects.create_superuser("admin", "admin@example.com", people["admin"])
viewer = User.objects.create_user("viewer", "viewer@example.com", people["viewer"], is_staff=True)
viewer.user_permissions.set(Permission.objects.filter(codename__in=["view_job", "view_queue", "view_worker"]))
desk = User.objects.create_user("desk", "desk@example.com", people["desk"], is_staff=True)
desk.user_permissions.set(
    Permission.objects.filter(content_type__app_label="delayq").exclude(codename__in=["steer_operation", "stop_worker"])
)
"""


class Command(Server):
    """A command of the example's manage.py, which answers at `address` once it is ready."""

    def __init__(self, environment: dict[str, str], address: str, *words: str) -> None:
        super().__init__()
        self.environment = environment
        self.address = address
        self.words = words

    def command(self) -> list[str]:
        given = [f"{name}={value}" for name, value in self.environment.items()]
        return ["env", *given, sys.executable, str(EXAMPLE / "manage.py"), *self.words]

    def ready(self) -> bool:
        with contextlib.suppress(OSError):
            urllib.request.urlopen(self.address, timeout=5).close()
            return True
        return False

    def log(self) -> str:
        return (self.directory / "log").read_text(errors="replace")

    def _end(self, sign: signal.Signals) -> None:
        if self.process is not None and sign == signal.SIGKILL:  # with all of its children
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.process.pid, sign)
        super()._end(sign)


class Example:
    """The running example."""

    def __init__(self, home: Path, pay_within: int, **environment: str) -> None:
        self.redis = RedisServer()
        web, health = free_port(), free_port()
        self.url = f"http://127.0.0.1:{web}"
        self.pay_within = pay_within
        self.environment = {
            "DATABASE_URL": "",  # SQLite
            "DELAYQ_REDIS": self.redis.url,
            "DJANGO_SETTINGS_MODULE": "settings",
            "DEMO_HOME": str(home),
            "PAY_WITHIN": str(pay_within),
            "PYTHONPATH": os.pathsep.join((str(EXAMPLE), str(ROOT))),
            "PYTHONUNBUFFERED": "1",
            "SHOP_URL": self.url,
            **environment,
        }
        self.web = Command(self.environment, self.url, "runserver", "--noreload", f"127.0.0.1:{web}")
        self.worker = Command(self.environment, f"http://127.0.0.1:{health}/ready", "delayq_worker", "--health-port", str(health))

    def start(self) -> None:
        self.redis.start()
        self.run(PREPARE)
        self.web.start()
        self.worker.start()

    def stop(self) -> None:
        for server in (self.worker, self.web, self.redis):
            server.stop()

    def another(self, **environment: str) -> Command:
        """One more web server on the same database and Redis; not started yet."""
        port = free_port()
        address = f"http://127.0.0.1:{port}"
        return Command({**self.environment, **environment}, address, "runserver", "--noreload", f"127.0.0.1:{port}")

    def run(self, code: str) -> str:
        """Runs Python in the example; returns what it printed."""
        done = subprocess.run(
            [sys.executable, "-c", f"import django\ndjango.setup()\n{code}"],
            cwd=EXAMPLE,
            env={**os.environ, **self.environment, "PEOPLE": json.dumps(PEOPLE)},
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout.strip()
