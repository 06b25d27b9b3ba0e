"""The admin's log: an entry for each object to which a person has done something, there or by an operation."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final

from django.apps import apps
from django.db.models import Model

from django_delayq.text import visible

CHANGE: Final = 2  # Django's number, which stands where only projects with an admin can import it


def write(user: object, model: type[Model], objects: Iterable[tuple[str, str]], sentence: str, flag: int = CHANGE) -> None:
    """One entry per object, given as (id, text); none where the project has no admin.

    Args:
        user: the key of the person.
        flag: Django's number for what was done.
    """
    if not apps.is_installed("django.contrib.admin"):
        return
    entries: Any = apps.get_model("admin", "LogEntry")
    content_types: Any = apps.get_model("contenttypes", "ContentType")
    content_type = content_types.objects.get_for_model(model, for_concrete_model=False)
    entries.objects.bulk_create(
        entries(
            user_id=str(user),
            content_type=content_type,
            object_id=id,
            object_repr=visible(text)[:200],
            action_flag=flag,
            change_message=visible(sentence),
        )
        for id, text in objects
    )
