"""A list of jobs as a file: the page that says what will be in it, then the file, sent while it is read."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator
from functools import partial
from typing import Any, Final

from asgiref.sync import sync_to_async
from django.contrib.admin.options import IncorrectLookupParameters
from django.core.handlers.asgi import ASGIRequest
from django.db import connections
from django.http import HttpRequest, HttpResponseRedirect, StreamingHttpResponse
from django.http.response import HttpResponseBase
from django.template.response import TemplateResponse
from django.urls import reverse
from django.utils.translation import gettext as now

from django_delayq import clock, conf
from django_delayq.admin.forms import ExportForm
from django_delayq.admin.report import log
from django_delayq.console import export, keyset, selection
from django_delayq.console.search_parser import Search
from django_delayq.models import Job, database_clock

KINDS: Final[dict[str, tuple[Callable[..., Iterator[bytes]], str, str]]] = {
    "csv": (export.csv_lines, "text/csv; charset=utf-8", "csv"),
    "json": (export.json_lines, "application/x-ndjson; charset=utf-8", "jsonl"),
}


def respond(admin: Any, request: HttpRequest) -> HttpResponseBase:
    """What the list at this address shows, all pages of it, but for jobs that this person may not see. `admin`: that of jobs."""
    back = reverse("admin:delayq_job_changelist", current_app=admin.admin_site.name)
    try:
        listed: Any = admin.get_changelist_instance(request)
    except IncorrectLookupParameters:
        return HttpResponseRedirect(back)
    shown, chosen, jobs = listed.selection, listed.meant, listed.unsearched.defer(None)
    sensitive = admin.allows(request, "view_sensitive")
    kind = request.POST.get("kind", "") if request.method == "POST" else ""
    form = ExportForm(request.POST or None)
    if kind in KINDS and not listed.complaints and form.is_valid():
        write, content_type, ending = KINDS[kind]
        words = shown.words or now("all")
        said, reason = now("Exported as %(kind)s: %(selection)s") % {"kind": ending, "selection": words}, form.cleaned_data["reason"]
        log(request, Job, [("", words)], f"{said}: {reason}" if reason else said)
        walk = export.Walk(
            selection=chosen.fixed(clock.to_ms(database_clock.now(connections[conf.get().database]))),
            jobs=jobs,
            seen=partial(admin.has_view_permission, request),
        )
        lines = export.together(write(walk, sensitive=sensitive, ending=partial(_ending, chosen.search)))
        name = "-".join(filter(None, ("jobs", shown.shown_view, f"{clock.now():%Y%m%d-%H%M%S}")))
        return StreamingHttpResponse(
            _one_by_one(lines) if isinstance(request, ASGIRequest) else lines,
            content_type=content_type,
            headers={"Content-Disposition": f'attachment; filename="{name}.{ending}"'},
        )
    count = None if listed.complaints else keyset.count_up_to(chosen, jobs, export.MOST, conf.get().database)
    context = admin.page_context(
        request,
        now("Export"),
        complaints=listed.complaints,
        words=shown.words,
        form=form,
        count=count,
        most=export.MOST,
        over=count is not None and count > export.MOST,
        masked=not sensitive,
        kinds=[(kind, kind.upper()) for kind in KINDS],
        back=back + listed.get_query_string(),
    )
    return TemplateResponse(request, "admin/delayq/job/export.html", context, status=400 if request.method == "POST" else 200)


def _ending(search: Search, walk: export.Walk) -> str:
    """What the last line of a file says where it may lack jobs; "" where it has all."""
    more = now("There are more matching jobs. This file ends here.") if walk.cut else ""
    return " ".join(filter(None, (more, selection.searched_in(search, partly=True) if walk.partly else "")))


async def _one_by_one(lines: Iterator[bytes]) -> AsyncIterator[bytes]:
    """The same for a server that speaks ASGI: read in a thread, part by part, and not all at once before the first is sent."""
    while part := await sync_to_async(lambda: next(lines, b""))():
        yield part
