"""Schedules in the admin: the list, the page of a schedule, and its forms."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from itertools import islice
from typing import Any, Final

from django.contrib import admin, messages
from django.contrib.admin.models import ADDITION, CHANGE, DELETION
from django.contrib.admin.views.main import ChangeList
from django.core.exceptions import PermissionDenied
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.urls import URLPattern
from django.utils.functional import Promise
from django.utils.html import format_html
from django.utils.timezone import get_current_timezone_name
from django.utils.translation import gettext as now
from django.utils.translation import gettext_lazy as _

from django_delayq import clock
from django_delayq.admin import editing, job_page
from django_delayq.admin.badges import badge, word
from django_delayq.admin.forms import ReasonForm, reason_given
from django_delayq.admin.readonly import ChoiceFilter, ReadOnlyAdmin, actor, column, is_partial, log, partial_response
from django_delayq.admin.schedule_forms import POLICIES, DatesForm, OverrideForm, ScheduleForm
from django_delayq.console import masking, schedule_views
from django_delayq.console.schedule_views import TickView
from django_delayq.console.wording import breakable, duration, error_text, second
from django_delayq.exceptions import ConfigError, DelayqError
from django_delayq.models import Event, Job, Periodic, Tick
from django_delayq.periodic import schedule_rows, schedules
from django_delayq.periodic.dates import Dates, zone_of
from django_delayq.periodic.declarations import declarations
from django_delayq.text import visible

UPCOMING: Final = 10
MOST_TICKS: Final = 50  # ticks on a page, and as many changes
STEPS: Final = ((86_400, 3_600), (300, 60), (30, 5))  # from this many seconds, the size of a step
ALARMING: Final = 60.0  # seconds late
OWNERS: Final[dict[str, Promise]] = {Periodic.Owner.CODE: _("code"), Periodic.Owner.ADMIN: _("created here")}


def _page(request: HttpRequest, row: Periodic, *, sensitive: bool, behind: Tick | None = None) -> dict[str, Any]:
    """Returns the context of the page, without the buttons. `sensitive`: do not mask; `behind`: the history starts after this tick."""
    ticks = schedule_views.ticks_of(row, MOST_TICKS + 1, behind=behind)
    declared = declarations.get(row.name)
    coming, trouble = upcoming(row)
    args, kwargs = masking.arguments(row.task, row.args, row.kwargs, sensitive=sensitive, version=masking.UPGRADED)
    return {
        "row": row,
        "original": row,
        "name": visible(row.name),
        "mark": badge(schedule_views.standing(row)),
        "own": dates_shown(Dates(row.cron, row.every_ms, row.timezone, row.jitter_ms)),
        "other": dates_shown(schedule_rows.dates_of(row)) if row.overridden else None,
        "missed": POLICIES["missed"].get(row.missed, row.missed),
        "overlap": POLICIES["overlap"].get(row.overlap, row.overlap),
        "by_code": row.owner == Periodic.Owner.CODE,
        "place": declared.place if declared else "",
        "differs": declared is not None and row.fingerprint not in ("", declared.fingerprint),
        "trouble": schedule_views.problem(row) or trouble,
        "args": job_page.pretty(args) if args else "",
        "kwargs": job_page.pretty(kwargs) if kwargs else "",
        "upcoming": coming if row.active else [],
        **zones_shown(schedule_rows.dates_of(row)),
        "ticks": tick_lines(schedule_views.seen(ticks[:MOST_TICKS])),
        "earlier": ticks[MOST_TICKS - 1].pk if len(ticks) > MOST_TICKS else None,
        "cut": behind is not None,
        "changes": [(event, word(event.kind), _change_text(event)) for event in schedule_rows.events(row, MOST_TICKS)],
    }


def dates_shown(dates: Dates) -> tuple[str, str]:
    """Returns the dates as in a crontab, and in words or ""."""
    try:
        words = dates.words
    except ConfigError:
        words = dates.text
    return visible(dates.text), visible(words) if words != dates.text else ""


def upcoming(row: Periodic, most: int = UPCOMING) -> tuple[list[dict[str, Any]], str]:
    """Returns the next effective dates, and an error or ""."""
    try:
        return dates_ahead(schedule_rows.dates_of(row), most), ""
    except ConfigError as error:
        return [], error_text(error)


def dates_ahead(dates: Dates, most: int) -> list[dict[str, Any]]:
    """Returns the next dates in the time zone of the schedule and in that of the user. `shifted`: the UTC offset of the schedule has
    changed since the previous date.

    Raises:
        ConfigError: the cron expression or the time zone is invalid.
    """
    zone, present = zone_of(dates.timezone or "UTC"), clock.now()
    moments = [moment.astimezone(zone) for moment in islice(dates.after(present), most)]
    return [
        {
            "there": second(there, zone),
            "here": second(there),
            "wait": now("in %(duration)s") % {"duration": _coarse((there - present).total_seconds())},
            "shifted": there.utcoffset() != before.utcoffset(),
        }
        for before, there in zip([*moments[:1], *moments], moments, strict=False)
    ]


def zones_shown(dates: Dates) -> dict[str, Any]:
    """Returns the time zones of the columns."""
    zone, here = dates.timezone or "UTC", get_current_timezone_name()
    return {"zone": visible(zone), "elsewhere": here != zone, "here": visible(here)}


def tick_lines(views: Iterable[TickView]) -> list[dict[str, Any]]:
    """Returns the lines of the history. `alarming`: it is very late; `gone`: the row of its job was deleted."""
    return [
        {
            "view": view,
            "at": second(view.tick.at),
            "mark": badge(view.state) if view.state else "",
            "late": duration(view.late) if view.late is not None and view.late >= 1 else "",
            "alarming": (view.late or 0) >= ALARMING,
            "by": visible(view.tick.actor),
            "gone": view.job is None and view.tick.job_id is not None,
        }
        for view in views
    ]


def _change_text(event: Event) -> str:
    """Returns the new dates, or the number of missed ticks."""
    detail: Any = event.detail if isinstance(event.detail, dict) else {}
    parts = [str(detail[name]) for name in ("dates", "first", "last") if detail.get(name)]
    if detail.get("missed"):
        parts.insert(0, now("%(count)s ticks") % {"count": detail["missed"]})
    return visible(" · ".join(parts))


def _coarse(seconds: float) -> str:
    """Rounds a duration, so that a refreshed page does not change every second."""
    step = next((step for least, step in STEPS if seconds >= least), 1)
    return duration(round(seconds / step) * step)


BEHIND: Final = "behind"  # the page of the history starts after this tick
LOOK: Final = "look"  # the button that only shows dates
# The acts: permission, function, log entry and message.
ACTS: Final[dict[str, tuple[str, Callable[..., Any], Any, Any]]] = {
    "on": ("switch_periodic", schedules.turn_on, _("Turn on"), _("The schedule is on. It continues with its next date.")),
    "off": ("switch_periodic", schedules.turn_off, _("Turn off"), _("The schedule is off. Its waiting jobs are cancelled.")),
    "run": ("run_periodic", schedules.run_now, _("Run now"), _("A job of the schedule is due now.")),
    "drop": (
        "override_periodic",
        schedules.drop_override,
        _("Remove the override"),
        _("The schedule uses the dates of its owner again."),
    ),
}


class PeriodicList(ChangeList):
    """A page of schedules, each with its latest tick."""

    def get_results(self, request: HttpRequest) -> None:
        super().get_results(request)
        rows: list[Any] = list(self.result_list)
        last = schedule_views.last_seen(rows)
        owner: Any = self.model_admin
        linked = owner.allows(request, "view_job") and owner.admin_site.is_registered(Job)
        for row in rows:
            row.last, row.linked = last.get(row.pk), linked
        self.result_list = rows


class StandingFilter(ChoiceFilter):
    title = _("state")
    parameter_name = "state"

    def lookups(self, request: HttpRequest, model_admin: Any) -> list[tuple[str, str]]:
        return [(name, word(name)) for name in schedule_views.STANDINGS]

    def queryset(self, request: HttpRequest, queryset: Any) -> Any:
        value = self.value()
        if value is None:
            return queryset
        return queryset.filter(schedule_views.standing_so(value)) if value in schedule_views.STANDINGS else queryset.none()


class OwnerFilter(ChoiceFilter):
    title = _("owner")
    parameter_name = "owner"

    def lookups(self, request: HttpRequest, model_admin: Any) -> list[tuple[str, Any]]:
        return list(OWNERS.items())

    def queryset(self, request: HttpRequest, queryset: Any) -> Any:
        value = self.value()
        return queryset if value is None else queryset.filter(owner=value)


class PeriodicAdmin(ReadOnlyAdmin):
    """The schedules. Users can turn schedules on and off, override their dates, run them and add their own. Other changes are made in
    code.
    """

    list_display = ("standing_shown", "name_shown", "dates_shown", "next_shown", "last_shown", "task_shown", "owner_shown")
    list_display_links = ("standing_shown", "name_shown")
    list_filter = (StandingFilter, OwnerFilter)
    search_fields = ("name", "task")
    # permissions

    def has_add_permission(self, request: HttpRequest) -> bool:
        """Whether the user may add schedules, which are for registered tasks only."""
        return self.has_view_permission(request) and self.allows(request, "schedule_job")

    def has_delete_permission(self, request: HttpRequest, obj: Periodic | None = None) -> bool:
        """Whether the user may delete schedules that were added in the admin."""
        return self.has_add_permission(request) and (obj is None or obj.owner == Periodic.Owner.ADMIN)

    def may(self, request: HttpRequest, act: str, row: Periodic) -> bool:
        return self.has_view_permission(request, row) and self.allows(request, ACTS[act][0])

    # the list

    def get_changelist(self, request: HttpRequest, **kwargs: Any) -> type[ChangeList]:
        return PeriodicList

    standing_shown = column(_("state"), lambda row: badge(schedule_views.standing(row)))
    name_shown = column(_("name"), lambda row: breakable(row.name))
    task_shown = column(_("task"), lambda row: breakable(row.task))

    @admin.display(description=_("dates"))
    def dates_shown(self, row: Periodic) -> str:
        """Returns the effective dates, in words and as in a crontab."""
        dates = schedule_rows.dates_of(row)
        text, words = dates_shown(dates)
        if not words:
            return format_html("<code>{}</code>", text)
        return format_html('<span lang="en">{}</span> <code class="delayq-soft">{}</code>', words, visible(dates.cron))

    @admin.display(description=_("next"))
    def next_shown(self, row: Periodic) -> str:
        """Returns the next date, with UTC in the tooltip."""
        if not row.active:
            return "-"
        coming, trouble = upcoming(row, 1)
        if trouble:
            return format_html('<span title="{}">{}</span>', trouble, now("not available here"))
        if not coming:
            return now("never")
        first = coming[0]
        return format_html('{} <span class="delayq-soft">{}</span>', first["here"], first["wait"])

    @admin.display(description=_("last"))
    def last_shown(self, row: Any) -> str:
        """Returns the outcome and the date of the latest tick, with a link to its job."""
        view = row.last
        if view is None:
            return "-"
        date = second(view.tick.at)
        mark = badge(view.state) if view.state else ""
        late = now("%(duration)s late") % {"duration": duration(view.late)} if (view.late or 0) >= 1 else ""
        address = self.address("delayq_job_change", view.job.pk) if view.job and row.linked else ""
        linked = format_html('<a href="{}">{}</a>', address, date) if address else date
        return format_html('{} {} <span class="delayq-error">{}</span>', mark, linked, late)

    @admin.display(description=_("owner"))
    def owner_shown(self, row: Periodic) -> str:
        """Returns the owner, and whether the dates are overridden."""
        owner = OWNERS.get(row.owner, row.owner)
        if not row.overridden:
            return str(owner)
        return format_html('{} <span class="delayq-state delayq-late">{}</span>', owner, now("dates overridden"))

    # the page

    def get_urls(self) -> list[URLPattern]:
        return [
            *(self.page_url(f"<path:object_id>/{act}/", act, partial(self._act, act), posted=True) for act in ACTS),
            self.page_url("<path:object_id>/override/", "override", self.override),
            self.page_url("<path:object_id>/edit/", "edit", self.edit),
            *super().get_urls(),
        ]

    def change_view(self, request: HttpRequest, object_id: str, *args: Any, **kwargs: Any) -> HttpResponse:
        alone, row = is_partial(request), self.found(request, object_id, _key)
        sensitive = self.allows(request, "view_sensitive")
        behind = self._tick(row, request.GET.get(BEHIND, ""))
        acts = [act for act in ACTS if row.retired_at is None and self.may(request, act, row) and _fits(act, row)]
        page = self.page(
            request,
            "admin/delayq/periodic/page.html",
            visible(row.name),
            **_page(request, row, sensitive=sensitive, behind=behind),
            acts=[(act, ACTS[act][2]) for act in acts],
            may_override=self.allows(request, "override_periodic") and row.retired_at is None,
            may_edit=self.has_delete_permission(request, row),
            jobs=self.allows(request, "view_job") and self.address("delayq_job_changelist") != "",
            refreshing=behind is None,
        )
        return partial_response(request, page) if alone else page

    def _act(self, act: str, request: HttpRequest, object_id: str) -> HttpResponse:
        row = self.found(request, object_id, _key)
        if not self.may(request, act, row):
            raise PermissionDenied
        reason = reason_given(request)
        _, change, label, said = ACTS[act]
        if reason is not None and _fits(act, row):
            self._carried_out(request, row, label, said, reason, partial(change, row.name))
        elif reason is not None:
            messages.warning(request, now("Nothing was changed: the schedule is already in this state."))
        return HttpResponseRedirect(self.url_of(row))

    # forms

    def override(self, request: HttpRequest, object_id: str) -> HttpResponse:
        """Overrides the dates of a schedule. The form can show the new dates first."""
        row = self.found(request, object_id, _key)
        if not self.allows(request, "override_periodic"):
            raise PermissionDenied
        form = OverrideForm(row, request.POST if request.method == "POST" else None)
        said = _("These dates apply from now on.")
        return self._changed(request, row, form, now("Override dates"), _("Override dates"), said, schedules.override)

    def add_view(self, request: HttpRequest, form_url: str = "", extra_context: dict[str, Any] | None = None) -> HttpResponse:
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
                log(request, Periodic, [(str(row.pk), name)], now("Created"), reason, ADDITION)
                messages.success(request, now("The schedule was added and is on."))
                return HttpResponseRedirect(self.url_of(row))
        return self._form(request, form, now("Add a schedule"), None)

    def edit(self, request: HttpRequest, object_id: str) -> HttpResponse:
        """Changes a schedule that was added in the admin."""
        row = self.found(request, object_id, _key)
        if not self.has_delete_permission(request, row):
            raise PermissionDenied
        masked = not self.allows(request, "view_sensitive") and editing.masked(row)
        form = ScheduleForm(request.POST if request.method == "POST" else None, row=row, masked=masked)
        said = _("The schedule was changed. Its waiting jobs are rescheduled to the new dates.")
        return self._changed(request, row, form, now("Change the schedule"), _("Change"), said, schedules.change)

    def delete_view(self, request: HttpRequest, object_id: str, extra_context: dict[str, Any] | None = None) -> HttpResponse:
        row = self.found(request, object_id, _key)
        if not self.has_delete_permission(request, row):
            raise PermissionDenied
        form = ReasonForm(request.POST if request.method == "POST" else None)
        if form.is_valid():
            done = partial(schedules.delete, row.name)
            if self._carried_out(
                request, row, _("Delete"), _("The schedule was deleted."), form.cleaned_data["reason"], done, DELETION
            ):
                return HttpResponseRedirect(self.list_url())
        return self.page(
            request,
            "admin/delayq/periodic/delete.html",
            now("Delete the schedule"),
            row=row,
            name=visible(row.name),
            form=form,
            status=400 if form.errors else 200,
        )

    def _changed(
        self, request: HttpRequest, row: Periodic, form: DatesForm, title: str, label: Any, said: Any, change: Callable[..., Any]
    ) -> HttpResponse:
        """Changes the schedule if the form is valid, otherwise shows the form."""
        if self._good(request, form):
            done = partial(change, row.name, **form.given())
            if self._carried_out(request, row, label, said, form.cleaned_data["reason"], done):
                return HttpResponseRedirect(self.url_of(row))
        return self._form(request, form, title, row)

    def _good(self, request: HttpRequest, form: DatesForm) -> bool:
        return request.method == "POST" and form.is_valid() and not form.stale and LOOK not in request.POST

    def _form(self, request: HttpRequest, form: DatesForm, title: str, row: Periodic | None) -> HttpResponse:
        coming = []
        if form.is_bound and not form.errors:
            dates = form.cleaned_data["dates"]
            coming = dates_ahead(dates, UPCOMING)
        return self.page(
            request,
            "admin/delayq/periodic/form.html",
            title,
            status=400 if form.errors or form.stale else 200,
            row=row,
            name=visible(row.name) if row else "",
            form=form,
            upcoming=coming,
            looked=form.is_bound and not form.errors,
            **(zones_shown(form.cleaned_data["dates"]) if coming else {}),
        )

    def _carried_out(
        self, request: HttpRequest, row: Periodic, label: Any, said: Any, reason: str, act: Callable[..., Any], flag: int = CHANGE
    ) -> bool:
        """Carries out an act, logs it and adds a message. Returns False if it was refused."""
        try:
            act(actor=actor(request), reason=reason)
        except DelayqError as error:
            messages.error(request, error_text(error))
            return False
        log(request, Periodic, [(str(row.pk), row.name)], label, reason, flag)
        messages.success(request, said)
        return True

    def _tick(self, row: Periodic, text: str) -> Tick | None:
        try:
            return Tick.objects.filter(schedule=row, pk=_key(text)).first()
        except ValueError:
            return None


def _key(text: str) -> int:
    if not (text.isascii() and text.isdigit() and len(text) < 19):
        raise ValueError(text)
    return int(text)


def _fits(act: str, row: Periodic) -> bool:
    """Whether the act would change anything."""
    return {"on": not row.enabled, "off": row.enabled, "drop": row.overridden}.get(act, True)
