"""The example project as its readers run it: a Redis, the web server, a worker, and the partners of the shop. Each is a process."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import urllib.request
from pathlib import Path

from tests.ports import free_port
from tests.servers import RedisServer, Server

ROOT = Path(__file__).parents[2]
EXAMPLE = ROOT / "example_project"
PEOPLE = {"admin": "the admin's password", "viewer": "the viewer's password", "desk": "the desk's password"}

PREPARE = """
import json, os
from io import StringIO
from django.contrib.auth.models import Permission, User
from django.core.management import call_command
people = json.loads(os.environ["PEOPLE"])
call_command("migrate", verbosity=0)
call_command("stock", verbosity=0)
User.objects.create_superuser("admin", "admin@example.com", people["admin"])
viewer = User.objects.create_user("viewer", "viewer@example.com", people["viewer"], is_staff=True)
viewer.user_permissions.set(Permission.objects.filter(codename__in=["view_job", "view_queue", "view_worker"]))
desk = User.objects.create_user("desk", "desk@example.com", people["desk"], is_staff=True)
words = ["--queues", "warehouse", "--verbs", "pull,ack,retry", "--per-minute", "6000"]
call_command("delayq_gateway", "make", "warehouse", *words, stderr=StringIO())
desk.user_permissions.set(
    Permission.objects.filter(content_type__app_label="delayq").exclude(codename__in=["steer_operation", "stop_worker"])
)
"""


class Command(Server):
    """A command of the example's manage.py. It answers at `address` when it is ready."""

    script = "manage.py"

    def __init__(self, environment: dict[str, str], address: str, *words: str) -> None:
        super().__init__()
        self.environment = environment
        self.address = address
        self.words = words

    def command(self) -> list[str]:
        given = [f"{name}={value}" for name, value in self.environment.items()]
        return ["env", *given, sys.executable, str(EXAMPLE / self.script), *self.words]

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


class Partner(Command):
    """The process that is notified of paid orders."""

    script = "partner.py"


class Warehouse(Command):
    """The process that packs paid orders. It serves no requests: the shop must answer its requests."""

    script = "warehouse.py"


class Example:
    """The running example. `others`: with the partner and the warehouse."""

    def __init__(self, home: Path, pay_within: int, *, others: bool = False, **environment: str) -> None:
        self.redis = RedisServer()
        self.others = others
        web, partner = free_port(), free_port()
        self.url, partner_url = f"http://127.0.0.1:{web}", f"http://127.0.0.1:{partner}"
        self.pay_within = pay_within
        self.outside = environment.get("DJANGO_SETTINGS_MODULE") == "tests.browser.dressed"  # whose settings have targets
        self.environment = {
            "DATABASE_URL": "",  # SQLite
            "DELAYQ_REDIS": self.redis.url,
            "DJANGO_SETTINGS_MODULE": "settings",
            "DEMO_HOME": str(home),
            "PAY_WITHIN": str(pay_within),
            "PYTHONPATH": os.pathsep.join((str(EXAMPLE), str(ROOT))),
            "PYTHONUNBUFFERED": "1",
            "SHOP_URL": self.url,
            "PARTNER_URL": partner_url,
            "PARTNER_SECRET": "whsec_YW4gZXhhbXBsZSdzIHNlY3JldCBpcyBub25l",  # that of the example's settings
            **environment,
        }
        self.web = Command(self.environment, self.url, "runserver", "--noreload", f"127.0.0.1:{web}")
        self.worker = self.another_worker()

        self.partner = Partner(self.environment, partner_url, "--port", str(partner), "--ledger", str(home / "partner.sqlite3"))
        told = {**self.environment, "QUEUE_URL": f"{self.url}/queue/v1"}
        self.warehouse = Warehouse(told, self.url, "--ledger", str(home / "warehouse.sqlite3"))

    def start(self) -> None:
        self.redis.start()
        self.warehouse.environment["QUEUE_TOKEN"] = self.run(PREPARE).splitlines()[-1]
        self.web.start()
        self.worker.start()
        if self.others:
            self.partner.start()
            self.warehouse.start()

    def stop(self) -> None:
        for server in (self.warehouse, self.worker, self.web, self.partner, self.redis):
            server.stop()

    def another(self, **environment: str) -> Command:
        """Returns one more web server on the same database and Redis, not started yet."""
        port = free_port()
        address = f"http://127.0.0.1:{port}"
        return Command({**self.environment, **environment}, address, "runserver", "--noreload", f"127.0.0.1:{port}")

    def another_worker(self, *words: str) -> Command:
        """Returns one more worker with these options, not started yet."""
        port = free_port()
        return Command(self.environment, f"http://127.0.0.1:{port}/ready", "delayq_worker", "--health-port", str(port), *words)

    def run(self, code: str) -> str:
        """Runs Python in the example, and returns its output."""
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
