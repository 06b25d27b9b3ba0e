"""The subcommand `settings`: what DELAYQ accepts. The reference of settings in the documentation is made of the same table."""

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
from django_delayq.store.connection.commands import COMMANDS, ON_CLUSTERS, rights
from django_delayq.text import did_you_mean

WIDTH: Final = 96


class Meaning(NamedTuple):
    """The values of a setting, and its meaning."""

    accepts: str
    meaning: str


HTTP_MEANINGS: Final[Mapping[str, str]] = {
    "ALLOW": "List of networks, such as '10.1.0.0/16'. Deliveries may reach these networks although they are not public.",
    "SECRETS": "Dict of names to secrets, or to lists of secrets. A secret that begins with whsec_ signs deliveries; headers can use "
    "any secret. All secrets of a list sign, and headers use the first one.",
    "PROXY": "URL of a proxy, with its port. All deliveries go through the proxy, and the proxy decides where they may go. The "
    "environment has no effect.",
    "CA": "File or folder of certificates to trust besides those of the system.",
    "CONNECT": "Duration. Limit for a connection to one address, and for its TLS handshake.",
    "READ": "Duration. Limit for the longest silence.",
    "TIMEOUT": "Duration. Limit for a whole attempt, unless the delivery has its own.",
    "MAX_ANSWER": "Bytes, at least 2048. How much of an answer is read. 2 KB of it are kept.",
    "GONE": "List of status codes. An answer with one of them fails the delivery without a retry.",
    "PER_HOST": "Whole number, at least 1. How many requests a process sends to one host at the same time.",
    "BREAKER": "Whole number, or None. After so many failures in a row, a process sends nothing to the host for a while.",
    "PAUSE": "Duration. How long that pause is at first.",
    "QUEUE": "Name of the queue for deliveries that name none.",
}
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
            "The Redis server. A queue can have its own server. A cache alias gives only the address and the credentials. "
            f"The Redis user needs these rights (delayq: is the PREFIX): ACL SETUSER delayq on >PASSWORD {RIGHTS}; on a Cluster also "
            f"{CLUSTER_RIGHTS}",
        ),
        "PREFIX": Meaning(
            "text without spaces and braces",
            "The beginning of every key in Redis. Projects that share a Redis database need different prefixes.",
        ),
        "DATABASE": Meaning("alias in DATABASES", "The database that keeps the rows of jobs."),
        "DURABILITY": Meaning(
            '"outbox" or "redis"',
            "outbox: schedule() writes the row of a job in your transaction, and the job is published at the commit. Redis can be "
            "down or lose its data. redis: the job is in Redis only, and the mirror writes its row later.",
        ),
        "AUDIT": Meaning(
            '"full", "outcomes" or "failures"',
            "Which rows are kept. full: all jobs and attempts. outcomes: all jobs, and attempts that did not end well. failures: jobs "
            "that are unfinished or have failed.",
        ),
        "LEASE": Meaning(
            "duration of 5 s at least",
            "How long a claim of a job lasts unless the worker extends it. Workers extend it at every third of this time, so tasks "
            "can run much longer. Jobs of a lost host wait for so long.",
        ),
        "MAX_ATTEMPTS": Meaning("whole number, at least 1", "How many attempts a job has before it fails."),
        "BACKOFF": Meaning("text such as '15s 3m 10m', or a delayq.Ladder", "The delays between attempts; the last one repeats."),
        "TIMEOUT": Meaning(
            "duration, or None",
            "When a run has taken so long, SoftTimeout is raised in it. If the run does not end then, its process is replaced. None: "
            "no limit.",
        ),
        "MAX_CRASHES": Meaning(
            "whole number, at least 0", "A job fails as poison when more of its runs than this have ended with a crash of the worker."
        ),
        "MAX_PAYLOAD": Meaning("bytes of JSON, at least 64", "The maximum size of arguments, and of a result that is kept."),
        "RETENTION": Meaning(
            "dict of state to duration, or None for ever",
            "How long the rows of finished jobs are kept, and (set_aside) rejected events. States that you leave out keep their "
            "default.",
        ),
        "SIGNING": Meaning(
            "True or False",
            "Signs the records of jobs with SECRET_KEY, so that workers run signed jobs only. After a change of SECRET_KEY, run "
            "delayq resign.",
        ),
        "SENSITIVE": Meaning("list of argument names", "Arguments that the admin and commands show as ***."),
        "MIRROR_MAX_EVENTS": Meaning(
            "number of jobs, at least 1000", "How many changes of jobs in a queue can wait to be written to the database."
        ),
        "MIRROR_FULL": Meaning(
            '"block" or "grow"',
            "The behavior at MIRROR_MAX_EVENTS. block: no more jobs are published until the mirror has caught up. grow: the memory "
            "of Redis fills.",
        ),
        "RESTORE": Meaning(
            '"auto" or "manual"',
            "The behavior after Redis has lost its data. auto: workers restore the jobs from the database. manual: the queues wait "
            "for delayq restore.",
        ),
        "CARRIERS": Meaning(
            "list of dotted paths of classes",
            "Classes that add context to each job, such as the tenant or the language.",
        ),
        "TASK_MODULES": Meaning(
            "list of dotted names of modules",
            "Modules with tasks that Django imports at start, besides the tasks modules of installed apps.",
        ),
        "TEST_REDIS": Meaning("as REDIS, or None", "The Redis server for tests. None: the test kit starts one."),
        "INLINE": Meaning(
            "True or False", "Jobs run in the process that schedules them, at the commit and without a delay. For development."
        ),
        "CHECK_TYPES": Meaning(
            "True, False or None",
            "Whether schedule() compares arguments with the annotations of the task. None: where DEBUG is on, and in tests.",
        ),
        "HORIZON": Meaning(
            "duration of 5 minutes at least, or None",
            "How far ahead jobs are in Redis. A job that is due later waits in the database until a worker with the role relay moves "
            "it. For DURABILITY outbox only. None: all jobs are in Redis.",
        ),
        "REPLICAS": Meaning(
            "whole number, at least 0",
            "For DURABILITY redis only. How many replicas must confirm a schedule, cancel or reschedule (WAIT). If fewer confirm "
            "within a second, the call raises StoreUnavailable.",
        ),
        "METRICS_TOKEN": Meaning(
            "text of 16 characters at least, or None",
            "A client that sends it as Authorization: Bearer can read the metrics and the health of the queues. None: staff only.",
        ),
        "OBJECT_URL": Meaning(
            "dotted path of a function, or None",
            "The function gets the row of a job and returns a URL. The page of the job in the admin links to it. The option "
            "object_url of a task comes first. None: no link.",
        ),
        "LOG_URL": Meaning(
            f"URL that names {', '.join(f'{{{name}}}' for name in readers.IN_LOG_URL)}; or None",
            "The page of a job in the admin links to its lines in your log store. from and to are dates in UTC: a minute before the "
            "job was made, and a minute after it has ended. Write a literal brace twice.",
        ),
        "HTTP": Meaning(
            f"dict of {', '.join(readers.HTTP)}; or None",
            "Turns on deliver(). An empty dict is enough. None: deliver() raises ConfigError.",
        ),
        "TARGETS": Meaning(
            f"dict of name to dict of {', '.join(readers.TARGET)}",
            "Lists and streams for delayq.offer. KEY is the key in Redis, KIND is 'stream' or 'list'. MAXLEN is the number of entries "
            "that are kept, or None for all. The Redis user needs more rights for them, which manage.py delayq doctor prints.",
        ),
        "QUEUES": Meaning(
            "dict of queue name to dict of settings",
            "The queues of the project. A queue that is not listed is refused. Its dict can have the settings that are marked per "
            "queue.",
        ),
        "CONSUMER": Meaning(
            '"worker" or "pull"',
            "The consumer of the queue. worker: workers run its jobs. pull: it holds messages, which your own consumers pull.",
        ),
        "PARTITIONS": Meaning(
            f"whole number from 1 to {readers.MOST_PARTITIONS}",
            "How many partitions the jobs of the queue are spread over. Each partition can be on another master of a Redis Cluster. "
            "Not for the embedded server, and not for CONSUMER pull.",
        ),
        "FORMER_PARTITIONS": Meaning(
            "list of whole numbers, as [4]",
            "Earlier values of PARTITIONS, for as long as jobs, keys or names are in the partitions of that time.",
        ),
    }
)


