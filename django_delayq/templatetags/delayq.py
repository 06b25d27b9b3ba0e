"""Template tags of our pages: names, dates and numbers, and the content security policy."""

from __future__ import annotations

from datetime import datetime
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

import django
from django import template
from django.template.loader import get_template
from django.templatetags.static import static
from django.utils.formats import number_format
from django.utils.safestring import SafeString

from django_delayq import text as texts
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


@register.filter
def visible(text: object) -> str:
    """Spells out hidden characters."""
    return texts.visible(str(text))


@register.filter
def task_name(task: object) -> str:
    """Returns the name of a task, or "a message"."""
    return wording.task_name(str(task))


@register.filter
def breakable(text: object) -> SafeString:
    """Lets a name or a path break at its dots and slashes."""
    return wording.breakable(str(text))


@register.filter
def dated(date: datetime | None) -> SafeString | str:
    return wording.dated(date) if date else ""


@register.filter
def moment(date: datetime | None) -> SafeString | str:
    """Returns a date and the time until it or since then."""
    return wording.moment(date) if date else ""


@register.filter
def beginning(text: str, most: int) -> str:
    return wording.cut(text, most)


@register.filter
def grouped(number: int) -> str:
    """Groups the thousands of a whole number."""
    return number_format(number, force_grouping=True)
