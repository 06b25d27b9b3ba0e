"""How a case is played: as a generator that yields whenever it waits, so that one process plays many at once."""

from __future__ import annotations

import os
import shutil
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from django_delayq.store.connection.link import Link
from django_delayq.store.connection.places import Places
from django_delayq.store.keys import Keys
from tests.crashpoints import judge
from tests.crashpoints.actors import READ, Actor, fork, target, worker
from tests.crashpoints.cases import LEASE, Case
from tests.crashpoints.web import Web, forget_all

REACHED = 40.0  # seconds for a process to come to the failpoint
QUIET = 60.0  # seconds for everything to come to its end
END = 20.0
FROZEN = (1.5 * LEASE, 3.0 * LEASE)  # seconds: at least, and at most if others need the frozen process
# The first run of "orphan" is killed; it lasts until then also on a busy machine.
LONG = {"long": 2.5, "term": 1.0, "orphan": 8.0, "wiped": 3.0, "rolled": 3.0}  # seconds that the job of a case runs


class Trouble(Exception):
    """The case could not be played to its end."""


class Play:
    """One case with its processes.

    1. The web process schedules. 2. A worker reaches the failpoint and dies, fails or stops. 3. Another worker starts. 4. When all
    work is finished, both are stopped. 5. The judge checks the final state.
    """

    def __init__(self, case: Case, *, folder: Path, template: Path, prefix: str, places: Places, partitions: int = 1) -> None:
        self.case = case
        self.folder = folder
        self.prefix = prefix
        self.places = places
        self.parts = [Keys(prefix, "default", partition) for partition in range(partitions)]
        self.actors: list[Actor] = []
        self.wrong: list[str] = []
        self.seconds = 0.0
        folder.mkdir()
        shutil.copyfile(template, folder / "db.sqlite3")

    def steps(self) -> Iterator[None]:
        """Plays it. `wrong` says afterwards what is wrong."""
        began = time.monotonic()
        try:
            yield from self._play()
            self.wrong += map(str, judge.breaches(self.case, self.folder, self.places, self.parts))
            self.wrong += judge.rates(self.folder, self.places, self.parts)
            self.wrong += judge.periods(self.case, self.folder)
            self.wrong += judge.offers(self.case, self.folder, self.places, str(target(self.prefix)["KEY"]))
        except Trouble as trouble:
            self.wrong.append(str(trouble))
        finally:
            for actor in self.actors:
                actor.close()
            self.seconds = time.monotonic() - began

    def _play(self) -> Iterator[None]:
        case, stage = self.case, self.case.point.stage
        armed = f"{case.point.name}={case.action}"
        web = Web(case, self.folder, LONG.get(stage, 0.3))
        client = self._start("web", web.work, once="once" if stage == "web" else "once-web")
        if stage == "web":
            yield from self._until(self._reached, REACHED, "the failpoint in the web process")
            first = self._start("worker-1", worker())
            yield from self._freeze(client)
            yield from self._until(lambda: not client.alive, END, "the end of the web process")
        else:
            yield from self._until(lambda: not client.alive, END, "the end of the web process")
            time_to_be_due = time.monotonic() + 0.25
            yield from self._until(lambda: time.monotonic() > time_to_be_due, END, "the date")
            if stage == "moved":
                armed = f"relay.publish=sleep:2 {armed}"
            if self._reached():
                raise Trouble("something was at the failpoint too early")
            if stage == "untold":
                for keys in self.parts:
                    self._link(keys).execute("XTRIM", keys["events"], "MAXLEN", 0)
            if stage == "wiped":  # it comes there before as well, when the queue is new
                (self.folder / "once").write_text("not yet")
            first = self._start("worker-1", worker("move" if stage == "sweep" else "move,mirror,relay"), armed)
            yield from self._bring_there(first, web)
            yield from self._until(self._reached, REACHED, "the failpoint")
            second = self._start("worker-2", worker())
            yield from self._freeze(first)
        mender = self._start("mender", lambda: self._mend(web))
        yield from self._until(lambda: not mender.alive, END, "the end of the mender")
        yield from self._until(self._quiet, QUIET, "rest")
        last = [first] if stage == "web" else [first, second]
        for actor in last:
            yield from self._until(lambda actor=actor: self._beats(actor) or not actor.alive, END, "a worker's beat")
            actor.signal(signal.SIGTERM)
        for actor in last:
            yield from self._until(lambda actor=actor: not actor.alive, END, "the end of a worker")
        if last[-1].code:
            raise Trouble(f"a worker that nothing was done to ended with {last[-1].code}")

    def _bring_there(self, first: Actor, web: Web) -> Iterator[None]:
        stage = self.case.point.stage
        if stage in ("term", "orphan"):
            yield from self._until(lambda: bool(judge.runs(self.folder)), REACHED, "a run")
            if stage == "term":
                if self.case.kind == "bulk":  # it hands its timer over when it becomes full, or when it leaves idle
                    yield from self._until(lambda: self._reached() or self._quiet(), QUIET, "rest of the first worker")
                first.signal(signal.SIGTERM)
            else:
                os.kill(judge.runs(self.folder)[0]["pid"], signal.SIGKILL)
        elif stage == "wiped":
            yield from self._until(self._running_by_its_row, REACHED, "a run that the mirror knows of")
            (self.folder / "once").unlink()
            forget_all(self.places, self.prefix)
        elif stage == "rolled":
            yield from self._until(self._running_by_its_row, REACHED, "a run that the mirror knows of")
            for keys in self.parts:
                self._link(keys).execute("HSET", keys["meta"], "mirrored", "0-0")
        elif stage == "moved":
            yield from self._until((self.folder / READ).exists, REACHED, "the look of the relay")
            *_, (last,) = judge.select(self.folder, "select id from delayq_job order by id")
            self._start("mover", lambda: web.move(last))

    def _freeze(self, actor: Actor) -> Iterator[None]:
        if not self.case.freezes:
            return
        actor.signal_group(signal.SIGSTOP)
        began = time.monotonic()
        least, most = (began + seconds for seconds in FROZEN)
        yield from self._until(lambda: time.monotonic() > most or (time.monotonic() > least and self._quiet()), QUIET, "the thaw")
        (self.folder / "once").write_text("go")
        actor.signal_group(signal.SIGCONT)

    def _mend(self, web: Web) -> None:
        web.mend(list(self._unanswered()))
        if self.case.point.stage == "periodic":
            web.turn_off()
        if self.case.point.stage == "operation" and self.case.action.startswith("raise"):
            web.resume()

    def _unanswered(self) -> Iterator[tuple[str, str]]:
        """Operation and job of what was asked and not answered."""
        asked = [("cancel", job) for job in judge.parts(self.folder, "victim")]
        if self.case.operation != "schedule":
            asked += [(self.case.operation, job) for job in judge.parts(self.folder, "later")]
        answered = [op for op in judge.calls(self.folder).values() if op.answer == "ok" and "job" in op.given]
        done = {(op.given["operation"], op.given["job"]) for op in answered}
        return (one for one in asked if one not in done)

    def _start(self, name: str, work: Callable[[], None], armed: str = "", once: str = "once") -> Actor:
        actor = fork(self.folder, self.prefix, name, work, armed, once)
        self.actors.append(actor)
        return actor

    def _reached(self) -> bool:
        return (self.folder / "once").exists()

    def _beats(self, actor: Actor) -> bool:
        """Whether it has come so far that it obeys signals."""
        beats = self.places.shared.execute("HKEYS", Keys(self.prefix, "workers")["workers"])
        return any(f":{actor.pid}:".encode() in name for name in beats)

    def _running_by_its_row(self) -> bool:
        if self.case.kind == "atomic":  # on SQLite nobody else can write while it runs
            unknown = judge.select(self.folder, "select count(*) from delayq_job where published is null")
            return unknown == [(0,)] and bool(judge.runs(self.folder))
        ((count,),) = judge.select(self.folder, "select count(*) from delayq_job where state = 'running'")
        return bool(count) and not any(self._link(keys).execute("XLEN", keys["events"]) for keys in self.parts)

    def _link(self, keys: Keys) -> Link:
        return self.places.of(keys.queue, keys.partition)

    def _quiet(self) -> bool:
        return not judge.restless(self.folder, self.places, self.parts)

    def _until(self, check: Callable[[], bool], seconds: float, what: str) -> Iterator[None]:
        deadline = time.monotonic() + seconds
        while not check():
            if time.monotonic() > deadline:
                rest = judge.restless(self.folder, self.places, self.parts)
                raise Trouble(f"{what} did not come within {seconds:.0f} s; {rest}")
            yield
