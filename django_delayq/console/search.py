"""What people type to find jobs: `state:failed task:close_order arg:order_id=77 after:-2h`, read into terms, each with the rows it
means. A word that is none is said, not ignored: an operation over all that matches must not match more than was meant.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime, time, timedelta
from typing import Any, Final
from uuid import UUID

from django.db.models import Q
from django.utils.dateparse import parse_date, parse_datetime
from django.utils.timezone import get_current_timezone, is_naive, make_aware
from django.utils.translation import gettext as now

from django_delayq import clock, conf, ids
from django_delayq.console import masking
from django_delayq.exceptions import UnknownTask
from django_delayq.models import DERIVED, Job, of_state
from django_delayq.producer.task import registry
from django_delayq.states import State
from django_delayq.text import nearest

WORDS: Final = ("id", "key", "task", "queue", "state", "error", "arg", "after", "before", "fingerprint")
STATES: Final = (*(state.value for state in State), *DERIVED)
INDEXED: Final = ("id", "key", "queue", "task", "state", "fingerprint")
NO_FINGERPRINT: Final = "none"  # a fingerprint is made of 12 hexadecimal digits
LONGEST: Final = 1000  # characters of a search
MOST_BRACKETS: Final = 50  # in the value of an argument: so deep may it be nested, and no deeper

_WORD: Final = re.compile(r"(?:^|(?<=\s))([a-z_]+):(?=\S)")
_TOKEN: Final = re.compile(r'(?:([a-z_]+):)?(?:"([^"]*)"|(\S+))')


@dataclass(frozen=True, slots=True)
class Term:
    """One condition. `word` is one of WORDS, or "" for text that stands alone; `tasks`: those that a part of a name, or an argument,
    stands for.
    """

    word: str
    value: str
    rows: Q
    exact: Callable[[Job], bool] | None = None  # where the database answers only roughly
    tasks: tuple[str, ...] = ()

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
        return bool(words & {"id", "key"}) or any(not term.word and not term.tasks for term in self.terms)

    @property
    def single(self) -> bool:
        """Whether it names single jobs, by id or key, so that few rows are left."""
        return any(term.word in ("id", "key", "") for term in self.terms)

    @property
    def rough(self) -> bool:
        """Whether the database finds more rows than are meant, so that each has to be looked at: its counts would be wrong."""
        return any(term.exact for term in self.terms)

    @property
    def by_argument(self) -> bool:
        """Whether the arguments of each row have to be looked at."""
        return any(term.word == "arg" for term in self.terms)

    @property
    def tasks(self) -> tuple[str, ...]:
        """All tasks that its words stand for."""
        return tuple(sorted({task for term in self.terms for task in term.tasks}))

    def rows(self) -> Q:
        """The condition on rows. It asks for no argument: a database that looked for one would tell by its time what is masked."""
        found = Q()
        for term in self.terms:
            found &= term.rows
        return found

    def exact(self, job: Job) -> bool:
        """Whether a row that the database found is really meant."""
        return all(term.exact is None or term.exact(job) for term in self.terms)


class Refused(Exception):
    """A term that cannot be understood; the text says what is accepted."""


@dataclass(frozen=True, slots=True)
class Sense:
    """What words mean: `-2h` counts from `at`, when *due* is asked too; a part of a name means those of `tasks` that have it."""

    at: datetime
    tasks: Sequence[str]


def parse(text: str, at: datetime | None = None, tasks: Sequence[str] | None = None) -> Search:
    """Reads a search. Text without any known word is an id, a key, the beginning of a key, or a part of a task's name. `at`: the moment
    from which `-2h` counts, and at which a job is due; now by default. `tasks`: the names that there are; by default the registered
    ones.
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
    sense = Sense(at or clock.now(), registry.names() if tasks is None else tasks)
    return _terms(text, sense) if known else Search((_anything(text, sense),))


def _terms(text: str, sense: Sense) -> Search:
    terms, complaints, alone = [], [], []
    for word, quoted, plain in _TOKEN.findall(text):
        value = quoted or plain
        if not value.strip():  # as of an unset shell variable: it would mean every job
            complaints.append(now("%(word)s has no value.") % {"word": f"{word}:" if word else '""'})
            continue
        if not word:
            alone.append(value)
            continue
        if word not in _READERS:  # behind a closing quote, where no word is looked for
            complaints.append(_unknown(word))
            continue
        try:
            terms.append(_READERS[word](value, sense))
        except Refused as error:
            complaints.append(f"{word}:{value} – {error}")
    if alone:
        terms.append(_anything(" ".join(alone), sense))
    for word in WORDS:
        if sum(term.word == word for term in terms) > 1 and word != "arg":
            complaints.append(now("%(word)s: may stand there once.") % {"word": word})
    return Search(tuple(terms), tuple(complaints))


