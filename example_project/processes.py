"""The processes of the example: partner, web server, worker, warehouse. Started in an order, ended in the other one."""

import os
import signal
import socket
import subprocess
import sys
import threading
import time
import urllib.request
from pathlib import Path

HERE = Path(__file__).resolve().parent
WIDTH = 10  # of a name before a line
GATEWAY = "/queue/v1"  # where the shop includes it
READY = f"{GATEWAY}/openapi.json"  # answers to everybody once the shop is up, and is not logged


class Processes:
    """Started ones, by name. `leaving`: an event that ends what waits. Their lines are shown with their names before them, or go to
    files in the folder `logs`.
    """

    def __init__(self, *, logs=None):
        self.logs = logs
        self.leaving = threading.Event()
        self.started = []

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.stop()

    def web(self, url, **environment):
        """The shop."""
        address = url.removeprefix("http://")
        # Its standard output says how to stop it, which is different here. It logs requests to standard error.
        self.start("web", "manage.py", "runserver", "--noreload", address, quiet=True, SHOP_URL=url, **environment)

    def worker(self, *options, **environment):
        """The worker of the shop."""
        self.start("worker", "manage.py", "delayq_worker", *options, **environment)

    def partner(self, url, ledger, secret):
        """The partner. Its secret is in its environment, because other users can see the arguments of a process."""
        self.start("partner", "partner.py", "--port", url.rpartition(":")[2], "--ledger", str(ledger), PARTNER_SECRET=secret)

    def warehouse(self, url, ledger, token):
        """The warehouse. It knows only the gateway and its token."""
        self.start("warehouse", "warehouse.py", "--ledger", str(ledger), QUEUE_URL=f"{url}{GATEWAY}", QUEUE_TOKEN=token)

    def start(self, name, script, *words, quiet=False, **environment):
        """Starts a script of this folder; returns its process."""
        log = subprocess.PIPE if self.logs is None else open(self.logs / f"{name}.log", "ab")  # noqa: SIM115  # closed below
        paths = os.pathsep.join(filter(None, [str(HERE), str(HERE.parent), os.environ.get("PYTHONPATH", "")]))
        process = subprocess.Popen(
            [sys.executable, str(HERE / script), *words],
            cwd=HERE,
            env={**os.environ, "PYTHONUNBUFFERED": "1", "PYTHONPATH": paths, **environment},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL if quiet else log,
            stderr=log if quiet else subprocess.STDOUT,
            start_new_session=True,  # so that Ctrl-C does not reach them: `stop` ends them in order
        )
        self.started.append((name, process))
        if self.logs is None:
            lines = process.stderr if quiet else process.stdout
            threading.Thread(target=self._show, args=(name, lines), daemon=True).start()
        else:
            log.close()
        return process

    def forget(self, process):
        """Ignores the end of a process."""
        self.started = [one for one in self.started if one[1] is not process]

    def _show(self, name, lines):
        for line in lines:
            say(name, line.decode(errors="replace").rstrip("\n"))

    def wait_for(self, name, url, seconds=60):
        """Whether the process answers in time. False if it has ended, or the demo ends."""
        process = next(process for started, process in self.started if started == name)
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline and not self.leaving.is_set() and process.poll() is None:
            try:
                urllib.request.urlopen(url, timeout=5).close()
                return True
            except OSError:
                self.leaving.wait(0.1)
        return False

    def ended(self):
        """Name and exit code of a process that has ended, or None."""
        return next(((name, process.returncode) for name, process in self.started if process.poll() is not None), None)

    def stop(self):
        for _, process in reversed(self.started):  # the last ones first: they need those that started before
            if process.poll() is None:
                process.terminate()
            try:
                process.wait(15)
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait(5)


def say(name, line):
    """Prints a line at once."""
    print(f"{name:<{WIDTH}}| {line}\n", end="", flush=True)


def free_url(wanted):
    """The wanted URL if its port is free, otherwise a URL with another port."""
    port = int(wanted.rpartition(":")[2])
    for one in (port, 0):
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind(("127.0.0.1", one))
            except OSError:
                continue
            return f"http://127.0.0.1:{probe.getsockname()[1]}"
    raise SystemExit("no port is free")
