"""Tokens in the admin: to look at, and to revoke. They are made by the command, which shows them once; a page would keep them in
histories and screenshots. This one may import what the admins share.
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime
from typing import Any

from django.contrib import admin, messages
from django.db.models import QuerySet
from django.http import HttpRequest
from django.utils.translation import gettext_lazy as _
from django.utils.translation import ngettext

from django_delayq import clock
from django_delayq.admin.readonly import ReadOnlyAdmin
from django_delayq.admin.report import log
from django_delayq.admin.show import second, visible
from django_delayq.contrib.gateway import tokens
from django_delayq.contrib.gateway.models import ALL, Token

REVOKE = _("Revoke selected tokens")


class TokenAdmin(ReadOnlyAdmin):
    """Read only, with the action "revoke"."""

    list_display = ("name", "begins_with", "state", "queues_shown", "verbs_shown", "tasks_shown", "expires_shown", "last_used_shown")
    fields = (*list_display, "per_minute", "created_shown", "created_by", "revoked_shown")
    readonly_fields = fields
    list_per_page = 100
    show_full_result_count = False
    show_facets = admin.ShowFacets.NEVER
    actions = ("revoke",)

    def allows(self, request: HttpRequest, codename: str) -> bool:
        """Whether the user has that permission of the gateway."""
        return bool(request.user.has_perm(f"delayq_gateway.{codename}"))

    def has_revoke_permission(self, request: HttpRequest) -> bool:
        """May revoke."""
        return self.allows(request, "revoke_token")

    @admin.action(description=REVOKE, permissions=["revoke"])
    def revoke(self, request: HttpRequest, queryset: QuerySet[Token]) -> None:
        """Ends them at once, for good."""
        chosen = list(queryset.filter(revoked_at=None))
        done = tokens.revoke(queryset.filter(pk__in=[token.pk for token in chosen]))
        log(request, Token, [(str(token.pk), str(token)) for token in chosen], str(REVOKE))
        if done:
            messages.success(request, ngettext("%(count)d token is revoked.", "%(count)d tokens are revoked.", done) % {"count": done})

    @admin.display(description=_("begins with"))
    def begins_with(self, token: Token) -> str:
        """By what people tell it from others."""
        return f"{token.shown}…"

    @admin.display(description=_("state"))
    def state(self, token: Token) -> Any:
        """Whether it opens anything."""
        if token.revoked_at is not None:
            return _("revoked")
        return _("live") if token.lives(clock.now()) else _("expired")

    @admin.display(description=_("queues"))
    def queues_shown(self, token: Token) -> Any:
        """To which it leads."""
        return _listed(token.queues)

    @admin.display(description=_("verbs"))
    def verbs_shown(self, token: Token) -> Any:
        """What it may do."""
        return _listed(token.verbs)

    @admin.display(description=_("tasks"))
    def tasks_shown(self, token: Token) -> Any:
        """Which it may schedule."""
        return _listed(token.tasks)

    @admin.display(description=_("created at"))
    def created_shown(self, token: Token) -> str:
        """To the second."""
        return second(token.created_at)

    @admin.display(description=_("expires at"))
    def expires_shown(self, token: Token) -> str:
        """To the second."""
        return _dated(token.expires_at)

    @admin.display(description=_("last used"))
    def last_used_shown(self, token: Token) -> str:
        """To the second, though it is noted once a minute."""
        return _dated(token.last_used_at)

    @admin.display(description=_("revoked at"))
    def revoked_shown(self, token: Token) -> str:
        """To the second."""
        return _dated(token.revoked_at)


def _dated(moment: datetime | None) -> str:
    return "–" if moment is None else second(moment)


def _listed(names: Iterable[Any]) -> Any:
    found = [str(name) for name in names] if isinstance(names, list) else []
    return _("all") if ALL in found else visible(", ".join(found))


admin.site.register(Token, TokenAdmin)
