"""Pages that stay fresh: the part that changes is sent alone to the script that asks for it, and not at all while it stays the same.
It is a template of its own, or stands between two marks in a page whose frame belongs to a theme.
"""

from __future__ import annotations

import hashlib
import re
from typing import Any, Final

from django.http import HttpRequest, HttpResponse
from django.template.loader import render_to_string
from django.template.response import TemplateResponse
from django.utils.cache import get_conditional_response

LIVE: Final = "live"  # the parameter by which `refresh.js` asks for the part alone
BEGIN: Final = "<!-- delayq-live -->"  # no job can carry these marks: what it carries is escaped
END: Final = "<!-- /delayq-live -->"
_TOKEN: Final = re.compile(r'(name="csrfmiddlewaretoken" value=")[^"]*')


def respond(request: HttpRequest, page: str, part: str, context: dict[str, Any]) -> HttpResponse:
    """The whole page, or the part of it that changes: with an ETag, and 304 for who has it already.

    Args:
        page: template of the page; it includes `part` and has its ETag as `etag`.
        part: template of what changes.
    """
    text = render_to_string(part, context, request)
    if LIVE not in request.GET:
        return TemplateResponse(request, page, {**context, "part": part, "etag": _etag(text)})
    return _conditional(request, text)


def wanted(request: HttpRequest) -> bool:
    """Whether the part alone is asked for. Takes that out of the address, so that no link on the page bears it."""
    if LIVE not in request.GET:
        return False
    given = request.GET.copy()
    del given[LIVE]
    request.GET = given  # type: ignore[assignment]  # immutable is what Django gives, not what it needs
    return True


def cut_out(request: HttpRequest, page: TemplateResponse) -> HttpResponse:
    """What stands between the marks of a page that has not been rendered yet. Messages stay for the page of whoever is to read them."""
    page.context_data = {**(page.context_data or {}), "messages": []}
    text = page.rendered_content.partition(BEGIN)[2].partition(END)[0]
    return _conditional(request, text)


def _etag(text: str) -> str:
    # A token is masked anew for each answer and good for the whole session: no reason to send a page again.
    digest = hashlib.sha256(_TOKEN.sub(r"\1", text).encode()).hexdigest()[:32]
    return f'"{digest}"'


def _conditional(request: HttpRequest, text: str) -> HttpResponse:
    etag = _etag(text)
    response = HttpResponse(text, headers={"ETag": etag})
    return get_conditional_response(request, etag=etag, response=response) or response
