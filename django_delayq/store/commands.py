"""Every Redis command that the package sends, from Lua and from Python: what needs it, and what happens where a server refuses it.

The rights of the Redis user in the documents are made of this table, and so is the probe (`store/rights.py`). An optional command is
tried once by each process. A server that refuses it is reported once, and the package goes on without the command.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from redis.exceptions import ResponseError

from django_delayq import clock, signals
from django_delayq.store.error_replies import StoreError, cause_of, code_of

AGAIN: Final = 60.0  # seconds after which a refused command is tried again: a person may have allowed it


class Command(NamedTuple):
    """A command as `ACL SETUSER` names it. `instead`: what the package does where it is refused; "" for a command that it needs."""

    name: str
    needs: str
    instead: str = ""

    @property
    def words(self) -> str:
        """As people write it: "CLIENT SETNAME"."""
        return self.name.replace("|", " ").upper()


EVERYTHING: Final = "scripts that move jobs"
READS: Final = "pages, commands and metrics"
COMMANDS: Final = (
    Command("evalsha", EVERYTHING),
    Command("script|load", EVERYTHING),
    Command("time", EVERYTHING),
    Command("info", "the worker's start, restore after a loss of Redis, doctor"),
    Command("client|setname", "names in CLIENT LIST", "Its connections have no name in CLIENT LIST."),
    Command("select", "a database number other than 0"),
    Command("ping", "the worker's start"),
    Command("exists", EVERYTHING),
    Command("hget", EVERYTHING),
    Command("hmget", EVERYTHING),
    Command("hset", EVERYTHING),
    Command("hsetnx", "locks, names"),
    Command("hdel", EVERYTHING),
    Command("hexists", EVERYTHING),
    Command("hincrby", EVERYTHING),
    Command("hlen", READS),
    Command("hscan", "the tidy loop, restore"),
    Command("hgetall", READS),
    Command("zadd", EVERYTHING),
    Command("zrem", EVERYTHING),
    Command("zcard", EVERYTHING),
    Command("zcount", READS),
    Command("zscore", EVERYTHING),
    Command("zmscore", EVERYTHING),
    Command("zrange", EVERYTHING),
    Command("zrangebyscore", EVERYTHING),
    Command("zremrangebyrank", "tombstones of ended jobs"),
    Command("xadd", "events for the mirror"),
    Command("xlen", "events for the mirror"),
    Command("xrange", "the mirror"),
    Command("xread", "event line, line that waits for locks", "It looks for events four times a second, and for locks every second."),
    Command("xtrim", "the mirror"),
    Command("xinfo|stream", "restore after a loss of Redis"),
    Command("blpop", "wake line of idle workers and consumers", "Idle workers and consumers look for due jobs every second."),
    Command("lpush", "calls of idle workers"),
    Command("llen", "calls of idle workers"),
    Command("unlink", "purge, restore"),
    Command("wait", "REPLICAS"),
    Command("bitfield", "figures of the dashboard"),
    Command("setrange", "figures of the dashboard"),
    Command("getrange", "figures of the dashboard"),
)
ON_CLUSTERS: Final = (
    Command("cluster|slots", "the map of the Cluster"),
    Command("cluster|nodes", "doctor", "doctor does not say which masters have no replica."),
    Command("asking", "slots that are being moved"),
)
ON_TARGETS: Final = (
    Command("rpush", "offers to lists"),
    Command("ltrim", "offers to lists"),
)
# The package asks these where it may. The user of the documents may not.
UNLISTED: Final = (
    Command("config|get", "doctor, check --deploy", "Snapshots count as on, and the number of databases is not known."),
    Command("acl|whoami", "doctor", "doctor does not say which dangerous commands the user may send."),
    Command("acl|dryrun", "doctor", "The same."),
    Command("acl|getuser", "doctor, before Redis 7", "The same."),
    Command("xinfo|groups", "metrics of targets", "The metrics have no lag of consumer groups."),
    Command("sentinel|masters", "the hint at the address of a Sentinel", "The hint does not name the masters."),
    Command("sentinel|get-master-addr-by-name", "servers by Sentinel, of which the Sentinels are asked"),
    Command("auth", "a password in REDIS; every user may send it"),
)
BY_NAME: Final = {command.name: command for command in (*COMMANDS, *ON_CLUSTERS, *ON_TARGETS, *UNLISTED)}


def rights(commands: tuple[Command, ...] = COMMANDS) -> str:
    """The rules of `ACL SETUSER` for these commands."""
    return " ".join(f"+{command.name}" for command in commands)


class CommandRefused(StoreError):
    """The server refuses an optional command: a user has no right to it, a proxy does not know it, or it was renamed."""


_refused: dict[tuple[str, str], float] = {}  # until when it is not tried again, by place and command


def is_refused(where: str, name: str) -> bool:
    """Whether the server at `where` refused that optional command a moment ago."""
    return clock.monotonic() < _refused.get((where, name), 0.0)


def refused(where: str, name: str, error: Exception) -> bool:
    """Whether that answer refuses the command itself, and not this call of it. If so, it is not tried for a minute, and
    `command_refused` is sent once. An answer with another code of its own is about the server or a key.
    """
    if not isinstance(error, ResponseError) or code_of(error) not in ("", "NOPERM"):
        return False
    if (where, name) not in _refused:
        command = BY_NAME[name]
        signals.command_refused.send_robust(sender=None, where=where, command=name, cause=_reason(error), instead=command.instead)
    _refused[where, name] = clock.monotonic() + AGAIN
    return True


def forget() -> None:
    """Tries every command again; for tests."""
    _refused.clear()


def _reason(error: ResponseError) -> str:
    """Without what the call was given."""
    return cause_of(error).partition(", with args beginning with")[0]
