"""What no event tells, in a run or out of one: the arguments of jobs, as the frames of this package have them while it schedules, and
the statements that write and read its rows.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final

import sentry_sdk
from sentry_sdk.utils import iter_event_frames

from django_delayq.contrib.sentry import sentry_spans as spans

PACKAGE: Final = "django_delayq"
TABLES: Final = "delayq_"  # what the names of its tables begin with
VALUES: Final = "db.params"


def withhold(event: Any, hint: Any) -> Any:
    """An event processor for the process. Events of projects that have taken the integration out are left alone."""
    if sentry_sdk.get_client().get_integration(spans.IDENTIFIER) is not None:
        for frame in iter_event_frames(event):
            if is_ours(frame):
                frame.pop("vars", None)
        crumbs = event.get("breadcrumbs")
        _strip(crumbs.get("values") if isinstance(crumbs, dict) else crumbs, "message")
        _strip(event.get("spans"), "description")
    return event


def is_ours(frame: Any) -> bool:
    """Whether a frame is of this package."""
    return str(frame.get("module") or "").partition(".")[0] == PACKAGE


def _strip(found: Any, statement: str) -> None:
    """Takes their values away from statements about tables of this package."""
    for one in found if isinstance(found, Iterable) else ():
        if isinstance(one, dict) and isinstance(one.get("data"), dict) and TABLES in str(one.get(statement)):
            one["data"].pop(VALUES, None)
