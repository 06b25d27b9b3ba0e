"""The bases of our admins, pages that refresh themselves, and the log entries, events and messages of actions."""

from __future__ import annotations

import hashlib
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from functools import wraps
from typing import TYPE_CHECKING, Any, ClassVar, Final

from django.contrib import admin, messages
from django.contrib.admin.filters import FieldListFilter
from django.contrib.admin.models import CHANGE
from django.contrib.admin.utils import get_fields_from_path, unquote
from django.contrib.auth import get_permission_codename
from django.core.exceptions import PermissionDenied
from django.core.paginator import Paginator
from django.db.models import Model, QuerySet
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.template.loader import render_to_string
from django.template.response import TemplateResponse
from django.urls import NoReverseMatch, URLPattern, path, reverse
from django.utils.cache import get_conditional_response
from django.utils.functional import cached_property
from django.utils.text import capfirst
from django.utils.translation import gettext as now
from django.utils.translation import ngettext
from django.views.decorators.http import require_POST

from django_delayq import conf, ids
from django_delayq.console import verbs
from django_delayq.console.verbs import Verb, apply
from django_delayq.console.wording import error_text
from django_delayq.exceptions import DelayqError
from django_delayq.models import Job, Operation
from django_delayq.producer.outbox import rows
from django_delayq.states import Change

if TYPE_CHECKING:
    AnyModelAdmin = admin.ModelAdmin[Any]
    AnyPaginator = Paginator[Any]
else:
    AnyModelAdmin, AnyPaginator = admin.ModelAdmin, Paginator

MOST_LISTED: Final = 10_000  # rows of a list, the latest
ASKED_LAST: Final = "delayq_asked_last"  # attribute of a request: the permission that was checked last; "" if granted


def column(description: Any, show: Callable[[Any], Any], ordering: str | None = None) -> Callable[[Any, Any], Any]:
    """Returns a column of a list: what `show` returns for a row."""
    return admin.display(lambda self, row: show(row), description=description, ordering=ordering)


def permission(codename: str) -> Callable[..., bool]:
    """Returns a method that says whether the user has a permission. A subclass can override it, and look at the object."""

    def allowed(self: ReadOnlyAdmin, request: HttpRequest, obj: Any = None) -> bool:
        return self.allows(request, codename)

    return allowed


class RowMissing(Exception):
    """There is no row with the id in the URL."""


class ChoiceFilter(admin.SimpleListFilter):
    """A filter with our template. It leaves the rows unchanged, for lists that read the URL themselves."""

    template = "admin/delayq/filter.html"

    def queryset(self, request: HttpRequest, queryset: Any) -> Any:
        return queryset


class LatestPages(AnyPaginator):
    """Has a bounded count."""

    @cached_property
    def count(self) -> int:
        rows: Any = self.object_list
        return int(rows.order_by()[:MOST_LISTED].count())


