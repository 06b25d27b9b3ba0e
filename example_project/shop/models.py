"""Orders, and a ledger of their changes, which the audit checks."""

from datetime import timedelta

from django.conf import settings
from django.db import models
from django.urls import reverse
from django.utils import timezone


class Product(models.Model):
    name = models.CharField(max_length=100, unique=True)
    price = models.DecimalField(max_digits=8, decimal_places=2)
    blurb = models.CharField(max_length=200)

    class Meta:
        ordering = ("name",)

    def __str__(self):
        return self.name


class Order(models.Model):
    class State(models.TextChoices):
        UNPAID = "unpaid"
        PAID = "paid"
        CLOSED = "closed"
        REFUNDING = "refunding"
        REFUNDED = "refunded"

    product = models.ForeignKey(Product, on_delete=models.PROTECT)
    state = models.CharField(max_length=10, choices=State, default=State.UNPAID)
    created_at = models.DateTimeField(default=timezone.now)
    pay_until = models.DateTimeField()
    refund_polls = models.PositiveIntegerField(default=0)

    class Meta:
        ordering = ("-id",)
        indexes = (models.Index(fields=["state", "pay_until"], name="shop_order_state"),)

    def __str__(self):
        return f"Order {self.pk}"

    def get_absolute_url(self):
        return reverse("order", args=[self.pk])

    @property
    def close_key(self):
        """The key of the job that closes this order."""
        return f"close-order:{self.pk}"

    @property
    def refund_key(self):
        """The key of the job that checks its refund."""
        return f"refund:{self.pk}"

    @property
    def seconds_left(self):
        return max(0, round((self.pay_until - timezone.now()).total_seconds()))

    def move(self, before, after, what):
        """Changes the state from `before`, and adds a line to the ledger. Returns False if the state was not `before`."""
        if not Order.objects.filter(pk=self.pk, state=before).update(state=after):
            return False
        Ledger.objects.create(order=self, what=what)
        return True


class Ledger(models.Model):
    """An append-only log of the changes of orders."""

    order = models.ForeignKey(Order, on_delete=models.CASCADE, related_name="ledger")
    what = models.CharField(max_length=20)
    at = models.DateTimeField(default=timezone.now)

    class Meta:
        ordering = ("id",)

    def __str__(self):
        return f"{self.order_id} {self.what}"


def pay_window():
    return timedelta(seconds=settings.PAY_WITHIN)
