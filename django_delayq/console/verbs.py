"""All actions on jobs: each verb with its label, permission and function, and a text for every result.

The admin, the commands and operations are made from this list. `Meta` of `Job` repeats the permissions for Django.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import tee
from typing import Any, Final, NamedTuple, TypeVar
from uuid import UUID

from django.apps import apps
from django.db.models import Model
from django.utils.formats import number_format
from django.utils.functional import Promise
from django.utils.translation import gettext_lazy as _
from django.utils.translation import ngettext_lazy

from django_delayq.exceptions import DelayqError, StoreUnavailable
from django_delayq.models import Job
from django_delayq.producer import acts
from django_delayq.producer.changes import Answer, ChangeTarget
from django_delayq.states import FINISHED, REQUEUEABLE, UNFINISHED, Change, State
from django_delayq.text import visible

Act = Callable[..., Change]
Each = Callable[..., Iterator[Answer]]
Text = str | Promise
_BACK: Final = _("Back to the list")
_DONE: Final = frozenset({Change.DONE})
CHANGE: Final = 2  # Django's constant, which only projects with an admin can import


@dataclass(frozen=True, slots=True, kw_only=True)
class Verb:
    """One action. `short`: the label in a list of operations; `selected`: the label in the list of jobs; `help`: of the command.
    `confirm`: the label of the button for several jobs (`count`, and `shown` with a thousands separator); `keep`: the button that goes
    back; `asked`: the question about one job, or "" if its page does not ask. `danger`: it ends something. `states`: job states with
    this button, including "unresolved"; `swept`: the states that a command uses by default. `act`: the function for one job; `each`:
    the function for many. `answers`: a text per `Change`; `effects`: results that changed something. `needs_date`: it requires a date.
    `flag`: an argument of both functions that only the command offers, with the help of its option.
    """

    name: str
    label: Text
    short: Text
    selected: Text
    question: Text
    confirm: Text
    help: str
    permission: str
    act: Act
    each: Each
    states: frozenset[str]
    swept: frozenset[str]
    answers: Mapping[Change, Text]
    effects: frozenset[Change] = _DONE
    keep: Text = _BACK
    asked: Text = ""
    danger: bool = False
    needs_date: bool = False
    flag: tuple[str, str] | None = None

    def confirmed(self, count: int) -> str:
        """The label of the button for this number of jobs."""
        return str(self.confirm % {"count": count, "shown": number_format(count, force_grouping=True)})

    @property
    def command(self) -> str:
        return self.name.replace("_", "-")


_SAME: Final[dict[Change, Text]] = {
    Change.RUNNING: _("%(count)d already running"),
    Change.FINISHED: _("%(count)d already finished"),
    Change.UNKNOWN: _("%(count)d not found in Redis"),
    Change.CONFLICT: _("%(count)d in conflict"),
}
_WAITING: Final = frozenset({State.SCHEDULED})
UNRESOLVED: Final = frozenset({"unresolved"})
ONCE: Final = frozenset({"once"})  # a job that has a key because of once_for, in any state
_MARK: Final[dict[Change, Text]] = {**_SAME, Change.CONFLICT: _("%(count)d unchanged (not unresolved)")}

VERBS: Final = {
    verb.name: verb
    for verb in (
        Verb(
            name="cancel",
            label=_("Cancel"),
            short=_("cancel"),
            selected=_("Cancel selected jobs"),
            question=_("Cancel these jobs? Running jobs are asked to stop and are not retried."),
            confirm=ngettext_lazy("Cancel %(shown)s job", "Cancel %(shown)s jobs", "count"),
            keep=_("Keep them"),
            asked=_("Cancel this job? If it is running, it is asked to stop and is not retried."),
            danger=True,
            help="cancel scheduled jobs, and ask running jobs to stop",
            permission="cancel_job",
            act=acts.cancel,
            each=acts.cancel_each,
            states=UNFINISHED,
            swept=UNFINISHED,
            answers={
                **_SAME,
                Change.DONE: _("%(count)d cancelled"),
                Change.RUNNING: _("%(count)d already running (asked to stop)"),
            },
            effects=frozenset({Change.DONE, Change.RUNNING}),
            flag=("abort", "interrupt running jobs; without this option, they are only asked to stop"),
        ),
        Verb(
            name="run_now",
            label=_("Run now"),
            short=_("run now"),
            selected=_("Run selected jobs now"),
            question=_("Run these jobs now?"),
            confirm=ngettext_lazy("Run %(shown)s job now", "Run %(shown)s jobs now", "count"),
            asked=_("Run this job now?"),
            help="make scheduled jobs due now",
            permission="run_now_job",
            act=acts.run_now,
            each=acts.run_now_each,
            states=_WAITING,
            swept=_WAITING,
            answers={**_SAME, Change.DONE: _("%(count)d made due now")},
        ),
        Verb(
            name="reschedule",
            label=_("Reschedule"),
            short=_("reschedule"),
            selected=_("Reschedule selected jobs"),
            question=_("Change the date of these jobs?"),
            confirm=ngettext_lazy("Reschedule %(shown)s job", "Reschedule %(shown)s jobs", "count"),
            help="change the date of scheduled jobs",
            permission="reschedule_job",
            act=acts.reschedule,
            each=acts.reschedule_each,
            states=_WAITING,
            swept=_WAITING,
            answers={**_SAME, Change.DONE: _("%(count)d rescheduled")},
            needs_date=True,
        ),
        Verb(
            name="requeue",
            label=_("Requeue"),
            short=_("requeue"),
            selected=_("Requeue selected jobs"),
            question=_("Requeue these jobs? They become due immediately and get all their attempts again."),
            confirm=ngettext_lazy("Requeue %(shown)s job", "Requeue %(shown)s jobs", "count"),
            help="run failed, cancelled or unresolved jobs again, with all their attempts",
            permission="requeue_job",
            act=acts.requeue_by_person,
            each=acts.requeue_each,
            states=REQUEUEABLE | UNRESOLVED,
            swept=frozenset({State.FAILED}),
            answers={
                **_SAME,
                Change.DONE: _("%(count)d requeued"),
                Change.CONFLICT: _("%(count)d not requeued (not failed or cancelled, or another job holds the key)"),
            },
        ),
        Verb(
            name="mark_succeeded",
            label=_("Mark as succeeded"),
            short=_("mark as succeeded"),
            selected=_("Mark selected jobs as succeeded"),
            question=_(
                "Mark these jobs as succeeded? Do this only if they did their work. No event shows how they ended. They "
                "will not run again."
            ),
            confirm=ngettext_lazy("Mark %(shown)s job as succeeded", "Mark %(shown)s jobs as succeeded", "count"),
            asked=_("Mark this job as succeeded? Do this only if it did its work. No event shows how it ended. It will not run again."),
            help="mark unresolved jobs as succeeded",
            permission="resolve_job",
            act=acts.mark_succeeded,
            each=acts.mark_succeeded_each,
            states=UNRESOLVED,
            swept=UNRESOLVED,
            answers={**_MARK, Change.DONE: _("%(count)d marked as succeeded")},
        ),
        Verb(
            name="mark_failed",
            label=_("Mark as failed"),
            short=_("mark as failed"),
            selected=_("Mark selected jobs as failed"),
            question=_(
                "Mark these jobs as failed? Do this only if they did not do their work. No event shows how they ended. "
                "You can requeue them later."
            ),
            confirm=ngettext_lazy("Mark %(shown)s job as failed", "Mark %(shown)s jobs as failed", "count"),
            asked=_(
                "Mark this job as failed? Do this only if it did not do its work. No event shows how it ended. You can "
                "requeue it later."
            ),
            danger=True,
            help="mark unresolved jobs as failed",
            permission="resolve_job",
            act=acts.mark_failed,
            each=acts.mark_failed_each,
            states=UNRESOLVED,
            swept=UNRESOLVED,
            answers={**_MARK, Change.DONE: _("%(count)d marked as failed")},
        ),
        Verb(
            name="forget",
            label=_("Free the key"),
            short=_("free the key"),
            selected=_("Free the keys of selected jobs"),
            question=_("Free the keys of these jobs? The next call with such a key schedules a new job, which repeats the work."),
            confirm=ngettext_lazy("Free the key of %(shown)s job", "Free the keys of %(shown)s jobs", "count"),
            asked=_("Free the key of this job? The next call with this key schedules a new job, which repeats the work."),
            danger=True,
            help="free the keys that jobs have because of once_for",
            permission="forget_key",
            act=acts.forget,
            each=acts.forget_each,
            states=ONCE,
            swept=FINISHED,
            answers={
                **_SAME,
                Change.DONE: _("%(count)d freed"),
                Change.RUNNING: _("%(count)d unchanged (running)"),
                Change.UNKNOWN: _("%(count)d without such a key"),
            },
            flag=("force", "also free the key of a running job"),
        ),
    )
}


class NamedJob(NamedTuple):
    """A job, with its queue if that is known."""

    id: UUID
    queue: str | None


J = TypeVar("J", bound=NamedJob | Job)


def apply(each: Each, jobs: Iterable[J], **how: Any) -> Iterator[tuple[J, Answer]]:
    """Applies a verb to jobs in batches, with its function `each`. Yields each job with its answer or its error, in order. A server
    that is away is called once; jobs on other servers go on, and so do those after a job that is refused.
    """
    named, shown = tee(jobs)
    return zip(shown, each((ChangeTarget(job.id, job.queue) for job in named), **how), strict=True)


def is_unknown(error: DelayqError) -> bool:
    """Whether the job may have been changed: the reply was lost, for example."""
    return isinstance(error, StoreUnavailable) and not error.nothing_done


def write_admin_log(user: object, model: type[Model], objects: Iterable[tuple[str, str]], sentence: str, flag: int = CHANGE) -> None:
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
