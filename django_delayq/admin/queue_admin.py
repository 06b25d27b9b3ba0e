"""Queues in the admin: the dashboard, and pause and resume."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any
from urllib.parse import urlencode

from django.contrib import messages
from django.contrib.admin.utils import quote, unquote
from django.core.exceptions import PermissionDenied
from django.db.models import QuerySet
from django.http import Http404, HttpRequest, HttpResponse, HttpResponseNotAllowed, HttpResponseRedirect
from django.template.response import TemplateResponse
from django.urls import URLPattern, path, reverse
from django.utils.translation import gettext as now
from django.utils.translation import gettext_lazy as _

from django_delayq import conf
from django_delayq.admin import dashboard, dashboard_charts, queue_page, refresh
from django_delayq.admin.forms import PurgeForm, reason_given
from django_delayq.admin.operation_admin import begin_purge
from django_delayq.admin.readonly import ReadOnlyAdmin, actor, log
from django_delayq.console import health
from django_delayq.console.health import Sign
from django_delayq.console.overview import DOWN, count_absent, count_rows, count_shown, failing_tasks, look
from django_delayq.console.wording import error_text
from django_delayq.models import Queue
from django_delayq.producer import queues
from django_delayq.store.reads.fitness import unmirrored
from django_delayq.text import visible

ACTS: dict[str, tuple[Callable[..., bool], Any, Any]] = {
    "pause": (
        queues.pause,
        _("The queue %(queue)s is paused. Workers claim no more of its jobs."),
        _("The queue %(queue)s was already paused."),
    ),
    "resume": (queues.resume, _("The queue %(queue)s was resumed."), _("The queue %(queue)s was not paused.")),
}


class QueueAdmin(ReadOnlyAdmin):
    """The queues of the settings. Their figures come from Redis, or from the database while Redis is unavailable.

    A subclass can name other templates: `list_template` for the page, `live_template` for the part that is refreshed,
    `remedies_template` for the health checks, `page_template` for a queue, and `trends_template` for the trends.
    """

    list_template = "admin/delayq/queue/list.html"
    live_template = "admin/delayq/queue/live.html"
    remedies_template = "admin/delayq/queue/remedies.html"
    page_template = "admin/delayq/queue/page.html"
    trends_template = "admin/delayq/queue/trends.html"

    class Media:
        css = {"all": ("delayq/dashboard.css",)}

    def has_pause_permission(self, request: HttpRequest) -> bool:
        return self.allows(request, "pause_queue")

    def get_queryset(self, request: HttpRequest) -> QuerySet[Any]:
        """Returns no rows: the table of this proxy has jobs, which a user who may view queues may not see."""
        return super().get_queryset(request).none()

    def changelist_view(self, request: HttpRequest, extra_context: dict[str, Any] | None = None) -> HttpResponse:
        if not self.has_view_permission(request):
            raise PermissionDenied
        context = {**self.page_context(request, _("Queues")), **self.board(request), **(extra_context or {})}
        return refresh.respond(request, self.list_template, self.live_template, context)

    def board(self, request: HttpRequest) -> dict[str, Any]:
        seen, unpublished, names = look(), count_absent(), list(conf.get().queues)
        rows, seen, trouble = dashboard.rows(seen) if seen.error is None else ([], seen, error_text(seen.error))
        chosen = request.GET.get("queue", "")
        counts = {} if rows else count_rows(names)
        shown = [*health.redis_signs(seen), *health.row_signs(unpublished)]
        return {
            "trouble": trouble,
            "vitals": shown,
            "signs": [(sign, self._leads(request, sign)) for sign in shown],
            "queues": rows,
            "left_out": dashboard.left_out(seen),
            "rows": {visible(name): [*map(count_shown, of_queue.values())] for name, of_queue in counts.items()},
            "idle": seen.unseen is None and not seen.present,
            "unmirrored": ", ".join(map(visible, unmirrored(names, seen.present))),
            "unpublished": unpublished,
            "unpublished_shown": count_shown(unpublished),
            "ahead": dashboard_charts.forecast([name for name in ([chosen] if chosen in names else names) if name not in seen.missing])
            if rows
            else [],
            "names": [(name, visible(name)) for name in names],
            "chosen": chosen if chosen in names else "",
            "failing": failing_tasks(),
            "may_pause": self.has_pause_permission(request),
            "may_purge": self.allows(request, "purge_queue"),
            "may_see_jobs": self.allows(request, "view_job"),
        }

    def _leads(self, request: HttpRequest, sign: Sign) -> str:
        """Returns the URL of the objects that a vital sign is about, or "" if it is well or the user may not view them."""
        if sign.level == "well" or not sign.page or not self.allows(request, f"view_{sign.page}"):
            return ""
        place = self.address(f"delayq_{sign.page}_changelist")
        return f"{place}?{urlencode(sign.query)}" if place and sign.query else place

    def change_view(
        self, request: HttpRequest, object_id: str, form_url: str = "", extra_context: dict[str, Any] | None = None
    ) -> HttpResponse:
        """Shows one queue. The log entries of the admin link to this page."""
        if not self.has_view_permission(request):
            raise PermissionDenied
        queue = unquote(object_id)
        if queue not in conf.get().queues:
            return self.nowhere(request, object_id)
        allowed = {"may_see_jobs": self.allows(request, "view_job"), "may_pause": self.has_pause_permission(request)}
        found = {**queue_page.of_queue(request, queue, may_see_jobs=allowed["may_see_jobs"]), **allowed, **(extra_context or {})}
        return TemplateResponse(request, self.page_template, self.page_context(request, visible(queue), **found))

    def trends_view(self, request: HttpRequest) -> HttpResponse:
        if not self.has_view_permission(request):
            raise PermissionDenied
        found = {**queue_page.of_all(request), "may_see_jobs": self.allows(request, "view_job")}
        return TemplateResponse(request, self.trends_template, self.page_context(request, _("Trends"), **found))

    def get_urls(self) -> list[URLPattern]:
        view = self.admin_site.admin_view
        own = [path(f"<path:name>/{act}/", view(partial(self._act, act)), name=f"delayq_queue_{act}") for act in ACTS]
        own.append(path("<path:name>/purge/", view(self.purge), name="delayq_queue_purge"))
        own.append(path("trends/", view(self.trends_view), name="delayq_queue_trends"))
        return [*own, path("remedies/", view(self.remedies_view), name="delayq_queue_remedies"), *super().get_urls()]

    def purge(self, request: HttpRequest, name: str) -> HttpResponse:
        """Asks the user to type the name of the queue, then starts an operation that empties it."""
        if not (self.has_view_permission(request) and self.allows(request, "purge_queue")):
            raise PermissionDenied
        queue = unquote(name)
        if queue not in conf.get().queues:
            raise Http404(now("No queue has this name."))
        form = PurgeForm(queue, request.POST if request.method == "POST" else None)
        if form.is_valid():
            operation = begin_purge(request, queue, form.cleaned_data["reason"])
            messages.success(request, now("The operation has started. A worker carries it out, so you can leave this page."))
            return HttpResponseRedirect(self.page_of(request, operation) or self._list_url())
        found = {each.name: each for each in look().queues}.get(queue)
        context = self.page_context(
            request,
            now("Purge %(queue)s") % {"queue": queue},
            queue=queue,
            form=form,
            count=found.depth.scheduled if found else None,
        )
        status = 400 if form.errors else 200
        return TemplateResponse(request, "admin/delayq/queue/purge.html", context, status=status)

    def remedies_view(self, request: HttpRequest) -> HttpResponse:
        """Explains each health check."""
        if not self.has_view_permission(request):
            raise PermissionDenied
        return TemplateResponse(request, self.remedies_template, self.page_context(request, _("Health checks")))

    def _act(self, act: str, request: HttpRequest, name: str) -> HttpResponse:
        if request.method != "POST":
            return HttpResponseNotAllowed(["POST"])
        if not (self.has_view_permission(request) and self.has_pause_permission(request)):
            raise PermissionDenied
        queue = unquote(name)
        if queue not in conf.get().queues:
            raise Http404(now("No queue has this name."))
        change, done, nothing = ACTS[act]
        back = HttpResponseRedirect(self._queue_url(queue) if request.POST.get("back") == "queue" else self._list_url())
        reason = reason_given(request)
        if reason is None:
            return back
        try:
            changed = change(queue, actor=actor(request), reason=reason)
        except DOWN as error:
            messages.error(request, error_text(error))
        else:
            if changed:
                log(request, Queue, [(queue, queue)], f"{act}: {reason}" if reason else act)
            messages.add_message(
                request,
                messages.SUCCESS if changed else messages.WARNING,
                (done if changed else nothing) % {"queue": queue},
            )
        return back

    def _queue_url(self, queue: str) -> str:
        return reverse("admin:delayq_queue_change", args=(quote(queue),), current_app=self.admin_site.name)

    def _list_url(self) -> str:
        return reverse("admin:delayq_queue_changelist", current_app=self.admin_site.name)
