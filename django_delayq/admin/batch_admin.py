"""Batches in the admin: progress, counts, the slowest members, and cancel."""

from __future__ import annotations

from typing import Any, Final
from urllib.parse import urlencode
from uuid import UUID

from django.contrib import admin, messages
from django.core.exceptions import PermissionDenied
from django.db.models import QuerySet
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.urls import URLPattern
from django.utils.formats import number_format
from django.utils.html import format_html
from django.utils.translation import gettext as now
from django.utils.translation import gettext_lazy as _

from django_delayq import ids
from django_delayq.admin.badges import badge
from django_delayq.admin.forms import EXAMPLES, examples, reason_given
from django_delayq.admin.readonly import ReadOnlyAdmin, actor, column, is_partial, log, note, partial_response
from django_delayq.console.wording import breakable, moment
from django_delayq.models import Batch, Job
from django_delayq.producer import batch as api
from django_delayq.producer.outbox import batches
from django_delayq.producer.outbox.batches import Counts
from django_delayq.states import State
from django_delayq.text import visible

PARTS: Final = (  # the members that a batch waits for: title, state and order
    (_("Running the longest"), State.RUNNING, "started_at"),
    (_("Due last"), State.SCHEDULED, "-run_at"),
    (_("Failed"), State.FAILED, "-run_at"),
)


class BatchAdmin(ReadOnlyAdmin):
    """Batches. Each page counts the members by an index."""

    list_display = ("state_shown", "key_shown", "progress_shown", "created_shown", "over_shown")
    list_display_links = ("state_shown", "key_shown")

    key_shown = column(_("key"), lambda batch: breakable(visible(batch.key)) if batch.key else batch.short_id)
    created_shown = column(_("created"), lambda batch: moment(batch.created_at))
    over_shown = column(_("finished"), lambda batch: moment(batch.over_at) if batch.over_at else "-")

    @admin.display(description=_("state"))
    def state_shown(self, batch: Batch) -> str:
        return badge(api.state_of(_counted(batch), cancelled=batch.cancelled_at is not None))

    @admin.display(description=_("progress"))
    def progress_shown(self, batch: Batch) -> str:
        return progress(_counted(batch))

    def list_context(self, request: HttpRequest, listed: Any) -> dict[str, Any]:
        shown = list(listed.result_list)
        for batch, counts in zip(shown, batches.counts(shown), strict=True):
            batch.counted = counts
        listed.result_list = shown
        return {}

    def get_urls(self) -> list[URLPattern]:
        return [self.page_url("<path:object_id>/cancel/", "cancel", self.cancel, posted=True), *super().get_urls()]

    def change_view(self, request: HttpRequest, object_id: str, *args: Any, **kwargs: Any) -> HttpResponse:
        alone, batch = is_partial(request), self.found(request, object_id)
        [counts] = batches.counts([batch])
        follow_up, jobs = batch.follow_up, self.address("delayq_job_changelist")
        ended = {"succeeded": counts.succeeded, "failed": counts.failed, "cancelled": counts.cancelled}
        then = UUID(follow_up) if isinstance(follow_up, str) else None
        page = self.page(
            request,
            "admin/delayq/batch/page.html",
            now("Batch"),
            batch=batch,
            original=batch,
            key=visible(batch.key),
            reason=visible(batch.cancelled_why),
            state=badge(api.state_of(counts, cancelled=batch.cancelled_at is not None)),
            progress=progress(counts),
            counts=[(badge(state), count, self._list(jobs, batch, state)) for state, count in ended.items() if count],
            left=counts.left,
            all_members=self._list(jobs, batch, ""),
            parts=[part for part in (self._part(request, batch, *each) for each in PARTS) if part[1]],
            waits_for=_("until all members have succeeded")
            if batch.waits_for == batches.SUCCEEDED
            else _("until all members have ended"),
            then=then and (ids.short(then), self.address("delayq_job_change", then)),
            then_task=follow_up["task"] if isinstance(follow_up, dict) else "",
            may_cancel=batch.over_at is None and batch.cancelled_at is None and self.allows(request, "cancel_batch"),
            refreshing=batch.over_at is None,
        )
        return partial_response(request, page) if alone else page

    def _list(self, jobs: str, batch: Batch, state: str) -> str:
        words = f"batch:{batch.short_id} state:{state}" if state else f"batch:{batch.short_id}"
        return f"{jobs}?{urlencode({'q': words})}" if jobs else ""

    def _part(self, request: HttpRequest, batch: Batch, title: Any, state: State, order: str) -> tuple[Any, list[dict[str, Any]]]:
        """Returns the first members in this state, as far as the user may view them on this site."""
        if not self.admin_site.is_registered(Job):
            return title, []
        jobs: Any = self.admin_site.get_model_admin(Job)
        rows: QuerySet[Job] = jobs.get_queryset(request).filter(batch=batch.pk, state=state.value)
        seen = [job for job in rows.order_by(order)[:EXAMPLES] if jobs.has_view_permission(request, job)]
        return title, examples(seen, sensitive=self.allows(request, "view_sensitive"))

    def cancel(self, request: HttpRequest, object_id: str) -> HttpResponse:
        if not (self.has_view_permission(request) and self.allows(request, "cancel_batch")):
            raise PermissionDenied
        batch = self.found(request, object_id)
        reason = reason_given(request)
        if reason is not None and batches.cancel(batch.pk, actor(request), reason, aborts=False):
            log(request, Batch, [(str(batch.pk), str(batch))], now("Cancel the batch"), reason)
            note(request, "batch_cancelled", reason, batch=str(batch.pk))
            messages.success(request, now("A worker cancels the members of the batch. Its next job is not scheduled."))
        elif reason is not None:
            messages.warning(request, now("Nothing was changed: the batch is over."))
        return HttpResponseRedirect(self.url_of(batch))


def _counted(batch: Any) -> Counts:
    counts: Counts = batch.counted
    return counts


def progress(counts: Counts) -> str:
    """Returns a progress bar with the numbers of members that have ended and of all members."""
    done, total = (number_format(number, force_grouping=True) for number in (counts.total - counts.left, counts.total))
    text = '<progress max="{}" value="{}" aria-label="{}"></progress> <bdi>{} / {}</bdi>'
    return format_html(text, counts.total or 1, counts.total - counts.left if counts.total else 1, now("progress"), done, total)
