"""Workers and consumers in the admin, with their jobs; quiet, stop and dismiss."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from functools import partial
from typing import Any, Final

from django.contrib import messages
from django.contrib.admin.utils import unquote
from django.core.exceptions import PermissionDenied
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.template.defaultfilters import filesizeformat
from django.urls import URLPattern
from django.utils.translation import gettext_lazy as _

from django_delayq import clock, conf, ids
from django_delayq.admin.badges import badge
from django_delayq.admin.forms import reason_given
from django_delayq.admin.readonly import LiveAdmin, actor, log, note, permission, tell
from django_delayq.console import overview
from django_delayq.console.overview import DOWN, look
from django_delayq.console.search_fields import CRASHED
from django_delayq.console.why_not_yet import PULLED_LATELY
from django_delayq.console.wording import duration, error_text
from django_delayq.models import Attempt, Worker
from django_delayq.producer.stores import stores
from django_delayq.store.reads.queue_depth import HeldMessage, MessageConsumer, MessageConsumers, PulledQueue
from django_delayq.store.scripts import decode
from django_delayq.store.scripts.worker_registry import WorkerRegistry
from django_delayq.text import visible

GONE: Final = _("%(worker)s is not running: it has stopped, or it has not reported for 30 seconds. No request was sent.")
ACTS: Final = {  # the messages: it was done, or not
    "quiet": (_("The worker %(worker)s was asked to claim no more jobs. It receives the request within about five seconds."), GONE),
    "stop": (
        _(
            "The worker %(worker)s was asked to stop. It receives the request within about five seconds and then finishes its "
            "running jobs."
        ),
        GONE,
    ),
    "dismiss": (_("%(worker)s is no longer in the list."), _("%(worker)s was not removed: it is running, or it has already stopped.")),
}
MOST_HELD: Final = 20  # messages per consumer on the page


class WorkerAdmin(LiveAdmin):
    """The workers, which report their state to Redis every few seconds. A subclass can use other templates, see `LiveAdmin`."""

    list_template = "admin/delayq/worker/list.html"
    live_template = "admin/delayq/worker/live.html"

    has_quiet_permission = permission("quiet_worker")
    has_stop_permission = permission("stop_worker")

    def board(self, request: HttpRequest) -> dict[str, Any]:
        seen = look()
        pulled, trouble = _pulled() if seen.error is None else ([], "")
        return {
            "trouble": error_text(seen.error or seen.unseen) or trouble,
            "workers": [_shown(facts) for facts in seen.workers],
            "may_quiet": self.has_quiet_permission(request),
            "may_stop": self.has_stop_permission(request),
            "may_see_jobs": self.allows(request, "view_job"),
            "pulled": pulled,
        }

    def get_urls(self) -> list[URLPattern]:
        acts = [self.page_url(f"<path:name>/{act}/", act, partial(self._act, act), posted=True) for act in ACTS]
        return [*acts, *super().get_urls()]

    def _act(self, act: str, request: HttpRequest, name: str) -> HttpResponse:
        """Asks a worker to be quiet or to stop, or removes a dead or silent one from the list, for which no reason is asked."""
        allowed = self.has_quiet_permission(request) if act == "quiet" else self.has_stop_permission(request)
        if not (allowed and self.has_view_permission(request)):
            raise PermissionDenied
        worker, reason = unquote(name), "" if act == "dismiss" else reason_given(request)
        if reason is None:
            return HttpResponseRedirect(self.list_url())
        by = f"{actor(request)}: {reason}" if reason else actor(request)
        try:
            with stores.guarded():
                registry = WorkerRegistry(stores.link, prefix=conf.get().prefix)
                done = registry.dismiss(worker) if act == "dismiss" else registry.ask(worker, act, by=visible(by))
        except DOWN as error:
            messages.error(request, error_text(error))
        else:
            if done:
                log(request, Worker, [(worker, worker)], act, reason)
                note(request, f"worker_{act}", reason, worker=worker)
            tell(request, done, ACTS[act][0 if done else 1] % {"worker": visible(worker)})
        return HttpResponseRedirect(self.list_url())


def _shown(facts: dict[str, Any]) -> dict[str, Any]:
    now_ms = clock.wall_ms()
    beat_ms = overview.whole(facts, "beat")
    return {
        "id": facts["id"],
        "name": visible(facts["id"]),
        "place": " · ".join(visible(str(facts[key]))[:200] for key in ("host", "pid") if facts.get(key)),
        "version": visible(str(facts.get("version", "")))[:50],
        "sides": [visible(side) for side in facts.get("sides", ())],
        "badge": badge(visible(overview.state(facts))[:20]),
        "silent": facts["silent"],
        "died": bool(facts.get("died")),
        "held": f'is:{CRASHED} worker:"{facts["id"]}"',
        "silence": duration(max(0, now_ms - beat_ms) // 1000),
        "asked": facts.get("asked", ""),
        "queues": [visible(queue) for queue in overview.served(facts)],
        "processes": overview.whole(facts, "processes"),
        "threads": overview.whole(facts, "threads"),
        "slots": overview.slots(facts),
        "busy": 0 if facts.get("died") else overview.whole(facts, "busy"),  # its jobs were returned
        "jobs": [] if facts["silent"] else _jobs(facts.get("jobs"), now_ms),
        "done": overview.whole(facts, "done"),
        "failed": overview.whole(facts, "failed"),
        "memory": filesizeformat(overview.whole(facts, "memory")),
        "started": clock.from_ms(overview.whole(facts, "started")),
        "beat": clock.from_ms(beat_ms),
    }


def _jobs(told: Any, now_ms: int) -> list[dict[str, Any]]:
    """Returns the jobs that a worker reports. Entries without a valid id are dropped: any Redis client can write them."""
    found = []
    for job in told if isinstance(told, list) else ():
        id = decode.job_id(job.get("id")) if isinstance(job, dict) and isinstance(job.get("id"), str) else None
        if id is not None:
            age = max(0, now_ms - overview.whole(job, "started")) // 1000
            found.append(
                {
                    "id": id,
                    "task": visible(str(job.get("task") or "?"))[:200],
                    "queue": visible(str(job.get("queue", "")))[:100],
                    "attempt": overview.whole(job, "attempt"),
                    "age": duration(age) if age else "<1s",
                }
            )
    return found


def _pulled() -> tuple[list[dict[str, Any]], str]:
    """Returns the queues that consumers pull, and an error or ""."""
    names = [name for name, queue in conf.get().queues.items() if queue.pulled]
    try:
        consumers = MessageConsumers(stores.places, prefix=conf.get().prefix)
        found, missing = stores.from_each(names, lambda reach: consumers.of_each(names, reach))
    except DOWN as error:
        return [], error_text(error)
    since = _since([held for queue in found for consumer in queue.consumers for held in consumer.held])
    return [_pulled_queue(queue, since) for queue in found], error_text(missing.first) if missing else ""


def _since(held: Sequence[HeldMessage]) -> dict[str, datetime]:
    """Returns since when each message is held, from the rows."""
    wanted = {ids.full(one.id) for one in held}
    if not wanted:
        return {}
    runs = Attempt.objects.filter(job_id__in=wanted, finished_at=None)
    return dict(runs.values_list("fence", "started_at"))


def _pulled_queue(queue: PulledQueue, since: Mapping[str, datetime]) -> dict[str, Any]:
    ago = max(0, queue.now_ms - queue.asked_ms) // 1000
    return {
        "name": visible(queue.queue),
        "asked": duration(ago) if queue.asked_ms and ago else "",
        "never": not queue.asked_ms,
        "late": ago >= PULLED_LATELY,
        "held": queue.held,
        "cut": queue.cut,
        "consumers": [_consumer(one, queue.now_ms, since) for one in queue.consumers],
    }


def _consumer(one: MessageConsumer, now_ms: int, since: Mapping[str, datetime]) -> dict[str, Any]:
    begun = [since[held.fence] for held in one.held if held.fence in since]
    ends = [held.lease_ms for held in one.held]
    return {
        "name": visible(one.name),
        "claimed": clock.from_ms(one.claimed_ms) if one.claimed_ms else None,
        "held": len(one.held),
        "oldest": min(begun, default=None),
        "first": clock.from_ms(min(ends)) if ends else None,
        "over": bool(ends) and min(ends) <= now_ms,
        "messages": [(held.id, held.attempt, clock.from_ms(held.lease_ms)) for held in one.held[:MOST_HELD]],
    }
