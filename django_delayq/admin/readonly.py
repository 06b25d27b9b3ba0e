"""What the admins share: nothing is added, edited or deleted by hand."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from django.contrib import admin
from django.contrib.admin.filters import FieldListFilter
from django.contrib.admin.utils import get_fields_from_path
from django.contrib.auth import get_permission_codename
from django.db.models import QuerySet
from django.http import HttpRequest, HttpResponse
from django.urls import NoReverseMatch, reverse

from django_delayq import conf
from django_delayq.models import Operation

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

    def has_view_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        """May see these pages."""
        return self.allows(request, get_permission_codename("view", self.opts))

    def has_module_permission(self, request: HttpRequest) -> bool:
        """The same: the index shows what one may see."""
        return self.has_view_permission(request)

    def get_queryset(self, request: HttpRequest) -> QuerySet[Any]:
        """Rows of the database that the settings name."""
        return super().get_queryset(request).using(conf.get().database)

    def lookup_allowed(self, lookup: str, value: Any, request: HttpRequest | None = None) -> bool:
        """What the address of a list may ask of the database: what the filters beside it ask, and nothing else. By any other look-up
        one could find out, letter by letter, what no page shows; Django refuses it with 400.
        """
        return request is not None and lookup in self.filtered_by(request)

    def filtered_by(self, request: HttpRequest) -> set[str]:
        """The names that the filters of this list take from its address."""
        found: set[str] = set()
        for given in self.get_list_filter(request):
            found.update(self._filter(request, given).expected_parameters())
        if self.date_hierarchy:
            found.update(f"{self.date_hierarchy}__{part}" for part in ("year", "month", "day"))
        return found

    def _filter(self, request: HttpRequest, given: Any) -> Any:
        """A filter as Django makes it, of which nothing is chosen."""
        if callable(given):
            return given(request, {}, self.model, self)
        path, make = given if isinstance(given, (list, tuple)) else (given, FieldListFilter.create)
        if not isinstance(path, str):
            path = path.name
        field = get_fields_from_path(self.model, path)[-1]
        return make(field, request, {}, self.model, self, field_path=path)

    def allows(self, request: HttpRequest, codename: str) -> bool:
        """Whether the user has that permission of ours."""
        return bool(request.user.has_perm(f"delayq.{codename}"))

    def address(self, name: str, *args: Any) -> str:
        """Where a page of ours stands on this site, by the name of its URL; "" where the site does without it."""
        try:
            return reverse(f"admin:{name}", args=args, current_app=self.admin_site.name)
        except NoReverseMatch:
            return ""

    def page_of(self, request: HttpRequest, operation: Operation) -> str:
        """Where this person sees an operation; "" where they may not, or where this site has none of them."""
        site = self.admin_site
        if not site.is_registered(Operation) or not site.get_model_admin(Operation).has_view_permission(request, operation):
            return ""
        return self.address("delayq_operation_change", operation.pk)

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
