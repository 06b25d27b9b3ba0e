"""What the admins share: nothing is added, edited or deleted by hand."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import wraps
from typing import TYPE_CHECKING, Any, Final

from django.contrib import admin
from django.contrib.admin.filters import FieldListFilter
from django.contrib.admin.utils import get_fields_from_path
from django.contrib.auth import get_permission_codename
from django.core.exceptions import PermissionDenied
from django.db.models import QuerySet
from django.http import HttpRequest, HttpResponse
from django.template.response import TemplateResponse
from django.urls import NoReverseMatch, reverse
from django.utils.text import capfirst
from django.utils.translation import gettext as now

from django_delayq import conf
from django_delayq.models import Operation

if TYPE_CHECKING:
    AnyModelAdmin = admin.ModelAdmin[Any]
else:
    AnyModelAdmin = admin.ModelAdmin

ASKED_LAST: Final = "delayq_asked_last"  # on a request: the permission that was looked for last; "" if the person has it


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
        """Whether the user has that permission of ours. What was asked for last is named to who is refused."""
        permission = f"{self.opts.app_label}.{codename}"
        found = bool(request.user.has_perm(permission))
        setattr(request, ASKED_LAST, "" if found else permission)
        return found

    @property
    def urls(self) -> list[Any]:
        """Those of `get_urls`, whose refusals say why."""
        found = self.get_urls()
        for pattern in found:
            pattern.callback = self._explained(pattern.callback)
        return found

    def _explained(self, view: Callable[..., HttpResponse]) -> Callable[..., HttpResponse]:
        @wraps(view)
        def explained(request: HttpRequest, *args: Any, **kwargs: Any) -> HttpResponse:
            try:
                return view(request, *args, **kwargs)
            except PermissionDenied as error:
                return self._refusal(request, str(error))

        return explained

    def _refusal(self, request: HttpRequest, said: str) -> HttpResponse:
        """A page that names the permission, if it was one that was missing, and not a rule of the site."""
        missing = "" if said else getattr(request, ASKED_LAST, "")
        models = self.opts.app_config.get_models() if self.opts.app_config else ()
        labels = {f"{self.opts.app_label}.{name}": label for model in models for name, label in _permissions(model)}
        context = self.page_context(
            request, now("Not allowed"), said=said, missing=missing, label=labels.get(missing, ""), actor=request.user.get_username()
        )
        return TemplateResponse(request, "admin/delayq/403.html", context, status=403)

    def changelist_view(self, request: HttpRequest, extra_context: dict[str, Any] | None = None) -> HttpResponse:
        """By what it shows: nothing is to be selected."""
        return super().changelist_view(request, {"title": capfirst(self.opts.verbose_name_plural), **(extra_context or {})})

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


def _permissions(model: Any) -> Iterator[tuple[str, str]]:
    """Code and name of each permission of a model, as Django writes them down."""
    for action in model._meta.default_permissions:
        yield get_permission_codename(action, model._meta), f"Can {action} {model._meta.verbose_name_raw}"
    yield from model._meta.permissions
