"""What the pages write down with `{{ …|visible }}`: text that came from a job, a worker or a person. And numbers."""

from __future__ import annotations

from django import template
from django.utils.formats import number_format
from django.utils.safestring import SafeString

from django_delayq.admin import show

register = template.Library()


@register.filter
def visible(text: object) -> str:
    """The text with its hidden characters spelled out; escaped like any other."""
    return show.visible(str(text))


@register.filter
def breakable(text: object) -> SafeString:
    """The same of a name or a path, which may break at its joints."""
    return show.breakable(str(text))


@register.filter
def grouped(number: int) -> str:
    """A whole number, its thousands set apart as the language does."""
    return number_format(number, force_grouping=True)
