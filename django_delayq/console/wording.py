"""Errors, dates and durations as text for people.

Each error code has a translated sentence, which is filled in with the fields. Exceptions are English, for logs and commands. Texts of
drivers, servers and other programs stay as they are.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from datetime import datetime, tzinfo
from typing import Any, Final

from django.utils.formats import number_format
from django.utils.functional import Promise
from django.utils.html import format_html, format_html_join
from django.utils.safestring import SafeString
from django.utils.timezone import get_current_timezone
from django.utils.translation import gettext as now
from django.utils.translation import gettext_lazy as _

from django_delayq import clock, durations
from django_delayq.exceptions import ConfigError
from django_delayq.states import MESSAGE
from django_delayq.text import visible

_AWAY: Final = _("Redis at %(where)s is not available: %(cause)s.")
_REFUSED: Final = _("Redis at %(where)s rejected this. Nothing was changed: %(cause)s.")
_LACK: Final = _(
    "The job was written to Redis at %(where)s, but only %(found)s of %(wanted)s replicas have it. A failover may lose it. Try again."
)
SENTENCES: Final[Mapping[str, Promise]] = {
    **dict.fromkeys(
        (
            "redis_clients",
            "redis_login",
            "redis_readonly",
            "redis_replicas",
            "redis_full",
            "redis_disk",
            "redis_busy",
            "redis_rights",
            "events_full",
            "bad_record",
            "restoring",
        ),
        _REFUSED,
    ),
    "redis_away": _AWAY,
    "redis_loading": _AWAY,
    "redis_entry": _AWAY,
    "redis_left_alone": _("Redis at %(where)s has just failed and will be tried again shortly: %(cause)s."),
    "redis_cluster": _("Redis at %(where)s is a node of a Redis Cluster, but the settings configure it as a single server: %(cause)s."),
    "redis_slot": _("Redis at %(where)s cannot do this now because a master is being replaced or a slot is being moved: %(cause)s."),
    "replicas_lack": _LACK,
    "replicas_unasked": _LACK,
    "server_replaced": _("The server that answered has been replaced. On the new server the job is unchanged. Try again shortly."),
    "format_newer": _("The queue %(queue)s has format %(found)s in Redis, but this process only supports formats up to %(known)s."),
    "site_other": _(
        "Redis at %(where)s has the queue %(queue)s of another site, %(theirs)s. This database is site %(ours)s. See manage.py delayq "
        "adopt."
    ),
    "site_workers": _(
        "Redis at %(where)s has the workers of another site, %(theirs)s. This database is site %(ours)s. See manage.py delayq adopt."
    ),
    "site_moved": _(
        "Redis at %(where)s has no jobs of the queue %(queue)s of this site, %(ours)s. The queue was last at %(known)s. "
        "No jobs run there until you run manage.py delayq adopt."
    ),
    "site_behind": _(
        "Redis at %(where)s is ahead of this database, site %(ours)s, in the queue %(queue)s. Either another database "
        "records the queue, or this database lost commits. No jobs run there until you run manage.py delayq adopt."
    ),
    "site_unknown": _("The database did not return the id of this site, so nothing is written to Redis: %(cause)s."),
    "partitions_away": _(
        "This was not done in %(partitions)s, which cannot be reached: %(cause)s It was done in the other partitions. Try again."
    ),
    "redis_answered": _("Redis at %(where)s answered: %(cause)s."),
    "task_unknown": _(
        "No task named %(name)s is registered in this process. Was it renamed or removed, or is a deployment in progress?"
    ),
    "queue_unknown": _("The queue %(name)s is not in the settings."),
    "queue_misspelt": _("The queue %(name)s is not in the settings. Did you mean %(near)s?"),
    "json_place": _("Line %(line)s, column %(column)s is not valid JSON."),
    "json": _("This is not valid JSON."),
    "argument_missing": _("The argument %(argument)s is missing."),
    "argument_surplus": _("There are more positional arguments than the task accepts."),
    "argument_unknown": _("The task does not accept the argument %(argument)s."),
    "argument_twice": _("The argument %(argument)s was given twice, by position and by name."),
    "argument_type": _("The argument %(argument)s must be %(annotation)s, not %(given)s."),
    "message_arguments": _("A message takes exactly one positional argument, its body. %(given)s were given."),
    "payload_size": _("The arguments are %(size)s bytes of JSON. The limit is %(limit)s."),
    "value_depth": _("%(path)s is nested more than %(most)s levels deep."),
    "value_digits": _("%(path)s is a number with more than 4,000 digits."),
    "value_surrogate": _("%(path)s contains an unpaired surrogate."),
    "name_surrogate": _("%(path)s has a name with an unpaired surrogate: %(name)s"),
    "too_many_jobs": _("%(count)s jobs match. The limit of the operation is %(limit)s, so no job was changed."),
    "actor_inactive": _("%(actor)s is no longer an active user, so the operation has stopped."),
    "permission_gone": _("%(actor)s no longer has the permission %(permission)s."),
    "unexpected": _("Unexpected error: %(kind)s: %(cause)s"),
}
# How the process of a run died, by the code of its problem.
DEATHS: Final[Mapping[str, Promise]] = {
    "process_sigkill": _("Its process was killed by %(signal)s, perhaps because the machine was out of memory."),
    "process_signal": _("Its process was killed by %(signal)s."),
    "process_exit": _("Its process ended with exit code %(exit_code)s."),
    "worker_died": _("The whole worker died, with all its processes."),
}
GROUPED: Final = frozenset({"size", "limit", "count"})  # fields with a thousands separator
_JOINTS: Final = re.compile(r"(?<=[._/:])(?=\w)")  # of `shop.tasks.close_order` and `/srv/shop/tasks.py:41`
_COARSE: Final = ((7 * 86_400, 86_400), (86_400, 3_600), (600, 60))  # seconds from which on durations are rounded to the step


def error_text(error: object) -> str:
    """The translated text of an error, or its own text if there is no sentence for its code. "" for None."""
    if error is None:
        return ""
    code, fields = getattr(error, "code", ""), getattr(error, "fields", {})
    if code not in SENTENCES or not fields:  # it has its own text, and only the code of its class
        return str(error)
    return format_error(code, fields)


def format_error(code: str, fields: Mapping[str, Any]) -> str:
    """The sentence for an error that is stored as a code and fields. Codes of newer releases are shown unchanged. Configuration errors
    are in English, as they were raised.
    """
    if code == ConfigError.code and "message" in fields:
        return visible(" ".join(str(fields[name]) for name in ("message", "hint") if fields.get(name)))
    try:
        grouped = {name: number_format(fields[name], force_grouping=True) for name in GROUPED & fields.keys()}
        return str(SENTENCES[code]) % {**{name: visible(str(value)) for name, value in fields.items()}, **grouped}
    except KeyError:
        return visible(f"{code} {fields}")


def death(problem: Any) -> str:
    """How the process of a run died; "" if the row does not have it."""
    sentence = DEATHS.get(problem.get("code", "")) if isinstance(problem, dict) else None
    try:
        return str(sentence) % {name: visible(str(value)) for name, value in problem["fields"].items()} if sentence else ""
    except KeyError:  # a newer release can have other fields
        return ""


def second(moment: datetime, zone: tzinfo | None = None, *, unit: str = "seconds") -> str:
    """A date with its offset, in the current time zone or in `zone`: "2026-05-01 18:30:00+02:00"."""
    return moment.astimezone(zone or get_current_timezone()).isoformat(" ", unit)


def duration(seconds: float | None) -> str:
    """A duration for people; a dash for None."""
    if seconds is None:
        return "-"
    seconds = min(seconds, durations.MAX_SECONDS)  # a date in Redis can be anything
    return durations.text(round(seconds)) if seconds >= 1 else f"{max(0.0, seconds) * 1000:.0f}ms"


def relative(moment: datetime) -> str:
    """The distance of a date from now, with at most two units: "in 4m", "2d5h ago"."""
    seconds = round((moment - clock.now()).total_seconds())
    far = min(abs(seconds), int(durations.MAX_SECONDS))
    step = next((step for least, step in _COARSE if far >= least), 1)
    text = now("in %(duration)s") if seconds > 0 else now("%(duration)s ago")
    return text % {"duration": durations.text(far - far % step)} if far else now("now")


def cut(text: str, most: int) -> str:
    """The beginning of a text, and a sign that there is more. Django's way of cutting adds a mark that turns all that follows, in some
    languages.
    """
    return text if len(text) <= most else f"{text[: most - 1]}…"


def task_name(task: str) -> str:
    """The name of the task, or "a message"."""
    return now("a message") if task == MESSAGE else visible(task)


def breakable(text: str) -> SafeString:
    """A dotted name or a path, which a narrow column breaks at its joints rather than within a word; copied, it is as it was."""
    return format_html_join(SafeString("<wbr>"), "{}", ((part,) for part in _JOINTS.split(visible(text))))


def dated(date: datetime, unit: str = "seconds") -> SafeString:
    """A date, in full for programs that read the page."""
    text = second(date, unit=unit)
    return format_html('<time datetime="{}">{}<wbr>{}</time>', date.isoformat(), text[:-6], text[-6:])  # a narrow column breaks here


def moment(date: datetime) -> SafeString:
    """A date, and how far off it is."""
    return format_html('{} <span class="delayq-soft">{}</span>', dated(date), relative(date))
