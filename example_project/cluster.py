"""A Cluster of three masters and three replicas of Valkey on this machine, for `make demo-cluster`, which kills and restarts masters.
Each new Cluster deletes the data of the last one.
"""

import contextlib
import random
import shutil
import signal
import socket
import subprocess
import time
from pathlib import Path

import redis

from django_delayq.store.connection.embedded import server_program

SLOTS = 16_384
MASTERS = 3
BUS = 10_000  # a node adds this to its port for the cluster bus
PORTS = range(16_000, 20_000)  # with their buses below 32,768, from where on the system lends ports to connections
NODE_TIMEOUT_MS = 2000  # a master that does not answer for so long is given up
PATIENCE = 60  # seconds to wait until the nodes agree
_lots = iter(random.sample(PORTS, len(PORTS)))


class NotSo(Exception):
    """The nodes have not reached the expected state."""


class Node:
    """One server. It keeps its port and its data when it is killed and started again."""

    def __init__(self, folder):
        self.folder = folder
        self.port = free_port()
        self.process = None

    def start(self):
        self.folder.mkdir(parents=True, exist_ok=True)
        options = {
            "port": self.port,
            "bind": "127.0.0.1",
            "dir": self.folder,
            "cluster-enabled": "yes",
            "cluster-node-timeout": NODE_TIMEOUT_MS,
            "cluster-require-full-coverage": "no",  # one master that is away stops its own queues, and no others
            "appendonly": "yes",
            "save": "",
            "maxmemory-policy": "noeviction",
        }
        words = [word for name, value in options.items() for word in (f"--{name}", str(value))]
        with open(self.folder / "node.log", "ab") as log:
            self.process = subprocess.Popen([server_program(), *words], stdout=log, stderr=log, start_new_session=True)
        wait(self.answers, f"the node on port {self.port} does not answer")

    def kill(self):
        """Kills it, as a power failure does."""
        self.process.kill()
        self.process.wait(10)

    def stop(self):
        if self.process is not None and self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
            with contextlib.suppress(subprocess.TimeoutExpired):
                self.process.wait(10)
                return
            self.kill()

    def call(self, *words):
        with contextlib.closing(redis.Redis(port=self.port, socket_timeout=2, decode_responses=True)) as client:
            return client.execute_command(*words)

    def answers(self):
        try:
            return bool(self.call("PING"))
        except redis.RedisError:
            return False

    def facts(self):
        """The facts that the node reports, such as `role` and `master_link_status`. Empty if it does not answer."""
        try:
            return self.call("INFO", "replication")
        except redis.RedisError:
            return {}

    def well(self):
        """Whether it finds all slots served."""
        try:
            return "cluster_state:ok" in self.call("CLUSTER", "INFO")
        except redis.RedisError:
            return False


class Cluster:
    """Three masters, each with a replica. Use it in a `with`: its servers end with that."""

    def __init__(self, folder):
        shutil.rmtree(folder, ignore_errors=True)
        self.nodes = [Node(Path(folder) / f"node-{number + 1}") for number in range(2 * MASTERS)]

    @property
    def url(self):
        """As a project writes it into its settings."""
        return "redis+cluster://" + ",".join(f"127.0.0.1:{node.port}" for node in self.nodes)

    def __enter__(self):
        try:
            for node in self.nodes:
                node.start()
            self.form()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_):
        for node in self.nodes:
            node.stop()

    def form(self):
        """Gives a third of the slots to each of the first three, and a replica to each of these."""
        masters, replicas = self.nodes[:MASTERS], self.nodes[MASTERS:]
        for number, node in enumerate(masters):
            first, last = SLOTS * number // MASTERS, SLOTS * (number + 1) // MASTERS - 1
            node.call("CLUSTER", "ADDSLOTSRANGE", first, last)
            node.call("CLUSTER", "SET-CONFIG-EPOCH", number + 1)
        for node in self.nodes[1:]:
            self.nodes[0].call("CLUSTER", "MEET", "127.0.0.1", node.port)
        wait(lambda: all(node.well() for node in self.nodes), "the nodes do not find each other")
        for master, replica in zip(masters, replicas, strict=True):
            known = master.call("CLUSTER", "MYID")
            wait(lambda of=known, by=replica: follows(by, of), "a replica does not find its master")
        wait(self.whole, "the replicas do not follow")

    def masters(self):
        return [node for node in self.nodes if node.facts().get("role") == "master"]

    def whole(self):
        """Whether three replicas are in sync with three masters."""
        facts = [node.facts() for node in self.nodes]
        followers = [fact for fact in facts if fact.get("role") == "slave" and fact.get("master_link_status") == "up"]
        return len(followers) == MASTERS and all(node.well() for node in self.nodes)

    def lose(self, node):
        """Kills the master, waits until a replica takes over, and starts the node again as a replica. Returns how many seconds there
        was no master.
        """
        others = [one for one in self.nodes if one is not node]
        began = time.monotonic()
        node.kill()
        wait(lambda: sum(one.facts().get("role") == "master" for one in others) == MASTERS, "no replica took the place of a master")
        wait(lambda: all(one.well() for one in others), "the Cluster does not come to itself")
        took = time.monotonic() - began
        node.start()
        wait(self.whole, "the killed master does not come back as a replica")
        return took


def follows(replica, master_id):
    """Makes it the replica of that master; False while it has not heard of it."""
    try:
        replica.call("CLUSTER", "REPLICATE", master_id)
    except redis.ResponseError:
        return False
    return True


def wait(check, what):
    deadline = time.monotonic() + PATIENCE
    while not check():
        if time.monotonic() > deadline:
            raise NotSo(f"{what}, for {PATIENCE} s: see node.log in the folder of each node")
        time.sleep(0.1)


def free_port():
    """By lot, another one each time, whose port of the bus is free, too."""
    for port in _lots:
        with socket.socket() as probe, socket.socket() as bus, contextlib.suppress(OSError):
            probe.bind(("127.0.0.1", port))
            bus.bind(("127.0.0.1", port + BUS))
            return port
    raise NotSo(f"no port from {PORTS.start} to {PORTS.stop - 1} is free with the port of its bus")
