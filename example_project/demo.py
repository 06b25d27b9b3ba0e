"""`make demo`: the whole example in one command. Starts an embedded Valkey, the shop's web server and a worker, prints where to look,
and stops all of it on Ctrl-C. With DEMO_SECONDS=60 it ends by itself: it then places orders of its own, checks that the unpaid ones
were closed on time and the paid one was not, and exits with 1 if that failed.
"""

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
sys.path[:0] = [str(HERE), str(HERE.parent)]
ADMIN = ("admin", "admin")


class Demo:
    """Starts things in order, shows their output with a name before each line, and ends them in reverse."""

    def __init__(self):
        self.seconds = float(os.environ.get("DEMO_SECONDS", "0"))
        self.port = free_port(int(os.environ.get("DEMO_PORT", "8000")))
        self.url = f"http://127.0.0.1:{self.port}"
        self.processes = []
        self.leaving = threading.Event()
        os.environ.setdefault("DJANGO_SETTINGS_MODULE", "settings")
        os.environ["SHOP_URL"] = self.url
        os.environ["PYTHONUNBUFFERED"] = "1"
        os.environ["PYTHONPATH"] = os.pathsep.join([str(HERE), str(HERE.parent), os.environ.get("PYTHONPATH", "")])
        if self.seconds:
            os.environ.setdefault("PAY_WITHIN", str(max(5, int(self.seconds / 4))))

    def run(self):
        for sign in (signal.SIGINT, signal.SIGTERM):
            signal.signal(sign, lambda *_: self.leaving.set())
        try:
            self.prepare()
            self.start("web", "runserver", "--noreload", f"127.0.0.1:{self.port}")
            self.start("worker", "delayq_worker", "--grace", "5")
            if not self.wait_for_web():
                return 0 if self.leaving.is_set() else 1
            self.welcome()
            return self.verify() if self.seconds else self.watch()
        finally:
            self.stop()

    def prepare(self):
        import django
        from django.core.management import call_command

        django.setup()
        call_command("migrate", verbosity=0)
        call_command("stock")
        from django.contrib.auth import get_user_model

        name, password = ADMIN
        users = get_user_model().objects
        if not users.filter(username=name).exists():
            users.create_superuser(name, "admin@example.com", password)

    def start(self, name, *command):
        process = subprocess.Popen(
            [sys.executable, str(HERE / "manage.py"), *command],
            cwd=HERE,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,  # Ctrl-C is ours: we end them in order
        )
        self.processes.append((name, process))
        threading.Thread(target=self.show, args=(name, process.stdout), daemon=True).start()

    def show(self, name, lines):
        for line in lines:
            if "/state/" not in line:  # the order page asks every second
                print(f"{name:<7}| {line}", end="", flush=True)

    def wait_for_web(self):
        deadline = time.monotonic() + 30
        while time.monotonic() < deadline and not self.leaving.is_set():
            try:
                urllib.request.urlopen(self.url, timeout=2).close()
                return True
            except OSError:
                self.leaving.wait(0.2)
        if not self.leaving.is_set():
            print("The web server did not come up.", file=sys.stderr)
        return False

    def welcome(self):
        from django.conf import settings

        print(
            f"\n  The shop    {self.url}/            order something; pay within {settings.PAY_WITHIN} s, or watch it close"
            f"\n  The queue   {self.url}/admin/      user {ADMIN[0]}, password {ADMIN[1]}"
            "\n  Load        python example_project/manage.py simulate --orders 10000   (in another terminal)"
            "\n  Ctrl-C ends the web server, the worker and the embedded Valkey.\n",
            flush=True,
        )

    def watch(self):
        while not self.leaving.wait(0.5):
            for name, process in self.processes:
                if process.poll() is not None:
                    print(f"The {name} process ended with code {process.returncode}.", file=sys.stderr)
                    return 1
        return 0

    def verify(self):
        """Orders three things, pays one, and looks whether the others close on time."""
        from django.conf import settings
        from shop.models import Order

        start = time.monotonic()
        browser = urllib.request.build_opener(urllib.request.HTTPCookieProcessor())
        product = browser.open(self.url).read().decode().split("/checkout/")[1].split("/")[0]
        orders = []
        for _ in range(3):
            answer = post(browser, f"{self.url}/checkout/{product}/", self.url)
            orders.append(int(answer.rstrip("/").rsplit("/", 1)[1]))
        post(browser, f"{self.url}/orders/{orders[0]}/pay/", self.url)
        print(f"demo   | placed the orders {orders}; paid {orders[0]}, and wait {settings.PAY_WITHIN} s", flush=True)
        while time.monotonic() - start < self.seconds - 2 and not self.leaving.wait(0.5):
            pass
        found = {order.pk: order for order in Order.objects.filter(pk__in=orders).prefetch_related("ledger")}
        fine = found[orders[0]].state == Order.State.PAID
        for pk in orders[1:]:
            closed = [line.at for line in found[pk].ledger.all() if line.what == "closed"]
            fine = fine and len(closed) == 1 and closed[0] >= found[pk].pay_until
            late = (closed[0] - found[pk].pay_until).total_seconds() if closed else None
            print(f"demo   | order {pk}: {found[pk].state}" + (f", {late * 1000:.0f} ms after its time" if closed else ""))
        print(f"demo   | order {orders[0]}: {found[orders[0]].state}, as it was paid")
        print("demo   | all is as it should be" if fine else "demo   | SOMETHING IS WRONG", flush=True)
        return 0 if fine else 1

    def stop(self):
        for name, process in reversed(self.processes):
            if process.poll() is None:
                process.send_signal(signal.SIGTERM if name == "worker" else signal.SIGINT)
        for _, process in self.processes:
            try:
                process.wait(15)
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait(5)
        if not os.environ.get("DELAYQ_REDIS"):
            from django.conf import settings

            from django_delayq.store import embedded

            embedded.stop(settings.DELAYQ["REDIS"]["EMBEDDED"])


def post(browser, url, page):
    """Sends a form as a browser does; returns the address it was led to."""
    import re

    token = re.search(r'name="csrfmiddlewaretoken" value="(\w+)"', browser.open(page).read().decode())
    data = f"csrfmiddlewaretoken={token[1]}".encode()
    return browser.open(urllib.request.Request(url, data=data, headers={"Referer": page})).geturl()


def free_port(wanted):
    """The wanted port if it is free, else any."""
    for port in (wanted, 0):
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
            return probe.getsockname()[1]
    raise SystemExit("no port is free")


if __name__ == "__main__":
    raise SystemExit(Demo().run())
