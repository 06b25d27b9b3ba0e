"""What Sentry is told with each event of a run: which job it is, and of its arguments only what may be seen."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final

import sentry_sdk
from sentry_sdk.scope import should_send_default_pii
from sentry_sdk.utils import iter_event_frames

from django_delayq.console import masking
from django_delayq.contrib.sentry.withheld import is_ours
from django_delayq.worker.current import CurrentJob

LOG: Final = "django_delayq.worker.job"  # its line about the end of a run tells of what is reported as an error, or on purpose not
FILTERED: Final = "[Filtered]"  # Sentry's own mark


def processor_of(job: CurrentJob) -> Callable[[Any, Any], Any]:
    """An event processor for the scope of one run."""

    def process(event: Any, hint: Any) -> Any:
        if event.get("logger") == LOG:
            return None
        if event.get("type") == "check_in":  # knows no tags
            return event
        event.setdefault("tags", {}).update({"delayq.task": job.task, "delayq.queue": job.queue, "delayq.job": job.short_id})
        if event.get("type") is None:  # an error or a message
            try:
                event.setdefault("contexts", {})["delayq"] = _told(job)
                _hide(event, job)
            except Exception:  # rather too little than what must not be seen
                for frame in iter_event_frames(event):
                    frame.pop("vars", None)
        return event

    return process


def _told(job: CurrentJob) -> dict[str, Any]:
    args: Any = FILTERED
    kwargs: Any = FILTERED
    if _may_send_arguments():
        args, kwargs = masking.arguments(job.task, job.args, job.kwargs)
    return {
        "type": "delayq",
        "job": job.short_id,
        "task": job.task,
        "queue": job.queue,
        "attempt": job.attempt,
        "max_attempts": job.max_attempts,
        "crashes": job.crashes,
        "worker": job.worker,
        "args": args,
        "kwargs": kwargs,
    }


def _may_send_arguments() -> bool:
    collected = sentry_sdk.get_client().options.get("data_collection")  # in place of `send_default_pii`, where the SDK has it
    return bool(collected["queues"]) if isinstance(collected, Mapping) else should_send_default_pii()


def _hide(event: Any, job: CurrentJob) -> None:
    """Local variables go with the frames of an error, unless the project has turned that off. Those of this package are
    withheld; in the others what is sensitive is known by its name, or by its value, where it is one of several under another name.
    """
    names = masking.names_of(job.task)
    hidden = set(_sensitive(job)) if names else set()
    for frame in iter_event_frames(event):
        if names and "vars" in frame and not is_ours(frame):
            frame["vars"] = _masked(frame["vars"], names, hidden)


def _masked(given: Any, names: frozenset[str], hidden: set[str]) -> Any:
    if isinstance(given, dict):
        return {name: FILTERED if name.strip("'\"") in names else _masked(value, names, hidden) for name, value in given.items()}
    if isinstance(given, list):
        return [_masked(value, names, hidden) for value in given]
    return FILTERED if given in hidden else given


def _sensitive(job: CurrentJob) -> Iterator[str]:
    """The values that the masks hide, as Sentry writes local variables."""
    args, kwargs = masking.arguments(job.task, job.args, job.kwargs)
    for given, shown in ((job.args, args), (job.kwargs, kwargs)):
        yield from _differing(given, shown)


def _differing(given: Any, shown: Any) -> Iterator[str]:
    if isinstance(given, dict):
        for name, value in given.items():
            yield from _differing(value, shown if shown == masking.MASK else shown[name])
    elif isinstance(given, list):
        for number, value in enumerate(given):
            yield from _differing(value, shown if shown == masking.MASK else shown[number])
    elif shown == masking.MASK and given not in (None, True, False, ""):
        yield repr(given)
