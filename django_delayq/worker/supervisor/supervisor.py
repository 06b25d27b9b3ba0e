"""The supervisor: forks the processes of a worker, extends their leases, and ends them in order. It has one thread.

The order in which a worker ends, with the reasons:
1. The task processes stop claiming and give back waiting jobs. Running jobs may finish for `grace` seconds. The lease extender
   continues in that time, because otherwise other workers would run the jobs, too.
2. Each process gives back the jobs that still run (snoozed, the attempt does not count). A process that does not do that is killed
   two seconds later, and the supervisor gives back its jobs.
3. The loop processes end last, because the mirror must see the events of 1 and 2.
4. The worker removes itself from the registry.

A second signal goes to 2 at once. While Redis hangs, nothing can be given back. Then no call waits longer than the grace, so the
worker ends three seconds after it. Its jobs run again when their leases have expired.
"""

from __future__ import annotations

import os
import select
import sys
from collections.abc import Sequence
from functools import partial
from typing import Any, Final

from django_delayq import clock, conf, signals
from django_delayq.exceptions import StoreUnavailable
from django_delayq.logger import Logger
from django_delayq.store.connection.error_replies import StoreError
from django_delayq.store.connection.link import Link
from django_delayq.store.connection.places import Places
from django_delayq.store.scripts.queue import Kind
from django_delayq.store.scripts.worker_registry import WorkerRegistry
from django_delayq.worker import loop
from django_delayq.worker.line import Line
from django_delayq.worker.loop import Loop, LoopSchedule
from django_delayq.worker.outage_log import outages
from django_delayq.worker.process import task_process
from django_delayq.worker.process.task_process import GAVE_UP, LEAVE, NOW, QUIET, RETIRE
from django_delayq.worker.spec import WorkerSpec
from django_delayq.worker.supervisor import lease_files, probe, worker_beat
from django_delayq.worker.supervisor.fork import Child, Forker, Slot
from django_delayq.worker.supervisor.hanging_processes import HangingProcesses
from django_delayq.worker.supervisor.lease_extender import LeaseExtender, longest_pause
from django_delayq.worker.supervisor.os_signals import Order, OsSignals
from django_delayq.worker.supervisor.probe import Answer, Probe, judged, not_found
from django_delayq.worker.supervisor.process_recovery import HostRecovery, ProcessRecovery
from django_delayq.worker.supervisor.recycling import Recycler, Reloader
from django_delayq.worker.supervisor.worker_beat import WorkerMetrics
from django_delayq.worker.tally import LatestText, Tally

logger = Logger("django_delayq.worker")

COOLDOWN: Final = 0.5  # seconds after a failed call in which no loop of the supervisor waits for that server,
SLOW: Final = 0.5  # and with several servers also after a call that took longer than this
WAITS: Final = 8  # of the shortest lease, the part for which a call waits there: two servers at a time may hang, and the map with them
LEAST: Final = 0.25  # seconds
LAST_WORD: Final = 2.0  # seconds between "give back what runs" and SIGKILL
LOOPS_END: Final = 15.0  # seconds for a loop process to finish what is ready
HANGS: Final = 0.25  # seconds for either if Redis is away: nothing can be given back or read then
RECOVERY_END: Final = 5.0  # seconds to settle what killed processes held, if Redis is away
PASS: Final = 0.5  # seconds between checks of its processes while a change is under way; ends and requests of processes are signals
CALM: Final = 1.0


