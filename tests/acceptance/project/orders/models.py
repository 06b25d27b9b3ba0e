"""The shop's models. Pyright reads the annotations of the fields; mypy knows their types from its plugin."""

from __future__ import annotations

from datetime import datetime
from uuid import UUID

from django.db import models


class Tenant(models.Model):
    slug: models.SlugField[str, str] = models.SlugField(unique=True)


class Customer(models.Model):
    tenant: models.ForeignKey[Tenant, Tenant] = models.ForeignKey(Tenant, models.CASCADE)
    email: models.EmailField[str, str] = models.EmailField()


class Order(models.Model):
    class Status(models.TextChoices):
        PLACED = "placed"
        PAID = "paid"
        CLOSED = "closed"

    customer: models.ForeignKey[Customer, Customer] = models.ForeignKey(Customer, models.CASCADE)
    total: models.IntegerField[int, int] = models.IntegerField()
    status: models.CharField[str, str] = models.CharField(max_length=10, choices=Status, default=Status.PLACED)


class Booking(models.Model):
    """Money that was taken or given back."""

    order: models.ForeignKey[Order, Order] = models.ForeignKey(Order, models.CASCADE)
    amount: models.IntegerField[int, int] = models.IntegerField()


class Letter(models.Model):
    """A message to a customer: from which tenant, in which language, and because of which request."""

    order: models.ForeignKey[Order, Order] = models.ForeignKey(Order, models.CASCADE)
    subject: models.CharField[str, str] = models.CharField(max_length=40)
    tenant: models.CharField[str, str] = models.CharField(max_length=40)
    language: models.CharField[str, str] = models.CharField(max_length=10)
    request_id: models.CharField[str, str] = models.CharField(max_length=40)


class Report(models.Model):
    """A figure for each date of a schedule, stored once even if its job runs several times."""

    subject: models.CharField[str, str] = models.CharField(max_length=10)
    at: models.DateTimeField[datetime, datetime] = models.DateTimeField()
    figure: models.IntegerField[int, int] = models.IntegerField()

    class Meta:
        constraints = [models.UniqueConstraint(fields=["subject", "at"], name="one_figure_per_date")]


class LedgerEntry(models.Model):
    """How a job ended. The signal arrives at least once; this table has one row per end."""

    job_id: models.UUIDField[UUID, UUID] = models.UUIDField()
    task: models.CharField[str, str] = models.CharField(max_length=100)
    known: models.BooleanField[bool, bool] = models.BooleanField()
    state: models.CharField[str, str] = models.CharField(max_length=10)
    cause: models.CharField[str, str] = models.CharField(max_length=10)
    finished_at: models.DateTimeField[datetime | None, datetime | None] = models.DateTimeField(null=True)

    class Meta:
        constraints = [models.UniqueConstraint(fields=["job_id", "finished_at"], name="one_entry_per_end")]