class ReadOnlyAdmin(AnyModelAdmin):
    """A ModelAdmin whose rows cannot be added, edited or deleted. Users act by verbs, each with its permission."""

    list_per_page = 50
    paginator = LatestPages
    show_full_result_count = False
    show_facets = admin.ShowFacets.NEVER
    sortable_by: ClassVar[Any] = ()
    actions: Any = None

    class Media:
        css = {"all": ("delayq/admin.css",)}

    def has_add_permission(self, request: HttpRequest) -> bool:
        return False

    def has_change_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return False

    def has_delete_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return False

    def has_view_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return self.allows(request, get_permission_codename("view", self.opts))

    def has_module_permission(self, request: HttpRequest) -> bool:
        return self.has_view_permission(request)

    def get_queryset(self, request: HttpRequest) -> QuerySet[Any]:
        return super().get_queryset(request).using(conf.get().database)

    def lookup_allowed(self, lookup: str, value: Any, request: HttpRequest | None = None) -> bool:
        """Allows only the lookups of the filters. With other lookups, a user could guess hidden values letter by letter. Django
        responds with 400.
        """
        return request is not None and lookup in self.filtered_by(request)

    def filtered_by(self, request: HttpRequest) -> set[str]:
        """Returns the query parameters of the filters."""
        found: set[str] = set()
        for given in self.get_list_filter(request):
            found.update(self._filter(request, given).expected_parameters())
        if self.date_hierarchy:
            found.update(f"{self.date_hierarchy}__{part}" for part in ("year", "month", "day"))
        return found

    def _filter(self, request: HttpRequest, given: Any) -> Any:
        """Returns a filter without a selection."""
        if callable(given):
            return given(request, {}, self.model, self)
        path, make = given if isinstance(given, (list, tuple)) else (given, FieldListFilter.create)
        if not isinstance(path, str):
            path = path.name
        field = get_fields_from_path(self.model, path)[-1]
        return make(field, request, {}, self.model, self, field_path=path)

    def allows(self, request: HttpRequest, codename: str) -> bool:
        """Whether the user has this permission. A refusal names the permission that was checked last."""
        permission = f"{self.opts.app_label}.{codename}"
        found = bool(request.user.has_perm(permission))
        setattr(request, ASKED_LAST, "" if found else permission)
        return found

    @property
    def urls(self) -> list[Any]:
        """The URLs, with refusals that name the reason."""
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
            except RowMissing as error:
                return self.nowhere(request, str(error))

        return explained

    def _refusal(self, request: HttpRequest, said: str) -> HttpResponse:
        """Returns a page that names the missing permission, or says that a rule of the site refused."""
        missing = "" if said else getattr(request, ASKED_LAST, "")
        models = self.opts.app_config.get_models() if self.opts.app_config else ()
        labels = {f"{self.opts.app_label}.{name}": label for model in models for name, label in _permissions(model)}
        context = self.page_context(
            request, now("Not allowed"), said=said, missing=missing, label=labels.get(missing, ""), actor=request.user.get_username()
        )
        return TemplateResponse(request, "admin/delayq/403.html", context, status=403)

    def changelist_view(self, request: HttpRequest, extra_context: dict[str, Any] | None = None) -> HttpResponse:
        """Sets the title; Django's "Select ..." would be wrong. Returns only the part that changes if the script requests it."""
        alone = is_partial(request)
        response = super().changelist_view(request, {"title": capfirst(self.opts.verbose_name_plural), **(extra_context or {})})
        if not (isinstance(response, TemplateResponse) and response.context_data and "cl" in response.context_data):
            return response
        response.context_data |= self.list_context(request, response.context_data["cl"])
        return partial_response(request, response) if alone else response

    def list_context(self, request: HttpRequest, listed: Any) -> dict[str, Any]:
        """Returns more context for a list that has been read."""
        return {}

    def found(self, request: HttpRequest, object_id: str, parse: Callable[[str], Any] = ids.parse) -> Any:
        """Returns the row with the id in a URL, with all its columns.

        Raises:
            PermissionDenied: the user may not view it.
            RowMissing: this admin does not have it. The user gets Django's response for a missing row.
        """
        if not self.has_view_permission(request):
            raise PermissionDenied
        try:
            id = parse(unquote(object_id))
        except ValueError:
            raise RowMissing(object_id) from None
        row = self.get_queryset(request).defer(None).filter(pk=id).first()
        if row is None:
            raise RowMissing(object_id)
        if not self.has_view_permission(request, row):
            raise PermissionDenied
        return row

    def page_url(self, route: str, name: str, view: Callable[..., Any], *, posted: bool = False) -> URLPattern:
        """Returns the URL of a page of this model. `posted`: it accepts only POST."""
        view = self.admin_site.admin_view(require_POST(view) if posted else view)
        return path(route, view, name=f"{self.opts.app_label}_{self.opts.model_name}_{name}")

    def list_url(self) -> str:
        return reverse(f"admin:{self.opts.app_label}_{self.opts.model_name}_changelist", current_app=self.admin_site.name)

    def url_of(self, row: Any) -> str:
        return reverse(f"admin:{self.opts.app_label}_{self.opts.model_name}_change", args=[row.pk], current_app=self.admin_site.name)

    def address(self, name: str, *args: Any) -> str:
        """Returns the URL of one of our pages on this site, or "" if the site does not have it."""
        try:
            return reverse(f"admin:{name}", args=args, current_app=self.admin_site.name)
        except NoReverseMatch:
            return ""

    def page_of(self, request: HttpRequest, operation: Operation) -> str:
        """Returns the URL of an operation, or "" if the user may not view it or the site does not have operations."""
        site = self.admin_site
        if not site.is_registered(Operation) or not site.get_model_admin(Operation).has_view_permission(request, operation):
            return ""
        return self.address("delayq_operation_change", operation.pk)

    def nowhere(self, request: HttpRequest, object_id: str) -> HttpResponse:
        """Returns Django's response for a missing row."""
        # Django has no public name for it, so the stubs do not know it. The views of all versions use it.
        found: HttpResponse = self._get_obj_does_not_exist_redirect(request, self.opts, object_id)  # type: ignore[attr-defined]  # see above
        return found

    def page(self, request: HttpRequest, template: str, title: Any, *, status: int = 200, **context: Any) -> TemplateResponse:
        return TemplateResponse(request, template, self.page_context(request, title, **context), status=status)

    def page_context(self, request: HttpRequest, title: Any, **more: Any) -> dict[str, Any]:
        """Returns the context of the admin's base template."""
        return {
            **self.admin_site.each_context(request),
            "title": title,
            "opts": self.opts,
            "media": self.media,
            "has_view_permission": True,
            **more,
        }


