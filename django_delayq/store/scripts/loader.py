"""Loads the Lua scripts. The header of a script is its contract and its interface: `-- keys:` names the keys it takes, in order, and
`-- include:` the pieces that it uses. The loader turns the first into `local k_<name> = KEYS[n]` and puts the pieces before the body.
"""

from __future__ import annotations

import hashlib
import pkgutil
import re
from collections.abc import Callable, Sequence
from functools import cache, partial
from typing import Any, Final, NamedTuple, TypeVar, cast
from uuid import UUID

from django_delayq import ids
from django_delayq.exceptions import DelayqError
from django_delayq.store.connection.error_replies import StoreError
from django_delayq.store.connection.link import Link, ScriptMissing
from django_delayq.store.keys import NAMES, Keys
from django_delayq.store.scripts import decode, formats, site

T = TypeVar("T")
REPEATS: Final = 6  # a queue gets its id once; the server may forget a script again between its load and its call
ACCEPTS: Final = {"inspect": "none", "counts": "none", "assign": "any"}  # a queue without an id, or of any site; see begin.lua


class Script(NamedTuple):
    """One Lua file, ready to be sent: its text, its SHA-1 as Redis knows it, and the short names of its keys."""

    name: str
    text: str
    sha: str
    keys: tuple[str, ...]


def _read(path: str) -> str:
    return cast(bytes, pkgutil.get_data("django_delayq.store", f"lua/{path}")).decode()


def _header(text: str, field: str) -> tuple[str, ...]:
    found = re.search(rf"^-- {field}: (.+)$", text, re.MULTILINE)
    return tuple(found[1].split()) if found else ()


def load(name: str, keys: Keys) -> Script:
    """The script of that name for the site of these keys.

    Raises:
        SiteRefused: the database does not tell which site this is.
        StoreError: the header names a key that `keys.py` does not know.
    """
    return built(name, site.of(keys.prefix))


@cache
def built(name: str, own: str) -> Script:
    """The script with its includes; read once per process and site."""
    body = _read(f"{name}.lua")
    keys = _header(body, "keys")
    strangers = [key for key in keys if key not in NAMES]
    if strangers:
        raise StoreError(f"lua/{name}.lua names the key {strangers[0]!r}, which store/keys.py does not know.")
    lines = [f"local k_{key} = KEYS[{number}]" for number, key in enumerate(keys, 1)]
    lines.append(f"local FORMAT, SEEN = {formats.FORMAT}, 'seen:{formats.FORMAT}'")
    lines.append(f"local SITE, ACCEPTS = '{own}', '{ACCEPTS.get(name, '')}'")
    lines += [_read(f"include/{piece}.lua") for piece in _header(body, "include")]
    text = "\n".join([*lines, body])
    return Script(name=name, text=text, sha=hashlib.sha1(text.encode(), usedforsecurity=False).hexdigest(), keys=keys)


def run(link: Link, script: Script, keys: Keys, *arguments: Any, beside: str = "") -> Any:
    """Runs a script: EVALSHA, and SCRIPT LOAD first if the server does not have it (restarted, flushed, failed over). `beside`: a
    foreign key, which follows our keys.

    Raises:
        StoreUnavailable, StoreError: as `Link.execute`.
        FormatNewer: the queue has a newer format than this process knows.
        SiteRefused: the queue belongs to another site.
    """
    return value(run_each(link, script, keys, [arguments], beside=beside)[0])


def run_each(link: Link, script: Script, keys: Keys, calls: Sequence[tuple[Any, ...]], *, beside: str = "") -> list[Any]:
    """Runs a script once for each of these arguments, in one write. Returns the replies in order. The error reply of a call is returned
    in its place.

    Raises: as `run`, if an error concerns all calls.
    """
    opening = keys.opening(script.sha, script.keys, beside)
    commands = [(opening, *arguments) for arguments in calls]
    return _completed(link.execute_many(commands), link, script, keys, commands, len(commands))


def start(link: Link, script: Script, keys: Keys, *arguments: Any) -> Callable[[], Any]:
    """Like `run`, but only sends the call. Returns a function that waits for its reply; call it once."""
    answer = start_each(link, script, keys, [arguments])
    return lambda: value(answer()[0])


def start_each(
    link: Link, script: Script, keys: Keys, calls: Sequence[tuple[Any, ...]], *after: tuple[Any, ...]
) -> Callable[[], list[Any]]:
    """Like `run_each`, but only sends the calls, and the commands `after` them in the same write. Returns a function that waits for all
    their replies; call it once.
    """
    opening = keys.opening(script.sha, script.keys)
    commands = [*((opening, *arguments) for arguments in calls), *after]
    receive = link.start(*commands)
    return lambda: _completed(receive(), link, script, keys, commands, len(calls))


