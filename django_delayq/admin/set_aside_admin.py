"""Rejected events in the admin."""

from __future__ import annotations

from typing import Any, Final

from django.contrib import admin, messages
from django.db import Error as DriverError
from django.db.models import QuerySet
from django.http import HttpRequest
from django.utils.html import format_html
from django.utils.translation import gettext as now
from django.utils.translation import gettext_lazy as _
from django.utils.translation import ngettext

from django_delayq import conf, ids
from django_delayq.admin.readonly import ReadOnlyAdmin, column, log, permission
from django_delayq.console.overview import DOWN
from django_delayq.console.wording import error_text, moment
from django_delayq.mirror import set_aside
from django_delayq.mirror.mirror_loop import MirrorLoop
from django_delayq.models import Job, SetAside
from django_delayq.producer.stores import stores
from django_delayq.text import visible

TRY_AGAIN: Final = _("Try again")
MOST_SHOWN: Final = 20_000  # bytes


class SetAsideAdmin(ReadOnlyAdmin):
    """Rejected events, which users can retry. Only users who can see masked arguments see the original content."""

    list_filter = ("queue", "code")
    actions = ("try_again",)

    def get_queryset(self, request: HttpRequest) -> QuerySet[Any]:
        """Defers the bytes."""
        return super().get_queryset(request).defer("raw")

    def get_list_display(self, request: HttpRequest) -> tuple[str, ...]:
        return ("place", "kind_shown", self.job_for(request), "code", "noticed_shown", "tries")

    def get_fields(self, request: HttpRequest, obj: Any = None) -> tuple[str, ...]:
        """Shows the bytes only to users who may view them."""
        shown = ("place", "kind_shown", self.job_for(request), "at_shown", "actor_shown", "code", "noticed_shown", "tries")
        # The length would reveal the length of a masked value.
        sensitive = ("length_shown", "text_shown", "why_shown", "bytes_shown")
        return (*shown, *sensitive) if self.allows(request, "view_sensitive") else shown

    def job_for(self, request: HttpRequest) -> str:
        """Shows the link to the job only if it works for this user."""
        return "job_linked" if self.allows(request, "view_job") else "job_shown"

    def get_readonly_fields(self, request: HttpRequest, obj: Any = None) -> tuple[str, ...]:
        return self.get_fields(request, obj)

    has_retry_permission = permission("retry_setaside")

    place = column(_("stream entry"), lambda kept: f"{kept.queue} {kept.stream_id}/{kept.item}")
    kind_shown = column(_("kind"), lambda kept: visible(kept.kind))
    job_shown = column(_("job"), lambda kept: ids.short(kept.job_id) if kept.job_id else "?")
    at_shown = column(_("at"), lambda kept: moment(kept.at))
    noticed_shown = column(_("rejected at"), lambda kept: moment(kept.noticed_at))
    actor_shown = column(_("actor"), lambda kept: visible(kept.actor))
    text_shown = column(_("reason for rejection"), lambda kept: visible(kept.text))  # it may quote the rejected values
    why_shown = column(_("reason"), lambda kept: visible(kept.why))

    @admin.display(description=_("job"))
    def job_linked(self, kept: SetAside) -> str:
        address = self.address("delayq_job_change", kept.job_id) if kept.job_id and self.admin_site.is_registered(Job) else ""
        return format_html('<a href="{}">{}</a>', address, self.job_shown(kept)) if address else self.job_shown(kept)

    @admin.display(description=_("bytes"))
    def length_shown(self, kept: SetAside) -> str:
        if not set_aside.is_cut(kept):
            return str(kept.length)
        return now("%(length)d, but the database could store only %(kept)d, so this event cannot be retried") % {
            "length": kept.length,
            "kept": len(kept.raw),
        }

    @admin.display(description=_("original content"))
    def bytes_shown(self, kept: SetAside) -> str:
        text = visible(bytes(kept.raw[:MOST_SHOWN]).decode("utf-8", "backslashreplace"))
        hint = now("The first %(count)d bytes.") % {"count": MOST_SHOWN} if len(kept.raw) > MOST_SHOWN else ""
        return format_html('<pre class="delayq-bytes" tabindex="0">{}</pre><span class="delayq-hint">{}</span>', text, hint)

    @admin.action(description=TRY_AGAIN, permissions=["retry"])
    def try_again(self, request: HttpRequest, queryset: QuerySet[SetAside]) -> None:
        config = conf.get()
        done = refused = 0
        log(request, SetAside, [(str(kept.pk), str(kept)) for kept in queryset.defer("raw")], str(TRY_AGAIN))
        try:
            for name in sorted(set(queryset.order_by().values_list("queue", flat=True)) & set(config.queues)):
                common: Any = {"prefix": config.prefix, "signer": config.signer}
                mine = queryset.filter(queue=name)
                for partition in sorted(set(mine.order_by().values_list("partition", flat=True))):
                    chosen = list(mine.filter(partition=partition).values_list("pk", flat=True))
                    with stores.guarded(name, partition):
                        taken, left = MirrorLoop(stores.places, config.queue(name), partition=partition, **common).retry(chosen)
                    done, refused = done + taken, refused + left
        except (*DOWN, DriverError) as error:
            messages.error(request, error_text(error))
        if done:
            text = ngettext("%(count)d event was saved.", "%(count)d events were saved.", done)
            messages.success(request, text % {"count": done})
        if refused:
            text = ngettext("%(count)d event was rejected again.", "%(count)d events were rejected again.", refused)
            messages.warning(request, text % {"count": refused})
