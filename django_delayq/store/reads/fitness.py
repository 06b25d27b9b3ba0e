"""Is this server fit to keep promises, and the way to it safe? Judgement of facts: the worker's start, `delayq doctor` and the deploy
checks share it.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any, Final

from django_delayq.findings import Finding
from django_delayq.setting_readers import is_embedded
from django_delayq.store.connection.address import RedisSpec, embedded_fault, way
from django_delayq.store.reads.inspector import ServerFacts
from django_delayq.target import OfferTarget

OLDEST: Final = {"redis": (6, 2), "valkey": (7, 2)}
MOST_SKEW: Final = 1.0  # seconds
NEWEST: Final = {
    "Django": (6, 1),
    "redis": (8,),
    "django-redis": (7,),
}  # that the tests have run with, as far as it matters


def target_findings(targets: Sequence[tuple[OfferTarget, str]]) -> list[Finding]:
    """What stands in the way of offers, see `Inspector.targets`."""
    found = [
        Finding(
            "D051",
            f"The key {target.key!r} of the target {target.name!r} is not a {target.kind}, so its offers fail.",
        )
        for target, wrong in targets
        if wrong == "type"
    ]
    refused = [target.name for target, wrong in targets if wrong == "rights"]
    if refused:
        lists = any(target.kind == "list" for target, _ in targets)  # they need commands that nothing else does
        rules = [*(shlex.quote(f"~{target.key}") for target, _ in targets), *(("+rpush", "+ltrim") if lists else ())]
        found.append(
            Finding(
                "D050",
                f"The Redis user of this project may not write to the keys of these targets: {', '.join(refused)}. Their offers fail.",
                f"Allow it: redis-cli ACL SETUSER <user> {' '.join(rules)}",
            )
        )
    return found


def server_findings(facts: ServerFacts) -> list[Finding]:
    """What speaks against this server, the worst first."""
    found: list[Finding] = []
    version = ".".join(map(str, facts.version))
    if facts.policy not in ("", "noeviction"):
        found.append(Finding("E010", f"Redis may evict jobs: its maxmemory-policy is {facts.policy}."))
    if facts.version[:2] < OLDEST.get(facts.flavour, (0,)):
        oldest = ".".join(map(str, OLDEST[facts.flavour]))
        found.append(Finding("E011", f"{facts.flavour.capitalize()} {version} is too old: the scripts need {oldest}."))
    if facts.role not in ("", "master"):
        found.append(Finding("E012", f"The server is a {facts.role}, which does not accept writes."))
    if not facts.aof and not facts.rdb:
        found.append(Finding("W010", "Redis keeps nothing on disk: a restart loses all jobs."))
    elif not facts.aof:
        found.append(Finding("W011", "Redis writes snapshots only: a crash loses all changes since the last one."))
    if abs(facts.skew) > MOST_SKEW + facts.round_trip:
        found.append(
            Finding(
                "W012", f"The clock of Redis' host is {abs(facts.skew):.1f} s {'ahead of' if facts.skew > 0 else 'behind'} this host's."
            )
        )
    return found


def link_findings(redis: RedisSpec, *, signed: bool) -> Iterator[Finding]:
    """What speaks against the way to the server that this value of `DELAYQ["REDIS"]` names. Nothing is connected or started.

    Raises:
        ConfigError: it leads nowhere.
    """
    if is_embedded(redis):
        if fault := embedded_fault(redis):
            yield Finding("W018", f"Other users of this host may read or block the jobs of the embedded server: {fault}.")
        return
    seen = way(redis)
    if not seen.network:
        return
    if not (seen.tls or seen.here):
        yield Finding(
            "W014", f"Redis at {seen.where} is reached without TLS: anyone on the network path can read and change passwords and jobs."
        )
    if not seen.password:
        yield Finding(
            "W015", f"Redis at {seen.where} is reached without a password: anyone who can reach its port can schedule and delete jobs."
        )
    if seen.tls and not seen.checked:
        yield Finding(
            "W016",
            f"The certificate of Redis at {seen.where} or its host name is not checked: any server that answers there gets the "
            f"password.",
        )
    if not signed:
        yield Finding(
            "W017", f"Jobs in Redis at {seen.where} are not signed: anyone who can write there can run any task with any arguments."
        )


def probe_findings(workers: Iterable[Mapping[str, Any]]) -> Iterator[Finding]:
    """What speaks against where these workers answer probes, by what they say of themselves."""
    count = sum(str(worker.get("health", "")).startswith("*:") for worker in workers if not worker.get("silent"))
    if count:
        yield Finding(
            "W019", f"{count} of the workers answer{'s' if count == 1 else ''} probes on all addresses of the host (--health-port)."
        )


def unkept(queues: Sequence[str], workers: Iterable[Mapping[str, Any]]) -> list[str]:
    """The queues whose records none of these workers keeps, by their beats."""
    kept: set[Any] = set()
    for worker in workers:
        said = worker.get("records", [])
        if isinstance(said, list) and not worker.get("silent"):
            kept |= {name for name in said if isinstance(name, str)}
    return sorted(set(queues) - kept)


def unmirrored(queues: Sequence[str], workers: Sequence[Mapping[str, Any]]) -> list[str]:
    """Those of the queues whose jobs workers run, while none of them keeps their records: rows stand still there."""
    present = [worker for worker in workers if not worker.get("silent")]
    if not any("records" in worker for worker in present):
        return []  # none says what it keeps
    served = {name for worker in present if isinstance(worker.get("queues"), list) for name in worker["queues"]}
    return [name for name in unkept(queues, present) if name in served]


def record_findings(queues: Sequence[str], workers: Sequence[Mapping[str, Any]], *, pulled: Collection[str] = ()) -> Iterator[Finding]:
    """What speaks against how records are kept of these queues. Of those that are `pulled` nobody would miss a worker."""
    for name in unmirrored([name for name in queues if name not in pulled], workers):
        yield Finding(
            "W022",
            f"Workers run jobs of the queue {name!r}, but no worker with the roles mirror and relay serves it: rows are not "
            "updated, and nothing is restored or relayed.",
            f"Give one of them the roles mirror and relay, or start one: manage.py delayq_worker --roles mirror,relay --queues {name}",
        )
    if all(worker.get("silent") for worker in workers):
        return  # where this is looked at, no worker runs: perhaps none has been started yet
    for name in unkept([name for name in queues if name in pulled], workers):
        yield Finding(
            "W022",
            f"Consumers pull from the queue {name!r}, but no worker with the roles mirror and relay serves it: rows are not "
            "updated, and nothing is restored.",
            f"Start one: manage.py delayq_worker --roles mirror,relay --queues {name}",
        )


def version_findings(installed: Mapping[str, str]) -> Iterator[Finding]:
    """What of this is newer than anything that this release was tested with. `installed`: distribution -> version."""
    for name, newest in NEWEST.items():
        there = tuple(map(int, re.findall(r"\d+", installed.get(name, ""))[: len(newest)]))
        if there > newest:
            yield Finding(
                "W020", f"{name} {installed[name]} is newer than the {'.'.join(map(str, newest))} that this release was tested with."
            )