class LiveAdmin(ReadOnlyAdmin):
    """A page of things that have no rows: its proxy uses the table of the jobs, and shows none of them.

    A subclass can name other templates: `list_template` for the page, `live_template` for the part that is refreshed.
    """

    list_template: str
    live_template: str

    class Media:
        css = {"all": ("delayq/dashboard.css",)}

    def get_queryset(self, request: HttpRequest) -> QuerySet[Any]:
        """Returns no rows: a user who may view this page may not see the jobs."""
        return super().get_queryset(request).none()

    def board(self, request: HttpRequest) -> dict[str, Any]:
        """Returns the context of the page."""
        raise NotImplementedError  # each page has its own

    def changelist_view(self, request: HttpRequest, extra_context: dict[str, Any] | None = None) -> HttpResponse:
        if not self.has_view_permission(request):
            raise PermissionDenied
        context = self.page_context(request, capfirst(self.opts.verbose_name_plural))
        return respond(request, self.list_template, self.live_template, {**context, **self.board(request), **(extra_context or {})})

    def change_view(self, request: HttpRequest, object_id: str, *args: Any, **kwargs: Any) -> HttpResponse:
        """Redirects to the list, which shows everything."""
        return HttpResponseRedirect(self.list_url())


def _permissions(model: Any) -> Iterator[tuple[str, str]]:
    """Yields code and name of each permission of a model, as Django stores them."""
    for action in model._meta.default_permissions:
        yield get_permission_codename(action, model._meta), f"Can {action} {model._meta.verbose_name_raw}"
    yield from model._meta.permissions


MOST: Final = 1000  # jobs per request; each is a round trip
MOST_NAMED: Final = 5  # jobs that a message names


@dataclass(slots=True)
class Report:
    """The number of jobs per result, and the failed jobs per error message and whether their result is unknown."""

    counts: Counter[Change] = field(default_factory=Counter)
    errors: dict[tuple[str, bool], list[str]] = field(default_factory=dict)

    def tell(self, request: HttpRequest, verb: Verb) -> None:
        parts = [str(verb.answers[change]) % {"count": self.counts[change]} for change in Change if self.counts[change]]
        if parts:
            level = messages.SUCCESS if set(self.counts) == {Change.DONE} else messages.WARNING
            messages.add_message(request, level, capfirst(", ".join(parts)) + ".")
        for (error, unknown), jobs in self.errors.items():
            if unknown:
                text = ngettext(
                    "The result for %(count)d job is unknown (%(jobs)s): %(error)s Look at it again before you repeat the action.",
                    "The result for %(count)d jobs is unknown (%(jobs)s): %(error)s Look at them again before you repeat the action.",
                    len(jobs),
                )
            else:
                text = ngettext(
                    "%(count)d job was not changed (%(jobs)s): %(error)s",
                    "%(count)d jobs were not changed (%(jobs)s): %(error)s",
                    len(jobs),
                )
            named = ", ".join(jobs[:MOST_NAMED]) + ", …" * (len(jobs) > MOST_NAMED)
            messages.error(request, text % {"count": len(jobs), "jobs": named, "error": error})


