"""Orders, and a ledger of what happened to them, from which `simulate` proves that every order ended as it should."""

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
        """The business key of the job that closes this order."""
        return f"close-order:{self.pk}"

    @property
    def refund_key(self):
        """That of the job that looks after its refund."""
        return f"refund:{self.pk}"

    @property
    def seconds_left(self):
        return max(0, round((self.pay_until - timezone.now()).total_seconds()))

    def move(self, before, after, what):
        """Changes the state if it is still `before`, and writes the ledger with it. False if it was not."""
        if not Order.objects.filter(pk=self.pk, state=before).update(state=after):
            return False
        Ledger.objects.create(order=self, what=what)
        return True


class Ledger(models.Model):
    """Appended only: what happened to an order, and when."""

    order = models.ForeignKey(Order, on_delete=models.CASCADE, related_name="ledger")
    what = models.CharField(max_length=20)
    at = models.DateTimeField(default=timezone.now)

    class Meta:
        ordering = ("id",)

    def __str__(self):
        return f"{self.order_id} {self.what}"


def pay_window():
    return timedelta(seconds=settings.PAY_WITHIN)
