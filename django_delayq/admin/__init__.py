"""The admin: Jobs, Queues, Workers, Targets, Operations, Schedules, and events set aside. It reads rows and Redis, and acts only
through the functions of the producer and of `periodic`.

May import everything but the commands. It queries through the models and `console`; no threads, and it writes no row of a job.
"""

from django.contrib import admin

from django_delayq.admin.job_admin import JobAdmin
from django_delayq.admin.operation_admin import OperationAdmin
from django_delayq.admin.periodic_admin import PeriodicAdmin
from django_delayq.admin.queue_admin import QueueAdmin
from django_delayq.admin.set_aside_admin import SetAsideAdmin
from django_delayq.admin.target_admin import TargetAdmin
from django_delayq.admin.worker_admin import WorkerAdmin
from django_delayq.models import Job, Operation, Periodic, Queue, SetAside, Target, Worker


def register(site: admin.AdminSite) -> None:
    """Puts all seven on a site of your own; the default one has them already."""
    site.register(Job, JobAdmin)
    site.register(Queue, QueueAdmin)
    site.register(Worker, WorkerAdmin)
    site.register(Target, TargetAdmin)
    site.register(Operation, OperationAdmin)
    site.register(Periodic, PeriodicAdmin)
    site.register(SetAside, SetAsideAdmin)


register(admin.site)

__all__ = ["JobAdmin", "OperationAdmin", "PeriodicAdmin", "QueueAdmin", "SetAsideAdmin", "TargetAdmin", "WorkerAdmin", "register"]
