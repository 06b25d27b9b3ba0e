"""The links of a job: to the object that it is about, and to its lines in the log store. The project configures both."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from typing import Any, Final
from urllib.parse import quote

from django.db import connections, transaction
from django.utils.module_loading import import_string
from django.utils.translation import gettext as now

from django_delayq import clock, conf
from django_delayq.exceptions import ConfigError
from django_delayq.logger import Logger, class_name
from django_delayq.models import Job
from django_delayq.producer.task import registry
from django_delayq.states import FINISHED

AROUND: Final = timedelta(minutes=1)  # before the creation and after the end of a job, because clocks of hosts differ
HOUR: Final = timedelta(hours=1)
LONGEST: Final = 4_000  # characters of a URL; browsers and proxies accept at most about twice as many
STARTS: Final = ("/", "https://", "http://")  # a page of this site or of another: no `javascript:`, no `data:`
logger = Logger("django_delayq")


@dataclass(frozen=True, slots=True, kw_only=True)
class JobLinks:
    """URLs, or "". `trouble`: why the function of the project did not return a URL."""

    object: str = ""
    log: str = ""
    trouble: str = ""


@lru_cache(maxsize=8)
def load(path: str) -> Callable[[Job], Any] | None:
    """The function with this dotted path; None for "".

    Raises:
        ConfigError: the path cannot be imported, or is not a function.
    """
    if not path:
        return None
    where = f'DELAYQ["OBJECT_URL"]: {path!r}'
    try:
        found = import_string(path)
    except ImportError as error:
        raise ConfigError(f"{where} cannot be imported: {error}.", hint="Use the dotted path to a function.") from error
    if not callable(found):
        raise ConfigError(f"{where} is not a function.", hint="Use a function that takes a job and returns a URL or None.")
    made: Callable[[Job], Any] = found
    return made


def of(job: Job) -> JobLinks:
    """The links of a job. If the function of the project raises an exception, it is logged and the page still works."""
    log = _log(job, conf.get().log_url or "")
    try:
        given = _object_url(job)
    except Exception as error:  # the code of the project may raise anything
        logger.warning("the link to the object of job %s could not be created", job.short_id, exc_info=error)
        told = now("The function that creates the link raised %(error)s. See the log.")
        return JobLinks(log=log, trouble=told % {"error": class_name(error)})
    if given is None or given == "":
        return JobLinks(log=log)
    url = str(given)
    if not url.startswith(STARTS) or url.startswith(("//", "/\\")) or not url.isprintable() or len(url) > LONGEST:
        return JobLinks(log=log, trouble=now("The function that creates the link did not return a valid URL."))
    return JobLinks(log=log, object=url)


def _object_url(job: Job) -> Any:
    """The result of the function of its task, or else of the project."""
    known = registry.find(job.task)
    made = known.object_url if known and known.object_url else load(conf.get().object_url or "")
    if made is None:
        return None
    with ExitStack() as stack:
        for connection in connections.all(initialized_only=True):
            if connection.in_atomic_block:  # a failed query in the function would otherwise break the transaction of the page
                stack.enter_context(transaction.atomic(using=connection.alias))
        return made(job)


def _log(job: Job, template: str) -> str:
    ended = job.finished_at if job.state in FINISHED else None
    hour = clock.now().replace(minute=0, second=0, microsecond=0)  # so that a page that refreshes itself does not change
    until = ended + AROUND if ended else hour + 2 * HOUR
    values = {
        "id": job.short_id,
        "queue": job.queue,
        "task": job.task,
        "from": _utc(job.created_at - AROUND),
        "to": _utc(until),
    }
    return template.format(**{name: quote(value, safe="") for name, value in values.items()})


def _utc(moment: datetime) -> str:
    return f"{moment.astimezone(UTC):%Y-%m-%dT%H:%M:%SZ}"
