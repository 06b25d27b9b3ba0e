"""Targets in the admin: hosts of deliveries with their circuits, targets of offers with their readers, and operations on their jobs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final
from urllib.parse import urlencode

from django.http import HttpRequest
from django.utils.functional import Promise
from django.utils.translation import gettext_lazy as _

from django_delayq import clock, conf
from django_delayq.admin.charts import brief
from django_delayq.admin.readonly import LiveAdmin
from django_delayq.console import masking, overview, target_figures
from django_delayq.console.overview import DOWN
from django_delayq.console.target_figures import NEWEST, OpenCircuit, TargetFigures, TargetsSeen
from django_delayq.console.verbs import VERBS
from django_delayq.console.wording import breakable, duration, error_text
from django_delayq.models import Job
from django_delayq.producer.stores import stores
from django_delayq.states import DELIVERY, OFFER
from django_delayq.store.reads import queue_depth
from django_delayq.store.reads.queue_depth import TargetLength
from django_delayq.store.scripts.worker_registry import WorkerRegistry
from django_delayq.text import visible

SHOWN: Final = 120  # characters of an error
FAULTS: Final[dict[str, Promise]] = {
    "type": _("this key has another type, so every offer fails"),
    "rights": _("the Redis user is not allowed to read this; delayq doctor shows the required ACL rule"),
}
DEEDS: Final = (("requeue", "failed", _("Requeue failed jobs …")), ("cancel", "scheduled", _("Cancel waiting jobs …")))


class TargetAdmin(LiveAdmin):
    """The targets, based on rows, Redis and the workers. A subclass can use other templates, see `LiveAdmin`."""

    list_template = "admin/delayq/target/list.html"
    live_template = "admin/delayq/target/live.html"

    def board(self, request: HttpRequest) -> dict[str, Any]:
        """Returns the context. If hosts or target names are masked, a user without the permission sees none of them."""
        trouble, workers, lengths = _asked()
        circuits = target_figures.open_circuits(workers)
        sensitive = self.allows(request, "view_sensitive")
        hidden = [task for task, name in ((DELIVERY, "host"), (OFFER, "to")) if not sensitive and name in masking.names_of(task)]
        nothing = TargetsSeen(figures=[], cut=frozenset())
        hosts = nothing if DELIVERY in hidden else target_figures.of_hosts()
        offers = nothing if OFFER in hidden else target_figures.of_offers()
        now_ms = clock.wall_ms()
        return {
            "trouble": trouble,
            "hosts": [] if DELIVERY in hidden else self._hosts(request, hosts, circuits, now_ms),
            "offers": [] if OFFER in hidden else self._offers(request, offers, lengths, workers),
            "hidden": bool(hidden),
            "more": hosts.more,
            "newest": NEWEST,
            "cut": bool(hosts.cut or offers.cut),
        }

    def _hosts(self, request: HttpRequest, seen: TargetsSeen, circuits: Sequence[OpenCircuit], now_ms: int) -> list[dict[str, Any]]:
        known = {one.name: one for one in seen.figures}
        for circuit in circuits:  # its deliveries may be older than those that were read
            known.setdefault(circuit.host, TargetFigures(circuit.host))
        mine = {name: [circuit for circuit in circuits if circuit.host == name] for name in known}
        ranked = sorted(known.values(), key=lambda one: not mine[one.name])  # open circuits first
        return [self._row(request, "host", one, seen) | {"circuits": _circuits(mine[one.name], now_ms)} for one in ranked]

    def _offers(
        self, request: HttpRequest, seen: TargetsSeen, lengths: Sequence[TargetLength], workers: Sequence[dict[str, Any]]
    ) -> list[dict[str, Any]]:
        known = {one.name: one for one in seen.figures}
        listed = conf.get().targets
        found = []
        by_name = {one.target.name: one for one in lengths}
        for name in sorted({*known, *listed}):
            row = self._row(request, "target", known.get(name) or TargetFigures(name), seen)
            unknown = [
                worker["id"]
                for worker in workers
                if not worker["silent"] and overview.served(worker) and name not in worker.get("targets", [name])
            ]
            length = by_name.get(name)
            target = listed.get(name)
            found.append(
                row
                | {
                    "listed": target is not None,
                    "key": visible(target.key) if target else "",
                    "kind": target.kind if target else "",
                    "maxlen": target.maxlen if target else None,
                    "length": length.length if length else None,
                    "fault": FAULTS[length.fault] if length and length.fault else "",
                    "full": bool(length and target and target.maxlen and (length.length or 0) >= target.maxlen),
                    "groups": [(visible(one.name), one) for one in (length.groups or ())] if length else [],
                    "blind": bool(length and target and target.kind == "stream" and length.groups is None and not length.fault),
                    "unknown": [visible(worker) for worker in unknown[:10]],
                }
            )
        return found

    def _row(self, request: HttpRequest, word: str, one: TargetFigures, seen: TargetsSeen) -> dict[str, Any]:
        text = f'{word}:"{one.name}"' if " " in one.name else f"{word}:{one.name}"
        error = visible(one.error.strip().split("\n", 1)[0])
        return {
            "name": breakable(one.name),
            "plain": visible(one.name),
            "figures": one,
            "last": one.status if one.status is not None else "",
            "error": breakable(error[:SHOWN] + "…" if len(error) > SHOWN else error),
            "median": brief(one.median_ms),
            "cut": seen.cut,
            "jobs": self._jobs(request, text),
            "counts": [
                (label, count, self._jobs(request, text, state), state in seen.cut)
                for label, count, state in (
                    (_("Waiting"), one.waiting, "scheduled"),
                    (_("Retrying"), one.retrying, "retrying"),
                    (_("Failed"), one.failed, "failed"),
                    (_("Succeeded"), one.succeeded, "succeeded"),
                )
            ],
            "deeds": self._deeds(request, text, {"failed": one.failed, "scheduled": one.waiting + one.retrying}),
        }

    def _jobs(self, request: HttpRequest, text: str, state: str = "") -> str:
        """Returns the URL of the list of these jobs, or ""."""
        place = self.address("delayq_job_changelist") if self.allows(request, "view_job") else ""
        return f"{place}?{urlencode({'q': text, **({'state': state} if state else {})})}" if place else ""

    def _deeds(self, request: HttpRequest, text: str, counts: dict[str, int]) -> list[tuple[Any, str]]:
        """Returns the actions on all jobs of a place. Each links to the confirmation page of an operation."""
        site = self.admin_site
        if not site.is_registered(Job) or not self.allows(request, "start_operation"):
            return []
        jobs: Any = site.get_model_admin(Job)
        if not jobs.starts_operations():
            return []
        return [
            (label, f"{place}?{urlencode({'state': state, 'q': text})}")
            for name, state, label in DEEDS
            if counts[state] and jobs.may(request, VERBS[name]) and (place := self.address("delayq_operation_start", name))
        ]


def _asked() -> tuple[str, list[dict[str, Any]], list[TargetLength]]:
    """Returns an error, the workers, and the lengths of targets."""
    config = conf.get()
    try:
        with stores.guarded():
            workers = WorkerRegistry(stores.link, prefix=config.prefix).all()
        looks = []
        for part, link in {link.home: (part, link) for part, link in reversed(stores.servers().items())}.values():
            with stores.guarded(*part):
                looks.append(queue_depth.target_lengths(link, list(config.targets.values())))
        return "", workers, queue_depth.summed_lengths(looks)
    except DOWN as error:
        return error_text(error), [], []


def _circuits(circuits: Sequence[OpenCircuit], now_ms: int) -> list[dict[str, Any]]:
    return [
        {
            "target": visible(one.target),
            "until": clock.from_ms(one.until_ms),
            "left": duration((one.until_ms - now_ms) // 1000) if one.until_ms - now_ms >= 1000 else "",
            "failures": one.failures,
            "worker": visible(one.worker),
        }
        for one in circuits
    ]
