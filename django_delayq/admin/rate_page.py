"""The page of rates in the admin: the rates that people have set, by whom and why; set the rate of a name, and reset it."""

from __future__ import annotations

from typing import Any

from django import forms
from django.core.exceptions import ValidationError
from django.http import HttpRequest
from django.utils.translation import gettext as now
from django.utils.translation import gettext_lazy as _

from django_delayq.admin.forms import ReasonForm, reason_field
from django_delayq.admin.readonly import actor, log, tell
from django_delayq.exceptions import DelayqError
from django_delayq.job_meta import MOST_TOKENS, Quota
from django_delayq.models import Queue
from django_delayq.producer import outbox, rates
from django_delayq.producer.outbox.pauses import RATE
from django_delayq.text import visible


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


def rows(*, names: bool) -> list[dict[str, Any]]:
    """The rates that are set. `names`: the user may see the names, because most of them name customers."""
    found = []
    for row in outbox.pauses.of_rates():
        name, quota = row.word.removeprefix(RATE), Quota(*map(int, row.rate.split(":"))) if row.rate else None
        found.append(
            {
                "word": name if names else "",
                "name": visible(name) if names else "",
                "rate": str(quota) if quota else "",
                "burst": quota.burst if quota else None,
                "at": row.paused_at,
                "by": visible(row.paused_by),
                "why": visible(row.paused_why),
                "waiting": rates.waiting(name),
                "missing": ", ".join(row.missing.split()),
            }
        )
    return found


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
