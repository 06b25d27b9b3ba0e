"""Which jobs are meant: a view, a queue, a task and a search. The list of the admin, the commands and bulk operations share it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from datetime import datetime
from functools import cached_property
from typing import Any, Final

from django.db.models import Q, QuerySet

from django_delayq import clock
from django_delayq.console import search
from django_delayq.models import Job, of_state

# Each is the order of an index, with the equalities before it: (state, run_at, id), (state, attempts, run_at, id), the primary key …
_ORDERS: Final[dict[str, tuple[str, ...]]] = {
    "due": ("run_at", "id"),
    "scheduled": ("run_at", "id"),
    "running": ("-run_at", "-id"),
    "retrying": ("-attempts", "-run_at", "-id"),
    "failed": ("-run_at", "-id"),
    "cancelled": ("-run_at", "-id"),
    "succeeded": ("-run_at", "-id"),
    "unpublished": ("id",),
}
VIEWS: Final = ("", *_ORDERS)


@dataclass(frozen=True, kw_only=True)
class Selection:
    """What was chosen. All of it holds at once; "" leaves a part open. `at_ms`: the moment at which it was chosen, for what is said
    relative to one; 0: now. `tasks`: those that its words stand for; None: the registered ones that fit now.
    """

    view: str = ""
    queue: str = ""
    task: str = ""
    text: str = ""
    at_ms: int = 0
    tasks: Sequence[str] | None = None

    @cached_property
    def search(self) -> search.Search:
        """The text, read."""
        return search.parse(self.text, self._at, self.tasks)

    @property
    def shown_view(self) -> str:
        """The view, also one that the text names."""
        return self.view or self.search.value("state")

    @property
    def order(self) -> tuple[str, ...]:
        """Fields to order by; the last is the primary key."""
        return _ORDERS.get(self.shown_view, ("-id",))

    @property
    def indexed(self) -> bool:
        """Whether an index leads to the rows in this order, so that nothing has to be read through."""
        if self.search.single:
            return self.search.keyed or not self.search.by_argument
        if any(not term.indexed for term in self.search.terms if term.word not in ("after", "before")):
            return False
        alone = all(term.word in ("fingerprint", "state") for term in self.search.terms)
        dated = bool(self.search.value("after") or self.search.value("before"))
        if self.search.value("fingerprint"):
            return self.order[0] == "-run_at" and not (self.queue or self.task) and alone
        named = bool(self.queue or self.search.value("queue")) + bool(self.task or self.search.value("task"))
        if self.shown_view in ("retrying", "unpublished"):
            return not named and not dated
        return named <= 1 and (bool(self.shown_view) or not dated)

    def rows(self, jobs: QuerySet[Job]) -> QuerySet[Job]:
        """Those of `jobs` that are meant, as far as the database can tell; see `Search.exact`."""
        if self.search.complaints:
            return jobs.none()
        found = Q()
        if self.view:
            found &= of_state(self.view, self._at)
        if self.queue:
            found &= Q(queue=self.queue)
        if self.task:
            found &= Q(task=self.task)
        return jobs.filter(found & self.search.rows())

    def frame(self, jobs: QuerySet[Job]) -> QuerySet[Job]:
        """The rows through which one reads where `indexed` does not hold: all that an index can tell of what is meant."""
        state, terms = self.shown_view, {term.word: term for term in self.search.terms}
        found = of_state(state, self._at) if state in VIEWS and state else Q()
        if state not in ("retrying", "unpublished"):
            if self.task or "task" in terms:
                found &= Q(task=self.task) if self.task else terms["task"].rows
            elif self.queue or "queue" in terms:
                found &= Q(queue=self.queue) if self.queue else terms["queue"].rows
        if self.order[0].endswith("run_at"):
            for word in ("after", "before"):
                found &= terms[word].rows if word in terms else Q()
        return jobs.filter(found)

    def parts(self) -> dict[str, Any]:
        """For keeping: what `Selection(**parts)` takes."""
        return {name: value for name, value in asdict(self).items() if value not in ("", 0, None)}

    def fixed(self, at_ms: int) -> Selection:
        """The same from now on: it means that moment, and the tasks that it stands for here. Another process may know others."""
        return replace(self, at_ms=at_ms, tasks=list(self.search.tasks) if self.text else None)

    @property
    def words(self) -> str:
        """All of it as one search."""
        named = (("state", self.view), ("queue", self.queue), ("task", self.task))
        return " ".join([*(f"{word}:{value}" for word, value in named if value), *filter(None, [self.text])])

    @property
    def _at(self) -> datetime | None:
        return clock.from_ms(self.at_ms) if self.at_ms else None
