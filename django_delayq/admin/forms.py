"""Fields and forms for actions, and the page that asks for confirmation."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from datetime import datetime
from functools import cache
from typing import Any, Final, cast

from django import forms
from django.contrib import messages
from django.core.exceptions import ValidationError
from django.http import HttpRequest, HttpResponse
from django.utils.timezone import get_current_timezone_name
from django.utils.translation import gettext as now
from django.utils.translation import gettext_lazy as _

from django_delayq import codec, durations
from django_delayq.admin import job_page
from django_delayq.admin.badges import badge
from django_delayq.admin.readonly import ReadOnlyAdmin
from django_delayq.console import masking, operations
from django_delayq.console.moments import parse_moment, parse_start
from django_delayq.console.verbs import Verb
from django_delayq.console.wording import cut, error_text, task_name
from django_delayq.exceptions import PayloadError
from django_delayq.models import Job, database
from django_delayq.text import visible


class DurationField(forms.CharField):
    """A duration, such as 1h30m. The value is in seconds, or None if the field is empty."""

    def clean(self, value: Any) -> float | None:
        text = super().clean(value)
        try:
            return durations.seconds(text.removeprefix("+")) if text else None
        except ValueError:
            said = _("%(text)s is not a valid duration. Use, for example, 90s, 10m, 1h30m or 2d.")
            raise ValidationError(said, params={"text": text}) from None


class MomentField(forms.CharField):
    """A date as in the search. The value is a datetime, or None if the field is empty. `parse`: the parser."""

    def __init__(self, parse: Callable[[str, datetime], datetime] = parse_moment, **options: Any) -> None:
        self.parse, self.now = parse, database.now
        super().__init__(required=False, **options)

    def clean(self, value: Any) -> datetime | None:
        text = super().clean(value)
        try:
            return self.parse(text, self.now()) if text else None
        except (ValueError, OverflowError):
            said = _("%(text)s is not a valid date. Use, for example, 2030-01-31 18:00, or 18:00 for today.")
            raise ValidationError(said, params={"text": text}) from None


class PeriodForm(forms.Form):
    """A period, which can be open on both sides."""

    since = MomentField(label=_("Since"), widget=forms.TextInput(attrs={"placeholder": "10:00", "list": "delayq-moments"}))
    until = MomentField(label=_("Until"), widget=forms.TextInput(attrs={"placeholder": "-2h", "list": "delayq-moments"}))

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        at = cache(database.now)  # one query for both dates
        for name in ("since", "until"):
            cast(MomentField, self.fields[name]).now = at


class JSONArgumentsField(forms.CharField):
    """A JSON list or object. Django's own field accepts NaN and deep nesting, and does not name the place of an error."""

    def __init__(self, kind: type, **options: Any) -> None:
        self.kind = kind
        super().__init__(**options)

    def clean(self, value: Any) -> Any:
        text = super().clean(value)
        if not text:
            return self.kind()
        wrong = (
            _('Enter a JSON list, such as [7, "text"].') if self.kind is list else _('Enter a JSON object, such as {"note": "text"}.')
        )
        try:
            found = codec.loads(text.encode("utf-8", "surrogatepass"))
        except PayloadError as error:
            raise ValidationError("%(said)s %(error)s", params={"said": wrong, "error": error_text(error)}) from None
        if not isinstance(found, self.kind):
            raise ValidationError(wrong)
        return found


def reason_field(help_text: Any) -> forms.CharField:
    return forms.CharField(label=_("Reason"), required=False, max_length=500, help_text=help_text)


class ReasonForm(forms.Form):
    """A form with a reason."""

    reason = reason_field(_("The reason is kept with the job's events. Other users can see it."))

    def date(self) -> dict[str, Any]:
        """The options of the verb besides the reason."""
        return {}


def reason_given(request: HttpRequest) -> str | None:
    """Returns the reason that was sent with a button. None if it is invalid; the user gets a message, and the caller does nothing."""
    form = ReasonForm(request.POST)
    if form.is_valid():
        return str(form.cleaned_data["reason"])
    messages.error(request, now("Nothing was done: %(error)s") % {"error": " ".join(map(str, form.errors["reason"]))})
    return None


class ExportForm(ReasonForm):
    reason = reason_field(_("The reason is kept in the history. Other users can see it."))


class RescheduleForm(ReasonForm):
    delay = DurationField(label=_("Delay from now"), required=False, help_text=_("+10m, 90s, 1h30m, 2d"))
    run_at = MomentField(parse_start, label=_("Or a date"))
    field_order: Sequence[str] = ("delay", "run_at", "reason")

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        zone = visible(get_current_timezone_name())  # the browser may use another one
        self.fields["run_at"].help_text = now("2030-01-31 18:00, or 18:00 for today. Time zone: %(zone)s") % {"zone": zone}

    def clean_run_at(self) -> datetime | None:
        """Checks that the date is in the future."""
        moment: datetime | None = self.cleaned_data["run_at"]
        if moment is not None and moment < database.now():
            raise ValidationError(
                _("This date is in the past, so the job would run immediately. Enter a date in the future, or use “Run now”.")
            )
        return moment

    def clean(self) -> dict[str, Any]:
        cleaned = super().clean() or self.cleaned_data
        if not self.errors and (cleaned.get("delay") is None) == (cleaned.get("run_at") is None):
            raise ValidationError(_("Enter either a delay or a date."))
        return cleaned

    def date(self) -> dict[str, Any]:
        return {name: self.cleaned_data[name] for name in ("delay", "run_at") if self.cleaned_data[name] is not None}