def tell(request: HttpRequest, done: Any, text: Any) -> None:
    """Adds a message about an act that was done, or that had nothing to do."""
    messages.add_message(request, messages.SUCCESS if done else messages.WARNING, text)


def actor(request: HttpRequest) -> str:
    """Returns the actor of the events."""
    return f"admin:{request.user.get_username()}"


def carry_out(request: HttpRequest, verb: Verb, jobs: Iterable[Job], *, reason: str, **date: Any) -> Report:
    """Applies a verb to each job, and logs those that changed."""
    report, touched = Report(), list[Job]()
    for job, answer in apply(verb.each, jobs, actor=actor(request), reason=reason, **date):
        if isinstance(answer, DelayqError):
            report.errors.setdefault((error_text(answer), verbs.is_unknown(answer)), []).append(ids.short(job.pk))
            continue
        report.counts[answer] += 1
        if answer in verb.effects:
            touched.append(job)
    log(request, Job, [(str(job.pk), str(job)) for job in touched], verb.label, reason)
    return report


def log(
    request: HttpRequest, model: type[Model], objects: Iterable[tuple[str, str]], act: Any, reason: str = "", flag: int = CHANGE
) -> None:
    """Writes an entry for each object, an id and a name, into the log of Django's admin."""
    verbs.write_admin_log(request.user.pk, model, objects, f"{act}: {reason}" if reason else str(act), flag)


def note(request: HttpRequest, kind: str, reason: str, *, of: Job | None = None, **detail: Any) -> None:
    """Writes an event that no script writes: of a worker or an operation, or `of` a job that was not changed."""
    rows.note(of.pk if of else None, of.queue if of else "", kind, actor(request), reason, detail)


LIVE: Final = "live"  # the parameter with which `refresh.js` requests only the part
BEGIN: Final = "<!-- delayq-live -->"  # data of jobs cannot contain these marks, because it is escaped
END: Final = "<!-- /delayq-live -->"
_TOKEN: Final = re.compile(r'(name="csrfmiddlewaretoken" value=")[^"]*')


# A page that refreshes itself: the script requests only the part that changes, and gets 304 while it stays the same. The part is a
# separate template, or is between two marks in a page whose frame belongs to a theme.


def respond(request: HttpRequest, page: str, part: str, context: dict[str, Any]) -> HttpResponse:
    """Returns the whole page or the part that changes, with an ETag, or 304 if it has not changed.

    Args:
        page: template of the page; it includes `part` and has its ETag as `etag`.
        part: template of the part.
    """
    text = render_to_string(part, context, request)
    if LIVE not in request.GET:
        return TemplateResponse(request, page, {**context, "part": part, "etag": _etag(text)})
    return _conditional(request, text)


def is_partial(request: HttpRequest) -> bool:
    """Whether only the part was requested. Removes the parameter, so that no link on the page contains it."""
    if LIVE not in request.GET:
        return False
    given = request.GET.copy()
    del given[LIVE]
    request.GET = given  # type: ignore[assignment]  # Django passes an immutable QueryDict but accepts any
    return True


def partial_response(request: HttpRequest, page: TemplateResponse) -> HttpResponse:
    """Returns the part between the marks of an unrendered page. Messages are kept for the next whole page."""
    page.context_data = {**(page.context_data or {}), "messages": []}
    text = page.rendered_content.partition(BEGIN)[2].partition(END)[0]
    return _conditional(request, text)


def _etag(text: str) -> str:
    # Each response masks the token differently, and each mask is valid, so a new one is no change.
    digest = hashlib.sha256(_TOKEN.sub(r"\1", text).encode()).hexdigest()[:32]
    return f'"{digest}"'


def _conditional(request: HttpRequest, text: str) -> HttpResponse:
    etag = _etag(text)
    response = HttpResponse(text, headers={"ETag": etag})
    return get_conditional_response(request, etag=etag, response=response) or response
