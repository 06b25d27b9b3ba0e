"""Whether a server is fit for use, and the connection to it safe. The worker's start, `delayq doctor` and the deploy checks share it.

The probe tries the Redis commands that the package needs, with the user of the project. A script that is refused a command halfway
leaves its work half done, so a worker does not start if one is refused. The probe touches only its own keys.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any, Final

from redis.exceptions import ResponseError

from django_delayq.findings import Finding
from django_delayq.setting_readers import OfferTarget, is_embedded
from django_delayq.store.connection import embedded
from django_delayq.store.connection.address import RedisSpec, way
from django_delayq.store.connection.commands import BY_NAME, COMMANDS
from django_delayq.store.connection.error_replies import REFUSALS, StoreError, code_of
from django_delayq.store.connection.link import Link
from django_delayq.store.connection.places import Places
from django_delayq.store.keys import Keys
from django_delayq.store.reads.inspector import ServerFacts
from django_delayq.store.scripts import loader
from django_delayq.store.scripts.site import SiteRefused

OLDEST: Final = {"redis": (6, 2), "valkey": (7, 2)}
MOST_SKEW: Final = 1.0  # seconds
NEWEST: Final = {"Django": (6, 1), "redis": (8,), "django-redis": (7,)}  # the newest versions that the tests have used


def target_findings(targets: Sequence[tuple[OfferTarget, str]]) -> list[Finding]:
    """Findings about targets, see `Inspector.targets`."""
    found = [
        Finding("D051", f"The key {target.key!r} of the target {target.name!r} is not a {target.kind}, so offers to it fail.")
        for target, wrong in targets
        if wrong == "type"
    ]
    refused = [target.name for target, wrong in targets if wrong == "rights"]
    if refused:
        lists = any(target.kind == "list" for target, _ in targets)  # lists require commands that no other part uses
        rules = [*(shlex.quote(f"~{target.key}") for target, _ in targets), *(("+rpush", "+ltrim") if lists else ())]
        found.append(
            Finding(
                "D050",
                f"The Redis user of this project cannot write to the keys of these targets, so offers to them fail: "
                f"{', '.join(refused)}.",
                f"To grant the rights, run redis-cli ACL SETUSER <user> {' '.join(rules)}",
            )
        )
    return found


def server_findings(facts: ServerFacts) -> list[Finding]:
    """Findings about this server, the worst first."""
    found: list[Finding] = []
    version = ".".join(map(str, facts.version))
    if facts.policy not in ("", "noeviction"):
        found.append(Finding("E010", f"Redis can evict jobs, because its maxmemory-policy is {facts.policy}."))
    if facts.version[:2] < OLDEST.get(facts.flavour, (0,)):
        oldest = ".".join(map(str, OLDEST[facts.flavour]))
        found.append(Finding("E011", f"{facts.flavour.capitalize()} {version} is too old. delayq requires {oldest} or newer."))
    if facts.role not in ("", "master"):
        found.append(Finding("E012", f"The server is a {facts.role}, which does not accept writes."))
    if not facts.aof and not facts.rdb:
        found.append(Finding("W010", "Redis does not write to disk, so a restart loses all jobs in Redis."))
    elif not facts.aof:
        found.append(Finding("W011", "Redis only writes snapshots, so a crash loses all changes since the last one."))
    if abs(facts.skew) > MOST_SKEW + facts.round_trip:
        found.append(
            Finding(
                "W012",
                f"The clock of the Redis host is {abs(facts.skew):.1f} s {'ahead of' if facts.skew > 0 else 'behind'} the clock "
                f"of this host.",
            )
        )
    return found


def link_findings(redis: RedisSpec, *, signed: bool) -> Iterator[Finding]:
    """Findings about the connection that this value of `DELAYQ["REDIS"]` configures. It connects to nothing and starts nothing.

    Raises:
        ConfigError: the value is invalid.
    """
    if is_embedded(redis):
        if fault := embedded.fault(redis["EMBEDDED"] if isinstance(redis, Mapping) else None):
            yield Finding("W018", f"Other users of this host can read or block the jobs of the embedded server: {fault}.")
        return
    seen = way(redis)
    if not seen.network:
        return
    if not (seen.tls or seen.here):
        yield Finding(
            "W014",
            f"The connection to Redis at {seen.where} does not use TLS, so anyone on the network can read and change passwords "
            f"and jobs.",
        )
    if not seen.password:
        yield Finding(
            "W015", f"Redis at {seen.where} is used without a password, so anyone who can reach its port can schedule and delete jobs."
        )
    if seen.tls and not seen.checked:
        yield Finding(
            "W016",
            f"The certificate or the host name of Redis at {seen.where} is not verified, so any server that answers there receives the "
            f"password.",
        )
    if not signed:
        yield Finding(
            "W017", f"Jobs in Redis at {seen.where} are not signed, so anyone who can write there can run any task with any arguments."
        )


def probe_findings(workers: Iterable[Mapping[str, Any]]) -> Iterator[Finding]:
    """Findings about the addresses on which these workers answer health probes, by their beats."""
    count = sum(str(worker.get("health", "")).startswith("*:") for worker in workers if not worker.get("silent"))
    if count:
        yield Finding(
            "W019",
            f"{count} of the workers answer{'s' if count == 1 else ''} health probes on all addresses of the host (--health-port).",
        )


def unkept(queues: Sequence[str], workers: Iterable[Mapping[str, Any]]) -> list[str]:
    """The queues for which none of these workers keeps records, by their beats."""
    kept: set[Any] = set()
    for worker in workers:
        names = worker.get("records", [])
        if isinstance(names, list) and not worker.get("silent"):
            kept |= {name for name in names if isinstance(name, str)}
    return sorted(set(queues) - kept)


def unmirrored(queues: Sequence[str], workers: Sequence[Mapping[str, Any]]) -> list[str]:
    """The queues whose jobs workers run although none of them keeps records, so rows are not updated."""
    present = [worker for worker in workers if not worker.get("silent")]
    if not any("records" in worker for worker in present):
        return []  # no beat has this information
    served = {name for worker in present if isinstance(worker.get("queues"), list) for name in worker["queues"]}
    return [name for name in unkept(queues, present) if name in served]


def record_findings(queues: Sequence[str], workers: Sequence[Mapping[str, Any]], *, pulled: Collection[str] = ()) -> Iterator[Finding]:
    """Findings about queues without a worker that keeps records. `pulled`: queues whose jobs need no worker."""
    for name in unmirrored([name for name in queues if name not in pulled], workers):
        yield Finding(
            "W022",
            f"Workers run jobs of the queue {name!r}, but none of them has the roles mirror and relay for it, so rows are not "
            "updated, and no jobs are restored or published.",
            f"Add the roles mirror and relay to a worker, or run manage.py delayq_worker --roles mirror,relay --queues {name}",
        )
    if all(worker.get("silent") for worker in workers):
        return  # no worker is running, perhaps because none has been started yet
    for name in unkept([name for name in queues if name in pulled], workers):
        yield Finding(
            "W022",
            f"Consumers pull from the queue {name!r}, but no worker has the roles mirror and relay for it, so rows are not "
            "updated, and no messages are restored.",
            f"To start one, run manage.py delayq_worker --roles mirror,relay --queues {name}",
        )


def version_findings(installed: Mapping[str, str]) -> Iterator[Finding]:
    """Dependencies that are newer than the versions that this release was tested with. `installed`: distribution -> version."""
    for name, newest in NEWEST.items():
        there = tuple(map(int, re.findall(r"\d+", installed.get(name, ""))[: len(newest)]))
        if there > newest:
            yield Finding(
                "W020",
                f"{name} {installed[name]} is newer than {'.'.join(map(str, newest))}, the newest version that this release was "
                f"tested with.",
            )


TRIED: Final = sorted((command for command in COMMANDS if command.trial), key=lambda command: command.name != "unlink")
OTHER: Final = REFUSALS.keys() - {"NOPERM"}  # codes of errors that are not about rights: a replica, for example, refuses all writes


def rights_findings(places: Places, prefix: str, parts: Iterable[tuple[str, int]]) -> Iterator[Finding]:
    """The commands that are refused on the servers of these partitions: queue and number. One call for each server.

    Raises:
        StoreUnavailable: one of them cannot be asked.
    """
    seen: set[Link] = set()
    for queue, partition in parts:
        link = places.of(queue, partition)
        if link.server not in seen:
            seen.add(link.server)
            yield from _of_server(link, prefix, Keys(prefix, queue, partition))


def _of_server(link: Link, prefix: str, keys: Keys) -> Iterator[Finding]:
    try:
        reply = loader.run(link, loader.load("probe", keys), keys, *(command.trial for command in TRIED))
    except SiteRefused:  # others report it
        return
    except StoreError as error:  # the call itself
        yield _finding(link, prefix, f"rejects the probe: {error.fields.get('cause', error)}", ("evalsha", "script|load"))
        return
    found = [(TRIED[int(number) - 1], text.decode("utf-8", "replace")) for number, text in zip(reply[::2], reply[1::2], strict=True)]
    refused = [command for command, text in found if code_of(ResponseError(text)) not in OTHER]
    if any(command.name == "xadd" for command in refused):  # then there is no stream to ask about
        refused = [command for command in refused if command.name != "xinfo|stream"]
    if refused:
        named = ", ".join(command.words for command in refused)
        features = ", ".join(dict.fromkeys(command.needs for command in refused))
        yield _finding(link, prefix, f"rejects {named}, which is required for {features}", tuple(command.name for command in refused))


def optional_findings(link: Link, keys: Keys) -> Iterator[Finding]:
    """The optional commands that a server refuses, for a person who asks: workers try them by using them."""
    tries = {
        "client|setname": ("CLIENT", "SETNAME", "delayq:probe"),
        "xread": ("XREAD", "STREAMS", keys["probe_stream"], "$"),
        "blpop": ("BLPOP", keys["probe_list"], "0.1"),  # Redis 6.2 takes 0.001 for no limit,
    }
    replies = link.execute_many(list(tries.values()))
    for name, reply in zip(tries, replies, strict=True):
        if isinstance(reply, StoreError):
            command = BY_NAME[name]
            yield Finding(
                "D036",
                f"Redis at {link.where} rejects {command.words}, which is used for {command.needs}. {command.instead}",
                f"If possible, grant the right: redis-cli ACL SETUSER <user> {_quoted(name)}",
            )


def _finding(link: Link, prefix: str, what: str, names: tuple[str, ...]) -> Finding:
    return Finding(
        "E021",
        f"Redis at {link.where} {what}.",
        f"To grant the rights, run redis-cli ACL SETUSER <user> '~{prefix}:*' {' '.join(_quoted(name) for name in names)}. If "
        "redis.conf renames the command, remove rename-command there. To list all rights, run manage.py delayq settings REDIS.",
    )


def _quoted(name: str) -> str:
    return f"'+{name}'" if "|" in name else f"+{name}"
