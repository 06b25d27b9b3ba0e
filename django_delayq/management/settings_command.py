"""The subcommand `settings`, which describes the settings. The reference in the documentation uses the same functions."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping
from typing import Any, Final, TextIO

from django.core.management.base import CommandError

from django_delayq import conf
from django_delayq.management.job_filters import USAGE
from django_delayq.management.output import print_json
from django_delayq.store.connection.commands import COMMANDS, ON_CLUSTERS, rights
from django_delayq.text import did_you_mean

WIDTH: Final = 96


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
# The rights that the Redis user of a project needs, for keys that start with PREFIX.
RIGHTS: Final = f"resetchannels ~delayq:* -@all {rights(COMMANDS)}"
CLUSTER_RIGHTS: Final = rights(ON_CLUSTERS)
REDIS_RIGHTS: Final = (
    f"The Redis user needs these rights (delayq: is the PREFIX): ACL SETUSER delayq on >PASSWORD {RIGHTS}; on a Cluster also "
    f"{CLUSTER_RIGHTS}"
)


def settings(out: TextIO, options: dict[str, Any]) -> int:
    """Prints one setting, or all. It does not read the settings of the project, which may be invalid."""
    name = str(options["name"] or "").upper()
    if name and name not in conf.SETTINGS:
        raise CommandError(f"Unknown setting {options['name']}{did_you_mean(name, conf.SETTINGS)}.", returncode=USAGE)
    documents = [document(key) for key in ([name] if name else conf.SETTINGS)]
    if options["json"]:
        print_json(out, documents)
        return 0
    for one in documents:
        place = {"project": "", "both": " (per queue, too)", "queue": " (of a queue)"}[conf.SETTINGS[one["name"]].scope]
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
        "accepts": row.accepts,
        "meaning": row.meaning + rights,
        "per_queue": row.scope != "project",
    }