class OperationForm(ReasonForm):
    """The options of an operation."""

    over = DurationField(
        label=_("Spread over"),
        required=False,
        help_text=_(
            "For example 20m or 2h. Spreading prevents overloading the services that the jobs call. If empty, jobs "
            "run as fast as the workers can."
        ),
    )
    field_order: Sequence[str] = ("over", "reason")

    def clean_over(self) -> int | None:
        seconds = self.cleaned_data["over"]
        if seconds is not None and seconds > operations.LONGEST:
            raise ValidationError(_("The maximum is 30 days."))
        return None if seconds is None else round(seconds)

    def options(self) -> dict[str, Any]:
        """The options of the verb as JSON."""
        return {name: value.isoformat() if isinstance(value, datetime) else value for name, value in self.date().items()}


class RescheduleOperationForm(OperationForm, RescheduleForm):
    field_order: Sequence[str] = ("delay", "run_at", "over", "reason")


def operation_form(verb: Verb, *args: Any) -> OperationForm:
    return (RescheduleOperationForm if verb.needs_date else OperationForm)(*args)


def form_for(verb: Verb, *args: Any, **kwargs: Any) -> ReasonForm:
    return (RescheduleForm if verb.needs_date else ReasonForm)(*args, **kwargs)


class PurgeForm(ReasonForm):
    """Asks the user to type the name of the queue."""

    typed = forms.CharField(label=_("Type the name of the queue"), required=False, max_length=200)
    field_order: Sequence[str] = ("typed", "reason")

    def __init__(self, queue: str, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.queue = queue

    def clean_typed(self) -> str:
        typed: str = self.cleaned_data["typed"]
        if typed != self.queue:
            raise ValidationError(_("This is not the name of the queue."))
        return typed


# The page that asks for confirmation before an action, with one line per job.

EXAMPLES: Final = 20  # jobs on the page
LONGEST: Final = 100  # characters of arguments, of an error
MOST_ASKED: Final = 200  # jobs whose state in Redis decides; for others it is that of the row


def examples(jobs: Sequence[Job], *, sensitive: bool) -> list[dict[str, Any]]:
    """Returns the lines of the first EXAMPLES jobs. `label` names the date; `sensitive`: do not mask."""
    shown = jobs[:EXAMPLES]
    if not shown:
        return []
    rows = Job.objects.filter(pk__in=[job.pk for job in shown]).values_list("pk", "args", "kwargs")
    given = {pk: (args, kwargs) for pk, args, kwargs in rows}
    return [_example(job, *given.get(job.pk, ([], {})), sensitive=sensitive) for job in shown]


def ask_first(
    admin: ReadOnlyAdmin,
    request: HttpRequest,
    verb: Verb,
    form: ReasonForm,
    jobs: Sequence[Job],
    *,
    hidden: Sequence[tuple[str, str]],
    back: str,
    alone: bool = False,
) -> HttpResponse:
    """Asks for confirmation, and says how many jobs are in a state that allows the action. `hidden`: fields of the form; `back`: the
    URL of the cancel link; `alone`: the action starts on a job page.
    """
    views = {} if alone else job_page.live(jobs[:MOST_ASKED])[0]
    able = len(jobs) if alone else sum(job_page.state_in_charge(job, views.get(job.pk)) in verb.states for job in jobs)
    keep = (now("Keep the job") if verb.danger else now("Back to the job")) if alone else verb.keep
    return admin.page(
        request,
        "admin/delayq/job/ask.html",
        verb.label,
        verb=verb,
        form=form,
        question=verb.asked if alone else verb.question,
        examples=examples(jobs, sensitive=admin.allows(request, "view_sensitive")),
        more=max(0, len(jobs) - EXAMPLES),
        able=able,
        total=len(jobs),
        confirm=verb.confirmed(able),
        keep=keep,
        hidden=[("confirmed", "1"), *hidden],
        back=back,
    )


def _example(job: Job, args: Any, kwargs: Any, *, sensitive: bool) -> dict[str, Any]:
    given = masking.by_name(job.task, *masking.arguments(job.task, args or (), kwargs or {}, sensitive=sensitive))
    texts = [(name, json.dumps(value, ensure_ascii=False)) for name, value in given]
    return {
        "job": job,
        "state": badge(job.derived),
        "task": task_name(job.task),
        "key": visible(job.key),
        "arguments": _short(", ".join(f"{name}={text}" if name else text for name, text in texts)),
        "error": _short(job.error.strip().split("\n", 1)[0]),
        "label": now("finished") if job.finished_at else now("run at"),
        "date": job.finished_at or job.run_at,
    }


def _short(text: str) -> str:
    return cut(visible(text[: 10 * LONGEST]), LONGEST)
