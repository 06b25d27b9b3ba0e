"""Every Redis command that the package sends, from Lua and from Python: what needs it, and what happens where a server refuses it.

The table of Redis rights in the documentation and the probe (`store/reads/fitness.py`) are made from this table. Each process tries an
optional command once. If a server refuses it, the process reports that once and continues without the command.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from redis.exceptions import ResponseError

from django_delayq import clock, signals
from django_delayq.store.connection.error_replies import StoreError, cause_of, code_of

AGAIN: Final = 60.0  # seconds after which a refused command is tried again: a person may have allowed it


class Command(NamedTuple):
    """A command as `ACL SETUSER` names it. `needs`: what needs it. `trial`: how the probe tries it, see probe.lua; "" where it is tried
    by being used. `instead`: what the package does where it is refused; "" for a command that it needs.
    """

    name: str
    needs: str
    trial: str = ""
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
    Command("time", EVERYTHING, "TIME"),
    Command("info", "the worker's start, restore after a loss of Redis, doctor", "INFO server"),
    Command("client|setname", "names in CLIENT LIST", instead="Its connections have no name in CLIENT LIST."),
    Command("select", "a database number other than 0"),
    Command("ping", "the worker's start", "PING"),
    Command("exists", EVERYTHING, "EXISTS @hash"),
    Command("hget", EVERYTHING, "HGET @hash a"),
    Command("hmget", EVERYTHING, "HMGET @hash a"),
    Command("hset", EVERYTHING, "HSET @hash a 1"),
    Command("hsetnx", "locks, names", "HSETNX @hash a 1"),
    Command("hdel", EVERYTHING, "HDEL @hash b"),
    Command("hexists", EVERYTHING, "HEXISTS @hash a"),
    Command("hincrby", EVERYTHING, "HINCRBY @hash a 1"),
    Command("hlen", READS, "HLEN @hash"),
    Command("hscan", "the tidy loop, restore", "HSCAN @hash 0"),
    Command("hgetall", READS, "HGETALL @hash"),
    Command("zadd", EVERYTHING, "ZADD @zset 1 a"),
    Command("zrem", EVERYTHING, "ZREM @zset b"),
    Command("zcard", EVERYTHING, "ZCARD @zset"),
    Command("zcount", READS, "ZCOUNT @zset 0 1"),
    Command("zlexcount", READS, "ZLEXCOUNT @zset [a [b"),
    Command("zscore", EVERYTHING, "ZSCORE @zset a"),
    Command("zmscore", EVERYTHING, "ZMSCORE @zset a"),
    Command("zrange", EVERYTHING, "ZRANGE @zset 0 0"),
    Command("zrangebyscore", EVERYTHING, "ZRANGEBYSCORE @zset 0 1"),
    Command("zremrangebyrank", "tombstones of ended jobs", "ZREMRANGEBYRANK @zset 9 9"),
    Command("xadd", "events for the mirror", "XADD @stream * a 1"),
    Command("xlen", "events for the mirror", "XLEN @stream"),
    Command("xrange", "the mirror", "XRANGE @stream - +"),
    Command(
        "xread", "event line, line that waits for locks", instead="It looks for events four times a second, and for locks every second."
    ),
    Command("xtrim", "the mirror", "XTRIM @stream MAXLEN 1"),
    Command("xinfo|stream", "restore after a loss of Redis", "XINFO STREAM @stream"),
    Command("blpop", "wake line of idle workers and consumers", instead="Idle workers and consumers look for due jobs every second."),
    Command("lpush", "calls of idle workers", "LPUSH @list 1"),
    Command("llen", "calls of idle workers", "LLEN @list"),
    Command("unlink", "purge, restore", "UNLINK @hash @zset @stream @list @text"),
    Command("wait", "REPLICAS"),
    Command("bitfield", "figures of the dashboard", "BITFIELD @text SET u8 0 1"),
    Command("setrange", "figures of the dashboard", "SETRANGE @text 0 a"),
    Command("getrange", "figures of the dashboard", "GETRANGE @text 0 0"),
)
ON_CLUSTERS: Final = (
    Command("cluster|slots", "the map of the Cluster"),
    Command("cluster|nodes", "doctor", instead="doctor does not say which masters have no replica."),
    Command("asking", "slots that are being moved"),
)
ON_TARGETS: Final = (
    Command("rpush", "offers to lists"),
    Command("ltrim", "offers to lists"),
)
NO_RISKS: Final = "doctor does not say which dangerous commands the user may send."
# The package sends these if the user may. The user in the documents may not.
UNLISTED: Final = (
    Command("config|get", "doctor, check --deploy", instead="Snapshots count as on, and the number of databases is not known."),
    Command("acl|whoami", "doctor", instead=NO_RISKS),
    Command("acl|dryrun", "doctor", instead=NO_RISKS),
    Command("acl|getuser", "doctor, before Redis 7", instead=NO_RISKS),
    Command("xinfo|groups", "metrics of targets", instead="The metrics have no lag of consumer groups."),
    Command("sentinel|masters", "the hint at the address of a Sentinel", instead="The hint does not name the masters."),
    Command("sentinel|get-master-addr-by-name", "REDIS by Sentinel; it is sent to the Sentinels"),
    Command("lrange", "django_delayq.testing, to read what was offered to a list"),
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
    `command_refused` is sent once. An answer with another code is about the server or a key.
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
