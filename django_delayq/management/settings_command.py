"""The subcommand `settings`: what may stand in DELAYQ, for who has the package and not its documentation at hand."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, Final, NamedTuple, TextIO

from django.core.management.base import CommandError

from django_delayq import conf
from django_delayq import setting_readers as readers
from django_delayq.management.job_filters import USAGE
from django_delayq.management.output import print_json
from django_delayq.store.commands import COMMANDS, ON_CLUSTERS, rights
from django_delayq.text import did_you_mean

WIDTH: Final = 96


class Meaning(NamedTuple):
    """What a setting accepts, and what it means."""

    accepts: str
    meaning: str


# What the Redis user of a project may do, and no more; beside the keys that begin with PREFIX.
RIGHTS: Final = f"resetchannels ~delayq:* -@all {rights(COMMANDS)}"
CLUSTER_RIGHTS: Final = rights(ON_CLUSTERS)
MEANINGS: Final[Mapping[str, Meaning]] = MappingProxyType(
    {
        "REDIS": Meaning(
            'alias in CACHES; URL, as "rediss://user:password@host:6379/1" or, by Sentinel, "redis+sentinel://user:password@s1:26379,'
            's2:26379/mymaster/0?sentinel_password=…"; of a Cluster, "redis+cluster://user:password@n1:6379,n2:6379"; {"URL": …, '
            '"OPTIONS": …}; dotted path of a function that returns a redis.Redis or a RedisCluster; '
            '"embedded", or {"EMBEDDED": directory}',
            "Where Redis is; a queue may have a server of its own. Of a cache alias only address and credentials are taken. A user "
            "of its own needs these rights alone "
            f"(delayq: is the PREFIX): ACL SETUSER delayq on >PASSWORD {RIGHTS}; on a Cluster also {CLUSTER_RIGHTS}",
        ),
        "PREFIX": Meaning(
            "text without spaces and braces",
            "Begins the name of every key in Redis. Projects that share a Redis database need different ones.",
        ),
        "DATABASE": Meaning("alias in DATABASES", "Where rows are kept."),
        "DURABILITY": Meaning(
            '"outbox" or "redis"',
            "outbox: the row of a job is written in the caller's transaction and published when that commits, so Redis may be away or "
            "lost. redis: the job lives in Redis only, and the mirror writes its row afterwards.",
        ),
        "AUDIT": Meaning(
            '"full", "outcomes" or "failures"',
            "Which rows are kept. full: all jobs and attempts. outcomes: all jobs, and attempts that did not end well. failures: jobs "
            "that are unfinished or have failed.",
        ),
        "LEASE": Meaning(
            "duration of 5 s at least",
            "How long a claim holds without being extended; it is extended every third of it, so tasks may run much longer. So long do "
            "the jobs of a lost host wait.",
        ),
        "MAX_ATTEMPTS": Meaning("whole number, at least 1", "How many attempts count before a job fails."),
        "BACKOFF": Meaning("ladder: text, as '15s 3m 10m', or delayq.Ladder", "The delays between attempts; the last one repeats."),
        "TIMEOUT": Meaning(
            "duration, or None", "After so long a run gets SoftTimeout; if it does not end by that, its process is replaced."
        ),
        "MAX_CRASHES": Meaning("whole number, at least 0", "A job with more crashes of its worker than that fails as poison."),
        "MAX_PAYLOAD": Meaning("bytes of JSON, at least 64", "The largest arguments, and the largest result that is kept."),
        "RETENTION": Meaning(
            "dict of state to duration, or None for ever",
            "How long the rows of finished jobs are kept, and (set_aside) what the mirror could not take in. What is left out keeps "
            "its default.",
        ),
        "SIGNING": Meaning(
            "True or False",
            "Whether records in Redis have an HMAC by SECRET_KEY. Then only jobs whose HMAC verifies run. After a change of "
            "SECRET_KEY, run delayq resign.",
        ),
        "SENSITIVE": Meaning("list of argument names", "Arguments that people see as *** in the admin and in commands."),
        "MIRROR_MAX_EVENTS": Meaning("number of jobs, at least 1000", "By how many jobs told of the mirror of a queue may be behind."),
        "MIRROR_FULL": Meaning(
            '"block" or "grow"',
            "What happens then. block: no more is published until the mirror has caught up. grow: Redis' memory fills.",
        ),
        "RESTORE": Meaning(
            '"auto" or "manual"',
            "When Redis has lost its contents. auto: workers rebuild it from rows. manual: the queues wait for delayq restore.",
        ),
        "CARRIERS": Meaning(
            "list of dotted paths of classes",
            "What travels with each job besides its arguments, such as a tenant.",
        ),
        "TASK_MODULES": Meaning(
            "list of dotted names of modules",
            "Modules with tasks that workers import, besides the tasks modules of installed apps.",
        ),
        "TEST_REDIS": Meaning("as REDIS, or None", "The server that tests go to. None: one that is started for them."),
        "INLINE": Meaning(
            "True or False", "Jobs run where they are scheduled, at the commit and whatever their date. For development."
        ),
        "CHECK_TYPES": Meaning(
            "True, False or None",
            "Whether schedule() compares arguments with the annotations of their task. None: where DEBUG is on, and in tests.",
        ),
        "HORIZON": Meaning(
            "duration of 5 minutes at least, or None",
            "How far ahead Redis has jobs. What is due later waits as a row, and the role relay brings it in in time. With DURABILITY "
            "outbox only. None: Redis has all.",
        ),
        "REPLICAS": Meaning(
            "whole number, at least 0",
            "Of redis durability only: so many replicas must have a schedule, cancel or reschedule before it is answered (WAIT). "
            "Fewer: it is sent again for a second, and then raised.",
        ),
        "METRICS_TOKEN": Meaning(
            "text of 16 characters at least, or None",
            "Who sends it as Authorization: Bearer may read the metrics and the health of the queues. None: staff only.",
        ),
        "OBJECT_URL": Meaning(
            "dotted path of a function, or None",
            "Called with a row of a job; the URL that it returns leads from the page of the job to what it is about. The option "
            "object_url of a task comes first. None: no link.",
        ),
        "LOG_URL": Meaning(
            f"URL that names {', '.join(f'{{{name}}}' for name in readers.IN_LOG_URL)}; or None",
            "Leads from the page of a job to its lines in the log store; from and to are dates in UTC, a minute before it was made and "
            "a minute after it has ended. A brace that stands for itself is written twice.",
        ),
        "HTTP": Meaning(
            f"dict of {', '.join(readers.HTTP)}; or None",
            "Deliveries by HTTP: ALLOW lists networks that may be reached though not public; SECRETS names what signs and what "
            "headers may name; CONNECT, READ and TIMEOUT are durations, MAX_ANSWER bytes; statuses in GONE fail a delivery at once; "
            "PER_HOST and BREAKER (failures in a row) spare a host, for PAUSE at first. None: there are none.",
        ),
        "TARGETS": Meaning(
            f"dict of name to dict of {', '.join(readers.TARGET)}",
            "Lists and streams into which delayq.offer puts: KEY is the key of Redis, KIND 'stream' or 'list', MAXLEN how many entries "
            "it may hold, of which the oldest go, or None for any number. The Redis user needs more rights for them; "
            "manage.py delayq doctor has the line.",
        ),
        "QUEUES": Meaning(
            "dict of queue name to dict of settings",
            f"The queues; one that is not listed is refused. Each may have its own {', '.join((*conf.PER_QUEUE, *conf.OF_QUEUES))}.",
        ),
    }
)


def settings(out: TextIO, options: dict[str, Any]) -> int:
    """Prints one setting, or all. It reads no setting of the project, which may be wrong."""
    name = str(options["name"] or "").upper()
    if name and name not in MEANINGS:
        raise CommandError(f"{options['name']} is no setting{did_you_mean(name, MEANINGS)}.", returncode=USAGE)
    documents = [_document(key) for key in ([name] if name else MEANINGS)]
    if options["json"]:
        print_json(out, documents)
        return 0
    for one in documents:
        out.write(f"{one['name']}{' (per queue, too)' if one['per_queue'] else ''}\n")
        for text in (f"default: {one['default']!r}", f"accepts: {one['accepts']}", one["meaning"]):
            for line in textwrap.wrap(text, WIDTH, break_on_hyphens=False):
                out.write(f"    {line}\n")
    if not name:
        out.write('A duration is a number of seconds, or text such as "30s", "1h30m", "7d".\n')
    return 0


def _document(key: str) -> dict[str, Any]:
    accepts, meaning = MEANINGS[key]
    return {
        "name": key,
        "default": conf.DEFAULTS[key],
        "accepts": accepts,
        "meaning": meaning,
        "per_queue": key in conf.PER_QUEUE,
    }