def value(reply: T | Exception) -> T:
    """The reply, if it is no error.

    Raises:
        StoreUnavailable, StoreError: it is.
    """
    if isinstance(reply, Exception):
        raise reply
    return reply


def _completed(
    replies: list[Any], link: Link, script: Script, keys: Keys, commands: Sequence[tuple[Any, ...]], calls: int
) -> list[Any]:
    """Repeats those of the first `calls` commands whose script could not begin, after the server has the script, or the queue has
    the id of this site. The commands after them are sent again, too.
    """
    for _ in range(REPEATS):
        left = [number for number in range(calls) if isinstance(replies[number], StoreError) and _cause(replies[number])]
        if not left:
            break
        again = [*left, *range(calls, len(commands))]
        try:
            _remove_cause(replies[left[0]], link, script, keys)
            repeated = link.execute_many([commands[number] for number in again])
        except DelayqError as error:
            if len(left) == calls:
                raise
            repeated = [error] * len(again)  # the other calls have been executed: their replies must not be lost
        for number, reply in zip(again, repeated, strict=True):
            replies[number] = reply
    return replies


def _cause(error: StoreError) -> str:
    """Why a script has not begun: "" if it has, or if a repeat would not help."""
    if isinstance(error, ScriptMissing):
        return "missing"
    code = error.reply.partition(" ")[0]
    return code if code in (formats.REFUSED, site.REFUSED) else ""


def _remove_cause(error: StoreError, link: Link, script: Script, keys: Keys) -> None:
    """Loads the script, or gives the queue the id of this site.

    Raises:
        FormatNewer, SiteRefused: see `run`.
    """
    if isinstance(error, ScriptMissing):
        error.at.cooldown.end()  # the server has answered, if late; the cooldown would prevent the load
        error.at.execute("SCRIPT", "LOAD", script.text)
        error.at.cooldown.end()
        return
    code, _, told = error.reply.partition(" ")
    if code == formats.REFUSED:
        raise formats.FormatNewer(keys.queue, formats.number(told)) from error
    link.cooldown.end()
    _begin(link, keys, told)


def _begin(link: Link, keys: Keys, found: str) -> None:
    """Gives a queue without an id the id of this site. `found`: the id that a script has found there, "" for none.

    Raises:
        SiteRefused: the queue belongs to another site, or may belong to one.
        FormatNewer: the database knows a newer format of the queue than this process does.
    """
    site.check(keys.prefix, keys.queue, link.home, found)
    # A part that its owner has not touched yet also belongs to the site of the workers and of the first partition. If these are on
    # another server, or cannot be read, they decide nothing.
    queues = (site.WORKERS, keys.queue)
    owners = link.execute_many([("HGET", Keys.of(keys.prefix, queue, 0)["meta"], "site") for queue in queues])
    link.cooldown.end()
    for queue, owner in zip(queues, owners, strict=True):
        if not isinstance(owner, Exception):
            site.check(keys.prefix, queue, link.home, decode.text(owner))
    place = keys.prefix, keys.queue, keys.partition, link.home
    format = formats.FORMAT
    if keys.jobs and place not in site.verified:
        known = partial(site.partition_facts, keys.queue, keys.partition)
        facts = known()
        site.check_address(keys.prefix, keys.queue, link.home, facts, partial(known, apart=True))
        if facts is not None and facts.address:  # the queue has been in Redis before
            formats.check(keys.queue, facts.format)
            format = facts.format
    [assigned, _] = run(link, load("assign", keys), keys, "", "", "", "", "", "", format)
    link.cooldown.end()
    site.check(keys.prefix, keys.queue, link.home, decode.text(assigned))
    site.verified.add(place)


MOST_SAID: Final = 2048  # bytes of an actor or a reason: an event contains both, and a pause is read in every look at the queue


def head(now_ms: int | str | None, by: str, why: str) -> tuple[int | str, bytes, bytes]:
    """The first three arguments of every script. `now_ms` None: Redis' own clock. "!": that clock, and the script notes the caller's
    format. Actor and reason are cut at 2 KB.
    """
    return "" if now_ms is None else now_ms, _said(by) if by else b"", _said(why) if why else b""


def _said(text: str) -> bytes:
    raw = text.encode("utf-8", "replace")
    if len(raw) <= MOST_SAID:
        return raw
    return raw[: MOST_SAID - 3].decode("utf-8", "ignore").encode() + "…".encode()  # no character is cut in two


def target(job: UUID | str) -> str:
    """The argument of a script for a job: its id, or its business key as text."""
    return ids.short(job) if isinstance(job, UUID) else "=" + job
