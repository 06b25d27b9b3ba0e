"""The cases: every failpoint × kind of job × what happens there."""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

KINDS: Final = (
    "plain",
    "retrying",
    "snoozing",
    "asking",
    "atomic",
    "stepwise",
    "keyed",
    "once",
    "asynchronous",
    "bulk",
    "redis",
    "once-redis",
)
WITHOUT_ROWS: Final = ("redis", "once-redis")
ONCE: Final = ("once", "once-redis")  # a second call of the same key and period
DURABLE: Final = tuple(kind for kind in KINDS if kind not in WITHOUT_ROWS)  # where it is a row that is pushed, or brought back
FEW: Final = ("plain",)  # where people change rows: what a job does when it runs has no part in that
KEYED: Final = ("keyed",)  # where one job takes another in
BEFORE: Final = ("kill", "hold", "raise:purpose")
AFTER: Final = (*BEFORE, "lose", "hold-lose")  # where a reply of Redis has just come, it may be lost as well
LEASE: Final = 3  # seconds
RATED, NEW_RATE = "partner:1", "7/s"  # what `set_rate` sets
TENTH: Final = 20  # with those of points that would have none, one case in fourteen


@dataclass(frozen=True)
class Point:
    """A failpoint. `reply`: Redis has just answered a call there. `stage` says how a case reaches it:

    - worker: a worker reaches it - long: a worker reaches it if the job runs for some seconds - term: a worker reaches it if it is
    stopped while the job runs - orphan: a worker reaches it if its task process is killed while the job runs - deaf: a worker reaches
    it if a job ignores its timeout - sweep: a worker without mirror and relay reaches it, because it tidies up - unpublished: the web
    process died between commit and publication - moved: the same, and the row gets another date while the relay publishes it - far:
    the rows are far, in a queue that no longer has a horizon - untold: the row has not recorded a cancel, and Redis has lost all
    events - broken: such a row cannot become a job - old: there are expired rows - operation: a user started an operation - periodic:
    a schedule has a tick without a job - replaced: another server took over that does not know of a cancel - wiped: Redis loses the
    whole queue while the job runs - rolled: Redis loses the last event that the database has seen, while the job runs - web: a web
    process reaches it during one of `operations`: see `Web`
    """

    name: str
    stage: str = "worker"
    reply: bool = False
    kinds: tuple[str, ...] = KINDS
    operations: tuple[str, ...] = ("schedule",)


