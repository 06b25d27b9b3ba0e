"""Links to Redis: one private set of connections per process, raw replies, no hidden retries.

The client library repeats a command by itself after a connection error. Our scripts are safe to repeat, but the second answer
differs: a cancel that this call has just done would return "finished". And a caller that waits must know how long. So a `Link` checks
a connection before use, sends a command once, and then raises `StoreUnavailable`. Loops that have time call again. `FanOut` makes one
pass over several links.
"""

from __future__ import annotations

import contextlib
import os
import re
import select
import socket
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Generic, TypeAlias, TypeVar

from redis.connection import Connection
from redis.exceptions import AuthenticationError, AuthorizationError, BusyLoadingError, NoScriptError, RedisError, ResponseError
from redis.exceptions import ConnectionError as RedisConnectionError

from django_delayq import clock
from django_delayq.exceptions import TEXTS, ConfigError, StoreUnavailable
from django_delayq.store.connection import connection_options
from django_delayq.store.connection.address import RedisSpec, resolve, where
from django_delayq.store.connection.connection_options import unconnected
from django_delayq.store.connection.error_replies import CODED, StoreError, StoreRefused, answered, cause_of, for_callers, is_refusal
from django_delayq.store.connection.sentinels import Sentinels

T = TypeVar("T")
R = TypeVar("R")


def _plain(command: tuple[Any, ...]) -> bytes:
    """The same bytes as hiredis, if hiredis is not installed."""
    words = [word if isinstance(word, bytes) else str(word).encode() for word in command]
    return b"*%d\r\n" % len(words) + b"".join([b"$%d\r\n%b\r\n" % (len(word), word) for word in words])


_pack: Callable[[tuple[Any, ...]], bytes]
try:
    from hiredis import pack_command as _pack
except ImportError:
    _pack = _plain


class Opening(bytes):
    """The first words of commands with the same beginning, packed once. It replaces these words in a command. `words`: the number of
    words.
    """

    words: int

    @classmethod
    def of(cls, *words: Any) -> Opening:
        made = cls(_pack(words).partition(b"\n")[2])
        made.words = len(words)
        return made


def packed(command: tuple[Any, ...]) -> bytes:
    """The command as it is sent."""
    opening = command[0]
    if not isinstance(opening, Opening):
        return _pack(command)
    rest = _pack(command[1:]).partition(b"\n")[2]
    return b"*%d\r\n%b%b" % (opening.words + len(command) - 1, opening, rest)


class Cooldown:
    """The time after a failed call in which further calls fail at once, for threads that must not wait. `seconds`: its length.
    `late`: an answered call that took longer than this also starts it; 0: no answered call does. `failed`: whether the last call
    failed.
    """

    def __init__(self) -> None:
        self.seconds = self.late = 0.0
        self.failed = False
        self._since = 0.0

    @property
    def active(self) -> bool:
        """Whether calls fail at once now."""
        return bool(self._since) and clock.monotonic() - self._since < self.seconds

    def start(self) -> None:
        """Starts the cooldown after a failed call."""
        self.failed = True
        self._since = clock.monotonic()

    def end(self) -> None:
        """Ends the cooldown: the next call is sent again."""
        self._since = 0.0

    def answered(self, began: float) -> None:
        """Notes that a call which began then (monotonic) was answered now."""
        self.failed = False
        self._since = clock.monotonic() if self.late and clock.monotonic() - began > self.late else 0.0


class Wire:
    """A connection that calls use one after the other, with a check before each call. The client's `can_read(0)` does the same check.
    But it makes a new poll object each time, which takes as long as the rest of the client's work for a call. It is still used for
    TLS, which buffers data itself, and for installations without hiredis.
    """

    __slots__ = ("_left_over", "_poll", "connection")

    def __init__(self, connection: Connection) -> None:
        self.connection = connection
        sock: Any = getattr(connection, "_sock", None)
        self._left_over: Callable[[], bool] | None = None
        self._poll: Callable[[int], Any] | None = None
        with contextlib.suppress(AttributeError):  # another version of the client, or a system without poll
            if type(sock) is socket.socket:
                poll = select.poll()
                poll.register(sock, select.POLLIN)
                self._left_over, self._poll = connection._parser._reader.has_data, poll.poll

    def is_quiet(self) -> bool:
        """Whether the connection is open and there is nothing to read: the server has not closed it, and no reply of another call is
        left.
        """
        if self._left_over is not None and self._poll is not None:
            return not self._left_over() and not self._poll(0)
        try:
            return not self.connection.can_read(0)
        except (RedisError, OSError):
            return False

    def discard(self) -> None:
        """Closes it."""
        with contextlib.suppress(Exception):
            self.connection.disconnect()


