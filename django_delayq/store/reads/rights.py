"""Tries, with the user of the project, the Redis commands that the package needs. A script that is refused a command halfway leaves its
work half done, so a worker does not start where one is refused. Only keys of the probe are touched.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final

from redis.exceptions import ResponseError

from django_delayq.findings import Finding
from django_delayq.store.connection.commands import BY_NAME, COMMANDS, Command
from django_delayq.store.connection.error_replies import REFUSALS, StoreError, code_of
from django_delayq.store.connection.link import Link
from django_delayq.store.connection.places import Places
from django_delayq.store.keys import Keys
from django_delayq.store.scripts import loader
from django_delayq.store.scripts.site import SiteRefused

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
        yield _finding(link, prefix, f"refuses the probe: {error.fields.get('cause', error)}", ("evalsha", "script|load"))
        return
    found = [(TRIED[int(number) - 1], text.decode("utf-8", "replace")) for number, text in zip(reply[::2], reply[1::2], strict=True)]
    refused = [command for command, text in found if code_of(ResponseError(text)) not in OTHER]
    if any(command.name == "xadd" for command in refused):  # then there is no stream to ask about
        refused = [command for command in refused if command.name != "xinfo|stream"]
    if refused:
        named = ", ".join(command.words for command in refused)
        features = ", ".join(dict.fromkeys(command.needs for command in refused))
        yield _finding(link, prefix, f"refuses {named}, needed by {features}", _names(refused))


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
                f"Redis at {link.where} refuses {command.words}, which is for {command.needs}. {command.instead}",
                f"Allow it if you can: redis-cli ACL SETUSER <user> {_quoted(name)}",
            )


def _names(commands: Iterable[Command]) -> tuple[str, ...]:
    return tuple(command.name for command in commands)


def _finding(link: Link, prefix: str, what: str, names: tuple[str, ...]) -> Finding:
    return Finding(
        "E021",
        f"Redis at {link.where} {what}.",
        f"Allow it: redis-cli ACL SETUSER <user> '~{prefix}:*' {' '.join(_quoted(name) for name in names)}. Or undo the rename-command "
        "of redis.conf. All rights that are needed: manage.py delayq settings REDIS",
    )


def _quoted(name: str) -> str:
    return f"'+{name}'" if "|" in name else f"+{name}"
