"""Links to Redis: one private set of connections per process, raw replies, no hidden retries.

The client library repeats a command by itself after a connection error; our scripts are safe under that, but the second answer
is another one (a cancel that this very call has done: "finished"), and a caller who waits must know how long. So a `Link` looks
at a connection before it is used, sends a command once, and then says `StoreUnavailable`. Loops with time of their own call again.
"""

from __future__ import annotations

import contextlib
import os
import re
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

from redis.backoff import NoBackoff
from redis.connection import Connection
from redis.exceptions import AuthenticationError, AuthorizationError, BusyLoadingError, NoScriptError, RedisError, ResponseError
from redis.retry import Retry

from django_delayq import clock
from django_delayq.exceptions import DelayqError, StoreUnavailable
from django_delayq.store.address import RedisSpec, resolve, where
from django_delayq.store.rest import Rest
from django_delayq.store.sentinels import Sentinels


def _plain(command: tuple[Any, ...]) -> bytes:
    """What hiredis packs, for who does without."""
    words = [word if isinstance(word, bytes) else str(word).encode() for word in command]
    return b"*%d\r\n" % len(words) + b"".join([b"$%d\r\n%b\r\n" % (len(word), word) for word in words])


_pack: Callable[[tuple[Any, ...]], bytes]
try:
    from hiredis import pack_command as _pack
except ImportError:
    _pack = _plain

Reply: TypeAlias = Any

# Seconds after which an idle connection is not used again: a firewall may have forgotten it, and would tell only after the send.
IDLE = 30.0
RESTED = 1.0  # seconds after which the Sentinels are asked before it is used
KEPT = 32  # connections that one link keeps open at most; what more threads need at once is opened for the call
HURRIED = 0.25  # seconds that a call may wait when there is no time left
# Replies that say "not now, perhaps later": to the caller the same as a server that cannot be reached. The client turns some
# codes into classes and cuts them off the text; Redis 6.2 puts the code of an error inside a script into the middle of it.
PASSING_CODES = re.compile(r"\b(OOM|READONLY|LOADING|MASTERDOWN|CLUSTERDOWN|MISCONF|NOREPLICAS|TRYAGAIN|BUSY)\b")
CODED = re.compile(r"[A-Z]{3,} ")  # an error with a code of its own, which has a wording of its own; the client cuts off ERR
PASSING_CLASSES = frozenset({"OutOfMemoryError", "ReadOnlyError", "MasterDownError"})
# What only a node of a Redis Cluster says, of where keys lie. No answer about a job: whoever took it for one would give the job up.
# Older clients leave it as it is.
CLUSTER_CODES = re.compile(r"(MOVED|ASK|TRYAGAIN|CLUSTERDOWN|CROSSSLOT) ")
CLUSTER_CLASSES = frozenset({"MovedError", "AskError", "TryAgainError", "ClusterDownError", "ClusterCrossSlotError"})


class StoreError(DelayqError):
    """Redis answered with an error that is no passing trouble: a wrong type, a refused command, a broken script. `reply`: its code
    and what follows, as it came; "" for an error of ours.
    """

    code = "store_error"
    reply = ""


class StoreRefused(StoreUnavailable):
    """Redis answered, at once, that it will not do this now: no memory (`full`), loading, a replica. It can be reached."""

    replica = False
    full = False


class ScriptMissing(StoreError):
    """The server does not have that script: it was restarted, flushed or replaced."""


class Opening(bytes):
    """The first words of commands that begin alike, packed once; it stands for them in a command. `words`: how many they are."""

    words: int

    @classmethod
    def of(cls, *words: Any) -> Opening:
        made = cls(_pack(words).partition(b"\n")[2])
        made.words = len(words)
        return made


