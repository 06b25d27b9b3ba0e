"""`manage.py simulate --orders 100000 --pay-rate 0.6`: a busy day in a minute, and an audit of the ledger afterwards.

Orders are placed in bulk, each with its `close_order` job; a share is paid at random moments before their time, which cancels the
job. When all dates have passed and the queue is empty, the ledger must show: every unpaid order closed once, none early, no paid one
closed.
"""

import random
import subprocess
import sys
import time
from contextlib import contextmanager
from datetime import timedelta

from django.conf import settings
from django.core.management.base import BaseCommand, CommandError
from django.db import transaction
from django.db.models import Count, Q
from django.utils import timezone

import django_delayq as delayq
from django_delayq.producer.stores import stores
from django_delayq.store.worker_registry import WorkerRegistry
from shop.models import Ledger, Order, Product
from shop.tasks import close_order

BATCH = 1000


class Command(BaseCommand):
    help = "Places orders in bulk, pays some of them, and audits that each ended as it should."

    def add_arguments(self, parser):
        parser.add_argument("--orders", type=int, default=10_000, help="how many (default: 10000)")
        parser.add_argument("--pay-rate", type=float, default=0.6, help="share that is paid in time (default: 0.6)")
        parser.add_argument("--within", default="20s", help="time to pay, counted from the last order placed (default: 20s)")
        parser.add_argument("--spread", default="20s", help="the dates are spread over so long (default: 20s)")
        parser.add_argument("--seed", type=int, default=1, help="the same seed pays the same orders (default: 1)")
        parser.add_argument("--worker", action="store_true", help="start a worker for the time of the simulation")

    def handle(self, **options):
        if options["orders"] < 1 or not 0 <= options["pay_rate"] <= 1:
            raise CommandError("--orders must be at least 1, and --pay-rate between 0 and 1.")
        self.chance = random.Random(options["seed"])
        worker = self.start_worker() if options["worker"] else None
        try:
            self.need_worker()
            first = self.place(options["orders"], delay_of(options["within"]), delay_of(options["spread"]))
            paid = self.pay(first, options["orders"], options["pay_rate"])
            self.wait(first, options["orders"])
        finally:
            if worker:
                worker.terminate()
                worker.wait(60)
        if not self.audit(first, options["orders"], paid):
            sys.exit(1)

    def start_worker(self):
        return subprocess.Popen([sys.executable, sys.argv[0], "delayq_worker", "--queues", "orders", "--verbosity", "0"])

    def need_worker(self):
        registry = WorkerRegistry(stores.link, prefix=delayq_prefix())
        deadline = time.monotonic() + 60
        while time.monotonic() < deadline:
            if any("orders" in worker.get("queues", ()) and not worker["silent"] for worker in registry.all()):
                return
            time.sleep(0.2)
        raise CommandError("No worker serves the queue 'orders'. Start one (manage.py delayq_worker), or add --worker.")

    def place(self, count, within, spread):
        """The orders, in transactions of a thousand: order and job together, or neither."""
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

    def pay(self, first, count, rate):
        """Pays in random order while the dates come nearer; what comes too late is not charged."""
        chosen = [pk for pk in range(first, first + count) if self.chance.random() < rate]
        self.chance.shuffle(chosen)
        paid, late = 0, 0
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
                    delayq.cancel(key=f"close-order:{pk}", queue="orders", actor="simulate", reason="paid")
                paid += len(open_ones)
                late += len(batch) - len(open_ones)
                advance(len(batch))
        self.stdout.write(f"{paid} orders paid" + (f", {late} came too late and were not charged." if late else "."))
        return paid

    def wait(self, first, count):
        """Until every date has passed and no order is unpaid."""
        mine = Order.objects.filter(pk__gte=first, pk__lt=first + count)
        total = mine.filter(state=Order.State.UNPAID).count()
        last = mine.order_by("-pay_until").values_list("pay_until", flat=True)[0]
        with progress(total, "closing orders") as advance:
            done, patience = 0, time.monotonic() + (last - timezone.now()).total_seconds() + 120 + count / 500
            while time.monotonic() < patience:
                now_done = total - mine.filter(state=Order.State.UNPAID).count()
                advance(now_done - done)
                done = now_done
                if done >= total:
                    return
                time.sleep(0.5)
        self.stderr.write("Some orders are still open; the audit shows them.")

    def audit(self, first, count, paid):
        """The ledger against the promises. Prints the verdict, and returns whether all is well."""
        mine = Order.objects.filter(pk__gte=first, pk__lt=first + count).annotate(
            closings=Count("ledger", filter=Q(ledger__what="closed")),
            payments=Count("ledger", filter=Q(ledger__what="paid")),
        )
        closed = Ledger.objects.filter(order_id__gte=first, order_id__lt=first + count, what="closed")
        lateness = sorted((at - until).total_seconds() * 1000 for at, until in closed.values_list("at", "order__pay_until").iterator())
        faults = {
            "unpaid orders that were not closed": mine.filter(payments=0, closings=0).count(),
            "orders closed more than once": mine.filter(closings__gt=1).count(),
            "paid orders that were closed": mine.filter(payments__gt=0, closings__gt=0).count(),
            "orders closed early": sum(late < 0 for late in lateness),
            "orders in a wrong state": mine.filter(state=Order.State.UNPAID).count(),
        }
        for what, number in faults.items():
            self.stdout.write(f"  {'ok' if not number else 'WRONG':<6} {number:>7}  {what}")
        if lateness:
            p50, p99 = lateness[len(lateness) // 2], lateness[int(len(lateness) * 0.99)]
            self.stdout.write(
                f"{len(lateness)} orders closed, {paid} paid; lateness p50 {p50:.0f} ms, p99 {p99:.0f} ms, max {lateness[-1]:.0f} ms"
            )
        return not any(faults.values())


def delay_of(text):
    from django_delayq import clock

    try:
        return timedelta(seconds=clock.seconds(text))
    except ValueError as error:
        raise CommandError(str(error)) from error


def delayq_prefix():
    return settings.DELAYQ.get("PREFIX", "delayq")


@contextmanager
def progress(total, what):
    """A bar by rich where it is installed, nothing elsewhere."""
    try:
        from rich.progress import Progress
    except ImportError:
        yield lambda count: None
        return
    with Progress() as bar:
        task = bar.add_task(what, total=total)
        yield lambda count: bar.advance(task, count)
