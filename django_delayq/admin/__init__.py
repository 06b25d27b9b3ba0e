"""The admin: jobs, queues, workers, targets, operations, batches, schedules and rejected events. It reads rows and Redis, and acts only
through the functions of `producer` and `periodic`.

May import everything except the commands. It queries through the models and `console`, uses no threads, and writes no row of a job.
"""

from django.contrib import admin

from django_delayq.admin.batch_admin import BatchAdmin
from django_delayq.admin.job_admin import JobAdmin
from django_delayq.admin.operation_admin import OperationAdmin
from django_delayq.admin.periodic_admin import PeriodicAdmin
from django_delayq.admin.queue_admin import QueueAdmin
from django_delayq.admin.set_aside_admin import SetAsideAdmin
from django_delayq.admin.target_admin import TargetAdmin
from django_delayq.admin.worker_admin import WorkerAdmin
from django_delayq.models import Batch, Job, Operation, Periodic, Queue, SetAside, Target, Worker


def register(site: admin.AdminSite) -> None:
    """Registers all models on your own admin site. They are already registered on the default site."""
    kinds = (JobAdmin, QueueAdmin, WorkerAdmin, TargetAdmin, OperationAdmin, BatchAdmin, PeriodicAdmin, SetAsideAdmin)
    for model, kind in zip((Job, Queue, Worker, Target, Operation, Batch, Periodic, SetAside), kinds, strict=True):
        site.register(model, kind)


register(admin.site)

__all__ = [
    "BatchAdmin",
    "JobAdmin",
    "OperationAdmin",
    "PeriodicAdmin",
    "QueueAdmin",
    "SetAsideAdmin",
    "TargetAdmin",
    "WorkerAdmin",
    "register",
]