class Supervisor:
    """1. It forks task processes and loop processes.
    2. It extends leases, watches deadlines, sends beats, and tidies; each is a loop.
    3. It replaces processes that die, and gives back their jobs.
    4. It obeys signals.

    If it is killed itself, its children end with it.
    """

    def __init__(self, spec: WorkerSpec) -> None:
        self._spec = spec
        self._started_ms = clock.wall_ms()
        self._places = spec.connect(f"delayq-worker-{spec.worker}")
        lines = spec.served(self._places)
        self._links = ServerLinks(self._places, lines)
        self._forker = Forker(spec.hooks.before_fork)
        self._forker.to_close.append(self._places.close)
        self._born = 0
        self._tasks = [Slot(f"task-{n}", self._fork_task) for n in range(1, spec.processes + 1)]
        self._loop_slots = [Slot(one.name, partial(self._fork_loops, one)) for one in spec.loop_processes]
        self._leaving: list[Child] = []
        self._recovery = ProcessRecovery(lines=lines, tasks=spec.tasks)
        self._hanging = HangingProcesses(
            lines=lines,
            children=self._task_children,
            replace=self._replace_hung,
            tasks=spec.tasks,
            find_task=spec.find_task,
            grace=spec.grace,
        )
        self._place = lease_files.place() if spec.processes else None
        self._store = f"{spec.prefix} {self._links.where}"
        registry = WorkerRegistry(self._places, prefix=spec.prefix)
        self._beat = worker_beat.Beat(registry, spec.worker, self.facts, self._asked, self._links.answers)
        extender = LeaseExtender(lines=lines, children=self._task_children, worker=spec.worker)
        self._worker_metrics = WorkerMetrics(spec, extender=extender, recovery=self._recovery) if spec.measured else None
        loops: list[Loop] = [
            extender,
            HostRecovery(self._place, self._store, self._places, spec.prefix, recovery=self._recovery, children=self._task_children),
            self._recovery,
            self._hanging,
            Recycler(spec, self._in_slots, self._replace),
            self._beat,
            outages,
        ]
        if spec.tidy:
            loops.append(worker_beat.Tidy([line.store for line in lines]))
        self._probe: Probe | None = None
        if spec.health_port is not None:
            answers = {"/health": self._health, "/ready": self._ready, "/metrics": self._metrics}
            self._probe = Probe(spec.health_port, answers, host=spec.health_host)
            self._forker.to_close.append(self._probe.close)
            loops.append(self._probe)
        self._systemd = probe.systemd_from_environment(self._begun)
        if self._systemd is not None:
            self._forker.to_close.append(self._systemd.close)
            loops.append(self._systemd)
        if spec.reload:
            loops.append(Reloader(self._changed))
        self._loops = LoopSchedule(loops, longest_pause=longest_pause(lines))
        self._signals = OsSignals()
        self._quiet = self._stopping = self._reloading = self._loops_told = False
        self._give_up_at = self._leave_at = float("inf")
        self._taken_over_at = 0.0
        self._exit_code = self._done = self._failed = 0

    def run(self) -> int:
        """Works until a signal, or the end of a burst. Returns the exit code: 0, 130 after a second Ctrl-C, 1: no Redis in a burst."""
        self._signals.catch()
        outages.open()
        self._forker.to_close += [self._signals.forget, outages.become_child]
        signals.worker_started.send_robust(sender=None, worker=self._spec.worker)
        try:
            self._tend()
            while not (self._stopping and self._loops_told and not self._children()):
                pause = self._loops.poll()
                if self._stopping:
                    self._stop_loops()
                self._sleep(min(CALM if self._calm() else PASS, pause))
                self._tend()
        finally:
            self._end()
            outages.close()
            self._signals.close()
        if self._reloading and not self._exit_code:
            logger.info("starting again")
            sys.stdout.flush()
            sys.stderr.flush()
            os.execv(sys.executable, [sys.executable, *sys.orig_argv[1:]])
        return self._exit_code

    def facts(self) -> dict[str, Any]:
        """The facts about this worker in the beat."""
        held = [each for child in self._task_children() if child.leases for each in child.leases.held()]
        done, failed = self._done, self._failed
        for child in self._task_children():
            if child.leases is not None:
                done, failed = (a + b for a, b in zip((done, failed), child.leases.counts(), strict=True))
        reports = [child.circuits.read() for child in self._task_children() if child.circuits is not None]
        return {
            **worker_beat.facts(self._spec, held, [os.getpid(), *(child.pid for child in self._children())]),
            **worker_beat.circuits(reports),
            "done": done,
            "failed": failed,
            "started": self._started_ms,
            "state": self._state(),
        }

    # processes

    def _fork_task(self, name: str) -> Child:
        self._born += 1
        worker = f"{self._spec.worker}/{self._born}"
        spec = self._spec
        tally = None if self._worker_metrics is None else Tally(len(spec.lines), len(spec.tasks))
        circuits = None if spec.hooks.watch_circuits is None else LatestText(worker_beat.CIRCUITS)
        leases, lease_file = lease_files.make(
            self._place, worker=worker, store=self._store, rows=task_process.rows(spec.threads, self._links.count), lines=spec.lines
        )
        try:
            child = self._forker.fork(name, worker, lambda ends: task_process.main(spec, worker, ends, leases, tally, circuits), leases)
        except OSError:
            leases.close()
            if lease_file is not None:
                lease_file.unlink(missing_ok=True)
            raise
        child.lease_file, child.tally, child.circuits = lease_file, tally, circuits
        return child

    def _fork_loops(self, one: loop.LoopProcess, name: str) -> Child:
        return self._forker.fork(name, self._spec.worker, lambda ends: loop.main(one, ends.commands, ends.alive))

    def _in_slots(self) -> list[Child]:
        return [slot.child for slot in self._tasks if slot.child is not None]

    def _task_children(self) -> list[Child]:
        return [*self._in_slots(), *self._leaving]

    def _children(self) -> list[Child]:
        return [*self._task_children(), *(slot.child for slot in self._loop_slots if slot.child is not None)]

    def _tend(self) -> None:
        for slot in (*self._tasks, *self._loop_slots):
            if slot.child is not None and slot.child.reap():
                self._ended(slot.leave(burst=self._spec.burst, stopping=self._stopping))
        for child in [child for child in self._leaving if child.reap()]:
            self._leaving.remove(child)
            self._ended(child)
            self._tasks[0].over = False  # in a burst: the jobs that it gave back are due
        self._obey_signals()
        for slot in () if self._quiet or self._stopping or self._owes_a_burst() else self._tasks:
            slot.fill()
        for slot in () if self._stopping else self._loop_slots:
            slot.fill()
        # After the slots are filled: a burst without task processes is over at once, but its loops have work to do.
        if self._spec.burst and not self._stopping and all(slot.over for slot in self._tasks) and not self._leaving:
            self._stop(RECOVERY_END)
        self._kill_late()

    def _calm(self) -> bool:
        """Whether all processes run, and none is ending."""
        slots = (*self._tasks, *self._loop_slots)
        busy = self._signals or self._leaving or self._stopping or any(slot.child is None for slot in slots)
        return not busy and all(child.kill_at == float("inf") for child in self._children())

    def _ended(self, child: Child) -> None:
        if child.leases is not None:
            done, failed = child.leases.counts()
            self._done, self._failed = self._done + done, self._failed + failed
        if self._worker_metrics is not None:
            self._worker_metrics.ended(child)
        if self._spec.burst and child.in_order and child.exit_code == GAVE_UP:
            self._exit_code = 1
        killed: Kind = "evict" if child.hung and not self._stopping else "snooze"
        ran: Kind = killed if child.killed else "snooze" if child.in_order else "crash"
        self._recovery.take_over(child, ran, self._hanging.ended(child))
        self._taken_over_at = clock.monotonic()
        self._loops.soon(self._recovery)

    def _owes_a_burst(self) -> bool:
        """Whether jobs of a dead process must still be given back. In a burst its successor waits for that. Otherwise it might find
        no due job, and end the burst, just before these jobs are back.
        """
        return self._spec.burst and bool(self._recovery) and clock.monotonic() - self._taken_over_at < RECOVERY_END

    def _kill_late(self) -> None:
        now = clock.monotonic()
        for child in self._children():
            child.look_again(now)
            if child.kill_at > now:
                continue
            if child.told_now or child.hung:  # a hanging run is not given back while it may still have effects
                logger.warning("%s (pid %d) does not exit and is killed", child.name, child.pid)
                child.kill()
                child.kill_at = float("inf")
            else:
                child.tell(NOW)
                child.told_now = True
                child.kill_at = now + (HANGS if self._links.away else LAST_WORD)

    def _replace(self, child: Child, command: bytes = RETIRE) -> None:
        for slot in self._tasks:
            if slot.child is child:
                slot.replaced, slot.child = slot.replaced + 1, None  # its process is about to end, and another may start
                self._leaving.append(child)
        child.tell(command)

    def _replace_hung(self, child: Child) -> None:
        child.show_stacks()
        self._replace(child, LEAVE)

    # signals, and the end

    def _obey_signals(self) -> None:
        for order in self._signals.taken():
            if order == "stacks":
                for child in self._children():
                    child.show_stacks()
            elif order == "quiet":
                logger.info("quiet: the worker claims no more jobs")
                self._quiet = True
                self._loops.soon(self._beat)
                for child in self._in_slots():
                    child.tell(QUIET)
            else:
                self._stop_or_hurry(order)

    def _asked(self, act: str, by: str) -> None:
        logger.info("%s requested by %s", act, by)
        if act == "quiet":
            self._signals.add("quiet")
        elif not self._stopping or self._reloading:  # otherwise it would count as a second signal, and hurry
            self._signals.add("stop")

    def _stop_or_hurry(self, order: Order) -> None:
        if not self._stopping or self._reloading:
            logger.info("shutting down: running jobs have %.0f s to finish", self._spec.grace)
            self._reloading = False
            self._stop(self._spec.grace)
            return
        logger.warning("shutting down immediately: running jobs return to their queues")
        if order == "interrupt":
            self._exit_code = 130
        self._leave_at = clock.monotonic()
        self._links.hurry(self._leave_at)
        for child in self._task_children():
            child.kill_at = min(child.kill_at, self._leave_at)
        for slot in self._loop_slots:
            if slot.child is not None:
                slot.child.kill_at = min(slot.child.kill_at, clock.monotonic() + LAST_WORD)

    def _stop(self, grace: float) -> None:
        if self._systemd is not None and not self._reloading:
            self._systemd.stopping()
        self._stopping = True
        self._leave_at = (self._signals.told_at or clock.monotonic()) + grace  # noticed perhaps only after a call to Redis
        self._links.hurry(self._leave_at)
        self._loops.soon(self._beat)
        for child in self._task_children():
            child.tell(LEAVE)
            child.kill_at = min(child.kill_at, self._leave_at)

    def _stop_loops(self) -> None:
        if self._loops_told or self._task_children() or self._busy_with_recovery():
            return
        self._loops_told = True
        for slot, one in zip(self._loop_slots, self._spec.loop_processes, strict=True):
            if slot.child is not None:
                patience = HANGS if self._links.lost(one.queues) else LOOPS_END
                slot.child.tell(LEAVE)
                slot.child.told_now = True  # it knows no other word: the next one is the last
                slot.child.kill_at = min(slot.child.kill_at, clock.monotonic() + patience)

    def _busy_with_recovery(self) -> bool:
        if not self._recovery or (self._recovery.hindered and clock.monotonic() >= self._leave_at):
            return False
        if self._give_up_at == float("inf"):
            self._give_up_at = clock.monotonic() + RECOVERY_END
        return clock.monotonic() < self._give_up_at

    def _end(self) -> None:
        for child in self._children():  # only if the supervisor itself has failed
            child.kill()
        try:
            self._beat.leave()
        except (StoreUnavailable, StoreError) as error:
            logger.warning("the worker could not remove its entry from the registry: %s", error)
        if self._probe is not None:
            self._probe.close()
        if self._systemd is not None:
            self._systemd.close()
        self._forker.close()
        self._places.close()
        signals.worker_stopped.send_robust(sender=None, worker=self._spec.worker)

    def _changed(self, path: str) -> None:
        if not self._stopping:
            logger.info("%s has changed. The worker restarts when the running jobs have finished", path)
            self._reloading = True
            self._stop(self._spec.grace)

    # waiting, and being asked

    def _sleep(self, seconds: float) -> None:
        poll = select.poll()
        poll.register(self._signals.descriptor, select.POLLIN)
        poll.register(outages.descriptor, select.POLLIN)
        if self._probe is not None:
            self._probe.register(poll)
        for descriptor, _ in poll.poll(seconds * 1000):
            if descriptor == self._signals.descriptor:
                self._signals.drain()
            elif descriptor == outages.descriptor:
                self._loops.soon(outages)
            elif self._probe is not None:
                self._probe.ready(descriptor)

    def _begun(self) -> bool:
        """Whether it has started its work."""
        claims = all(slot.over or (slot.child is not None and slot.child.claims) for slot in self._tasks)
        return self._beat.reached() and claims and not self._missing()

    def _missing(self) -> list[str]:
        # A quiet worker starts no new task process.
        wanted = self._loop_slots if self._quiet else [*self._tasks, *self._loop_slots]
        return [slot.name for slot in wanted if slot.child is None and not slot.over]

    def _state(self) -> str:
        return "leaving" if self._stopping else "quiet" if self._quiet else "working"

    def _health(self) -> Answer:
        missing = self._missing()
        return judged(not missing or self._stopping, {"missing": missing})

    def _ready(self) -> Answer:
        reached = self._beat.reached()
        well = reached and not self._quiet and not self._stopping and not self._missing()
        return judged(well, {"store": reached, "state": self._state()})

    def _metrics(self) -> Answer:
        body = self._spec.hooks.metrics
        if self._worker_metrics is None or body is None:
            return not_found(self._spec.hooks.no_metrics)
        slots = (*self._tasks, *self._loop_slots)
        seen = self._worker_metrics.figures(self.facts(), self._children(), slots, reached=self._beat.reached())
        return Answer("200 OK", body(seen))