def settings(out: TextIO, options: dict[str, Any]) -> int:
    """Prints one setting, or all. It reads no setting of the project, which may be wrong."""
    name = str(options["name"] or "").upper()
    if name and name not in MEANINGS:
        raise CommandError(f"Unknown setting {options['name']}{did_you_mean(name, MEANINGS)}.", returncode=USAGE)
    documents = [document(key) for key in ([name] if name else MEANINGS)]
    if options["json"]:
        print_json(out, documents)
        return 0
    for one in documents:
        place = " (of a queue)" if one["name"] in conf.OF_QUEUES else " (per queue, too)" if one["per_queue"] else ""
        out.write(f"{one['name']}{place}\n")
        keys = [f"{key}: {text}" for key, text in HTTP_MEANINGS.items()] if one["name"] == "HTTP" else []
        for text in (f"default: {one['default']!r}", f"accepts: {one['accepts']}", one["meaning"], *keys):
            for line in textwrap.wrap(text, WIDTH, break_on_hyphens=False):
                out.write(f"    {line}\n")
    if not name:
        out.write('A duration is a number of seconds, or text such as "30s", "1h30m", "7d".\n')
    return 0


def document(key: str) -> dict[str, Any]:
    """All about one setting."""
    accepts, meaning = MEANINGS[key]
    of_queues = key in conf.OF_QUEUES
    return {
        "name": key,
        "default": conf.OF_QUEUES[key][0] if of_queues else conf.DEFAULTS[key],
        "accepts": accepts,
        "meaning": meaning,
        "per_queue": of_queues or key in conf.PER_QUEUE,
    }
