"""Tokens in the admin: staff can see and revoke them. Only the command creates and rotates tokens, because a page would keep them in
browser histories and screenshots. This module may import from the admin.
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime
from typing import Any

from django.contrib import admin, messages
from django.contrib.admin.helpers import ACTION_CHECKBOX_NAME
from django.db.models import QuerySet
from django.http import HttpRequest, HttpResponse
from django.utils.html import format_html
from django.utils.translation import gettext as now
from django.utils.translation import gettext_lazy as _
from django.utils.translation import ngettext

from django_delayq.admin.forms import ReasonForm
from django_delayq.admin.readonly import ReadOnlyAdmin, column, log, permission
from django_delayq.console.wording import second
from django_delayq.contrib.gateway import tokens
from django_delayq.contrib.gateway.models import ALL, Token
from django_delayq.text import visible

REVOKE = _("Revoke selected tokens")


class TokenAdmin(ReadOnlyAdmin):
    """Read-only, with the action "revoke"."""

    list_display = ("name", "begins_with", "state", "queues_shown", "verbs_shown", "tasks_shown", "expires_shown", "last_used_shown")
    fields = (
        *(*list_display, "secrets_shown", "targets_shown", "scope_shown", "per_minute"),
        *("created_shown", "created_by", "revoked_shown"),
    )
    readonly_fields = fields
    list_per_page = 100
    sortable_by = None  # Django decides
    actions = ("revoke",)

    def get_queryset(self, request: HttpRequest) -> QuerySet[Token]:
        """Adds `live`, by the clock of the database."""
        found: QuerySet[Token] = super().get_queryset(request).annotate(live=tokens.is_live())
        return found

    has_revoke_permission = permission("revoke_token")

    @admin.action(description=REVOKE, permissions=["revoke"])
    def revoke(self, request: HttpRequest, queryset: QuerySet[Token]) -> HttpResponse | None:
        """Revokes the tokens after a confirmation."""
        chosen = list(queryset.filter(revoked_at=None))
        if not chosen:
            messages.warning(request, now("Nothing was changed: these tokens are already revoked."))
            return None
        form = ReasonForm(request.POST if "confirmed" in request.POST else None)
        if not form.is_valid():
            return self._ask(request, chosen, form)
        done = tokens.revoke(queryset.filter(pk__in=[token.pk for token in chosen]))
        reason = form.cleaned_data["reason"]
        log(request, Token, [(str(token.pk), str(token)) for token in chosen], REVOKE, reason)
        if done:
            messages.success(request, ngettext("%(count)d token is revoked.", "%(count)d tokens are revoked.", done) % {"count": done})
        return None

    def _ask(self, request: HttpRequest, chosen: list[Token], form: ReasonForm) -> HttpResponse:
        shown = [(visible(token.name), self.begins_with(token), self.last_used_shown(token)) for token in chosen]
        context: dict[str, Any] = {
            "form": form,
            "tokens": shown,
            "selected": [token.pk for token in chosen],
            "checkbox": ACTION_CHECKBOX_NAME,
        }
        return self.page(request, "admin/delayq_gateway/token/revoke.html", REVOKE, **context)

    begins_with = column(_("begins with"), lambda token: f"{token.shown}…")
    queues_shown = column(_("queues"), lambda token: _listed(token.queues))
    verbs_shown = column(_("verbs"), lambda token: _listed(token.verbs))
    tasks_shown = column(_("tasks"), lambda token: _listed(token.tasks))
    secrets_shown = column(_("secrets"), lambda token: _listed(token.secrets))
    targets_shown = column(_("targets"), lambda token: _listed(token.targets))
    scope_shown = column(_("only this scope"), lambda token: visible(token.only_scope) or "-")
    created_shown = column(_("created at"), lambda token: second(token.created_at))
    expires_shown = column(_("expires at"), lambda token: _dated(token.expires_at, _("never")))
    last_used_shown = column(_("last used"), lambda token: _dated(token.last_used_at, _("never")))
    revoked_shown = column(_("revoked at"), lambda token: _dated(token.revoked_at))

    @admin.display(description=_("state"))
    def state(self, token: Token) -> Any:
        """Live, expired or revoked."""
        ended = ("bad", _("revoked")) if token.revoked_at is not None else ("gone", _("expired"))
        return format_html('<span class="delayq-state delayq-{}">{}</span>', *(("well", _("live")) if token.live else ended))


def _dated(moment: datetime | None, otherwise: Any = "–") -> Any:
    return otherwise if moment is None else second(moment)


def _listed(names: Iterable[Any]) -> Any:
    found = [str(name) for name in names] if isinstance(names, list) else []
    return _("all") if ALL in found else visible(", ".join(found))


admin.site.register(Token, TokenAdmin)
