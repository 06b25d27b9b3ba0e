"""Badges and words for states, outcomes and events."""

from __future__ import annotations

import json
from typing import Any, Final

from django.utils.functional import Promise
from django.utils.html import format_html
from django.utils.translation import gettext_lazy as _

from django_delayq.models import OUTCOMES, STATES, Operation
from django_delayq.states import NO_LIMIT

MOST_INDENT: Final = 4  # times the length on one line
_INDENTED: Final = json.JSONEncoder(indent=2, ensure_ascii=False)

_STATES = {  # by look
    "waits": ("scheduled", "far", "snoozed", "asked"),
    "late": (*("due", "retrying", "parked", "unpublished", "paused", "quiet", "leaving"), *("retried", "evicted", "retired", "missed")),
    "bad": ("unresolved", "failed", "silent", "gone", "crashed", "trouble"),
    "runs": ("running", "held"),
    "well": ("succeeded", "working", "on"),
    "gone": ("cancelled", "off", "skipped", "withdrawn"),
}
LOOKS = {state: look for look, states in _STATES.items() for state in states}

# The words for states, outcomes and events: English in the database, the reader's language on the page.
WORDS: dict[str, Promise] = {
    **dict(STATES),
    **dict(OUTCOMES),
    **dict(Operation.Stage.choices),
    "due": _("due"),
    "retrying": _("retrying"),
    "parked": _("parked"),
    "unpublished": _("unpublished"),
    "far": _("far"),
    "unresolved": _("unresolved"),
    "resolved": _("resolved"),
    "forgot": _("key freed"),
    "rate_set": _("rate set"),
    "working": _("working"),
    "quiet": _("quiet"),
    "leaving": _("leaving"),
    "gone": _("gone"),
    "died": _("died"),
    "held": _("held"),
    "merged": _("merged"),
    "rescheduled": _("rescheduled"),
    "claimed": _("claimed"),
    "cancel_requested": _("cancel requested"),
    "requeued": _("requeued"),
    "copied": _("copied"),
    "expired": _("expired"),
    "aside": _("rejected"),
    "requeue_asked": _("asked to requeue"),
    "restored": _("restored"),
    "dropped": _("dropped"),
    "resumed": _("resumed"),
    "purged": _("purged"),
    "on": _("on"),
    "off": _("off"),
    "trouble": _("trouble"),
    "retired": _("retired"),
    "missed": _("missed"),
    "skipped": _("skipped"),
    "withdrawn": _("withdrawn"),
    "periodic_created": _("created"),
    "periodic_changed": _("changed"),
    "periodic_on": _("turned on"),
    "periodic_off": _("turned off"),
    "periodic_dates": _("dates overridden"),
    "periodic_run": _("run now"),
    "periodic_missed": _("ticks missed"),
    "periodic_declared": _("declared"),
    "periodic_retired": _("retired"),
}


def badge(state: str) -> str:
    """Returns a state as a coloured word. Colour alone is not accessible."""
    return format_html('<span class="delayq-state delayq-{}">{}</span>', LOOKS.get(state, "plain"), word(state))


def indented(value: Any) -> str:
    """Returns JSON on several lines, or on one line if most of it would be indentation: 60 KB of brackets would become 6 MB."""
    line = json.dumps(value, ensure_ascii=False)
    parts: list[str] = []
    room = MOST_INDENT * len(line) + 1000
    for part in _INDENTED.iterencode(value):
        room -= len(part)
        if room < 0:
            return line
        parts.append(part)
    return "".join(parts)


def word(name: str) -> str:
    """Translates a state, an outcome or a kind of event. Unknown words stay the same."""
    return str(WORDS.get(name, name.replace("_", " ")))


def allowed(max_attempts: int) -> str:
    return "∞" if max_attempts == NO_LIMIT else str(max_attempts)