def _near(word: str) -> str:
    return nearest(word, WORDS, cutoff=0.7)


def _unknown(word: str) -> str:
    known = ", ".join(f"{name}:" for name in WORDS)
    said = now("There is no %(word)s: here. The words are: %(known)s.") % {"word": word, "known": known}
    if near := _near(word):
        return now("%(said)s Did you mean %(near)s: ?") % {"said": said, "near": near}
    return said


def _anything(text: str, sense: Sense) -> Term:
    queues = list(conf.get().queues)
    try:
        # A key may look like an id, as the UUID of an order does.
        return Term("", text, Q(pk=ids.parse(text)) | Q(queue__in=queues, key=text))
    except ValueError:
        pass
    tasks = _tasks(text, sense)
    keys = Q(queue__in=queues, key=text) | Q(queue__in=queues, key__startswith=text)
    return Term("", text, keys | Q(task__in=tasks) | Q(task=text), tasks=tuple(tasks))


def _tasks(part: str, sense: Sense) -> list[str]:
    return [name for name in sense.tasks if part.lower() in name.lower()]


def _id(value: str, sense: Sense) -> Term:
    try:
        id: UUID = ids.parse(value)
    except ValueError:
        raise Refused(now("an id has 22 letters and digits, as lists and logs show it, or is a UUID.")) from None
    return Term("id", value, Q(pk=id))


def _key(value: str, sense: Sense) -> Term:
    queues = list(conf.get().queues)
    if value.endswith("*") and len(value) > 1:
        start = value[:-1]
        return Term("key", value, Q(queue__in=queues, key__startswith=start), lambda job: job.key.startswith(start))
    return Term("key", value, Q(queue__in=queues, key=value), lambda job: job.key == value)


def _task(value: str, sense: Sense) -> Term:
    if value in sense.tasks:
        return Term("task", value, Q(task=value), tasks=(value,))
    parts = _tasks(value, sense)
    if len(parts) == 1:
        return Term("task", parts[0], Q(task=parts[0]), tasks=(parts[0],))
    return Term("task", value, Q(task__in=[*parts, value]), tasks=tuple(parts))


def _queue(value: str, sense: Sense) -> Term:
    return Term("queue", value, Q(queue=value))


def _state(value: str, sense: Sense) -> Term:
    value = value.lower()
    if value not in STATES:
        raise Refused(now("the states are: %(states)s.") % {"states": ", ".join(STATES)})
    return Term("state", value, of_state(value, sense.at))


def _error(value: str, sense: Sense) -> Term:
    return Term("error", value, Q(error__icontains=value))


def _fingerprint(value: str, sense: Sense) -> Term:
    return Term("fingerprint", value, Q(fingerprint="" if value == NO_FINGERPRINT else value))


def _after(value: str, sense: Sense) -> Term:
    return Term("after", value, Q(run_at__gte=_moment(value, sense.at)))


def _before(value: str, sense: Sense) -> Term:
    return Term("before", value, Q(run_at__lt=_moment(value, sense.at)))


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


def _arg(value: str, sense: Sense) -> Term:
    name, equals, given = value.partition("=")
    if not equals or not name:
        raise Refused(now("name an argument and its value, as in arg:order_id=77."))
    if given.count("[") + given.count("{") > MOST_BRACKETS:
        raise Refused(now("a value may have %(most)d brackets at most.") % {"most": MOST_BRACKETS})
    wanted = _values(given)
    tasks = tuple(task for task in sense.tasks if _shows(task, name))
    return Term("arg", value, Q(task__in=tasks), lambda job: _has_argument(job, name, wanted), tasks)


def _shows(task: str, argument: str) -> bool:
    """Whether jobs of that task may have an argument of that name, and people see it. Of a task that is not here nobody knows."""
    try:
        parameters = registry.get(task).signature.parameters
    except UnknownTask:
        return False
    masked = masking.names_of(task)
    rest = [one.name for one in parameters.values() if one.kind is one.VAR_KEYWORD and one.name not in masked]
    return argument not in masked and (argument in parameters or bool(rest))


def _values(given: str) -> list[Any]:
    """77 means the number or the text; what is no JSON is text."""
    try:
        value = json.loads(given)
    except ValueError:
        return [given]
    return [value] if isinstance(value, str) else [value, given]


def _has_argument(job: Job, name: str, wanted: list[Any]) -> bool:
    if not _shows(job.task, name):
        return False
    # Masked: nobody is to find out by searching what the page does not show.
    args, given = masking.arguments(job.task, job.args, job.kwargs)
    given = {**dict(zip(registry.get(job.task).signature.parameters, args, strict=False)), **given}
    return name in given and any(type(given[name]) is type(each) and given[name] == each for each in wanted)


_READERS: Final[dict[str, Callable[[str, Sense], Term]]] = {
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
