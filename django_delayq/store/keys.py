"""Every key in Redis: name, type, lifetime, who writes it. The queue is the hash tag, so a partition lives in one slot.

| key | type | holds | lives | written by |
|---|---|---|---|---|
| jobs | hash | id -> header line + payload, unchanged | to the job's end; failed: to tidy | schedule, requeue; all that end a job |
| high, normal, low | zset | id by due ms | while the job waits | schedule, settle, reschedule, requeue, claim, cancel, purge |
| leases | zset | id by lease end ms | while the job runs | claim, extend, settle |
| runs | hash | id -> attempt:crashes:lane:nonce; nonce empty: not running | from the first claim to the end | claim, settle |
| cancels | hash | id -> who asked | while the job runs | cancel; removed by settle, claim |
| progress | hash | id -> done/total | while the job runs | extend; removed by settle, claim |
| keys | hash | business key -> id | while the job is unfinished | schedule, requeue; removed with the job |
| claims | hash | worker -> nonce ms id=due … of its last claim | a day | claim, tidy |
| failed | zset | id by ms of failure | until tidy; the row in the database stays | settle, claim, requeue, tidy |
| finished | zset | tombstone: id by ms of its end, + 0.5 if cancelled | an hour, at most 200,000 | every script that ends a job; tidy |
| events | stream | one entry per script call that changed something | until the mirror has it | every script; trimmed by the mirror |
| wake | list | at most 4 tokens | until popped | schedule, settle, reschedule, requeue, claim, pause |
| meta | hash | generation, pause, timer, backup, armed, alive, guard | for ever | schedule, claim, extend, pause |
| stats | hash | minute:kind -> count | 8 days | schedule, claim, settle, cancel, purge, requeue; tidy |
| spread | string | counts of what ended, how late it began and how long it ran | 70 minutes, 4 KB | claim, settle |

Beside the partitions stand `<prefix>:{workers}`, a hash of worker id -> JSON beat, and `<prefix>:{workers}:asked`, a hash of worker
id -> what it is asked to do, until when, by whom; written by the admin, removed by the worker.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import lru_cache

NAMES: dict[str, str] = {
    "jobs": "jobs",
    "high": "schedule:high",
    "normal": "schedule:normal",
    "low": "schedule:low",
    "leases": "leases",
    "runs": "runs",
    "cancels": "cancels",
    "progress": "progress",
    "keys": "keys",
    "claims": "claims",
    "failed": "failed",
    "finished": "finished",
    "events": "events",
    "wake": "wake",
    "meta": "meta",
    "stats": "stats",
    "spread": "spread",
}


def workers_key(prefix: str) -> str:
    """The hash in which live workers show themselves."""
    return f"{prefix}:{{workers}}"


def asked_key(prefix: str) -> str:
    """The hash of what workers are asked to do, until they have heard it."""
    return f"{prefix}:{{workers}}:asked"


@dataclass(frozen=True, slots=True)
class Keys:
    """The keys of one partition of one queue, by the short names of the table above.

    Args:
        prefix: `DELAYQ["PREFIX"]`.
        queue: name of the queue.
        partition: 0 for the first one, whose tag is the bare queue name.
    """

    prefix: str
    queue: str
    partition: int = 0
    _names: dict[str, str] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        tag = self.queue if self.partition == 0 else f"{self.queue}/{self.partition}"
        object.__setattr__(self, "_names", {short: f"{self.prefix}:{{{tag}}}:{name}" for short, name in NAMES.items()})

    @staticmethod
    @lru_cache(maxsize=256)
    def of(prefix: str, queue: str, partition: int = 0) -> Keys:
        """The same, made once: producers ask for a store at every call."""
        return Keys(prefix, queue, partition)

    def __getitem__(self, short: str) -> str:
        return self._names[short]
