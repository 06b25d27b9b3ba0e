"""Template tags of our pages: names, dates and numbers, and the content security policy."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

import django
from django import template
from django.template.loader import get_template
from django.templatetags.static import static
from django.utils.formats import number_format

from django_delayq import text
from django_delayq.console import wording

register = template.Library()
_FRAME: Final = Path(django.__file__).parent / "contrib/admin/templates/admin/base.html"  # the app may be missing


@register.simple_tag
def content_security_policy() -> str:
    """Returns the policy of our pages: everything comes from this site, and static files from their host. Returns "" if another app,
    such as a theme, replaces the base template, because most themes use inline code.
    """
    frame = getattr(get_template("admin/base.html"), "origin", None)
    if frame is None or Path(frame.name) != _FRAME:
        return ""
    place = urlsplit(static("delayq/admin.css"))
    elsewhere = f"{place.scheme}://{place.netloc}" if place.scheme else place.netloc
    return f"default-src 'self' {elsewhere}".rstrip()


# Spells out hidden characters; names a task; lets a name or a path break at its dots and slashes; cuts a text; groups thousands.
register.filter("visible", lambda value: text.visible(str(value)))
register.filter("task_name", lambda task: wording.task_name(str(task)))
register.filter("breakable", lambda value: wording.breakable(str(value)))
register.filter("beginning", wording.cut)
register.filter("grouped", partial(number_format, force_grouping=True))
# A date; and with the time until it or since then. "" for None.
register.filter("dated", lambda date, unit="seconds": wording.dated(date, unit) if date else "")
register.filter("moment", lambda date: wording.moment(date) if date else "")