Reply: TypeAlias = Any

# Seconds after which an idle connection is not used again. A firewall may have dropped it, and that would show only after the send.
IDLE = 30.0
RESTED = 1.0  # seconds without an answer from the Sentinels, or without use, after which they are asked before the connection is used
KEPT = 32  # the most idle connections of one link; if more threads need one at once, a connection is opened for the call
HURRIED = 0.25  # seconds that a call may wait when there is no time left
# Replies that the client raises as connection errors. The server has not run the command.
NOT_LET_IN = (AuthenticationError, AuthorizationError, BusyLoadingError)
TOO_MANY_CLIENTS = "max number of clients reached"  # the client also compares this text, and has no class for this error
# "unknown command 'AUTH', with args beginning with: …": the text after the name may contain the password.
UNKNOWN_COMMAND = re.compile(r"unknown command ['`]?(AUTH|HELLO|SELECT)\b", re.IGNORECASE)


class ScriptMissing(StoreError):
    """The server of the link `at` does not have that script: it was restarted, flushed or replaced."""

    at: Link


class Link:
    """A thread-safe way to send commands to one server.

    `execute` and `execute_many` return raw replies (bytes, int, list, None). Connections are kept in a stack and are never shared
    between processes: after a fork the child begins with an empty one.

    Args:
        factory: makes one unconnected client connection; asks the Sentinels first, if there are any.
        where: the address, for error messages; never with a password.
        sentinels: the Sentinels that report the address of the server. A connection to another address is then not used.
    """

    def __init__(self, factory: Callable[[], Connection], where: str, sentinels: Sentinels | None = None) -> None:
        self.factory = factory
        self.where = where
        self.home = where  # or the address of its Cluster: a key exists once at this address, and the address does not change
        self._sentinels = sentinels
        self._idle: deque[tuple[Wire, float]] = deque()  # each with the time when it was put there
        self._pid = os.getpid()
        self._deadline: float | None = None
        self._longest = 0.0
        self.stands_still = False  # only a test moves the time of its server, so nothing may wait there
        self.cooldown = Cooldown()
        connection_options.LINKS.add(self)

    moves = False  # whether the next call may go to another server
    misplaced = "redis_cluster"  # the code of an error if a node of a Cluster redirects a call, or serves no keys now

    @property
    def server(self) -> Link:
        """The link to the server that it leads to now. Use it to compare servers."""
        return self

    @property
    def met(self) -> Link:
        """Like `server`, but sends no request. If the server is not known, returns a link that represents all servers of the place."""
        return self

    @property
    def shared(self) -> Link:
        """See `store/connection/places.py`: this link is the place of all queues."""
        return self

    def of(self, queue: str, partition: int) -> Link:
        """See `shared`."""
        return self

    on_shared = of

    def beside(self, key: str) -> Link:
        """A link to a foreign key on the same server or in the same Cluster: this link, if one script may use both."""
        return self

    def nodes(self, queue: str = "") -> Sequence[Link]:
        """See `shared`."""
        return (self,)

    @property
    def away(self) -> bool:
        """Whether the server could not be reached when it was last called."""
        return self.cooldown.failed

    def set_cooldown(self, seconds: float, late: float = 0.0, longest: float = 0.0) -> None:
        """Makes calls fail at once for `seconds` after a call that failed, or that took longer than `late`; see `Cooldown`.
        `longest`: the most seconds that a call waits, if that is less than the timeout of the link; 0: no other limit.
        """
        self.cooldown.seconds, self.cooldown.late = seconds, late
        self._longest = longest

    def hurry(self, deadline: float) -> None:
        """From now on no call waits beyond `deadline` (monotonic). After the deadline a call waits only a moment. For a process that
        is about to end.
        """
        self._deadline = deadline

    def execute(self, *command: Any) -> Reply:
        """Sends one command and returns its raw reply.

        Raises:
            StoreUnavailable: the server cannot be reached, did not answer in time, or refuses for the time being.
            StoreError: the server answered with another error.
        """
        return self.ask(command)[0]

    def ask(self, *commands: tuple[Any, ...]) -> list[Reply]:
        """Like `execute_many`, but raises the first error reply.

        Raises:
            StoreUnavailable, StoreError: as for `execute`.
        """
        replies = self.execute_many(commands)
        for reply in replies:
            if isinstance(reply, Exception):
                raise reply
        return replies

    def execute_many(self, commands: Sequence[tuple[Any, ...]]) -> list[Reply]:
        """Sends several commands in one write and returns their replies in order. An error reply is returned as an exception object
        (`StoreUnavailable` or `StoreError`) in its place.

        Raises:
            StoreUnavailable: as for `execute`.
        """
        return self._receive(self._send(commands), len(commands))

    def start(self, *commands: tuple[Any, ...]) -> Callable[[], list[Reply]]:
        """Like `execute_many`, but only sends the commands. Returns a function that waits for their replies; call it once.

        Raises:
            StoreUnavailable: the server cannot be reached.
        """
        wire = self._send(commands)
        return lambda: self._receive(wire, len(commands))

    def _send(self, commands: Sequence[tuple[Any, ...]]) -> Wire:
        if self._pid != os.getpid():
            self._pid = os.getpid()
            self.close()
        if self.cooldown.seconds and self.cooldown.active:
            raise cooling_down(self.where)
        wire = self._take() if self._deadline is None else self._hurried(self._deadline)
        try:
            sent = packed(commands[0]) if len(commands) == 1 else b"".join(map(packed, commands))
            wire.connection.send_packed_command((sent,), check_health=False)
        except BaseException as error:
            raise self._broken(wire, error) from error
        return wire

    def _receive(self, wire: Wire, count: int) -> list[Reply]:
        began = clock.monotonic() if self.cooldown.late else 0.0
        replies: list[Reply] = []
        demoted = False
        try:
            while len(replies) < count:
                try:
                    replies.append(wire.connection.read_response())
                except ResponseError as error:
                    answer = self._answered(error)
                    demoted = demoted or (isinstance(answer, StoreRefused) and answer.replica)
                    replies.append(answer)
        except BaseException as error:
            refused_all = not replies and (isinstance(error, NOT_LET_IN) or str(error) == TOO_MANY_CLIENTS)
            raise self._broken(wire, error, nothing_done=refused_all) from error
        if self.cooldown.failed or began:
            self.cooldown.answered(began)
        if demoted:
            wire.discard()  # the address may lead to the new primary by now
            self._forget()
        else:
            self._keep(wire)
        return replies

    def _answered(self, error: ResponseError) -> ScriptMissing | StoreRefused | StoreError:
        if not isinstance(error, NoScriptError):
            return answered(error, self.where, self.misplaced)
        missing = ScriptMissing(str(error))
        missing.at = self
        return missing

    def dedicated(self) -> Connection:
        """A connected connection for one owner that blocks on it (the wake line). The owner disconnects it.

        Raises:
            StoreUnavailable: the server cannot be reached.
        """
        connection = self._made()
        self._let_in(connection)
        return connection

    def leads(self, connection: Connection) -> bool:
        """Whether that connection leads to the current server, as far as is known. A master may have been replaced."""
        return self._sentinels is None or self._sentinels.master == (connection.host, int(connection.port))

    def heard(self, error: Exception) -> None:
        """Receives an error reply from a connection that has its own owner. The reply may show that the server has moved."""

    def _made(self) -> Connection:
        try:
            made = self.factory()
        except (RedisError, OSError) as error:  # from the Sentinels
            self.cooldown.start()
            raise self._unavailable(error, nothing_done=True) from error
        if self._longest:
            _shorten(made, self._longest)
        return made

    def _let_in(self, connection: Connection) -> None:
        """Connects, unless the connection is open. The reply of a server at this point may quote the password. If a reply has no code
        of its own, its text is not passed on, not even as the cause.
        """
        failure: StoreUnavailable | None = None
        try:
            connection.connect()
        except BaseException as error:
            failure = self._broken(Wire(connection), error, nothing_done=True)
            if not (type(error) is ResponseError and not CODED.match(str(error))):
                raise failure from error
            found = UNKNOWN_COMMAND.match(str(error))
            command = f"the command {found[1].upper()}" if found else "AUTH or SELECT, which clients send when they connect"
        if failure is not None:
            entry = StoreUnavailable(code="redis_entry", where=self.where, cause=f"it refused {command}")
            entry.nothing_done = True
            raise entry

    def close(self) -> None:
        """Closes the idle connections. The link may be used again."""
        while self._idle:
            with contextlib.suppress(IndexError):
                self._idle.pop()[0].discard()

    def _take(self) -> Wire:
        """An idle connection that is still usable, or a new one."""
        while True:
            try:
                wire, since = self._idle.pop()
            except IndexError:
                return Wire(self.dedicated())
            idle = clock.monotonic() - since
            if idle < IDLE and (self._sentinels is None or self._still_leads(wire.connection, idle)) and wire.is_quiet():
                return wire
            wire.discard()

    def _still_leads(self, connection: Connection, idle: float) -> bool:
        """Whether the connection still leads to the master. A master that was cut off from its Sentinels accepts writes for a while,
        and forgets them when it is found again. A client that can reach it does not notice. So the Sentinels are asked once a second,
        and before a connection is used that was idle for longer.
        """
        if self._sentinels is not None and max(idle, self._sentinels.told_for) > RESTED:
            self._sentinels.look()
        return self.leads(connection)

    def _hurried(self, deadline: float) -> Wire:
        connection = self._made()
        _shorten(connection, max(HURRIED, deadline - clock.monotonic()))
        self._let_in(connection)
        return Wire(connection)

    def _keep(self, wire: Wire) -> None:
        """Keeps the connection for the next call. Connections that have been idle for long are closed, so that a short peak does not
        keep many open.
        """
        if self._deadline is not None or (self._sentinels is not None and not self.leads(wire.connection)):
            wire.discard()
            return
        now = clock.monotonic()
        self._idle.append((wire, now))
        if len(self._idle) > 1:
            with contextlib.suppress(IndexError):  # another thread may take connections meanwhile
                while len(self._idle) > KEPT or now - self._idle[0][1] > IDLE:
                    self._idle.popleft()[0].discard()

    def _broken(self, wire: Wire, error: BaseException, *, nothing_done: bool = False) -> StoreUnavailable:
        """Returns the error of a call that failed halfway. `nothing_done`: the call failed before anything was sent or executed.
        Other errors, such as an interrupt, are raised here: they also leave a reply that another call would read.
        """
        wire.discard()
        if not isinstance(error, (RedisError, OSError)):
            raise error
        self.cooldown.start()
        self._forget()
        return self._unavailable(error, nothing_done=nothing_done)

    def _forget(self) -> None:
        """With Sentinels, closes the idle connections. They lead to the same server, and the master may be another one by now."""
        if self._sentinels is not None:
            self.close()

    def _unavailable(self, error: Exception, *, nothing_done: bool = False) -> StoreUnavailable:
        fields: dict[str, Any] = {"where": self.where, "cause": cause_of(error)}
        if isinstance(error, ResponseError):  # an error of the commands that a client sends when it connects
            answer = answered(error, self.where, self.misplaced)
            made = for_callers(answer) if isinstance(answer, StoreError) else answer
        elif isinstance(error, (AuthenticationError, AuthorizationError)):
            made = StoreUnavailable(code="redis_login", **fields)
        elif isinstance(error, BusyLoadingError):
            made = StoreUnavailable(code="redis_loading", **fields)
        elif isinstance(error, RedisConnectionError) and str(error) == TOO_MANY_CLIENTS:
            made = StoreUnavailable(code="redis_clients", **fields)
        else:
            text = (TEXTS["redis_unreached"].format(**fields),) if nothing_done else ()
            made = StoreUnavailable(*text, code="redis_away", **fields)
        made.nothing_done = nothing_done
        return made


