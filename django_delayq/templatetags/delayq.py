"""What the pages write down with `{{ …|visible }}`: text that came from a job, a worker or a person. And numbers, and the policy that
they bear.
"""

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
    """What our pages allow a browser to load: what comes from this site and from where its static files lie. "" where another app
    brings the frame of the admin, as themes do: most of them write code into their pages.
    """
    frame = getattr(get_template("admin/base.html"), "origin", None)
    if frame is None or Path(frame.name) != _FRAME:
        return ""
    place = urlsplit(static("delayq/admin.css"))
    elsewhere = f"{place.scheme}://{place.netloc}" if place.scheme else place.netloc
    return f"default-src 'self' {elsewhere}".rstrip()


@register.filter
def visible(text: object) -> str:
    """The text with its hidden characters spelled out; escaped like any other."""
    return texts.visible(str(text))


@register.filter
def task_name(task: object) -> str:
    """The name of a task without hidden characters; what a message has in its place."""
    return wording.task_name(str(task))


@register.filter
def breakable(text: object) -> SafeString:
    """The same of a name or a path, which may break at its joints."""
    return wording.breakable(str(text))


@register.filter
def dated(date: datetime | None) -> SafeString | str:
    """A date to the second, and its zone where the mouse rests; "" for none."""
    return wording.dated(date) if date else ""


@register.filter
def moment(date: datetime | None) -> SafeString | str:
    """The same, and how far off it is."""
    return wording.moment(date) if date else ""


@register.filter
def beginning(text: str, most: int) -> str:
    """So many characters of a text, and a sign that there is more."""
    return wording.cut(text, most)


@register.filter
def grouped(number: int) -> str:
    """A whole number, its thousands set apart as the language does."""
    return number_format(number, force_grouping=True)
