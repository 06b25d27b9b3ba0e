"""What people type to find jobs: `state:failed task:close_order arg:order_id=77 after:-2h`, read into terms, each with the rows it
means. A word that is none is said, not ignored: an operation over all that matches must not match more than was meant.
"""

from __future__ import annotations

import difflib
import json
import re
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime, time, timedelta
from typing import Any, Final
from uuid import UUID

from django.db.models import Q
from django.utils.dateparse import parse_date, parse_datetime
from django.utils.timezone import get_current_timezone, is_naive, make_aware
from django.utils.translation import gettext as now

from django_delayq import clock, conf, ids
from django_delayq.exceptions import UnknownTask
from django_delayq.models import Job
from django_delayq.states import State
from django_delayq.task import registry

WORDS: Final = ("id", "key", "task", "queue", "state", "error", "arg", "after", "before", "fingerprint")
DERIVED: Final = ("due", "retrying", "unpublished")
STATES: Final = (*(state.value for state in State), *DERIVED)
INDEXED: Final = ("id", "key", "queue", "task", "state", "fingerprint")
LONGEST: Final = 1000  # characters of a search

_WORD: Final = re.compile(r"(?:^|(?<=\s))([a-z_]+):(?=\S)")
_TOKEN: Final = re.compile(r'(?:([a-z_]+):)?(?:"([^"]*)"|(\S+))')


@dataclass(frozen=True, slots=True)
class Term:
    """One condition. `word` is one of WORDS, or "" for text that stands alone."""

    word: str
    value: str
    rows: Q
    exact: Callable[[Job], bool] | None = None  # where the database answers only roughly

    @property
    def indexed(self) -> bool:
        """Whether an index finds its rows, so that nothing needs to be read through."""
        return self.word in INDEXED or self.word == ""


@dataclass(frozen=True, slots=True)
class Search:
    """All terms hold. With `complaints` nothing is found."""

    terms: tuple[Term, ...] = ()
    complaints: tuple[str, ...] = ()

    def value(self, word: str) -> str:
        """What was given for that word; "" for nothing."""
        return next((term.value for term in self.terms if term.word == word), "")

    @property
    def keyed(self) -> bool:
        """Whether an id or a key is looked for, and no task, so that the index of keys leads to all there is."""
        words = {term.word for term in self.terms}
        return bool(words & {"id", "key"}) or any(not term.word and not _tasks(term.value) for term in self.terms)

    @property
    def single(self) -> bool:
        """Whether it names single jobs, by id or key, so that few rows are left."""
        return any(term.word in ("id", "key", "") for term in self.terms)

    def rows(self) -> Q:
        """The condition on rows."""
        found = Q()
        for term in self.terms:
            found &= term.rows
        return found

    def exact(self, job: Job) -> bool:
        """Whether a row that the database found is really meant."""
        return all(term.exact is None or term.exact(job) for term in self.terms)


class Refused(Exception):
    """A term that cannot be understood; the text says what is accepted."""


def parse(text: str, at: datetime | None = None) -> Search:
    """Reads a search. Text without any known word is an id, a key, the beginning of a key, or a part of a task's name. `at`: the moment
    from which `-2h` counts, and at which a job is due; now by default.
    """
    text = text.strip()
    if not text:
        return Search()
    if len(text) > LONGEST:
        return Search(complaints=(now("The search is longer than %(most)d characters.") % {"most": LONGEST},))
    used = _WORD.findall(text)
    known = [word for word in used if word in WORDS]
    strange = [word for word in used if word not in WORDS and (known or _near(word))]
    if strange:
        return Search(complaints=tuple(_unknown(word) for word in dict.fromkeys(strange)))
    if not known:
        return Search((Term("", text, _anything(text)),))
    return _terms(text, at or clock.now())


def _terms(text: str, at: datetime) -> Search:
    terms, complaints, alone = [], [], []
    for word, quoted, plain in _TOKEN.findall(text):
        value = quoted or plain
        if not word:
            alone.append(value)
            continue
        try:
            terms.append(_READERS[word](value, at))
        except Refused as error:
            complaints.append(f"{word}:{value} – {error}")
    if alone:
        rest = " ".join(alone)
        terms.append(Term("", rest, _anything(rest)))
    for word in WORDS:
        if sum(term.word == word for term in terms) > 1 and word != "arg":
            complaints.append(now("%(word)s: may stand there once.") % {"word": word})
    return Search(tuple(terms), tuple(complaints))


def _near(word: str) -> list[str]:
    return difflib.get_close_matches(word, WORDS, n=1, cutoff=0.7)


def _unknown(word: str) -> str:
    known = ", ".join(f"{name}:" for name in WORDS)
    said = now("There is no %(word)s: here. The words are: %(known)s.") % {"word": word, "known": known}
    if near := _near(word):
        return now("%(said)s Did you mean %(near)s: ?") % {"said": said, "near": near[0]}
    return said


