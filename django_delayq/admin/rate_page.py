"""The page of rates in the admin: the rates that people have set, by whom and why, and those for which jobs wait; set the rate of a
name, and reset it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Final

from django import forms
from django.core.exceptions import ValidationError
from django.http import HttpRequest
from django.utils.translation import gettext as now
from django.utils.translation import gettext_lazy as _

from django_delayq.admin.forms import ReasonForm, reason_field
from django_delayq.admin.readonly import actor, log, tell
from django_delayq.console.overview import QueueView
from django_delayq.console.rate_rows import rate_rows
from django_delayq.exceptions import DelayqError
from django_delayq.job_meta import MOST_TOKENS, Quota
from django_delayq.models import Pause, Queue
from django_delayq.producer import rates
from django_delayq.text import visible

SHOWN: Final = 5  # on the dashboard


class RateForm(ReasonForm):
    """The name of a rate, and its new value. `reset`: the rate that tasks declare counts again."""

    name = forms.CharField(label=_("Name"), max_length=200, strip=False)
    rate = forms.CharField(label=_("Rate"), required=False, help_text=_("Jobs per second, minute, hour or day, such as 100/m."))
    burst = forms.IntegerField(
        label=_("Burst"),
        required=False,
        min_value=1,
        max_value=MOST_TOKENS,
        help_text=_("How many can start at once after a quiet time."),
    )
    reason = reason_field(_("The reason is kept in the history. Other users can see it."))
    reset = forms.BooleanField(required=False, widget=forms.HiddenInput)
    field_order = ("name", "rate", "burst", "reason", "reset")

    def clean(self) -> dict[str, Any]:
        """Checks the rate."""
        found: dict[str, Any] = super().clean() or self.cleaned_data
        if not found.get("reset") and Quota.read(found.get("rate")) is None:
            raise ValidationError({"rate": _("Enter a number and a unit, such as 100/m. The units are s, m, h and d.")})
        return found


def rows(queues: Sequence[str], words: Iterable[Pause] | None = None, *, names: bool) -> dict[str, Any]:
    """The rates that are set, and those for which jobs of these queues wait. `names`: the user may see the names, because most of them
    name customers. `words`: see `outbox.pauses.of_pauses`.
    """
    found, cut = rate_rows(queues, words)
    shown = [
        {
            "word": row.name if names else "",
            "name": visible(row.name) if names else "",
            "rate": str(row.pace) if row.pace else "",
            "burst": row.pace.burst if row.pace else None,
            "at": row.at,
            "by": visible(row.by),
            "why": visible(row.why),
            "waiting": row.waiting,
            "oldest": row.oldest,
            "missing": ", ".join(row.missing),
            "set": row.pace is not None or bool(row.missing),
        }
        for row in found
    ]
    return {"rates": shown, "cut": cut}


def on_dashboard(words: Iterable[Pause], seen: Sequence[QueueView], *, names: bool) -> dict[str, Any]:
    """The first rates, and the number of the others. Queues in which no job waits for a rate are not read again."""
    found = rows([queue.name for queue in seen if queue.depth.rated], words, names=names)["rates"]
    return {"rates": found[:SHOWN], "more_rates": max(0, len(found) - SHOWN)}


def act(request: HttpRequest, form: RateForm) -> bool:
    """Sets or resets the rate that a valid form names. Returns False if that was refused, which the form then shows."""
    given = form.cleaned_data
    name, rate = given["name"], None if given["reset"] else given["rate"]
    try:
        reply = rates.set_rate(name, rate, burst=None if rate is None else given["burst"], actor=actor(request), reason=given["reason"])
    except DelayqError as error:
        form.add_error(None, visible(str(error)))
        return False
    log(request, Queue, [(name, name)], f"rate {rate or 'reset'}", given["reason"])
    shown = {"name": visible(name), "rate": rate, "count": reply.waiting}
    text = now("The rate of %(name)s is %(rate)s. Waiting jobs: %(count)d.") if rate else now("The rate of %(name)s is reset.")
    tell(request, reply.changed, text % shown)
    if reply.unconfirmed:
        parts = ", ".join(reply.unconfirmed)
        tell(
            request, False, now("These partitions cannot be reached. Workers repeat this until they can: %(parts)s.") % {"parts": parts}
        )
    return True
