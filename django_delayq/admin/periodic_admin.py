"""Schedules in the admin: the list, the page of each with its buttons, the forms by which people give it other dates or make one."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, Final

from django.contrib import admin, messages
from django.contrib.admin.models import ADDITION, CHANGE, DELETION
from django.contrib.admin.utils import unquote
from django.contrib.admin.views.main import ChangeList
from django.core.exceptions import PermissionDenied
from django.http import HttpRequest, HttpResponse, HttpResponseNotAllowed, HttpResponseRedirect
from django.template.response import TemplateResponse
from django.urls import URLPattern, path, reverse
from django.utils.html import format_html
from django.utils.translation import gettext as now
from django.utils.translation import gettext_lazy as _

from django_delayq import conf
from django_delayq.admin import editing, live, schedule_page
from django_delayq.admin.forms import ReasonForm, reason_given
from django_delayq.admin.operation_admin import LatestPages
from django_delayq.admin.readonly import ReadOnlyAdmin
from django_delayq.admin.report import actor, log
from django_delayq.admin.schedule_forms import DatesForm, OverrideForm, ScheduleForm
from django_delayq.admin.show import badge, word
from django_delayq.console import schedule_views
from django_delayq.console.wording import breakable, duration, error_text, second, utc
from django_delayq.exceptions import DelayqError
from django_delayq.models import Job, Periodic, Tick
from django_delayq.periodic import schedule_rows, schedules
from django_delayq.text import visible

BEHIND: Final = "behind"  # the tick behind which a page of the history begins
LOOK: Final = "look"  # the button that shows dates and changes nothing
# What a button does: the permission, the function, what the log says, what is said when it is done.
ACTS: Final[dict[str, tuple[str, Callable[..., Any], Any, Any]]] = {
    "on": ("switch_periodic", schedules.turn_on, _("Turn on"), _("The schedule is on. It continues with its next date.")),
    "off": ("switch_periodic", schedules.turn_off, _("Turn off"), _("The schedule is off. Its waiting jobs are cancelled.")),
    "run": ("run_periodic", schedules.run_now, _("Run now"), _("One of its jobs is due now.")),
    "drop": (
        "override_periodic",
        schedules.drop_override,
        _("Remove the override"),
        _("The schedule uses the dates of its owner again."),
    ),
}


class PeriodicList(ChangeList):
    """A page of schedules, each with the last of its ticks."""

    def get_results(self, request: HttpRequest) -> None:
        """The rows of one page."""
        super().get_results(request)
        rows: list[Any] = list(self.result_list)
        last = schedule_views.last_seen(rows, conf.get().database)
        owner: Any = self.model_admin
        linked = owner.allows(request, "view_job") and owner.admin_site.is_registered(Job)
        for row in rows:
            row.last, row.linked = last.get(row.pk), linked
        self.result_list = rows


class StandingFilter(admin.SimpleListFilter):
    """Whether it makes jobs, and why not."""

    title = _("state")
    template = "admin/delayq/filter.html"
    parameter_name = "state"

    def lookups(self, request: HttpRequest, model_admin: Any) -> list[tuple[str, str]]:
        """The words of the badges."""
        return [(name, word(name)) for name in schedule_views.STANDINGS]

    def queryset(self, request: HttpRequest, queryset: Any) -> Any:
        """Those that stand so; of a word that is none, none."""
        value = self.value()
        if value is None:
            return queryset
        return queryset.filter(schedule_views.standing_so(value)) if value in schedule_views.STANDINGS else queryset.none()


class OwnerFilter(admin.SimpleListFilter):
    """Who owns it."""

    title = _("owner")
    template = "admin/delayq/filter.html"
    parameter_name = "owner"

    def lookups(self, request: HttpRequest, model_admin: Any) -> list[tuple[str, Any]]:
        """The words of the column."""
        return list(schedule_page.OWNERS.items())

    def queryset(self, request: HttpRequest, queryset: Any) -> Any:
        """Those that are theirs."""
        value = self.value()
        return queryset if value is None else queryset.filter(owner=value)


class PeriodicAdmin(ReadOnlyAdmin):
    """Schedules: code owns dates and policies of those that it declares; people turn them on and off, give them other dates for a time,
    run them now, and make schedules of their own.
    """

    list_display = ("standing_shown", "name_shown", "dates_shown", "next_shown", "last_shown", "task_shown", "owner_shown")
    list_display_links = ("standing_shown", "name_shown")
    list_filter = (StandingFilter, OwnerFilter)
    search_fields = ("name", "task")
    sortable_by = ()
    list_per_page = 50
    paginator = LatestPages
    show_full_result_count = False
    show_facets = admin.ShowFacets.NEVER
    actions = None

    # who may what

    def has_add_permission(self, request: HttpRequest) -> bool:
        """May make schedules: for registered tasks only."""
        return self.has_view_permission(request) and self.allows(request, "schedule_job")

    def has_delete_permission(self, request: HttpRequest, obj: Periodic | None = None) -> bool:
        """The same, of those that people have made."""
        return self.has_add_permission(request) and (obj is None or obj.owner == Periodic.Owner.ADMIN)

    def may(self, request: HttpRequest, act: str, row: Periodic) -> bool:
        """May see that schedule and do this to it."""
        return self.has_view_permission(request, row) and self.allows(request, ACTS[act][0])

    # the list

    def get_changelist(self, request: HttpRequest, **kwargs: Any) -> type[ChangeList]:
        """The one that looks for ticks."""
        return PeriodicList

    def changelist_view(self, request: HttpRequest, extra_context: dict[str, Any] | None = None) -> HttpResponse:
        """It stays fresh."""
        alone = live.wanted(request)
        response = super().changelist_view(request, extra_context)
        return live.cut_out(request, response) if alone and isinstance(response, TemplateResponse) else response

    @admin.display(description=_("state"))
    def standing_shown(self, row: Periodic) -> str:
        """As a badge."""
        return badge(schedule_views.standing(row))

    @admin.display(description=_("name"))
    def name_shown(self, row: Periodic) -> str:
        """Without characters that only pretend."""
        return breakable(row.name)

    @admin.display(description=_("task"))
    def task_shown(self, row: Periodic) -> str:
        """Likewise."""
        return breakable(row.task)

    @admin.display(description=_("dates"))
    def dates_shown(self, row: Periodic) -> str:
        """Those that hold: in words, and as in a crontab."""
        dates = schedule_rows.dates_of(row)
        text, words = schedule_page.dates_shown(dates)
        if not words:
            return format_html("<code>{}</code>", text)
        return format_html('<span lang="en">{}</span> <code class="delayq-soft">{}</code>', words, visible(dates.cron))

    @admin.display(description=_("next"))
    def next_shown(self, row: Periodic) -> str:
        """In the time zone of the admin; in UTC for who points at it."""
        if not row.active:
            return "-"
        coming, trouble = schedule_page.upcoming(row, 1)
        if trouble:
            return format_html('<span title="{}">{}</span>', trouble, now("cannot be shown here"))
        if not coming:
            return now("never")
        first = coming[0]
        return format_html('<span title="{}">{}</span> <span class="delayq-soft">{}</span>', first.utc, first.here, first.wait)

    @admin.display(description=_("last"))
    def last_shown(self, row: Any) -> str:
        """How it ended, and its date; with a link to its job for those whom that leads somewhere."""
        view = row.last
        if view is None:
            return "-"
        date = format_html('<span title="{}">{}</span>', utc(view.tick.at), second(view.tick.at))
        mark = badge(view.state) if view.state else ""
        late = now("%(duration)s late") % {"duration": duration(view.late)} if (view.late or 0) >= 1 else ""
        address = self.address("delayq_job_change", view.job.pk) if view.job and row.linked else ""
        linked = format_html('<a href="{}">{}</a>', address, date) if address else date
        return format_html('{} {} <span class="delayq-error">{}</span>', mark, linked, late)

    @admin.display(description=_("owner"))
    def owner_shown(self, row: Periodic) -> str:
        """Code or people, and whether people have given it other dates."""
        owner = schedule_page.OWNERS.get(row.owner, row.owner)
        if not row.overridden:
            return str(owner)
        return format_html('{} <span class="delayq-state delayq-late">{}</span>', owner, now("other dates"))

    # the page

    def get_urls(self) -> list[URLPattern]:
        """An address per act, and one for each form, besides Django's."""
        view = self.admin_site.admin_view
        own = [path(f"<path:object_id>/{act}/", view(partial(self._act, act)), name=f"delayq_periodic_{act}") for act in ACTS]
        own.append(path("<path:object_id>/override/", view(self.override), name="delayq_periodic_override"))
        own.append(path("<path:object_id>/edit/", view(self.edit), name="delayq_periodic_edit"))
        return [*own, *super().get_urls()]

    def change_view(
        self, request: HttpRequest, object_id: str, form_url: str = "", extra_context: dict[str, Any] | None = None
    ) -> HttpResponse:
        """All that is known of one schedule, and what may be done to it."""
        alone, row = live.wanted(request), self._row(request, object_id)
        if row is None:
            return self.nowhere(request, object_id)
        sensitive = self.allows(request, "view_sensitive")
        behind = self._tick(row, request.GET.get(BEHIND, ""))
        acts = [act for act in ACTS if row.retired_at is None and self.may(request, act, row) and _fits(act, row)]
        context = self.page_context(
            request,
            visible(row.name),
            **schedule_page.gather(request, row, conf.get().database, sensitive=sensitive, behind=behind),
            acts=[(act, ACTS[act][2]) for act in acts],
            may_override=self.allows(request, "override_periodic") and row.retired_at is None,
            may_edit=self.has_delete_permission(request, row),
            jobs=self.allows(request, "view_job") and self.address("delayq_job_changelist") != "",
            refreshing=behind is None,
        )
        page = TemplateResponse(request, "admin/delayq/periodic/page.html", context)
        return live.cut_out(request, page) if alone else page

    def _act(self, act: str, request: HttpRequest, object_id: str) -> HttpResponse:
        if request.method != "POST":
            return HttpResponseNotAllowed(["POST"])
        row = self._row(request, object_id)
        if row is None:
            return self.nowhere(request, object_id)
        if not self.may(request, act, row):
            raise PermissionDenied
        reason = reason_given(request)
        _, change, label, said = ACTS[act]
        if reason is not None and _fits(act, row):
            self._carried_out(request, row, label, said, reason, partial(change, row.name))
        elif reason is not None:
            messages.warning(request, now("Nothing was changed: the schedule is already in this state."))
        return HttpResponseRedirect(self._address(row))

    # forms

    def override(self, request: HttpRequest, object_id: str) -> HttpResponse:
        """Other dates than its owner says: the form, and on a wish the dates that it would have; then the deed."""
        row = self._row(request, object_id)
        if row is None:
            return self.nowhere(request, object_id)
        if not self.allows(request, "override_periodic"):
            raise PermissionDenied
        form = OverrideForm(row, request.POST if request.method == "POST" else None)
        if self._good(request, form):
            done, said = partial(schedules.override, row.name, **form.given()), _("These dates apply from now on.")
            if self._carried_out(request, row, _("Other dates"), said, form.cleaned_data["reason"], done):
                return HttpResponseRedirect(self._address(row))
        return self._form(request, form, now("Other dates"), row)

    def add_view(self, request: HttpRequest, form_url: str = "", extra_context: dict[str, Any] | None = None) -> HttpResponse:
        """A schedule that people own."""
        if not self.has_add_permission(request):
            raise PermissionDenied
        form = ScheduleForm(request.POST if request.method == "POST" else None)
        if self._good(request, form):
            name, reason = form.cleaned_data["name"], form.cleaned_data["reason"]
            try:
                row = schedules.create(name, **form.given(), actor=actor(request), reason=reason)
            except DelayqError as error:
                form.add_error(None, error_text(error))
            else:
                log(request, Periodic, [(str(row.pk), name)], _said(now("Made"), reason), ADDITION)
                messages.success(request, now("The schedule has been added and is on."))
                return HttpResponseRedirect(self._address(row))
        return self._form(request, form, now("Add a schedule"), None)

    def edit(self, request: HttpRequest, object_id: str) -> HttpResponse:
        """All of one that people own."""
        row = self._row(request, object_id)
        if row is None:
            return self.nowhere(request, object_id)
        if not self.has_delete_permission(request, row):
            raise PermissionDenied
        masked = not self.allows(request, "view_sensitive") and editing.masked(row)
        form = ScheduleForm(request.POST if request.method == "POST" else None, row=row, masked=masked)
        if self._good(request, form):
            done, said = (
                partial(schedules.change, row.name, **form.given()),
                _("Changed. Waiting jobs are rescheduled to the new dates."),
            )
            if self._carried_out(request, row, _("Change"), said, form.cleaned_data["reason"], done):
                return HttpResponseRedirect(self._address(row))
        return self._form(request, form, now("Change the schedule"), row)

    def delete_view(self, request: HttpRequest, object_id: str, extra_context: dict[str, Any] | None = None) -> HttpResponse:
        """Asks first."""
        row = self._row(request, object_id)
        if row is None:
            return self.nowhere(request, object_id)
        if not self.has_delete_permission(request, row):
            raise PermissionDenied
        form = ReasonForm(request.POST if request.method == "POST" else None)
        if form.is_valid():
            done = partial(schedules.delete, row.name)
            if self._carried_out(
                request, row, _("Delete"), _("The schedule has been deleted."), form.cleaned_data["reason"], done, DELETION
            ):
                return HttpResponseRedirect(self.address("delayq_periodic_changelist"))
        context = self.page_context(request, now("Delete the schedule"), row=row, name=visible(row.name), form=form)
        return TemplateResponse(request, "admin/delayq/periodic/delete.html", context, status=400 if form.errors else 200)

    def _good(self, request: HttpRequest, form: DatesForm) -> bool:
        return request.method == "POST" and form.is_valid() and not form.stale and LOOK not in request.POST

    def _form(self, request: HttpRequest, form: DatesForm, title: str, row: Periodic | None) -> HttpResponse:
        coming = []
        if form.is_bound and not form.errors:
            dates = form.cleaned_data["dates"]
            coming = schedule_page.ahead(dates, schedule_page.UPCOMING)
        context = self.page_context(
            request,
            title,
            row=row,
            name=visible(row.name) if row else "",
            form=form,
            upcoming=coming,
            looked=form.is_bound and not form.errors,
            **(schedule_page.clocks(form.cleaned_data["dates"]) if coming else {}),
        )
        return TemplateResponse(request, "admin/delayq/periodic/form.html", context, status=400 if form.errors or form.stale else 200)

    def _carried_out(
        self, request: HttpRequest, row: Periodic, label: Any, said: Any, reason: str, act: Callable[..., Any], flag: int = CHANGE
    ) -> bool:
        """Does it, logs it, and says what became of it. False: it was refused."""
        try:
            act(actor=actor(request), reason=reason)
        except DelayqError as error:
            messages.error(request, error_text(error))
            return False
        log(request, Periodic, [(str(row.pk), row.name)], _said(str(label), reason), flag)
        messages.success(request, said)
        return True

    def _row(self, request: HttpRequest, object_id: str) -> Periodic | None:
        """One of those that this admin has; None for any other.

        Raises:
            PermissionDenied: this person may not see it.
        """
        if not self.has_view_permission(request):
            raise PermissionDenied
        text = unquote(object_id)
        row: Periodic | None = self.get_queryset(request).filter(pk=int(text)).first() if _is_key(text) else None
        if row is not None and not self.has_view_permission(request, row):
            raise PermissionDenied
        return row

    def _tick(self, row: Periodic, text: str) -> Tick | None:
        ticks = Tick.objects.using(conf.get().database).filter(schedule=row)
        return ticks.filter(pk=int(text)).first() if _is_key(text) else None

    def _address(self, row: Periodic) -> str:
        return reverse("admin:delayq_periodic_change", args=[row.pk], current_app=self.admin_site.name)


def _is_key(text: str) -> bool:
    return text.isascii() and text.isdigit() and len(text) < 19


def _fits(act: str, row: Periodic) -> bool:
    """Whether it would change anything."""
    return {"on": not row.enabled, "off": row.enabled, "drop": row.overridden}.get(act, True)


def _said(text: str, reason: str) -> str:
    return f"{text}: {reason}" if reason else text