class Link:
    """A thread-safe way to send commands to one server.

    `execute` and `execute_many` return raw replies (bytes, int, list, None). Connections are kept in a stack and are never
    shared between processes: after a fork the child begins with an empty one.

    Args:
        factory: makes one unconnected client connection; asks the Sentinels first, if there are any.
        where: the address, for error messages; never with a password.
        sentinels: those that say where the server is. Then no connection is used that leads elsewhere.
    """

    def __init__(self, factory: Callable[[], Connection], where: str, sentinels: Sentinels | None = None) -> None:
        self.factory = factory
        self.where = where
        self._sentinels = sentinels
        self._idle: deque[tuple[Connection, float]] = deque()  # with when it was put there
        self._pid = os.getpid()
        self._deadline: float | None = None
        self.stands_still = False  # its server's time passes only when a test says so: who waits there waits in vain
        self.rest = Rest()

    @property
    def shared(self) -> Link:
        """See `store/places.py`: it is the place of all queues."""
        return self

    def of(self, queue: str) -> Link:
        """See `shared`."""
        return self

    def nodes(self) -> Sequence[Link]:
        """See `shared`."""
        return (self,)

    @property
    def away(self) -> bool:
        """Whether the server could not be reached when it was last called."""
        return self.rest.failed

    def hurry(self, deadline: float) -> None:
        """From now on no call waits beyond `deadline` (monotonic), nor then for more than a moment: for a process that is to end."""
        self._deadline = deadline

    def execute(self, *command: Any) -> Reply:
        """Sends one command and returns its raw reply.

        Raises:
            StoreUnavailable: the server cannot be reached, did not answer in time, or refuses for the time being.
            StoreError: the server answered with another error.
        """
        reply = self.execute_many((command,))[0]
        if isinstance(reply, Exception):
            raise reply
        return reply

    def execute_many(self, commands: Sequence[tuple[Any, ...]]) -> list[Reply]:
        """Sends several commands in one write and returns their replies in order; an error reply stands in its place as an
        exception object (`StoreUnavailable` or `StoreError`).

        Raises:
            StoreUnavailable: as for `execute`.
        """
        return self._receive(self._send(commands), len(commands))

    def start(self, command: tuple[Any, ...]) -> Callable[[], Reply]:
        """Sends one command, and returns a function that waits for its reply: to be called once, and raises as `execute`.

        Raises:
            StoreUnavailable: the server cannot be reached.
        """
        connection = self._send((command,))

        def receive() -> Reply:
            reply = self._receive(connection, 1)[0]
            if isinstance(reply, Exception):
                raise reply
            return reply

        return receive

    def _send(self, commands: Sequence[tuple[Any, ...]]) -> Connection:
        self._after_fork()
        if self.rest.holds:
            raise StoreUnavailable(code="redis_rests", where=self.where)
        connection = self._take() if self._deadline is None else self._hurried(self._deadline)
        try:
            connection.send_packed_command([b"".join(map(_packed, commands))], check_health=False)
        except BaseException as error:
            raise self._broken(connection, error) from error
        return connection

    def _receive(self, connection: Connection, count: int) -> list[Reply]:
        began = clock.monotonic() if self.rest.late else 0.0
        try:
            replies = [self._read(connection) for _ in range(count)]
        except BaseException as error:
            raise self._broken(connection, error) from error
        if self.rest.failed or began:
            self.rest.answered(began)
        for reply in replies:
            if isinstance(reply, StoreRefused) and reply.replica:
                connection.disconnect()  # the address may lead to the new primary by now
                self._forget()
                return replies
        self._keep(connection)
        return replies

    def dedicated(self) -> Connection:
        """A connected connection for one owner that blocks on it (the wake line). The owner disconnects it.

        Raises:
            StoreUnavailable: the server cannot be reached.
        """
        connection = self._made()
        self._let_in(connection)
        return connection

    def leads(self, connection: Connection) -> bool:
        """Whether that connection goes to the server that is meant now, as far as is known: a master may have got a successor."""
        return self._sentinels is None or self._sentinels.lead_to(connection)

    def _made(self) -> Connection:
        try:
            return self.factory()
        except (RedisError, OSError) as error:  # of the Sentinels
            self.rest.begin()
            raise self._unavailable(error) from error

    def _let_in(self, connection: Connection) -> None:
        """Connects, unless it is. What a server answers meanwhile may quote what it was sent, the password: of an answer without a
        code of its own nothing is passed on, nor as the cause.
        """
        refused: StoreUnavailable | None = None
        try:
            connection.connect()
        except BaseException as error:
            refused = self._broken(connection, error)
            if not (type(error) is ResponseError and not CODED.match(str(error))):
                raise refused from error
        if refused is not None:
            raise StoreUnavailable(code="redis_entry", where=self.where, cause="it refused a command by which a client is let in")

    def close(self) -> None:
        """Closes the idle connections. The link may be used again."""
        while self._idle:
            with contextlib.suppress(IndexError):
                _discard(self._idle.pop()[0])

    def _take(self) -> Connection:
        """An idle connection that is still one, or a new one."""
        while True:
            try:
                connection, since = self._idle.pop()
            except IndexError:
                return self.dedicated()
            idle = clock.monotonic() - since
            if idle < IDLE and (self._sentinels is None or self._still_leads(connection, idle)) and _is_quiet(connection):
                return connection
            _discard(connection)

    def _still_leads(self, connection: Connection, idle: float) -> bool:
        """A master that was cut off from its Sentinels takes writes for a while, and forgets them when it is found again. Nobody who
        can reach it hears of that, so they are asked once a second, and before what has rested is used.
        """
        if self._sentinels is not None and max(idle, self._sentinels.told_for) > RESTED:
            self._sentinels.look()
        return self.leads(connection)

    def _hurried(self, deadline: float) -> Connection:
        connection = self._made()
        left = max(HURRIED, deadline - clock.monotonic())
        connection.socket_timeout = min(connection.socket_timeout or left, left)
        connection.socket_connect_timeout = connection.socket_timeout
        self._let_in(connection)
        return connection

    def _keep(self, connection: Connection) -> None:
        """For the next call. What has not been needed for long is closed: the peak of one moment is not held for ever."""
        if self._deadline is not None or (self._sentinels is not None and not self.leads(connection)):
            _discard(connection)
            return
        now = clock.monotonic()
        self._idle.append((connection, now))
        if len(self._idle) > 1:
            with contextlib.suppress(IndexError):  # another thread may take them meanwhile
                while len(self._idle) > KEPT or now - self._idle[0][1] > IDLE:
                    _discard(self._idle.popleft()[0])

    def _after_fork(self) -> None:
        if self._pid != os.getpid():
            self._pid = os.getpid()
            self.close()

    def _read(self, connection: Connection) -> Reply:
        try:
            return connection.read_response()
        except ResponseError as error:
            if isinstance(error, NoScriptError):
                return ScriptMissing(str(error))
            return answered(error, self.where)

    def _broken(self, connection: Connection, error: BaseException) -> StoreUnavailable:
        """What to raise after a call has failed in the middle. What is no error of the connection, such as an interrupt, is raised
        here: it, too, leaves a reply that another call would read.
        """
        _discard(connection)
        if not isinstance(error, (RedisError, OSError)):
            raise error
        self.rest.begin()
        self._forget()
        return self._unavailable(error)

    def _forget(self) -> None:
        """By Sentinel: closes the idle connections. They lead to the same server, and the master may be another by now."""
        if self._sentinels is not None:
            self.close()

    def _unavailable(self, error: Exception) -> StoreUnavailable:
        if isinstance(error, (AuthenticationError, AuthorizationError)):
            code = "redis_login"
        elif isinstance(error, BusyLoadingError):
            code = "redis_loading"
        else:
            code = "redis_away"
        return StoreUnavailable(code=code, where=self.where, cause=_cause(error))