class ServerLinks:
    """The links of a supervisor. A slow server must not delay the work on other servers."""

    def __init__(self, places: Places, lines: Sequence[Line]) -> None:
        self._places = places
        self._held = list(dict.fromkeys(line.store.link for line in lines)) or [places.shared]
        self._all = list(dict.fromkeys([places.shared, *self._held]))
        longest = max(LEAST, min(line.lease for line in lines) / WAITS) if lines else 0.0
        several = len(self._all) > 1 or self._all[0].moves
        for link in self._all:
            link.set_cooldown(COOLDOWN, SLOW if several else 0.0, longest if several else 0.0)

    @property
    def where(self) -> str:
        """The addresses of all servers. They stay the same when masters change and slots move."""
        return " ".join(dict.fromkeys(link.home for link in self._all))

    @property
    def count(self) -> int:
        """The number of servers, or of slots of a Cluster, that have its lines."""
        return len(self._held)

    @property
    def away(self) -> bool:
        """Whether no server answers on which it may hold jobs."""
        return all(link.away for link in self._held)

    def lost(self, queues: Sequence[str]) -> bool:
        """Whether no server answers that has one of these queues. Without queues, the same as `away`."""
        known = conf.get().partitions
        parts = ((queue, partition) for queue in queues for partition in range(known.get(queue, 1)))
        return all(self._places.of(queue, partition).away for queue, partition in parts) if queues else self.away

    def answers(self, shared: bool) -> bool:
        """Whether a server of its lines answers; for a worker without lines, the shared server. `shared`: whether the shared server
        has just answered.
        """
        if shared and any(link.home == self._places.shared.home for link in self._held):
            return True
        asked = self._places.shared.met
        servers = {link.met: link for link in self._held if link.met is not asked}
        return any(map(_answers, sorted(servers.values(), key=lambda link: link.away)))  # a server that hung may hang again

    def hurry(self, deadline: float) -> None:
        """See `Link.hurry`."""
        for link in self._all:
            link.hurry(deadline)


def _answers(link: Link) -> bool:
    try:
        link.execute("PING")
    except StoreUnavailable:
        return False
    return True