CHANGES: Final = ("cancel", "reschedule", "run_now", "requeue")
EFFECTS: Final = ("atomic", "stepwise")
OFFERING: Final = ("offering",)
TOLD: Final = ("cancel", "reschedule", "run_now", "withdraw", "postpone")  # what is answered, and told to the row
POINTS: Final = (
    Point("producer.commit", "web", kinds=DURABLE),
    Point("producer.committed", "web", kinds=DURABLE),
    Point("producer.took_key", "web", kinds=ONCE),
    Point("producer.ask", "web", operations=("schedule", *CHANGES)),
    Point("producer.asked", "web", reply=True, operations=("schedule", *CHANGES)),
    Point("publish.bring_back", "web", kinds=FEW, operations=("revive",)),
    Point("publish.brought_back", "web", reply=True, kinds=FEW, operations=("revive",)),
    Point("outbox.tell", "web", kinds=FEW, operations=TOLD),
    Point("outbox.tell_commit", "web", kinds=FEW, operations=TOLD),
    Point("outbox.told", "web", kinds=FEW, operations=TOLD),
    Point("outbox.end", "web", kinds=KEYED, operations=("merge",)),
    Point("outbox.ended", "web", kinds=KEYED, operations=("merge",)),
    Point("outbox.withdraw", "web", kinds=FEW, operations=("undo",)),
    Point("outbox.move", "web", kinds=FEW, operations=("redate",)),
    Point("outbox.edit", "web", kinds=FEW, operations=("edit",)),
    Point("outbox.edited", "web", kinds=FEW, operations=("edit",)),
    Point("far.cancel", "web", kinds=FEW, operations=("uproot",)),
    Point("far.cancelled", "web", kinds=FEW, operations=("uproot",)),
    Point("far.move", "web", kinds=FEW, operations=("bring",)),
    Point("far.moved", "web", kinds=FEW, operations=("bring",)),
    Point("far.bring_in", "far", kinds=DURABLE),
    Point("far.brought_in", "far", kinds=DURABLE),
    Point("bring_in.publish", "far", kinds=DURABLE),
    Point("bring_in.published", "far", kinds=DURABLE, reply=True),
    Point("pauses.commit", "web", kinds=FEW, operations=("set_rate",)),
    Point("pauses.committed", "web", kinds=FEW, operations=("set_rate",)),
    Point("pauses.send", "web", kinds=FEW, operations=("set_rate",)),
    Point("pauses.sent", "web", reply=True, kinds=FEW, operations=("set_rate",)),
    Point("pauses.commit", kinds=FEW),
    Point("pauses.committed", kinds=FEW),
    Point("pauses.send", kinds=FEW),
    Point("pauses.sent", reply=True, kinds=FEW),
    Point("operations.take", "operation", kinds=FEW),
    Point("operations.taken", "operation", kinds=FEW),
    Point("operations.expect", "operation", kinds=FEW),
    Point("operations.expected", "operation", kinds=FEW),
    Point("operations.begin", "operation", kinds=FEW),
    Point("operations.begun", "operation", kinds=FEW),
    Point("operations.save", "operation", kinds=FEW),
    Point("operations.saved", "operation", kinds=FEW),
    Point("operations.finish", "operation", kinds=FEW),
    Point("operations.finished", "operation", kinds=FEW),
    Point("ticks.write", "periodic", kinds=FEW),
    Point("ticks.written", "periodic", kinds=FEW),
    Point("prune.delete", "old", kinds=FEW),
    Point("prune.deleted", "old", kinds=FEW),
    Point("prune.drop_steps", "old", kinds=FEW),
    Point("prune.dropped_steps", "old", kinds=FEW),
    Point("prune.drop_operations", "old", kinds=FEW),
    Point("prune.dropped_operations", "old", kinds=FEW),
    Point("prune.drop_set_aside", "old", kinds=FEW),
    Point("prune.dropped_set_aside", "old", kinds=FEW),
    Point("mover.arm"),
    Point("mover.armed"),
    Point("mover.claim"),
    Point("mover.claimed", reply=True),
    Point("mover.kept"),
    Point("mover.listen", "term"),
    Point("mover.listened", "term", reply=True),
    Point("mover.pass_on", "term"),
    Point("mover.passed_on", "term", reply=True),
    Point("consumer.run"),
    Point("consumer.ran"),
    Point("effects.commit", kinds=EFFECTS),
    Point("effects.committed", kinds=EFFECTS),
    Point("offer.push", kinds=OFFERING),
    Point("offer.pushed", reply=True, kinds=OFFERING),
    Point("settler.settle"),
    Point("settler.settled", reply=True),
    Point("lease_extender.extend", "long"),
    Point("lease_extender.extended", "long", reply=True),
    Point("remains.claim", "orphan"),
    Point("remains.claimed", "orphan", reply=True),
    Point("remains.settle", "orphan"),
    Point("remains.settled", "orphan", reply=True),
    Point("hanging_processes.kill", "deaf"),
    Point("hanging_processes.killed", "deaf"),
    Point("supervisor.fork"),
    Point("supervisor.forked"),
    Point("child.born"),
    Point("beat.tell"),
    Point("beat.told", reply=True),
    Point("beat.leave", "term"),
    Point("beat.left", "term", reply=True),
    Point("beat.tidy", "sweep"),
    Point("beat.tidied", "sweep", reply=True),
    Point("mirror.read"),
    Point("mirror.fold", reply=True),
    Point("mirror.commit"),
    Point("mirror.committed"),
    Point("mirror.trim"),
    Point("mirror.trimmed", reply=True),
    Point("mirror.tidy"),
    Point("mirror.tidied", reply=True),
    Point("restore.end", "wiped", kinds=DURABLE),
    Point("restore.ended", "wiped", kinds=DURABLE),
    Point("restore.note_server", "replaced", kinds=FEW),
    Point("restore.noted_server", "replaced", kinds=FEW),
    Point("restore.confirm", "wiped", kinds=DURABLE),
    Point("restore.confirmed", "wiped", kinds=DURABLE, reply=True),
    Point("restore.sweep", "rolled", kinds=DURABLE),
    Point("restore.swept", "rolled", kinds=DURABLE, reply=True),
    Point("restore.drop", "rolled", kinds=DURABLE),
    Point("restore.dropped", "rolled", kinds=DURABLE, reply=True),
    Point("restore.forget_way", "wiped", kinds=DURABLE),
    Point("restore.forgot_way", "wiped", kinds=DURABLE),
    Point("restore.take_in", "wiped", kinds=DURABLE),
    Point("restore.taken_in", "wiped", kinds=DURABLE),
    Point("restore.send", "wiped", kinds=DURABLE),
    Point("restore.sent", "wiped", kinds=DURABLE, reply=True),
    Point("restore.note", "wiped", kinds=DURABLE),
    Point("restore.noted", "wiped", kinds=DURABLE),
    Point("restore.cancel", "replaced", kinds=FEW),
    Point("restore.cancelled", "replaced", reply=True, kinds=FEW),
    Point("adopter.adopt", "wiped", kinds=DURABLE),
    Point("adopter.adopted", "wiped", kinds=DURABLE, reply=True),
    Point("relay.publish", "unpublished", kinds=DURABLE),
    Point("relay.published", "unpublished", kinds=DURABLE, reply=True),
    Point("relay.saved", "unpublished", kinds=DURABLE),
    Point("relay.save", "untold", kinds=FEW),
    Point("relay.give_up", "broken", kinds=FEW),
    Point("relay.gave_up", "broken", kinds=FEW),
    Point("relay.published", "moved", kinds=DURABLE, reply=True),
)


