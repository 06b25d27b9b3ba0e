"""`manage.py simulate --orders 100000 --pay-rate 0.6`: a busy day in a minute, and an audit of the ledgers afterwards.

Orders are placed in bulk, each with its `close_order` job; a share is paid at random moments before their time, which cancels the
job, tells the partner and asks the warehouse to pack. When all dates have passed and nothing is left to do, the ledgers must show:
every unpaid order closed once, none early, no paid one closed; partner and warehouse have heard of every paid order and of no other,
each has done its part once, and what was pulled was acked.
"""

import random
import sys
import time
from contextlib import ExitStack, contextmanager, suppress
from datetime import timedelta

from django.conf import settings
from django.core.management.base import BaseCommand, CommandError
from django.db import transaction
from django.utils import timezone
from processes import READY, Processes, free_url

import django_delayq as delayq
from django_delayq import durations
from django_delayq.producer.stores import stores
from django_delayq.store.scripts.worker_registry import WorkerRegistry
from shop.audit import audit, of_orders
from shop.fulfilment import set_off
from shop.models import Ledger, Order, Product
from shop.receivers import NOTED
from shop.tasks import close_order
from shop.warehouse_token import warehouse_token

BATCH = 1000


class Command(BaseCommand):
    help = "Places orders in bulk, pays some of them, and audits that each ended as it should."

    def add_arguments(self, parser):
        parser.add_argument("--orders", type=int, default=10_000, help="how many (default: 10000)")
        parser.add_argument("--pay-rate", type=float, default=0.6, help="share that is paid in time (default: 0.6)")
        parser.add_argument("--within", default="20s", help="time to pay, counted from the last order placed (default: 20s)")
        parser.add_argument("--spread", default="20s", help="the dates are spread over so long (default: 20s)")
        parser.add_argument("--seed", type=int, default=1, help="the same seed pays the same orders (default: 1)")
        parser.add_argument(
            "--worker", action="store_true", help="start worker, web server, partner and warehouse for the time of the simulation"
        )

    def handle(self, **options):
        if options["orders"] < 1 or not 0 <= options["pay_rate"] <= 1:
            raise CommandError("--orders must be at least 1, and --pay-rate between 0 and 1.")
        self.chance = random.Random(options["seed"])
        with ExitStack() as stack:
            self.partner = self.start(stack) if options["worker"] else settings.PARTNER_URL
            self.need_worker()
            first = self.place(options["orders"], delay_of(options["within"]), delay_of(options["spread"]))
            orders = range(first, first + options["orders"])
            paid = self.pay(orders, options["pay_rate"])
            self.wait(orders, paid)
        if not self.verdict(orders, paid):
            sys.exit(1)

    def start(self, stack):
        """Starts the processes of `make demo`. Returns the URL of the partner."""
        token = stack.enter_context(warehouse_token())
        processes = stack.enter_context(Processes(logs=settings.HOME))
        partner, shop = free_url(settings.PARTNER_URL), free_url(settings.SHOP_URL)
        processes.partner(partner, settings.PARTNER_LEDGER, settings.PARTNER_SECRET)
        processes.web(shop)
        processes.worker("--verbosity", "0")
        for name, url in (("partner", partner), ("web", f"{shop}{READY}")):
            if not processes.wait_for(name, url):
                raise CommandError(f"The {name} process did not come up: see {settings.HOME / name}.log")
        processes.warehouse(shop, settings.WAREHOUSE_LEDGER, token)
        return partner

    def need_worker(self):
        registry = WorkerRegistry(stores.link, prefix=delayq_prefix())
        deadline = time.monotonic() + 60
        while time.monotonic() < deadline:
            with suppress(delayq.StoreUnavailable):
                if any("orders" in worker.get("queues", ()) and not worker["silent"] for worker in registry.all()):
                    return
            time.sleep(0.2)
        raise CommandError("No worker serves the queue 'orders'. Start `make demo` in another terminal, or add --worker.")

    def place(self, count, within, spread):
        """Creates orders and jobs in transactions of a thousand."""
        product = Product.objects.first()
        if product is None:
            raise CommandError("There is nothing to order. Fill the shelves first: manage.py stock")
        started = time.monotonic()
        base = timezone.now() + within + timedelta(seconds=count / 5000)
        first = None
        with progress(count, "placing orders") as advance:
            for start in range(0, count, BATCH):
                size = min(BATCH, count - start)
                dates = [base + spread * self.chance.random() for _ in range(size)]
                with transaction.atomic():
                    orders = Order.objects.bulk_create(Order(product=product, pay_until=date) for date in dates)
                    Ledger.objects.bulk_create(Ledger(order=order, what="placed") for order in orders)
                    delayq.schedule_many(
                        close_order.using(run_at=order.pay_until, key=order.close_key).bind(order.pk) for order in orders
                    )
                first = first or orders[0].pk
                advance(size)
        took = time.monotonic() - started
        self.stdout.write(f"{count} orders placed in {took:.1f} s ({count / took:.0f} per second, order and job in one transaction).")
        return first

    def pay(self, orders, rate):
        """Pays in random order before the dates. It does not charge late payments."""
        chosen = [pk for pk in orders if self.chance.random() < rate]
        self.chance.shuffle(chosen)
        paid = []
        with progress(len(chosen), "paying orders") as advance:
            for start in range(0, len(chosen), 200):
                batch = chosen[start : start + 200]
                with transaction.atomic():
                    open_ones = list(
                        Order.objects.select_for_update().filter(pk__in=batch, state=Order.State.UNPAID).values_list("pk", flat=True)
                    )
                    Order.objects.filter(pk__in=open_ones).update(state=Order.State.PAID)
                    Ledger.objects.bulk_create(Ledger(order_id=pk, what="paid") for pk in open_ones)
                    for pk in open_ones:
                        set_off(pk, partner=self.partner)
                paid += open_ones
                advance(len(batch))
        late = len(chosen) - len(paid)
        self.stdout.write(f"{len(paid)} orders paid" + (f", {late} came too late and were not charged." if late else "."))
        with progress(len(paid), "taking their closing back") as advance:
            for pk in paid:  # a job that runs before it is cancelled sees that its order is paid
                with suppress(delayq.StoreUnavailable):
                    delayq.cancel(key=f"close-order:{pk}", queue="orders", actor="simulate", reason="paid")
                advance(1)
        return len(paid)

    def wait(self, orders, paid):
        """Waits until no order is unpaid, and all jobs of paid orders have ended."""
        mine = Order.objects.filter(pk__gte=min(orders), pk__lte=max(orders))
        noted = of_orders(Ledger.objects.filter(what__in=NOTED.values()), orders)
        last = mine.order_by("-pay_until").values_list("pay_until", flat=True)[0]
        patience = time.monotonic() + (last - timezone.now()).total_seconds() + 120 + len(orders) / 50

        def left():
            return mine.filter(state=Order.State.UNPAID).count() + max(0, len(NOTED) * paid - noted.count())

        total = now_left = left()
        with progress(total, "closing orders, telling of paid ones") as advance:
            while now_left and time.monotonic() < patience:
                time.sleep(0.5)
                before, now_left = now_left, left()
                advance(before - now_left)
        if now_left:
            self.stderr.write("Not everything has come to an end; the audit shows what.")

    def verdict(self, orders, paid):
        """Prints the audit, and returns whether it found no fault."""
        faults = audit(orders)
        for what, number in faults.items():
            self.stdout.write(f"  {'ok' if not number else 'WRONG':<6} {number:>7}  {what}")
        dates = of_orders(Ledger.objects.filter(what="closed"), orders).values_list("at", "order__pay_until")
        lateness = sorted((at - until).total_seconds() * 1000 for at, until in dates.iterator())
        if lateness:
            p50, p99 = lateness[len(lateness) // 2], lateness[int(len(lateness) * 0.99)]
            self.stdout.write(
                f"{len(lateness)} orders closed, {paid} paid; lateness p50 {p50:.0f} ms, p99 {p99:.0f} ms, max {lateness[-1]:.0f} ms"
            )
        return not any(faults.values())


def delay_of(text):

    try:
        return timedelta(seconds=durations.seconds(text))
    except ValueError as error:
        raise CommandError(str(error)) from error


def delayq_prefix():
    return settings.DELAYQ.get("PREFIX", "delayq")


@contextmanager
def progress(total, what):
    """A progress bar, if rich is installed."""
    try:
        from rich.progress import Progress
    except ImportError:
        yield lambda count: None
        return
    with Progress() as bar:
        task = bar.add_task(what, total=total)
        yield lambda count: bar.advance(task, count)
