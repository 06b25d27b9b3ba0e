"""The admin: Jobs, Queues, Workers and Operations. It reads rows and Redis, and acts through the producer's functions only."""

from django.contrib import admin

from django_delayq.admin.jobs import JobAdmin
from django_delayq.admin.operations import OperationAdmin
from django_delayq.admin.queues import QueueAdmin
from django_delayq.admin.workers import WorkerAdmin
from django_delayq.models import Job, Operation, Queue, Worker


def register(site: admin.AdminSite) -> None:
    """Puts all four on a site of your own; the default one has them already."""
    site.register(Job, JobAdmin)
    site.register(Queue, QueueAdmin)
    site.register(Worker, WorkerAdmin)
    site.register(Operation, OperationAdmin)


register(admin.site)

__all__ = ["JobAdmin", "OperationAdmin", "QueueAdmin", "WorkerAdmin", "register"]
