"""URLs of a project with several admin sites: the default site, a custom site with all pages, a site with a subclass of one page, and
a site for each combination of one to three pages.
"""

from __future__ import annotations

from itertools import chain, combinations

from django.contrib import admin
from django.http import HttpRequest
from django.urls import path

from django_delayq.admin import JobAdmin, OperationAdmin, QueueAdmin, WorkerAdmin, register
from django_delayq.models import Job, Operation, Queue, Worker


class QueuesOfTheDesk(QueueAdmin):
    """A user who may view queues here may pause them. The page has a custom title."""

    list_template = "admin/delayq/queue/list.html"

    def has_pause_permission(self, request: HttpRequest) -> bool:
        return self.has_view_permission(request)

    def board(self, request: HttpRequest):
        return {**super().board(request), "title": "Queues of the desk"}


support = admin.AdminSite(name="support")
register(support)
desk = admin.AdminSite(name="desk")
desk.register(Queue, QueuesOfTheDesk)


PAGES = {Job: JobAdmin, Queue: QueueAdmin, Worker: WorkerAdmin, Operation: OperationAdmin}
parts: dict[str, admin.AdminSite] = {}
for models in chain.from_iterable(combinations(PAGES, count) for count in (1, 2, 3)):
    name = "-".join(str(model._meta.model_name) for model in models)
    parts[name] = admin.AdminSite(name=name)
    for model in models:
        parts[name].register(model, PAGES[model])


def ruled(site: admin.AdminSite, *, allowed: bool) -> admin.AdminSite:
    """Registers all pages with subclasses that allow everything to every user, or allow nothing to any user."""
    for model, base in PAGES.items():
        rule = {"allows": lambda self, request, codename: allowed}
        site.register(model, type(f"Ruled{base.__name__}", (base,), rule))
    return site


open_site = ruled(admin.AdminSite(name="open"), allowed=True)
shut_site = ruled(admin.AdminSite(name="shut"), allowed=False)

urlpatterns = [
    path("admin/", admin.site.urls),
    path("support/", support.urls),
    path("desk/", desk.urls),
    path("open/", open_site.urls),
    path("shut/", shut_site.urls),
    *(path(f"{name}/", site.urls) for name, site in parts.items()),
]