def cooling_down(where: str) -> StoreUnavailable:
    """The error of a call that was not sent, because the server at `where` did not answer a moment ago."""
    error = StoreUnavailable(code="redis_cooldown", where=where)
    error.nothing_done = True
    return error


def _shorten(connection: Connection, seconds: float) -> None:
    connection.socket_timeout = min(connection.socket_timeout or seconds, seconds)
    connection.socket_connect_timeout = connection.socket_timeout


def connect(spec: RedisSpec, *, name: str = "delayq", timeout: float = 2.0) -> Link:
    """A link to the server that `DELAYQ["REDIS"]` names. This sends nothing.

    Args:
        spec: alias in CACHES, URL (of Sentinels too), `{"URL": …, "OPTIONS": {…}}`, dotted path of a factory that returns a
            `redis.Redis`, `"embedded"` or `{"EMBEDDED": directory}`.
        name: client name, as `CLIENT LIST` shows it.
        timeout: seconds to wait for a connection, and for a reply.

    Raises:
        ConfigError: the value does not lead to a server; or it leads to a Cluster, see `places.place`.
    """
    connection_class, kwargs = resolve(spec)
    if "cluster" in kwargs:
        raise ConfigError(
            'DELAYQ["REDIS"] refers to a Redis Cluster, but this operation requires a single server.',
            hint='Use a server that is not part of a Cluster, such as redis://host:6379/1, or "embedded".',
        )
    return link_to(connection_class, kwargs, name=name, timeout=timeout)


