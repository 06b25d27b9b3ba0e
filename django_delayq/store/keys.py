"""Every key in Redis: its name, type, lifetime and writers. The queue is the hash tag, so a partition has one slot.

The tables of docs/internals.md are generated from the tables below.

| key | type | holds | lives |
|---|---|---|---|
| jobs | hash | id -> header line and payload, unchanged | to the job's end; failed: to tidy |
| high, normal, low | zset | id by due ms | while the job waits |
| leases | zset | id by lease end ms | while the job runs |
| runs | hash | id -> attempt:crashes:band:nonce[:past], see runs.lua; an empty nonce: no process holds the job | from the first claim to the end |
| cancels | hash | id -> who asked; a byte 1 before it: abort | while the job runs, or can be adopted |
| asks | hash | id -> how often it has raised NotYet, see asks.lua | from the first time to the end |
| offered | hash | id -> where its offer was pushed, see offer.lua | to its success; after other ends: to tidy |
| firsts | hash | id -> the first date ms, of jobs with `at_most`, see first_date.lua | to tidy after the end |
| names | hash | id -> most:turn:due:name, of jobs with a concurrency name, a rate or a fair word, see lines.lua | as long as the record |
| holders | zset | name\\0id, of jobs that hold a name; a byte 3, the fair line and \\0id, of jobs that have the turn | as long as the lease, or as the turn |
| blocked | zset | id by due ms, of due jobs that wait for their name, and of jobs that wait for the turn of their fair word; by the negative of it, of those that a pause or a rate holds | until a holder, or the pause, ends, or a token comes |
| waiters | zset | name\\0<band><due>\\0id, of the same jobs, in the order in which they return; a byte 1 and the paused word, a byte 2 and the rate, or a byte 3 and the fair line, in place of a name | until a holder, or the pause, ends, or a token comes |
| pauses | hash | paused word -> until ms, see limits.lua | until the jobs that it held have returned |
| limits | hash | rate -> tokens:ms:burst, if a person has set it; byte 1 and a task -> what its newest code declares, see limits.lua | as long as its row |
| rates | zset | rate by the ms at which all its tokens are there again | until then |
| opens | zset | a byte 1 and the paused word, or a byte 2 and the rate, by the ms at which its next job returns | until the jobs that it held have returned |
| progress | hash | id -> done/total | while the job runs |
| keys | hash | business key -> id | while the job is unfinished |
| claims | hash | worker -> nonce ms id=due … of its last claim, for a claim that is sent again | a day |
| failed | zset | id by ms of failure; the record stays in jobs | until tidy; the row in the database stays |
| finished | zset | tombstones: id by ms of the end, plus a fraction that names the end, see tombstone.lua | an hour, and until it is mirrored |
| events | stream | one entry per script call that changed something | until the mirror has it |
| wake | list | at most 4 tokens that wake an idle mover | until a mover pops them |
| meta | hash | facts about the partition, see below | for ever |
| stats | hash | minute:kind -> count | 8 days |
| spread | string | counts of what ended, how late it began and how long it ran, for charts | 70 minutes, 4 KB |
| locks | hash | name -> fence token since who, of `delayq.lock`, see locks.lua | while it is held; if its holder vanished: a minute more |
| lock_ends | zset | name by lease end ms | while it is held; if its holder vanished: a minute more |
| lock_waits | zset | name by the date until which somebody waits for it | 2 seconds |
| unlocked | stream | names that became free while somebody waited | the last 64 |
| probe_hash, probe_zset, probe_stream, probe_list, probe_text | by name | nothing, see probe.lua | within one call |
| workers | hash | worker id -> JSON beat; its hash tag is `workers` | a day |
| asked | hash | worker id -> the request (quiet or stop), until when, by whom; its hash tag is `workers` | until the worker has read it |

The past of a run: e<n>, how many times in a row its process was killed because of a neighbour, then u<ms>, since
when no worker has known its task; see lua/include/runs.lua.

| field of meta | holds |
|---|---|
| site | the id of the database to which the queue belongs, see site.py |
| generation | the random id of the contents; a queue that was wiped gets another |
| format | the number of the format of the queue, see formats.py; absent: 1 |
| seen:<format> | the last call of a process whose newest known format this is; each process writes it once a minute |
| server, mirrored | the run of the server that the mirror has confirmed last, and the last event that the database has |
| mirror_token | the token of the mirror's last turn, see site.py |
| run | the run of the server that a worker used last |
| brought_back | until which date restored overdue jobs wait, and until when another worker may still hold them |
| moved_to, moved_at | the run of a server that is not confirmed yet, and when it was noticed |
| named | "1" while any job may have a name, see lua/include/lines.lua; "2" while also words may be paused, see lua/include/limits.lua; "3" while also jobs may have a rate |
| turn | the number of the last holder of a name: the time in µs, or more |
| surplus | how many more jobs than entries the unread events describe |
| rolled, restoring | during a restore: its phase, see confirm.lua; when, who, and how far it is |
| paused, paused_by, paused_why, paused_until | ms, by whom, why, ms at which it ends |
| paused_alone | the database does not know of the latest pause or resume |
| timer, timer_until, backup, backup_until | the idle movers that sleep until the next date, and until when |
| others_until | until when one of the other idle movers may sleep |
| asked | "1" when somebody has asked to cancel a job that may have begun in the epoch before; see cancel.lua |
| armed | when the timer owner wakes, or the earlier date for which a token was pushed |
| alive, guard_from, guard_until | when a worker called last; leases that were valid at `from` stay valid until `until` |
| guard_since, guard_next | for outages that follow one another, see alive.lua |
| fence | of the last holder of a lock, see lock.lua |
| first_fence | of the first lock since Redis has these contents, see unlock.lua |

| key | written by |
|---|---|
| jobs | schedule, claim, settle, cancel, requeue, purge, resign, tidy, restore, sweep |
| high, normal, low | schedule, claim, settle, cancel, reschedule, requeue, purge, tidy, restore, sweep |
| leases | claim, extend, settle, restore, sweep |
| progress | claim, extend, settle, sweep |
| runs, keys | schedule, claim, settle, cancel, requeue, purge, restore, sweep |
| cancels | claim, settle, cancel, requeue, tidy, restore, sweep |
| asks | schedule, claim, settle, cancel, requeue, purge, tidy, restore, sweep |
| offered | settle, offer, tidy |
| firsts | schedule, reschedule, tidy, restore |
| names, holders, blocked, waiters | schedule, claim, settle, cancel, reschedule, requeue, purge, tidy, restore, sweep |
| pauses, opens | claim, limit |
| limits | limit |
| rates | claim, tidy |
| claims | claim, tidy |
| failed | schedule, claim, settle, requeue, tidy, sweep |
| finished | schedule, claim, settle, cancel, requeue, purge, tidy, restore, confirm |
| events | schedule, claim, settle, cancel, reschedule, requeue, pause, purge, trim, restore, sweep, confirm |
| wake | schedule, claim, settle, cancel, reschedule, requeue, purge, pause, limit, tidy, restore, sweep, confirm |
| meta | schedule, claim, extend, settle, cancel, reschedule, requeue, pause, limit, purge, tidy, trim, restore, sweep, confirm, assign, epoch, lock |
| stats | schedule, claim, settle, cancel, requeue, purge, tidy, restore |
| spread | claim, settle |
| locks | lock, unlock |
| lock_ends | lock, prolong, unlock |
| lock_waits | lock |
| unlocked | unlock |
| probe_hash, probe_zset, probe_stream, probe_list, probe_text | probe |
| workers, asked | show |

`assign` removes all keys of a queue that another site adopts. Under the tag `workers`, meta has the site alone.
"""  # noqa: E501  # a row of a table is one line

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import lru_cache

