"""What tests see of targets: the entries that jobs have offered, taken apart as a reader does."""

from __future__ import annotations

import json
from typing import Any

from django_delayq import conf
from django_delayq.exceptions import ConfigError
from django_delayq.store.connection.link import Link
from django_delayq.text import did_you_mean


def entries(link: Link, to: str) -> list[dict[str, Any]]:
    """`id` and `body` of each entry of a target, the oldest first.

    Raises:
        ConfigError: `DELAYQ["TARGETS"]` does not list it.
    """
    targets = conf.get().targets
    if to not in targets:
        raise ConfigError(f"offered({to!r}): DELAYQ['TARGETS'] lists no such target{did_you_mean(to, targets)}.")
    target = targets[to]
    if target.kind == "list":
        return [json.loads(text) for text in link.execute("LRANGE", target.key, 0, -1)]
    found = [dict(zip(fields[::2], fields[1::2], strict=True)) for _, fields in link.execute("XRANGE", target.key, "-", "+")]
    return [{"id": fields[b"id"].decode(), "body": json.loads(fields[b"body"])} for fields in found]
