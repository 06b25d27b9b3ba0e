"""Pages that refresh themselves. The script requests only the part that changes, and gets 304 while it stays the same. The part is a
separate template, or is between two marks in a page whose frame belongs to a theme.
"""

from __future__ import annotations

import hashlib
import re
from typing import Any, Final

from django.http import HttpRequest, HttpResponse
from django.template.loader import render_to_string
from django.template.response import TemplateResponse
from django.utils.cache import get_conditional_response

LIVE: Final = "live"  # the parameter with which `refresh.js` requests only the part
BEGIN: Final = "<!-- delayq-live -->"  # data of jobs cannot contain these marks, because it is escaped
END: Final = "<!-- /delayq-live -->"
_TOKEN: Final = re.compile(r'(name="csrfmiddlewaretoken" value=")[^"]*')


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