from django_delayq.store.connection.link import Opening

_PLAIN = (
    "jobs leases runs cancels asks offered firsts names holders blocked waiters pauses limits rates opens progress keys claims failed "
    "finished events wake meta stats spread locks asked"
)
NAMES: dict[str, str] = {
    **{short: short for short in _PLAIN.split()},
    **{band: f"schedule:{band}" for band in ("high", "normal", "low")},
    **{f"probe_{kind}": f"probe:{kind}" for kind in ("hash", "zset", "stream", "list", "text")},
    "lock_ends": "locks:ends",
    "lock_waits": "locks:waits",
    "unlocked": "locks:unlocked",
    "workers": "",
}


def tag(queue: str, partition: int) -> str:
    """The hash tag of all keys of that partition; it puts them into one slot."""
    return queue if partition == 0 else f"{queue}/{partition}"


@dataclass(frozen=True, slots=True)
class Keys:
    """The keys of one partition of one queue, by the short names of the table above.

    Args:
        prefix: `DELAYQ["PREFIX"]`.
        queue: name of the queue.
        partition: 0 for the first one, whose tag is the bare queue name.
        jobs: whether its jobs are there; False for the locks of a queue whose jobs are on another server, and for the workers.
    """

    prefix: str
    queue: str
    partition: int = 0
    jobs: bool = True
    _names: dict[str, str] = field(init=False, repr=False, compare=False)
    _openings: dict[str, Opening] = field(init=False, repr=False, compare=False, default_factory=dict)

    def __post_init__(self) -> None:
        place = f"{self.prefix}:{{{tag(self.queue, self.partition)}}}"
        object.__setattr__(self, "_names", {short: f"{place}:{name}" if name else place for short, name in NAMES.items()})

    @staticmethod
    @lru_cache(maxsize=256)
    def of(prefix: str, queue: str, partition: int, jobs: bool = True) -> Keys:
        """The keys, cached because producers make a store at every call."""
        return Keys(prefix, queue, partition, jobs)

    def __getitem__(self, short: str) -> str:
        return self._names[short]

    def opening(self, sha: str, needed: Sequence[str], beside: str = "") -> Opening:
        """The first words of a call of the script with that SHA-1. It takes the keys `needed`, followed by the foreign key `beside`."""
        called = sha + beside
        found = self._openings.get(called)
        if found is None:
            names = [*(self._names[short] for short in needed), *([beside] if beside else ())]
            found = self._openings[called] = Opening.of("EVALSHA", sha, len(names), *names)
        return found