def _anything(text: str) -> Q:
    queues = list(conf.get().queues)
    try:
        # A key may look like an id, as the UUID of an order does.
        return Q(pk=ids.parse(text)) | Q(queue__in=queues, key=text)
    except ValueError:
        pass
    tasks = _tasks(text)
    return Q(queue__in=queues, key=text) | Q(queue__in=queues, key__startswith=text) | Q(task__in=tasks) | Q(task=text)


def _tasks(part: str) -> list[str]:
    return [name for name in registry.names() if part.lower() in name.lower()]


def _id(value: str, at: datetime) -> Term:
    try:
        id: UUID = ids.parse(value)
    except ValueError:
        raise Refused(now("an id is a UUID, or the 22 characters that logs show.")) from None
    return Term("id", value, Q(pk=id))


def _key(value: str, at: datetime) -> Term:
    queues = list(conf.get().queues)
    if value.endswith("*") and len(value) > 1:
        start = value[:-1]
        return Term("key", value, Q(queue__in=queues, key__startswith=start), lambda job: job.key.startswith(start))
    return Term("key", value, Q(queue__in=queues, key=value), lambda job: job.key == value)


def _task(value: str, at: datetime) -> Term:
    names = registry.names()
    if value in names:
        return Term("task", value, Q(task=value))
    parts = _tasks(value)
    if len(parts) == 1:
        return Term("task", parts[0], Q(task=parts[0]))
    return Term("task", value, Q(task__in=[*parts, value]))


def _queue(value: str, at: datetime) -> Term:
    return Term("queue", value, Q(queue=value))


def _state(value: str, at: datetime) -> Term:
    if value not in STATES:
        raise Refused(now("the states are: %(states)s.") % {"states": ", ".join(STATES)})
    return Term("state", value, of_state(value, at))


def of_state(state: str, at: datetime | None = None) -> Q:
    """The rows of a state, or of one that is derived; due: at that moment, now by default."""
    if state == "due":
        return Q(state=State.SCHEDULED.value, run_at__lte=at or clock.now())
    if state == "retrying":
        return Q(state=State.SCHEDULED.value, attempts__gte=1)
    if state == "unpublished":
        return Q(state=State.SCHEDULED.value, published__isnull=True)
    return Q(state=state)


def _error(value: str, at: datetime) -> Term:
    return Term("error", value, Q(error__icontains=value))


def _fingerprint(value: str, at: datetime) -> Term:
    return Term("fingerprint", value, Q(fingerprint=value))


def _after(value: str, at: datetime) -> Term:
    return Term("after", value, Q(run_at__gte=_moment(value, at)))


def _before(value: str, at: datetime) -> Term:
    return Term("before", value, Q(run_at__lt=_moment(value, at)))


def _moment(value: str, at: datetime) -> datetime:
    try:
        if value[:1] in "+-":
            delay = timedelta(seconds=clock.seconds(value[1:]))
            return at + delay if value[0] == "+" else at - delay
        moment = parse_datetime(value)
        if moment is None and (day := parse_date(value)):
            moment = datetime.combine(day, time.min)
        if moment is not None:
            moment = make_aware(moment, get_current_timezone()) if is_naive(moment) else moment
            clock.from_ms(clock.to_ms(moment))  # the database is asked in UTC, where the last hours of 9999 overflow
    except (ValueError, OverflowError):
        moment = None
    if moment is None:
        raise Refused(now('write 2026-05-01, "2026-05-01 18:30", -2h (two hours ago) or +10m.'))
    return moment


def _arg(value: str, at: datetime) -> Term:
    name, equals, given = value.partition("=")
    if not equals or not name:
        raise Refused(now("name an argument and its value, as in arg:order_id=77."))
    wanted = _values(given)
    rows = Q()
    for each in wanted:
        written = json.dumps(each, separators=(",", ":"), ensure_ascii=True)
        named = f"{json.dumps(name)}:{written}"
        rows |= Q(kwargs__contains=f"{named},") | Q(kwargs__contains=f"{named}}}")
        rows |= Q(args__contains=written)  # by place; which one, `exact` tells
    return Term("arg", value, rows, lambda job: _has_argument(job, name, wanted))


def _values(given: str) -> list[Any]:
    """77 means the number or the text; what is no JSON is text."""
    try:
        value = json.loads(given)
    except ValueError:
        return [given]
    return [value] if isinstance(value, str) else [value, given]


def _has_argument(job: Job, name: str, wanted: list[Any]) -> bool:
    args, given = job.shown_arguments  # masked: nobody is to find out by searching what the page does not show
    try:
        names = list(registry.get(job.task).signature.parameters)
    except UnknownTask:
        names = []
    given = {**dict(zip(names, args, strict=False)), **given}
    return name in given and any(type(given[name]) is type(each) and given[name] == each for each in wanted)


_READERS: Final[dict[str, Callable[[str, datetime], Term]]] = {
    "id": _id,
    "key": _key,
    "task": _task,
    "queue": _queue,
    "state": _state,
    "error": _error,
    "arg": _arg,
    "after": _after,
    "before": _before,
    "fingerprint": _fingerprint,
}
