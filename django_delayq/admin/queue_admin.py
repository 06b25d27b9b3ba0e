"""Queues in the admin: the dashboard, the page of a queue, the trends of all queues, and pause, resume and purge."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, Final
from urllib.parse import urlencode

from django.contrib import messages
from django.contrib.admin.utils import quote, unquote
from django.core.exceptions import PermissionDenied
from django.http import Http404, HttpRequest, HttpResponse, HttpResponseRedirect
from django.urls import URLPattern
from django.utils.formats import number_format
from django.utils.html import format_html
from django.utils.translation import gettext as now
from django.utils.translation import gettext_lazy as _

from django_delayq import clock, conf, ids
from django_delayq.admin import charts, effective_settings, pause_page, rate_page
from django_delayq.admin.badges import badge
from django_delayq.admin.charts import MANY, EarlierPeriod, Line, ListLinks, bars, brief, percent
from django_delayq.admin.forms import PurgeForm, reason_given
from django_delayq.admin.operation_admin import begin_purge
from django_delayq.admin.pause_page import PauseForm, ResumeForm
from django_delayq.admin.rate_page import RateForm
from django_delayq.admin.readonly import LiveAdmin, actor, log, permission, tell
from django_delayq.console import health, overview, trends
from django_delayq.console.health import Sign
from django_delayq.console.overview import DOWN, Overview, QueueView, count_absent, count_rows, count_shown, failing_tasks, look
from django_delayq.console.trends import NewestJobs, Span
from django_delayq.console.why_not_yet import PULLED_LATELY
from django_delayq.console.wording import duration, error_text, relative, second
from django_delayq.job_meta import shown
from django_delayq.models import Job, Queue
from django_delayq.producer import queues
from django_delayq.producer.outbox import pauses
from django_delayq.producer.queues import PauseReply
from django_delayq.producer.stores import stores
from django_delayq.producer.task import registry
from django_delayq.spread import MINUTES, Spread, percentile
from django_delayq.store.reads import queue_depth
from django_delayq.store.reads.fitness import unkept, unmirrored
from django_delayq.store.reads.queue_depth import FairSeen, MessageConsumer, MessageConsumers, NamesSeen
from django_delayq.store.reads.reach import Reach
from django_delayq.store.scripts.limits import queue_word
from django_delayq.text import visible

PARTS: Final = 6  # of an hour, in the table beside a sparkline
MOST_NAMED: Final = 20  # of the queues that are left out
MOST_QUEUES: Final = 20  # whose counters a page reads
MOST_TASKS: Final = 50
MOST_NAMES: Final = 20
MOST_HOLDERS: Final = 3
EARLIER: Final = {"day": (1, _("a day earlier")), "week": (7, _("a week earlier"))}  # what trends compare with
ACTS: dict[str, tuple[Callable[..., PauseReply], Any, Any]] = {
    "pause": (
        queues.pause,
        _("The queue %(queue)s is paused. Workers claim no more of its jobs."),
        _("The queue %(queue)s was already paused."),
    ),
    "resume": (queues.resume, _("The queue %(queue)s was resumed."), _("The queue %(queue)s was not paused.")),
}


class QueueAdmin(LiveAdmin):
    """The queues listed in the settings. Their figures come from Redis, or from the database while Redis is unavailable.

    A subclass can use other templates: `list_template` for the page, `live_template` for the part that is refreshed,
    `remedies_template` for the health checks, `page_template` for a queue, `trends_template` for the trends, and
    `pauses_template` for the pauses, `rates_template` for the rates.
    """

    list_template = "admin/delayq/queue/list.html"
    live_template = "admin/delayq/queue/live.html"
    remedies_template = "admin/delayq/queue/remedies.html"
    page_template = "admin/delayq/queue/page.html"
    trends_template = "admin/delayq/queue/trends.html"
    pauses_template = "admin/delayq/queue/pauses.html"
    rates_template = "admin/delayq/queue/rates.html"

    has_pause_permission = permission("pause_queue")
    has_rate_permission = permission("set_rate")

    def board(self, request: HttpRequest) -> dict[str, Any]:
        seen, unpublished, names = look(), count_absent(), list(conf.get().queues)
        rows, seen, trouble = dashboard_rows(seen) if seen.error is None else ([], seen, error_text(seen.error))
        chosen, words = request.GET.get("queue", ""), pauses.of_words()
        counts = {} if rows else count_rows(names)
        shown = [*health.redis_signs(seen), *health.row_signs(unpublished)]
        return {
            "trouble": trouble,
            "vitals": shown,
            "signs": [(sign, self._leads(request, sign)) for sign in shown],
            "queues": rows,
            "left_out": left_out(seen),
            "rows": {visible(name): [*map(count_shown, of_queue.values())] for name, of_queue in counts.items()},
            "idle": seen.unseen is None and not seen.present,
            "unmirrored": ", ".join(map(visible, unmirrored(names, seen.present))),
            "unpublished": unpublished,
            "unpublished_shown": count_shown(unpublished),
            "ahead": charts.forecast(
                [name for name in ([chosen] if chosen in names else names) if name not in seen.missing],
                self._jobs(request, {"queue": chosen} if chosen in names else {}),
            )
            if rows
            else [],
            "names": [(name, visible(name)) for name in names],
            "chosen": chosen if chosen in names else "",
            "failing": failing_tasks(),
            **pause_page.on_dashboard(words, names=self.allows(request, "view_job")),
            **rate_page.on_dashboard(words, seen.queues, names=self.allows(request, "view_job")),
            "may_pause": self.has_pause_permission(request),
            "may_purge": self.allows(request, "purge_queue"),
            "may_see_jobs": self.allows(request, "view_job"),
        }

    def _jobs(self, request: HttpRequest, named: Mapping[str, str]) -> ListLinks:
        """Returns the list that bars lead to."""
        return ListLinks(self.address("delayq_job_changelist") if self.allows(request, "view_job") else "", named)

    def _leads(self, request: HttpRequest, sign: Sign) -> str:
        """Returns the URL of the objects that a vital sign is about, or "" if it is well or the user may not view them."""
        if sign.level == "well" or not sign.page or not self.allows(request, f"view_{sign.page}"):
            return ""
        place = self.address(f"delayq_{sign.page}_changelist")
        return f"{place}?{urlencode(sign.query)}" if place and sign.query else place

    def change_view(
        self, request: HttpRequest, object_id: str, form_url: str = "", extra_context: dict[str, Any] | None = None
    ) -> HttpResponse:
        """Shows one queue. The log entries of the admin link to this page."""
        if not self.has_view_permission(request):
            raise PermissionDenied
        queue = unquote(object_id)
        if queue not in conf.get().queues:
            return self.nowhere(request, object_id)
        allowed = {"may_see_jobs": self.allows(request, "view_job"), "may_pause": self.has_pause_permission(request)}
        found = {**of_queue(request, queue, self._jobs(request, {"queue": queue})), **allowed, **(extra_context or {})}
        return self.page(request, self.page_template, visible(queue), **found)

    def trends_view(self, request: HttpRequest) -> HttpResponse:
        if not self.has_view_permission(request):
            raise PermissionDenied
        found = {**of_all(request, partial(self._jobs, request)), "may_see_jobs": self.allows(request, "view_job")}
        return self.page(request, self.trends_template, _("Trends"), **found)

    def get_urls(self) -> list[URLPattern]:
        return [
            *(self.page_url(f"<path:name>/{act}/", act, partial(self._act, act), posted=True) for act in ACTS),
            self.page_url("<path:name>/purge/", "purge", self.purge),
            self.page_url("trends/", "trends", self.trends_view),
            self.page_url("pauses/", "pauses", self.pauses_view),
            self.page_url("rates/", "rates", self.rates_view),
            self.page_url("remedies/", "remedies", self.remedies_view),
            *super().get_urls(),
        ]

    def purge(self, request: HttpRequest, name: str) -> HttpResponse:
        """Asks the user to type the name of the queue, then starts an operation that empties it."""
        if not (self.has_view_permission(request) and self.allows(request, "purge_queue")):
            raise PermissionDenied
        queue = unquote(name)
        if queue not in conf.get().queues:
            raise Http404(now("No queue has this name."))
        form = PurgeForm(queue, request.POST if request.method == "POST" else None)
        if form.is_valid():
            operation = begin_purge(request, queue, form.cleaned_data["reason"])
            messages.success(request, now("The operation has started. A worker carries it out, so you can leave this page."))
            return HttpResponseRedirect(self.page_of(request, operation) or self.list_url())
        found = {each.name: each for each in look().queues}.get(queue)
        status = 400 if form.errors else 200
        return self.page(
            request,
            "admin/delayq/queue/purge.html",
            now("Purge %(queue)s") % {"queue": queue},
            status=status,
            queue=queue,
            form=form,
            count=found.depth.scheduled if found else None,
        )

    def pauses_view(self, request: HttpRequest) -> HttpResponse:
        """Shows what is paused. Users with the permission can pause a queue, a task or a concurrency name, and resume it."""
        may_pause, names = self.has_pause_permission(request), self.allows(request, "view_job")
        if not self.has_view_permission(request) or (request.method == "POST" and not may_pause):
            raise PermissionDenied
        data = request.POST if request.method == "POST" else None
        resumes = data is not None and data.get("act") == "resume"
        form: PauseForm | ResumeForm = ResumeForm(data) if resumes else PauseForm(data, initial={"word": request.GET.get("task", "")})
        if form.is_valid() and pause_page.act(request, form):
            return HttpResponseRedirect(self.address("delayq_queue_pauses"))
        if resumes:
            for error in form.errors.values():
                messages.error(request, " ".join(map(str, error)))
            return HttpResponseRedirect(self.address("delayq_queue_pauses"))
        return self.page(
            request,
            self.pauses_template,
            _("Pauses"),
            status=400 if form.errors else 200,
            rows=pause_page.rows(names=names),
            form=form,
            may_pause=may_pause,
        )

    def rates_view(self, request: HttpRequest) -> HttpResponse:
        """Shows the rates that are set or that jobs wait for. Users with the permission can set and reset them."""
        may_set, names = self.has_rate_permission(request), self.allows(request, "view_job")
        if not self.has_view_permission(request) or (request.method == "POST" and not may_set):
            raise PermissionDenied
        form = RateForm(request.POST if request.method == "POST" else None)
        if form.is_valid() and rate_page.act(request, form):
            return HttpResponseRedirect(self.address("delayq_queue_rates"))
        status = 400 if form.errors else 200
        found = rate_page.rows(list(conf.get().queues), names=names)
        return self.page(request, self.rates_template, _("Rates"), status=status, **found, form=form, may_set=may_set)

    def remedies_view(self, request: HttpRequest) -> HttpResponse:
        """Explains each health check."""
        if not self.has_view_permission(request):
            raise PermissionDenied
        return self.page(request, self.remedies_template, _("Health checks"))

    def _act(self, act: str, request: HttpRequest, name: str) -> HttpResponse:
        if not (self.has_view_permission(request) and self.has_pause_permission(request)):
            raise PermissionDenied
        queue = unquote(name)
        if queue not in conf.get().queues:
            raise Http404(now("No queue has this name."))
        change, done, nothing = ACTS[act]
        page = self.address("delayq_queue_change", quote(queue)) if request.POST.get("back") == "queue" else ""
        back = HttpResponseRedirect(page or self.list_url())
        reason = reason_given(request)
        if reason is None:
            return back
        try:
            reply = change(queue, actor=actor(request), reason=reason)
        except DOWN as error:
            messages.error(request, error_text(error))
        else:
            if reply:
                log(request, Queue, [(queue, queue)], act, reason)
            tell(request, reply.changed, (done if reply else nothing) % {"queue": queue})
            pause_page.tell_unconfirmed(request, reply)
        return back


def dashboard_rows(seen: Overview) -> tuple[list[Line], Overview, str]:
    """Returns the rows of the dashboard in the order of the settings, the overview without servers that failed meanwhile, and an
    error if no server answered. `away`: the name of a queue whose server does not answer.
    """
    names = [queue.name for queue in seen.queues]
    try:
        found, missing = stores.from_each(names, lambda reach: stores.figures(reach).hours(names))
    except DOWN as error:
        return [], seen, error_text(error)
    hours = dict(zip(names, found, strict=True))
    seen = seen.lacking(missing)
    there = {queue.name: _row(queue, hours[queue.name]) for queue in seen.queues}
    return [there.get(name) or {"away": name, "name": visible(name)} for name in conf.get().queues], seen, ""


def left_out(seen: Overview) -> list[tuple[str, str]]:
    """Returns the queues and partitions whose servers cannot be reached, with the reason."""
    return [
        (", ".join(map(visible, names[:MOST_NAMED])) + ", …" * (len(names) > MOST_NAMED), error_text(error))
        for names, error in seen.left_out
    ]


def _row(queue: QueueView, hour: Spread) -> Line:
    depth, share = queue.depth, hour.failure_share
    label = now("Jobs that ended in the last hour, per minute: %(done)d, of which %(failed)d failed") % {
        "done": hour.done,
        "failed": sum(hour.failed),
    }
    return {
        "queue": queue,
        "name": visible(queue.name),
        "by": visible(depth.paused_by),
        "reason": visible(depth.paused_reason),
        "late": _late(queue),
        "busy": min(depth.running, queue.slots),
        "minute": number_format(hour.done_per_minute, 1 if hour.done_per_minute < 10 else 0),
        "hour": hour.done,
        "share": percent(share),
        "bad": share is not None and share >= MANY,
        "lateness": (brief(percentile(hour.late, 0.5)), brief(percentile(hour.late, 0.95))),
        "ran": (brief(percentile(hour.ran, 0.5)), brief(percentile(hour.ran, 0.95))),
        "chart": bars([("delayq-bar-well", hour.succeeded), ("delayq-bar-bad", hour.failed)], label, look="delayq-spark"),
        "parts": _parts(hour),
        "next_due": _moment(depth.next_due_ms) if depth.next_due_ms else "–",
        "unpulled": _unpulled(queue),
    }


def _unpulled(queue: QueueView) -> str:
    """Reports that no consumer pulls a queue of messages, or ""."""
    if not queue.pulled:
        return ""
    if not queue.depth.asked_ms:
        return now("never pulled")
    ago = (clock.wall_ms() - queue.depth.asked_ms) / 1000
    return now("not pulled for %(duration)s") % {"duration": duration(ago)} if ago >= PULLED_LATELY else ""


def _parts(hour: Spread) -> list[tuple[str, int, int]]:
    """Returns rows of time, succeeded and failed for the last hour: few enough for a screen reader."""
    step = MINUTES // PARTS
    return [
        (
            now("%(first)d to %(last)d minutes ago") % {"first": MINUTES - start, "last": MINUTES - start - step},
            sum(hour.succeeded[start : start + step]),
            sum(hour.failed[start : start + step]),
        )
        for start in range(0, MINUTES, step)
    ]


def _moment(ms: int) -> str:
    at = clock.from_ms(ms)
    return (
        now("now")
        if at <= clock.now()
        else format_html('<time datetime="{}" title="{}">{}</time>', at.isoformat(), second(at), relative(at))
    )


def _late(queue: QueueView) -> str:
    return duration(float(int(queue.oldest_late))) if queue.oldest_late >= 1 else "–"


def of_queue(request: HttpRequest, name: str, jobs: ListLinks) -> Line:
    """Returns the context of one queue. Only users who may view jobs see concurrency names, because most of them name customers."""
    may_see_jobs = bool(jobs.url)
    seen, config, rows = overview.look(), conf.get().queue(name), Job.objects.all()
    view = next((queue for queue in seen.queues if queue.name == name), None)
    chosen, span = charts.chosen(request.GET.get("span"))
    section, trouble = _section([name], span, trends.ends(rows, queue=name), seen, jobs)
    bands, consumers, named, fair = _in_redis(name, names=may_see_jobs) if view else ({}, [], None, None)
    kept = None if view else pauses.of_word(queue_word(name))
    return {
        "name": name,
        "may_see_jobs": may_see_jobs,
        "trouble": trouble,
        "depth": view.depth if view else None,
        "view": view,
        "parts": partition_lines(view) if view else [],
        "left_out": left_out(_lacking(seen, section).of(name)),
        "late": _late(view) if view else "–",
        "bands": bands,
        "paused_at": view.paused_at if view else kept.paused_at if kept else None,
        "paused_by": visible(view.depth.paused_by if view else kept.paused_by if kept else ""),
        "paused_why": visible(view.depth.paused_reason if view else kept.paused_why if kept else ""),
        "paused_until": view.paused_until if view else kept.until if kept else None,
        "workers": [_worker(facts, name) for facts in seen.workers if name in overview.served(facts) or name in _records(facts)],
        "unseen": seen.unseen is not None,
        "unkept": bool(seen.present and unkept([name], seen.workers)),
        "pulled": config.pulled,
        "consumers": [
            (visible(one.name), clock.from_ms(one.claimed_ms) if one.claimed_ms else None, len(one.held)) for one in consumers
        ],
        "shared": _names(named),
        "fair": _fair(fair, view.depth.behind if view else 0),
        "settings": effective_settings.of_queue(config),
        "pauses": [(row.at, badge(row.kind), visible(row.actor), visible(row.reason)) for row in trends.pauses(name)],
        "events": trends.EVENTS,
        "ahead": charts.forecast([name], jobs) if view and not trouble else [],
        "tasks": [task.name for task in registry if task.queue == name and not task.own][:MOST_TASKS],
        **section.context(chosen, span),
    }


def of_all(request: HttpRequest, jobs: Callable[[Mapping[str, str]], ListLinks]) -> Line:
    """Returns the context of the trends of all queues. `jobs`: makes the list of a queue, or of all."""
    seen, names, rows = overview.look(), list(conf.get().queues), Job.objects.all()
    chosen, span = charts.chosen(request.GET.get("span"))
    given = request.GET.get("queue", "")
    picked = [given] if given in names else names[:MOST_QUEUES]
    named = {"queue": given} if given in names else {}
    ended = trends.ends(rows, **named)
    compared = "" if chosen == "7d" else request.GET.get("with", "day")  # counters are kept for eight days
    days, label = EARLIER.get(compared, (0, ""))
    earlier = charts.earlier(span, days, lambda end: trends.ends(rows.filter(run_at__lt=end), **named)) if days else None
    section, trouble = _section(picked, span, ended, seen, jobs(named), earlier)
    return {
        "trouble": trouble,
        "left_out": [] if trouble else left_out(_lacking(seen, section).of(*picked)),
        "names": [(name, visible(name)) for name in names],
        "picked": given if given in names else "",
        "more": len(names) - MOST_QUEUES if picked == names[:MOST_QUEUES] and len(names) > MOST_QUEUES else 0,
        "queues": section.queues,
        "tasks": charts.of_tasks(span, ended, earlier)[:MOST_TASKS],
        "span": chosen,
        "compared": compared if days else "",
        "compared_label": label,
        "pruned": earlier is not None and earlier.is_pruned(picked),
        "comparisons": [] if chosen == "7d" else [(each, name, each == compared) for each, (_days, name) in EARLIER.items()],
        **section.context(chosen, span),
        "looked": ended,
    }


def _section(
    names: list[str], span: Span, ended: NewestJobs, seen: Overview, jobs: ListLinks, earlier: EarlierPeriod | None = None
) -> tuple[charts.Section, str]:
    """Returns the charts, and an error if they had to be made without Redis."""
    missing = [seen.missing[name] for name in names if name in seen.missing]
    trouble = error_text(missing[0] if missing and len(missing) == len(names) else seen.error)
    if not trouble:
        try:
            return charts.of_queues(names, span, ended, alive=True, jobs=jobs, earlier=earlier), ""
        except DOWN as error:
            trouble = error_text(error)
    return charts.of_queues(names, span, ended, alive=False, jobs=jobs, earlier=earlier), trouble


def _lacking(seen: Overview, section: charts.Section) -> Overview:
    return seen.lacking(section.missing) if section.missing else seen


def _in_redis(name: str, *, names: bool) -> tuple[dict[str, int], list[MessageConsumer], NamesSeen | None, FairSeen | None]:
    """Returns the priority bands, the consumers and, if wanted, the concurrency names and the fair words of a queue. Empty if Redis
    fails.
    """

    def read(reach: Reach) -> tuple[dict[str, int], list[MessageConsumer], NamesSeen | None, FairSeen | None]:
        config = conf.get()
        bands = stores.figures(reach).bands(name)
        pulled = MessageConsumers(stores.places, prefix=config.prefix).of_each([name] if config.queue(name).pulled else [], reach)
        keys = [store.keys for store in stores.parts(name)]
        seen = queue_depth.concurrency_names(stores.places, keys, reach) if names else None
        fair = queue_depth.fair_words(stores.places, keys, reach) if names else None
        return bands, [one for queue in pulled for one in queue.consumers], seen, fair

    try:
        return stores.from_each([name], read)[0]
    except DOWN:
        return {}, [], None, None


def _fair(seen: FairSeen | None, behind: int) -> Line:
    """The fair words with the most waiting jobs. `behind`: the number of jobs of all words that wait for their turn."""
    figures = seen.figures if seen else []
    shown = [
        {"word": visible(one.word), "waiting": one.waiting, "oldest": clock.from_ms(one.oldest_ms) if one.oldest_ms else None}
        for one in figures[:MOST_NAMES]
    ]
    return {"words": shown, "more": max(0, len(figures) - MOST_NAMES), "cut": bool(seen and seen.cut), "behind": behind}


def _names(seen: NamesSeen | None) -> Line:
    """The names with the most waiting jobs, each with some of its holders. `more`: the number of other names that were read."""
    figures = seen.figures if seen else []
    found = [
        {
            "name": visible(shown(one.name)),
            "holders": [(job, ids.short(job)) for job in one.holders[:MOST_HOLDERS]],
            "more": max(0, len(one.holders) - MOST_HOLDERS),
            "waiting": one.waiting,
        }
        for one in figures[:MOST_NAMES]
    ]
    return {"names": found, "more": max(0, len(figures) - MOST_NAMES), "cut": bool(seen and seen.cut), "looked": queue_depth.LOOKED}


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


def partition_lines(queue: QueueView) -> list[Line]:
    """Returns the partitions in order; empty for a queue that is not partitioned. `place`: its server; `error`: why it cannot be
    reached.
    """
    if queue.partitions < 2:
        return []
    found: dict[int, Line] = {number: {"error": error_text(error)} for number, error in queue.away.items()}
    for number, depth in queue.parts.items():
        found[number] = {
            "depth": depth,
            "waiting": depth.scheduled - depth.due,
            "late": _seconds(depth.oldest_late_ms),
            "behind": _seconds(depth.events_late_ms),
            "generation": visible(depth.generation)[:8],
        }
    return [
        {"number": number, "place": visible(stores.places.of(queue.name, number).where)} | found[number] for number in sorted(found)
    ]


def _seconds(ms: int) -> str:
    return duration(float(ms // 1000)) if ms >= 1000 else "–"
