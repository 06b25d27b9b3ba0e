"""What the admins share: nothing is added, edited or deleted by hand."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from django.contrib import admin
from django.db.models import QuerySet
from django.http import HttpRequest, HttpResponse

from django_delayq import conf

if TYPE_CHECKING:
    AnyModelAdmin = admin.ModelAdmin[Any]
else:
    AnyModelAdmin = admin.ModelAdmin


class ReadOnlyAdmin(AnyModelAdmin):
    """Rows are written by the producer and the mirror; people act by verbs, each with a permission of its own."""

    class Media:
        css = {"all": ("delayq/admin.css",)}

    def has_add_permission(self, request: HttpRequest) -> bool:
        """Never: jobs are scheduled by code."""
        return False

    def has_change_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        """Never: a row is the record of what happened."""
        return False

    def has_delete_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        """Never: `prune` deletes what has had its time."""
        return False

    def get_queryset(self, request: HttpRequest) -> QuerySet[Any]:
        """Rows of the database that the settings name."""
        return super().get_queryset(request).using(conf.get().database)

    def allows(self, request: HttpRequest, codename: str) -> bool:
        """Whether the user has that permission of ours."""
        return bool(request.user.has_perm(f"delayq.{codename}"))

    def nowhere(self, request: HttpRequest, object_id: str) -> HttpResponse:
        """Django's own answer to the address of a row that is not there."""
        # No public name in Django, and so none in its stubs; the admin's own views answer with it in all versions.
        found: HttpResponse = self._get_obj_does_not_exist_redirect(request, self.opts, object_id)  # type: ignore[attr-defined]  # see above
        return found

    def page_context(self, request: HttpRequest, title: Any, **more: Any) -> dict[str, Any]:
        """What the admin's base template wants to know."""
        return {
            **self.admin_site.each_context(request),
            "title": title,
            "opts": self.opts,
            "media": self.media,
            "has_view_permission": True,
            **more,
        }