@dataclass(frozen=True)
class Case:
    """One case. `operation`: what the web process does when it gets there."""

    point: Point
    kind: str
    action: str
    operation: str

    @property
    def name(self) -> str:
        """As reports write it."""
        stage = self.point.stage
        doing = f" ({self.operation if stage == 'web' else stage})" if stage in ("web", "moved") else ""
        return f"{self.point.name}{doing} / {self.kind} / {self.action.partition(':')[0]}"

    @property
    def operations_besides(self) -> tuple[str, ...]:
        """The calls of the web process about another job, besides scheduling and cancelling, which it always does."""
        known = ("reschedule", "run_now", "requeue", "postpone", "edit", "revive", "uproot", "bring")
        return (self.operation,) if self.operation in known else ()

    @property
    def freezes(self) -> bool:
        """Whether its process is stopped for longer than the lease."""
        return self.action.startswith("hold")


def cases() -> Iterator[Case]:
    """All of them."""
    for point in POINTS:
        for kind in point.kinds:
            for operation in point.operations:
                if kind in WITHOUT_ROWS and operation == "requeue":
                    continue  # without a mirror, no process knows what was cancelled
                for action in AFTER if point.reply else BEFORE:
                    if (point.stage, action) != ("untold", "hold"):  # the frozen relay leaves the row to a person
                        yield Case(point, kind, action, operation)


def tenth() -> Iterator[Case]:
    """At most one in ten, always the same, with at least one of every point."""
    seen = set()
    for case in cases():
        if zlib.crc32(case.name.encode()) % TENTH == 0:
            seen.add(case.point)
            yield case
    for point in POINTS:
        if point not in seen:
            yield next(case for case in cases() if case.point is point)