def answered(error: ResponseError, where: str) -> StoreRefused | StoreError:
    """What an error stands for that the server at `where` has answered with."""
    kind, cause = type(error).__name__, _cause(error)
    if kind in CLUSTER_CLASSES or CLUSTER_CODES.match(str(error)):
        return StoreRefused(code="redis_cluster", where=where, cause=cause)
    if kind in PASSING_CLASSES or PASSING_CODES.search(str(error)):
        refused = StoreRefused(code="redis_away", where=where, cause=cause)
        refused.replica = kind == "ReadOnlyError" or "READONLY" in str(error)
        refused.full = kind == "OutOfMemoryError" or "OOM" in str(error)
        return refused
    wrong = StoreError(code="redis_answered", where=where, cause=str(error))
    wrong.reply = str(error)
    return wrong


def _packed(command: tuple[Any, ...]) -> bytes:
    """The client library would look at each argument first, in Python."""
    opening = command[0]
    if not isinstance(opening, Opening):
        return _pack(command)
    rest = _pack(command[1:]).partition(b"\n")[2]
    return b"*%d\r\n%b%b" % (opening.words + len(command) - 1, opening, rest)


def _is_quiet(connection: Connection) -> bool:
    """Whether it is open and nothing waits to be read: the server has not closed it, and no reply of another call is left."""
    try:
        return not connection.can_read(0)
    except (RedisError, OSError):
        return False


def _discard(connection: Connection) -> None:
    with contextlib.suppress(Exception):
        connection.disconnect()


def _cause(error: BaseException) -> str:
    text = str(error).strip().rstrip(".")
    return text or type(error).__name__


def connect(spec: RedisSpec, *, name: str = "delayq", timeout: float = 2.0) -> Link:
    """A link to the server that `DELAYQ["REDIS"]` names. Nothing is sent yet.

    Args:
        spec: alias in CACHES, URL (of Sentinels too), `{"URL": …, "OPTIONS": {…}}`, dotted path of a factory that returns a
            `redis.Redis`, `"embedded"` or `{"EMBEDDED": directory}`.
        name: client name, as `CLIENT LIST` shows it.
        timeout: seconds to wait for a connection, and for a reply.

    Raises:
        ConfigError: the value names nothing that can be connected to.
    """
    connection_class, kwargs = resolve(spec)
    return link_to(connection_class, kwargs, name=name, timeout=timeout)


def link_to(connection_class: type[Connection], kwargs: Mapping[str, Any], *, name: str, timeout: float) -> Link:
    """As `connect`, to what `address.resolve` has found. `name` may be ""."""
    ours = {
        "socket_timeout": timeout,
        "socket_connect_timeout": timeout,
        "client_name": name or None,
        "retry": Retry(NoBackoff(), 0),
        "health_check_interval": 0,
        "decode_responses": False,
        "protocol": 2,
    }
    merged = {**kwargs, **ours}
    sentinels: Sentinels | None = merged.pop("sentinels", None)

    def make() -> Connection:
        place = {} if sentinels is None else dict(zip(("host", "port"), sentinels.ask(), strict=True))
        connection = connection_class(**merged, **place)
        connection.socket_timeout = timeout  # redis-py 5 forgets it on unix sockets, and would wait for ever
        return connection

    return Link(make, where(kwargs), sentinels)