def link_to(connection_class: type[Connection], kwargs: Mapping[str, Any], *, name: str, timeout: float) -> Link:
    """Like `connect`, for the result of `address.resolve`. `name` may be ""."""
    sentinels: Sentinels | None = kwargs.get("sentinels")
    rest = {key: value for key, value in kwargs.items() if key != "sentinels"}

    def make() -> Connection:
        place = {} if sentinels is None else dict(zip(("host", "port"), sentinels.ask(), strict=True))
        return unconnected(connection_class, {**rest, **place}, name=name, timeout=timeout, where=place_name)

    place_name = where(kwargs)
    return Link(make, place_name, sentinels)


@dataclass
class FanOut(Generic[T]):
    """One pass over jobs, queues or partitions, which may be on several servers. If a server does not answer, the pass does not call it
    again, and the others go on. A call waits for a refusal to pass, so each refusal costs time. The first one may concern only one
    slot of a Cluster, which is moving to another server, while the other slots work. So the pass leaves out a link that was refused,
    and all links of a server that refused two of them.

    `errors`: the last error of each server. `missed`: the items that were not reached on each server.
    """

    errors: dict[Link, StoreUnavailable] = field(default_factory=dict)
    missed: dict[Link, list[T]] = field(default_factory=dict)
    _silent: set[Link] = field(default_factory=set)

    def each(
        self, items: Iterable[T], link_of: Callable[[T], Link | None], call: Callable[[T], R]
    ) -> Iterator[tuple[T, R | StoreUnavailable]]:
        """Yields each item with the result of its call, or with the error of its server. `link_of`: None if the server is unknown."""
        for item in items:
            link = link_of(item)
            server = link and link.server  # before the call: after it, the link may lead to the successor
            error = self.errors.get(server) if server and (link in self._silent or server in self._silent) else None
            if error is None:
                try:
                    result = call(item)
                except StoreUnavailable as unavailable:
                    error = unavailable
                    if link and server:
                        if not is_refusal(error):  # which is about one queue: the server works
                            alone = isinstance(error, StoreRefused) and server not in self.errors
                            self._silent.add(link if alone else server)
                        self.errors[server] = error
                else:
                    yield item, result
                    continue
            if server:
                self.missed.setdefault(server, []).append(item)
            yield item, error

    def raise_first(self) -> None:
        """Raises the error of the first server that was not reached."""
        for error in self.errors.values():
            raise error
