"""The subcommands that only read: status, list, inspect and settings; and embedded, which shows or stops the embedded server."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict
from typing import Any, Final, TextIO
from uuid import UUID

from django.core.management.base import CommandError
from django.db import DatabaseError
from django.utils import translation

from django_delayq import clock, conf, ids
from django_delayq.console import export, masking, overview, why_not_yet
from django_delayq.console.export import job_document, redis_document
from django_delayq.console.why_not_yet import Why
from django_delayq.exceptions import StoreUnavailable
from django_delayq.logger import told
from django_delayq.management import UsageError
from django_delayq.management.job_filters import filtered, named_key, parse_id
from django_delayq.management.output import duration, print_json, print_table, shown
from django_delayq.models import Job
from django_delayq.producer import scopes
from django_delayq.producer.job import get
from django_delayq.producer.stores import stores
from django_delayq.setting_readers import is_embedded
from django_delayq.states import NO_LIMIT, State
from django_delayq.store.connection import embedded
from django_delayq.store.connection.address import address
from django_delayq.store.connection.commands import COMMANDS, ON_CLUSTERS, rights
from django_delayq.text import did_you_mean, one_line


def status(out: TextIO, options: dict[str, Any]) -> int:
    """Show the queues, the workers and the mirror's lag.

    If Redis cannot be reached, the numbers come from the database. The exit code is 1 if Redis or the database cannot be reached. The
    JSON document has `redis`, `database`, `queues`, `workers`, `unpublished`, `unresolved` and `parked`, or `rows` without Redis.
    """
    config, seen = conf.get(), overview.look()
    document: dict[str, Any] = {
        "redis": seen.trouble,
        "database": "",
        "queues": list(map(_queue, seen.queues)),
        "workers": seen.present,
    }
    document |= {"unpublished": None, "unresolved": None, "parked": None, "far": []}
    document |= {"missing": {name: str(error) for name, error in seen.missing.items()}, "unseen": str(seen.unseen or "")}
    try:
        document["unpublished"] = overview.count_absent()
        document["unresolved"] = overview.count_unresolved()
        document["parked"] = overview.count_parked()
        document["far"] = [asdict(queue) for queue in overview.far_queues()]
        if document["redis"]:
            document["rows"] = overview.count_rows(list(config.queues))
    except DatabaseError as error:
        document["database"] = f"The database cannot be read: {told(error)}"
    if options["json"]:
        print_json(out, document)
    else:
        _print_status(out, document)
    partly = any(queue.away for queue in seen.queues)
    return 1 if document["redis"] or document["database"] or document["missing"] or document["unseen"] or partly else 0


def list_jobs(out: TextIO, options: dict[str, Any]) -> int:
    """List jobs, with the newest first. The JSON document is a list of rows."""
    if options["csv"] and options["json"]:
        raise UsageError("Specify either --csv or --json, not both.")
    jobs, remarks = filtered(options)
    if options["csv"]:
        out.writelines(export.table(jobs))
        return 0
    if options["json"]:
        print_json(out, [job_document(job) for job in jobs])
        return 0
    rows = []
    for job in jobs:
        attempts = str(job.attempts) if job.max_attempts == NO_LIMIT else f"{job.attempts}/{job.max_attempts}"
        rows.append((job.id, job.derived, job.queue, job.task, job.key, job.run_at, attempts, job.error))
    if rows:
        print_table(out, ("id", "state", "queue", "task", "key", "run at", "attempts", "last error"), rows)
    out.writelines(f"{line}\n" for line in (*([] if rows else ["No matching jobs."]), *remarks))
    return 0


def inspect(out: TextIO, options: dict[str, Any]) -> int:
    """Show all details of a job.

    This includes its row, its state in Redis, the reason why it is waiting, its attempts and events, and the last traceback. The JSON
    document has `job`, `redis`, `waits_for`, `attempts`, `events` and `trouble`.
    """
    config = conf.get()
    id = _named_id(options)
    job = Job.objects.filter(pk=id).first()
    redis, error = stores.find_view([job.queue] if job else config.queues, id)
    trouble = str(error or "")
    if job is None and redis is None:
        trouble = trouble or f"There is no job {ids.short(id)} in Redis or in the database."
    document: dict[str, Any] = {"job": job_document(job, redis) if job else None, "redis": None, "attempts": [], "events": []}
    waits: list[Why] = []
    try:
        waits = why_not_yet.of(job, redis, trouble) if job is not None else []
    except overview.DOWN as error:
        trouble = trouble or str(error)
    document["waits_for"] = [one._asdict() for one in waits]
    document["trouble"] = trouble
    if redis is not None:
        document["redis"] = redis_document(redis)
    name = job.queue if job is not None else redis.queue if redis is not None else ""
    if name in config.queues and config.queue(name).divided:
        for part in ("job", "redis"):
            if document[part]:
                document[part] |= {"partition": ids.partition(id), "place": _place(name, ids.partition(id))}
    document |= export.histories({id: job.task if job else ""})[id]
    if options["json"]:
        print_json(out, document)
        return 1 if trouble else 0
    if job is not None:
        with translation.override("en"):  # commands are always in English
            document["job"]["asked"] = why_not_yet.poll_progress(job, redis) or "never"
        del document["job"]["asked_of"]
        document["job"] = _with_named_arguments(document["job"])
    for part in ("job", "redis"):
        if document[part]:
            out.write(f"{part}\n")
            for name, value in document[part].items():
                out.write(f"  {name:<16} {shown(value)}\n")
    if waits:
        with translation.override("en"):
            asked = "how did it end?" if job is not None and job.unresolved else "why has it not run yet?"
        out.write(f"{asked}\n  {why_not_yet.sentences(waits, shown)}\n")
    if trouble:
        out.write(f"{trouble}\n")
    for part in ("attempts", "events"):
        if document[part]:
            out.write(f"{part}\n")
            names = [name for name in document[part][0] if name not in ("traceback", "problem")]
            print_table(out, names, [[row[name] for name in names] for row in document[part]])
    last = next((row["traceback"] for row in reversed(document["attempts"]) if row["traceback"]), "")
    if last:
        out.write(f"last traceback\n{last}\n")
    return 1 if trouble else 0


def _named_id(options: dict[str, Any]) -> UUID:
    """The job with the id, or the newest job with the key: the unfinished one, if there is one."""
    if (options["id"] is None) == (options["key"] is None) or (options["key"] is None and options["queue"] is not None):
        raise UsageError("Name the job by its id, or by --key with --queue.")
    named = named_key(options)
    if named is None:
        return parse_id(options["id"])
    key, queue = named
    with suppress(StoreUnavailable):
        if found := get(key=key, queue=queue, scope=options["scope"]):
            return found.id
    scope = scopes.of_call(options["scope"])
    ended = Job.objects.filter(queue=queue, key=key, scope=scope).order_by("-id").values_list("pk", flat=True).first()
    if ended is None:
        raise CommandError(f"There is no job with the key {key!r} in the queue {queue!r}.")
    return ended


def _with_named_arguments(document: dict[str, Any]) -> dict[str, Any]:
    """The document with a line per argument in the place of `args` and `kwargs`."""
    found: dict[str, Any] = {}
    for name, value in document.items():
        if name == "args":
            named = masking.by_name(document["task"], value, document["kwargs"])
            found |= {f"  {parameter or f'argument {number}'}": given for number, (parameter, given) in enumerate(named, 1)}
        elif name != "kwargs":
            found[name] = value
    return found


_HEAD = ("queue", "scheduled", "due", "running", "retrying", "failed", "oldest late", "workers", "mirror behind", "")


def _print_status(out: TextIO, document: dict[str, Any]) -> None:
    if document["redis"]:
        out.write(f"{document['redis']}\n")
        if "rows" in document:
            out.write("From the database:\n")
            known = [(name, *map(overview.count_text, counts.values())) for name, counts in document["rows"].items()]
            print_table(out, ("queue", *State), known)
    else:
        rows, away = list[Any](), dict[str, list[str]]()
        for row in document["queues"]:
            rows.append(_status_row(row, row["queue"], "?" if row["workers"] is None else row["workers"]))
            for part in row.get("partitions", ()):  # with the address in the column of the workers
                name = f"{row['queue']}/{part['partition']}"
                if "error" in part:
                    away.setdefault(part["error"], []).append(name)
                    rows.append((f"  {name}", *["?"] * 6, part["place"], "?", "unreachable"))
                else:
                    rows.append(_status_row(part, f"  {name}", part["place"]))
        print_table(out, _HEAD, rows)
        for name, why in document["missing"].items():
            out.write(f"\n{one_line(name)} is not included: {one_line(why)}\n")
        for why, names in away.items():
            out.write(f"\nNot included in the totals: {one_line(', '.join(names))}. {one_line(why)}\n")
        if document["unseen"]:
            out.write(f"\nThe workers are unknown: {one_line(document['unseen'])}\n")
        elif not document["workers"]:
            out.write("\nNo worker is running. To start one, run manage.py delayq_worker\n")
    for name, what, then in (
        ("unpublished", "Committed jobs that are not in Redis yet", "The relay will publish them."),
        ("unresolved", "Unresolved jobs", "No event shows how they ended. To list them, run manage.py delayq list --state unresolved"),
        ("parked", "Parked jobs", "For the reason, run manage.py delayq doctor."),
    ):
        if document[name]:
            out.write(f"\n{what}: {overview.count_text(document[name])}. {then}\n")
    for queue in document["far"]:
        if queue["count"]:
            late = ", and late in reaching Redis" if queue["late"] else ""
            count, first = overview.count_text(queue["count"]), shown(queue["first"])
            out.write(f"\nFar jobs of {one_line(queue['name'])}: {count}. The first is due at {first}{late}.\n")
    if document["database"]:
        out.write(f"\n{document['database']}\n")


def _without(row: dict[str, Any]) -> str:
    """The partitions of a queue that are not in the totals, or are paused although the queue is not."""
    if "partitions" not in row:
        return ""
    count, away = len(row["partitions"]), row["partitions_away"]
    partly = f"{row['partitions_paused']} of {count} partitions are paused" if row["partitions_paused"] and not row["paused_ms"] else ""
    return ", ".join(filter(None, (f"without {away} of {count} partitions" if away else "", partly)))


def _status_row(row: dict[str, Any], name: str, workers: Any) -> tuple[Any, ...]:
    """The line of a queue or a partition."""
    blocked = f"{row['blocked']:,} waiting for a name" if row["blocked"] else ""
    behind = f"{row['behind']:,} waiting for a turn" if row["behind"] else ""
    remark = f"restoring, {row['restoring']} rows" if row["restoring"] else ", ".join(filter(None, (paused(row), blocked, behind)))
    remark = ", ".join(filter(None, (_without(row), remark)))
    numbers = (row["scheduled"], row["due"], row["running"], row["retrying"], row["failed"])
    return (name, *numbers, duration(row["oldest_late_ms"] / 1000), workers, f"{row['events']} events", remark)


def _queue(queue: overview.QueueView) -> dict[str, Any]:
    found = {**asdict(queue.depth), "mirror_lag_s": round(queue.lag.seconds, 3), "workers": queue.workers}
    if queue.partitions > 1:
        lines = {number: asdict(part) for number, part in queue.parts.items()}
        lines |= {number: {"queue": queue.name, "error": str(error)} for number, error in queue.away.items()}
        found |= {"partitions_away": len(queue.away), "partitions_paused": sum(part.paused for part in queue.parts.values())}
        found["partitions"] = [{"partition": number, "place": _place(queue.name, number), **lines[number]} for number in sorted(lines)]
    return found


def _place(queue: str, partition: int) -> str:
    return stores.places.of(queue, partition).where


def paused(row: dict[str, Any]) -> str:
    """When, by whom, why and until when a queue or a word was paused; "" if it is not paused. `row`: a depth as a dict."""
    if not row["paused_ms"]:
        return ""
    by = f" by {one_line(row['paused_by'])}" if row["paused_by"] else ""
    why = f": {one_line(row['paused_reason'])}" if row["paused_reason"] else ""
    until = f" until {shown(clock.from_ms(row['paused_until_ms']))}" if row["paused_until_ms"] else ""
    return f"paused since {shown(clock.from_ms(row['paused_ms']))}{until}{by}{why}"


def embedded_server(out: TextIO, options: dict[str, Any]) -> int:
    """Show or stop the embedded server.

    Run this command in your project's working directory. The exit code is 1 if the server is not running. The JSON document has
    `directory`, `pid`, `answers` and `stopped`.
    """
    spec = conf.get().redis
    if not is_embedded(spec):
        raise UsageError(f'DELAYQ["REDIS"] is {address(spec)}, which is not an embedded server. Stop it in the way it was started.')
    directory = None if isinstance(spec, str) else spec["EMBEDDED"]
    before = embedded.look(directory)
    stopped = options["act"] == "stop" and embedded.stop(directory)
    after = embedded.look(directory) if stopped else before
    if options["json"]:
        print_json(out, {"directory": str(after.directory), "pid": after.pid, "answers": after.answers, "stopped": stopped})
    elif stopped:
        out.write(f"Stopped the server. Its data is saved in {before.directory}. The next process that needs it starts it again.\n")
    elif not after.pid:
        out.write(f"No server is running in {after.directory}.\n")
    else:
        how = "and answers" if after.answers else "and does not answer"
        out.write(f"A server runs in {after.directory}, process {after.pid}, {how}. To stop it, run manage.py delayq embedded stop.\n")
    return 0 if options["act"] == "stop" or after.answers else 1


WIDTH: Final = 96


HTTP_MEANINGS: Final[Mapping[str, str]] = {
    "ALLOW": "A list of networks, such as '10.1.0.0/16', to which deliveries can be sent even though they are not public.",
    "SECRETS": "A dict of names. Each value is a secret or a list of secrets. Secrets that start with whsec_ can sign "
    "deliveries. Any secret can be used in a header. If a value is a list, all of its secrets sign a delivery, and "
    "headers contain the first one.",
    "PROXY": "The URL of a proxy, including its port. All deliveries are sent through this proxy, and the proxy must check the "
    "addresses. Environment variables have no effect.",
    "CA": "A file or directory of certificates to trust in addition to the system's certificates.",
    "CONNECT": "The time limit for a connection to an address, and for its TLS handshake.",
    "READ": "The maximum time to wait for the next part of a response.",
    "TIMEOUT": "The time limit for a whole attempt, unless the delivery sets its own.",
    "MAX_ANSWER": "The maximum number of bytes to read from a response, at least 2048. The first 2 KB are stored.",
    "GONE": "A list of status codes for which a delivery fails without a retry.",
    "PER_HOST": "The maximum number of requests that a process sends to a host at the same time.",
    "BREAKER": "After this number of failures in a row, a process stops sending requests to the host for a while. None: it "
    "never stops.",
    "PAUSE": "The length of the first such pause.",
    "QUEUE": "The default queue for deliveries.",
}
# The rights that the Redis user of a project needs, for keys that start with PREFIX.
RIGHTS: Final = f"resetchannels ~delayq:* -@all {rights(COMMANDS)}"
CLUSTER_RIGHTS: Final = rights(ON_CLUSTERS)
REDIS_RIGHTS: Final = (
    f"The Redis user needs these rights (replace delayq: with your PREFIX): ACL SETUSER delayq on >PASSWORD {RIGHTS}; on a "
    f"Cluster also {CLUSTER_RIGHTS}"
)


def settings(out: TextIO, options: dict[str, Any]) -> int:
    """Describe the settings and their defaults. The JSON document has the `name`, `default`, `accepts`, `meaning` and `per_queue` of
    each setting.
    """
    # It does not read the settings of the project, which may be invalid.
    name = str(options["name"] or "").upper()
    if name and name not in conf.SETTINGS:
        raise UsageError(f"Unknown setting {options['name']}{did_you_mean(name, conf.SETTINGS)}.")
    documents = [document(key) for key in ([name] if name else conf.SETTINGS)]
    if options["json"]:
        print_json(out, documents)
        return 0
    for one in documents:
        scope = conf.SETTINGS[one["name"]].scope
        place = {"project": "", "both": " (can also be set per queue)", "queue": " (can only be set in a queue)"}[scope]
        out.write(f"{one['name']}{place}\n")
        keys = [f"{key}: {text}" for key, text in HTTP_MEANINGS.items()] if one["name"] == "HTTP" else []
        for text in (f"default: {one['default']!r}", f"accepts: {one['accepts']}", one["meaning"], *keys):
            for line in textwrap.wrap(text, WIDTH, break_on_hyphens=False):
                out.write(f"    {line}\n")
    if not name:
        out.write('A duration is a number of seconds, or text such as "30s", "1h30m", "7d".\n')
    return 0


def document(key: str) -> dict[str, Any]:
    """Describes one setting."""
    row = conf.SETTINGS[key]
    rights = f" {REDIS_RIGHTS}" if key == "REDIS" else ""
    return {
        "name": key,
        "default": row.default,
        "accepts": row.kind.accepts,
        "meaning": row.meaning + rights,
        "per_queue": row.scope != "project",
    }
