"""Builds the context of the page of a queue, and of the page with the trends of all queues."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

from django.db.models import QuerySet
from django.http import HttpRequest

from django_delayq import clock, conf, ids
from django_delayq.admin import dashboard, dashboard_charts, effective_settings, trend_sections
from django_delayq.admin.badges import badge
from django_delayq.admin.dashboard import MANY, brief, percent
from django_delayq.admin.trend_sections import Part, Section
from django_delayq.console import overview, trends
from django_delayq.console.overview import DOWN, Overview, QueueView
from django_delayq.console.trends import NewestJobs, Span
from django_delayq.console.wording import duration, error_text
from django_delayq.models import Job, QueueState
from django_delayq.producer.stores import stores
from django_delayq.producer.task import registry
from django_delayq.store.reads import queue_depth
from django_delayq.store.reads.fitness import unkept
from django_delayq.store.reads.queue_depth import MessageConsumer, MessageConsumers, NamesSeen, QueueDepth
from django_delayq.store.reads.reach import Reach
from django_delayq.text import visible

MOST_QUEUES: Final = 20  # whose counters a page reads
MOST_TASKS: Final = 50
MOST_NAMES: Final = 20
MOST_HOLDERS: Final = 3
Line = dict[str, Any]


def of_queue(request: HttpRequest, name: str, *, may_see_jobs: bool) -> dict[str, Any]:
    """Returns the context of one queue. Only users who may view jobs see concurrency names, because most of them name customers."""
    seen, config, rows = overview.look(), conf.get().queue(name), _rows()
    view = next((queue for queue in seen.queues if queue.name == name), None)
    chosen, span = dashboard_charts.chosen(request.GET.get("span"))
    section, trouble = _section([name], span, lambda: trends.ends(rows, queue=name), seen)
    bands, consumers, named = _in_redis(name, names=may_see_jobs) if view else ({}, [], None)
    kept = None if view else QueueState.objects.filter(queue=name).order_by("paused_at", "partition").first()
    return {
        "name": name,
        "may_see_jobs": may_see_jobs,
        "trouble": trouble,
        "depth": view.depth if view else None,
        "view": view,
        "parts": partition_lines(view) if view else [],
        "left_out": dashboard.left_out(_lacking(seen, section).of(name)),
        "late": duration(float(int(view.oldest_late))) if view and view.oldest_late >= 1 else "–",
        "bands": bands,
        "paused_at": view.paused_at if view else kept.paused_at if kept else None,
        "paused_by": visible(view.depth.paused_by if view else kept.paused_by if kept else ""),
        "paused_why": visible(view.depth.paused_reason if view else kept.paused_why if kept else ""),
        "workers": [_worker(facts, name) for facts in seen.workers if name in overview.served(facts) or name in _records(facts)],
        "unseen": seen.unseen is not None,
        "unkept": bool(seen.present and unkept([name], seen.workers)),
        "pulled": config.pulled,
        "consumers": [
            (visible(one.name), clock.from_ms(one.claimed_ms) if one.claimed_ms else None, len(one.held)) for one in consumers
        ],
        "shared": _names(named),
        "settings": effective_settings.of_queue(config),
        "pauses": [(row.at, badge(row.kind), visible(row.actor), visible(row.reason)) for row in trends.pauses(name)],
        "events": trends.EVENTS,
        "ahead": dashboard_charts.forecast([name]) if view and not trouble else [],
        "tasks": [task.name for task in registry if task.queue == name and not task.own][:MOST_TASKS],
        **shown(section, chosen, span),
    }


def of_all(request: HttpRequest) -> dict[str, Any]:
    seen, names, rows = overview.look(), list(conf.get().queues), _rows()
    chosen, span = dashboard_charts.chosen(request.GET.get("span"))
    given = request.GET.get("queue", "")
    picked = [given] if given in names else names[:MOST_QUEUES]
    ended = trends.ends(rows, **({"queue": given} if given in names else {}))
    section, trouble = _section(picked, span, lambda: ended, seen)
    return {
        "trouble": trouble,
        "left_out": [] if trouble else dashboard.left_out(_lacking(seen, section).of(*picked)),
        "names": [(name, visible(name)) for name in names],
        "picked": given if given in names else "",
        "more": len(names) - MOST_QUEUES if picked == names[:MOST_QUEUES] and len(names) > MOST_QUEUES else 0,
        "queues": [line(part) for part in section.queues],
        "tasks": [line(part) for part in trend_sections.of_tasks(span, ended)[:MOST_TASKS]],
        **shown(section, chosen, span),
        "looked": ended,
    }


def shown(section: Section, chosen: str, span: Span) -> Line:
    """Returns the context of charts. `looked`: the number of rows read, and the date from which they are complete; `short`: this date
    is within the span.
    """
    looked = section.looked
    return {
        "charts": section.charts,
        "spans": dashboard_charts.spans(chosen),
        "whole": line(section.whole),
        "looked": looked,
        "short": bool(looked and looked.since and looked.since > clock.now() - span.length),
        "newest": trends.NEWEST,
    }


def line(part: Part) -> Line:
    return {
        "name": part.name,
        "succeeded": part.succeeded,
        "failed": part.failed,
        "share": percent(part.share),
        "bad": part.share is not None and part.share >= MANY,
        "late": tuple(map(brief, part.late)),
        "ran": tuple(map(brief, part.ran)),
    }


def _section(names: list[str], span: Span, ends: Callable[[], NewestJobs], seen: Overview) -> tuple[Section, str]:
    """Returns the charts, and an error if they had to be made without Redis."""
    missing = [seen.missing[name] for name in names if name in seen.missing]
    trouble = error_text(missing[0] if missing and len(missing) == len(names) else seen.error)
    if not trouble:
        try:
            return trend_sections.of_queues(names, span, ends, alive=True), ""
        except DOWN as error:
            trouble = error_text(error)
    return trend_sections.of_queues(names, span, ends, alive=False), trouble


def _lacking(seen: Overview, section: Section) -> Overview:
    return seen.lacking(section.missing) if section.missing else seen


def _in_redis(name: str, *, names: bool) -> tuple[dict[str, int], list[MessageConsumer], NamesSeen | None]:
    """Returns the priority bands, the consumers and, if wanted, the concurrency names of a queue. Empty if Redis fails."""

    def read(reach: Reach) -> tuple[dict[str, int], list[MessageConsumer], NamesSeen | None]:
        config = conf.get()
        bands = stores.figures(reach).bands(name)
        pulled = MessageConsumers(stores.places, prefix=config.prefix).of_each([name] if config.queue(name).pulled else [], reach)
        seen = queue_depth.concurrency_names(stores.places, [store.keys for store in stores.parts(name)], reach) if names else None
        return bands, [one for queue in pulled for one in queue.consumers], seen

    try:
        return stores.from_each([name], read)[0]
    except DOWN:
        return {}, [], None


def _names(seen: NamesSeen | None) -> Line:
    """The names with the most waiting jobs, each with some of its holders. `more`: the number of other names that were read."""
    figures = seen.figures if seen else []
    shown = [
        {
            "name": visible(one.name),
            "holders": [(job, ids.short(job)) for job in one.holders[:MOST_HOLDERS]],
            "more": max(0, len(one.holders) - MOST_HOLDERS),
            "waiting": one.waiting,
        }
        for one in figures[:MOST_NAMES]
    ]
    return {"names": shown, "more": max(0, len(figures) - MOST_NAMES), "cut": bool(seen and seen.cut), "looked": queue_depth.LOOKED}


def _worker(facts: Line, queue: str) -> Line:
    """Returns the row of a worker, with its roles for this queue."""
    runs = queue in overview.served(facts) and facts.get("processes", 1) != 0
    return {
        "name": visible(facts["id"]),
        "badge": badge(visible(overview.state(facts))[:20]),
        "runs": runs,
        "slots": 0 if facts["silent"] else overview.slots(facts),
        "roles": [*(["move"] if runs else []), *(map(visible, facts.get("sides", ())) if queue in _records(facts) else ())],
    }


def _records(facts: Line) -> list[str]:
    """Returns the queues that this worker mirrors."""
    said = facts.get("records", [])
    return [name for name in said if isinstance(name, str)] if isinstance(said, list) else []


def _rows() -> QuerySet[Job]:
    return Job.objects.all()


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionLine:
    """One partition. `place`: its server; `depth`: None if it cannot be reached, with the reason in `error`."""

    number: int
    place: str
    depth: QueueDepth | None = None
    waiting: int = 0
    late: str = ""
    behind: str = ""
    generation: str = ""
    error: str = ""


def partition_lines(queue: QueueView) -> list[PartitionLine]:
    """The partitions in order; empty for a queue that is not partitioned."""
    if queue.partitions < 2:
        return []
    places = {number: visible(stores.places.of(queue.name, number).where) for number in range(queue.partitions)}
    found = [_partition_line(number, places[number], depth) for number, depth in queue.parts.items()]
    found += [PartitionLine(number=number, place=places[number], error=error_text(error)) for number, error in queue.away.items()]
    return sorted(found, key=lambda line: line.number)


def _partition_line(number: int, place: str, depth: QueueDepth) -> PartitionLine:
    return PartitionLine(
        number=number,
        place=place,
        depth=depth,
        waiting=depth.scheduled - depth.due,
        late=_seconds(depth.oldest_late_ms),
        behind=_seconds(depth.events_late_ms),
        generation=visible(depth.generation)[:8],
    )


def _seconds(ms: int) -> str:
    return duration(float(ms // 1000)) if ms >= 1000 else "–"
