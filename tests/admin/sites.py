"""Addresses of a project with three admin sites: the default one, one of its own with all pages, one with a subclass of one of them."""

from __future__ import annotations

from django.contrib import admin
from django.http import HttpRequest
from django.urls import path

from django_delayq.admin import QueueAdmin, register
from django_delayq.models import Queue


class QueuesOfTheDesk(QueueAdmin):
    """Whoever may see queues here may pause them, and the page bears a name of its own."""

    list_template = "admin/delayq/queue/list.html"

    def has_pause_permission(self, request: HttpRequest) -> bool:
        return self.has_view_permission(request)

    def board(self, request: HttpRequest):
        return {**super().board(request), "title": "Queues of the desk"}


support = admin.AdminSite(name="support")
register(support)
desk = admin.AdminSite(name="desk")
desk.register(Queue, QueuesOfTheDesk)

urlpatterns = [path("admin/", admin.site.urls), path("support/", support.urls), path("desk/", desk.urls)]
