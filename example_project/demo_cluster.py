"""`make demo-cluster`: the example on a Cluster of three masters and three replicas. Its queues are on different masters, and the
queue of the orders has partitions on all of them. Orders arrive in rounds. Every minute it kills a master, which returns as a
replica. After each round it audits the ledgers. Ctrl-C ends it. With DEMO_SECONDS=60 it ends after the current round, and exits with
1 if an audit failed.
"""

import os
import random
import threading
import time

from cluster import Cluster, NotSo
from demo import Demo
from processes import say

KILL_EVERY = 60.0
SPREAD = 40  # seconds over which the orders of a round are due; fewer if DEMO_SECONDS is less
A_SECOND = 50  # orders
PARTITIONS = 16  # of the queue of the orders


class ClusterDemo(Demo):
    """The demo on a Cluster whose masters are killed."""

    worker_options = (*Demo.worker_options, "--verbosity", "0")  # a line per order would hide the others
    servers = "the Cluster"

    def run(self):
        from settings import HOME

        say("cluster", "starts six servers")
        with Cluster(HOME / "cluster") as self.cluster:
            os.environ["DELAYQ_REDIS"] = self.cluster.url
            os.environ["PARTITIONS"] = str(PARTITIONS)
            masters = ", ".join(str(node.port) for node in self.cluster.masters())
            say("cluster", f"its masters are on the ports {masters}; each has a replica")
            return super().run()

    def watch(self):
        """Round by round, until Ctrl-C, the end of DEMO_SECONDS, or something that is wrong."""
        ends = time.monotonic() + self.seconds
        spread = int(min(SPREAD, self.seconds or SPREAD))
        with Harm(self.cluster, every=spread / 2 if self.seconds else KILL_EVERY) as harm:
            while True:
                if wrong := self.round(spread):
                    return wrong
                if self.processes.leaving.is_set() or harm.trouble or (self.seconds and time.monotonic() > ends):
                    return int(bool(harm.trouble))

    verify = watch

    def round(self, spread):
        """A busy day in a minute. 1 if its audit has found something, or another process has ended; 0 also if it was broken off."""
        orders = str(A_SECOND * spread)
        day = self.processes.start("day", "manage.py", "simulate", "--orders", orders, "--within", "10s", "--spread", f"{spread}s")
        while not self.processes.leaving.wait(0.2):
            if day.poll() is not None:
                self.processes.forget(day)
                return day.returncode
            if ended := self.processes.ended():
                say("demo", f"the {ended[0]} process ended with code {ended[1]}")
                return 1
        return 0


class Harm(threading.Thread):
    """Kills a master every so many seconds, and starts it again when a replica has its place. `trouble`: what keeps it from that."""

    def __init__(self, cluster, *, every):
        super().__init__(name="harm", daemon=True)
        self.cluster = cluster
        self.every = every
        self.trouble = ""
        self._over = threading.Event()

    def __enter__(self):
        self.start()
        return self

    def __exit__(self, *_):
        """A server that it has killed is started again first."""
        self._over.set()
        self.join()

    def run(self):
        while not self._over.wait(self.every):
            node = random.choice(self.cluster.masters())
            say("cluster", f"kills the master on port {node.port}")
            try:
                took = self.cluster.lose(node)
            except NotSo as error:
                self.trouble = str(error)
                say("cluster", self.trouble)
                return
            say("cluster", f"a replica had its place after {took:.1f} s; the killed one is a replica now")


if __name__ == "__main__":
    raise SystemExit(ClusterDemo().run())
