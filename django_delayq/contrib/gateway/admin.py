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
from django.template.response import TemplateResponse
from django.utils.html import format_html
from django.utils.translation import gettext as now
from django.utils.translation import gettext_lazy as _
from django.utils.translation import ngettext

from django_delayq.admin.forms import ReasonForm
from django_delayq.admin.readonly import ReadOnlyAdmin, log
from django_delayq.console.wording import second
from django_delayq.contrib.gateway import tokens
from django_delayq.contrib.gateway.models import ALL, Token
from django_delayq.text import visible

REVOKE = _("Revoke selected tokens")


class TokenAdmin(ReadOnlyAdmin):
    """Read-only, with the action "revoke"."""

    list_display = ("name", "begins_with", "state", "queues_shown", "verbs_shown", "tasks_shown", "expires_shown", "last_used_shown")
    fields = (*list_display, "secrets_shown", "targets_shown", "per_minute", "created_shown", "created_by", "revoked_shown")
    readonly_fields = fields
    list_per_page = 100
    show_full_result_count = False
    show_facets = admin.ShowFacets.NEVER
    actions = ("revoke",)

    def get_queryset(self, request: HttpRequest) -> QuerySet[Token]:
        """Adds `live`, by the clock of the database."""
        found: QuerySet[Token] = super().get_queryset(request).annotate(live=tokens.is_live())
        return found

    def has_revoke_permission(self, request: HttpRequest) -> bool:
        """Whether the user may revoke tokens."""
        return self.allows(request, "revoke_token")

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
        log(request, Token, [(str(token.pk), str(token)) for token in chosen], f"{REVOKE}: {reason}" if reason else str(REVOKE))
        if done:
            messages.success(request, ngettext("%(count)d token is revoked.", "%(count)d tokens are revoked.", done) % {"count": done})
        return None

    def _ask(self, request: HttpRequest, chosen: list[Token], form: ReasonForm) -> HttpResponse:
        shown = [(visible(token.name), self.begins_with(token), self.last_used_shown(token)) for token in chosen]
        context = self.page_context(
            request, REVOKE, form=form, tokens=shown, selected=[token.pk for token in chosen], checkbox=ACTION_CHECKBOX_NAME
        )
        return TemplateResponse(request, "admin/delayq_gateway/token/revoke.html", context)

    @admin.display(description=_("begins with"))
    def begins_with(self, token: Token) -> str:
        """The first characters of the token."""
        return f"{token.shown}…"

    @admin.display(description=_("state"))
    def state(self, token: Token) -> Any:
        """Live, expired or revoked."""
        if token.revoked_at is not None:
            return _marked("bad", _("revoked"))
        return _marked("well", _("live")) if token.live else _marked("gone", _("expired"))

    @admin.display(description=_("queues"))
    def queues_shown(self, token: Token) -> Any:
        """The queues that it can use."""
        return _listed(token.queues)

    @admin.display(description=_("verbs"))
    def verbs_shown(self, token: Token) -> Any:
        """The verbs that it has."""
        return _listed(token.verbs)

    @admin.display(description=_("tasks"))
    def tasks_shown(self, token: Token) -> Any:
        """The tasks that it can schedule."""
        return _listed(token.tasks)

    @admin.display(description=_("secrets"))
    def secrets_shown(self, token: Token) -> Any:
        """The secrets that its deliveries can use, with their origins."""
        return _listed(token.secrets)

    @admin.display(description=_("targets"))
    def targets_shown(self, token: Token) -> Any:
        """The targets of its offers."""
        return _listed(token.targets)

    @admin.display(description=_("created at"))
    def created_shown(self, token: Token) -> str:
        """With seconds."""
        return second(token.created_at)

    @admin.display(description=_("expires at"))
    def expires_shown(self, token: Token) -> Any:
        """With seconds."""
        return _dated(token.expires_at, _("never"))

    @admin.display(description=_("last used"))
    def last_used_shown(self, token: Token) -> Any:
        """With seconds, although it is updated once a minute."""
        return _dated(token.last_used_at, _("never"))

    @admin.display(description=_("revoked at"))
    def revoked_shown(self, token: Token) -> Any:
        """With seconds."""
        return _dated(token.revoked_at)


def _dated(moment: datetime | None, otherwise: Any = "–") -> Any:
    return otherwise if moment is None else second(moment)


def _marked(look: str, word: Any) -> str:
    return format_html('<span class="delayq-state delayq-{}">{}</span>', look, word)


def _listed(names: Iterable[Any]) -> Any:
    found = [str(name) for name in names] if isinstance(names, list) else []
    return _("all") if ALL in found else visible(", ".join(found))


admin.site.register(Token, TokenAdmin)
