"""Pages that stay fresh: the part that changes is a template of its own, sent alone to the script that asks for it, and not at all
while it stays the same.
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
_TOKEN: Final = re.compile(r'(name="csrfmiddlewaretoken" value=")[^"]*')


def respond(request: HttpRequest, page: str, part: str, context: dict[str, Any]) -> HttpResponse:
    """The whole page, or the part of it that changes: with an ETag, and 304 for who has it already.

    Args:
        page: template of the page; it includes `part` and has its ETag as `etag`.
        part: template of what changes.
    """
    text = render_to_string(part, context, request)
    # A token is masked anew for each answer and good for the whole session: no reason to send a page again.
    digest = hashlib.sha256(_TOKEN.sub(r"\1", text).encode()).hexdigest()[:32]
    etag = f'"{digest}"'
    if LIVE not in request.GET:
        return TemplateResponse(request, page, {**context, "part": part, "etag": etag})
    response = HttpResponse(text, headers={"ETag": etag})
    return get_conditional_response(request, etag=etag, response=response) or response
