"""`make demo`: the whole example in one command. It starts an embedded Valkey, the web server of the shop, a worker, the partner and
the warehouse, prints their URLs, and stops on Ctrl-C. With DEMO_SECONDS=60 it ends after a minute: it places orders, and checks that
unpaid orders were closed on time, and that the partner received the paid orders and the warehouse packed them. If not, it exits with
1.
"""

import os
import shlex
import signal
import sys
import time
import urllib.request
from contextlib import ExitStack
from pathlib import Path

from processes import HERE, READY, Processes, free_url, say

sys.path.append(str(HERE.parent))
ADMIN = ("admin", "admin")
ELSEWHERE = ("DEMO_HOME", "DELAYQ_REDIS", "PARTITIONS", "DATABASE_URL")  # what commands in another terminal need, too


class Demo:
    """Starts the processes in order, shows their output, and ends them in reverse order."""

    worker_options = ("--grace", "5")
    servers = "the embedded Valkey"

    def __init__(self):
        self.seconds = float(os.environ.get("DEMO_SECONDS", "0"))
        self.url = free_url(f"http://127.0.0.1:{os.environ.get('DEMO_PORT', '8000')}")
        self.processes = Processes()
        os.environ.setdefault("DJANGO_SETTINGS_MODULE", "settings")
        os.environ["SHOP_URL"] = self.url
        self.partner = os.environ["PARTNER_URL"] = free_url(os.environ.get("PARTNER_URL", "http://127.0.0.1:8001"))
        if self.seconds:
            os.environ.setdefault("PAY_WITHIN", str(max(5, int(self.seconds / 4))))

    def run(self):
        for sign in (signal.SIGINT, signal.SIGTERM):
            signal.signal(sign, lambda *_: self.processes.leaving.set())
        with ExitStack() as stack:
            stack.callback(self.stop_redis)
            self.prepare()
            from shop.warehouse_token import warehouse_token

            token = stack.enter_context(warehouse_token())
            stack.enter_context(self.processes)
            if not self.start(token):
                return 0 if self.processes.leaving.is_set() else 1
            self.welcome()
            return self.verify() if self.seconds else self.watch()

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

    def start(self, token):
        from django.conf import settings

        self.processes.partner(self.partner, settings.PARTNER_LEDGER, settings.PARTNER_SECRET)
        self.processes.web(self.url)
        self.processes.worker(*self.worker_options)
        for name, url in (("partner", self.partner), ("web", f"{self.url}{READY}")):
            if not self.processes.wait_for(name, url):
                if not self.processes.leaving.is_set():
                    print(f"The {name} process did not come up.", file=sys.stderr)
                return False
        self.processes.warehouse(self.url, settings.WAREHOUSE_LEDGER, token)
        return True

    def welcome(self):
        from django.conf import settings

        print(
            f"\n  The shop    {self.url}/            order something; pay within {settings.PAY_WITHIN} s, or watch it close"
            f"\n  Payouts     {self.url}/payouts/    pause those of one provider, or set its rate"
            f"\n  The queue   {self.url}/admin/      user {ADMIN[0]}, password {ADMIN[1]}"
            f"\n  The partner {self.partner}/            receives paid orders by signed webhooks, and often fails"
            "\n  The warehouse                                  pulls the orders to pack over the gateway"
            "\n\n  In another terminal, here:"
            f"\n    {self.command('simulate', '--orders', '1000')}     a busy day, and an audit"
            f"\n    {self.command('delayq', 'status')}"
            f"\n    {self.command('delayq', 'list', '--task', 'django_delayq.deliver')}"
            f"\n\n  Ctrl-C ends all of it, {self.servers}, too.\n",
            flush=True,
        )

    def command(self, *words):
        """A command line for the current folder."""
        assignments = [f"{name}={shlex.quote(os.environ[name])}" for name in ELSEWHERE if os.environ.get(name)]
        if self.partner != "http://127.0.0.1:8001":
            assignments.append(f"PARTNER_URL={self.partner}")
        paths = (Path(sys.executable), HERE / "manage.py")
        return " ".join([*assignments, *(shlex.quote(str(shortest(path))) for path in paths), *map(shlex.quote, words)])

    def watch(self):
        while not self.processes.leaving.wait(0.5):
            if ended := self.processes.ended():
                print(f"The {ended[0]} process ended with code {ended[1]}.", file=sys.stderr)
                return 1
        return 0

    def verify(self):
        """Orders four things, pays two, and looks whether the others close on time, and what has become of the paid ones."""
        from django.conf import settings
        from shop.audit import audit
        from shop.models import Order

        start = time.monotonic()
        browser = urllib.request.build_opener(urllib.request.HTTPCookieProcessor())
        product = browser.open(self.url).read().decode().split("/checkout/")[1].split("/")[0]
        orders = []
        for _ in range(4):
            answer = post(browser, f"{self.url}/checkout/{product}/", self.url)
            orders.append(int(answer.rstrip("/").rsplit("/", 1)[1]))
        paid = orders[:2]
        for pk in paid:
            post(browser, f"{self.url}/orders/{pk}/pay/", self.url)
        say("demo", f"placed the orders {orders}; paid {paid}, and wait {settings.PAY_WITHIN} s")
        while time.monotonic() - start < self.seconds - 2 and not self.processes.leaving.wait(0.5):
            pass
        found = {order.pk: order for order in Order.objects.filter(pk__in=orders).prefetch_related("ledger")}
        fine = True
        for pk in orders:
            lines = {line.what: line.at for line in found[pk].ledger.all()}
            closed = lines.get("closed")
            if pk in paid:
                fine = fine and found[pk].state == Order.State.PAID and {"partner told", "packed"} <= lines.keys()
                say("demo", f"order {pk}: {', '.join(lines)}")
            else:
                fine = fine and closed is not None and closed >= found[pk].pay_until
                late = f", {(closed - found[pk].pay_until).total_seconds() * 1000:.0f} ms after its time" if closed else ""
                say("demo", f"order {pk}: {found[pk].state}{late}")
        faults = audit(orders)
        for what in filter(faults.get, faults):
            say("demo", f"WRONG: {faults[what]} {what}")
        fine = fine and not any(faults.values())
        say("demo", "all is as it should be" if fine else "SOMETHING IS WRONG")
        return 0 if fine else 1

    def stop_redis(self):
        """It would go on, as a server does that several projects share."""
        if not os.environ.get("DELAYQ_REDIS"):
            from django.conf import settings

            from django_delayq.store.connection import embedded

            embedded.stop(settings.DELAYQ["REDIS"]["EMBEDDED"])


def post(browser, url, page):
    """Sends a form as a browser does; returns the address it was led to."""
    import re

    token = re.search(r'name="csrfmiddlewaretoken" value="(\w+)"', browser.open(page).read().decode())
    data = f"csrfmiddlewaretoken={token[1]}".encode()
    return browser.open(urllib.request.Request(url, data=data, headers={"Referer": page})).geturl()


def shortest(path):
    """The path, relative to the current folder if that is shorter."""
    here = Path.cwd()
    return path.relative_to(here) if path.is_relative_to(here) else path


if __name__ == "__main__":
    raise SystemExit(Demo().run())
