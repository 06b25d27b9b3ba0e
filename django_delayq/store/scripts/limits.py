"""Pauses and rates in one partition. A pause has a word: the task, the scope or the concurrency name of jobs, see words.lua."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, Literal, NamedTuple

from django_delayq.job_meta import in_payload
from django_delayq.store.scripts import decode, loader
from django_delayq.store.scripts.queue import MOST, QueueStore, bounded
from django_delayq.store.scripts.replicas import Replicas

RESTORE: Final = "restore"  # the actor of a pause that waits for a restore by hand, see pause.lua


class LimitChange(NamedTuple):
    """A change for `QueueStore.limit`. `word`: task:<task>, scope:<scope> or name:<concurrency name>. `value` of a pause: the ms since
    1970 until which it lasts (0: no end); of a resume: the ms between two of the jobs that it held (0: as many as are claimed). The
    word of a rate is its name, and the value its pace, see `Quota.told`; "": the one that tasks declare. With a byte 1 and a task as
    the word, it is what the newest code of the task declares, or "none".
    """

    kind: Literal["pause", "resume", "rate"]
    word: str
    value: int | str = 0


class WordPause(NamedTuple):
    """The pause of a word. `until_ms`: its end (0: none). `resumed`: jobs are claimed again, and those that it held return. Only of a
    queue: by whom and why it is paused; `alone`: the database does not know of this state.
    """

    until_ms: int
    resumed: bool
    by: str = ""
    why: str = ""
    alone: bool = False


def queue_word(queue: str) -> str:
    """The word of all jobs of a queue."""
    return f"queue:{queue}"


def _word_of(record: bytes, kind: str) -> str:
    """The task, or the scope, of a record that may be unreadable."""
    first, *task = record.partition(b"\n")[0].split(b" ")[:2]
    return decode.text(b"".join(task) if kind == "task" else first.partition(b"@")[2])


class LimitStore:
    """The limits of one partition."""

    def __init__(self, store: QueueStore) -> None:
        self.store = store
        self._link, self._keys = store.link, store.keys

    def limit(
        self,
        changes: Sequence[LimitChange],
        *,
        actor: str = "",
        reason: str = "",
        replicas: Replicas | None = None,
        now_ms: int | None = None,
    ) -> list[bool]:
        """Pauses jobs by words, or lets them run again; running jobs continue. Returns one answer per change: whether it changed
        something.
        """
        bounded(changes)
        call = (*loader.head(now_ms, actor, reason), *(value for change in changes for value in change))
        [answers] = self.store.run_each("limit", [call], lambda replies: [answer == 1 for answer in loader.value(replies[0])], replicas)
        return loader.value(answers)

    def running(self, word: str = "") -> int:
        """The number of running jobs, or of those with a word (0 for a rate). It reads the records of all running jobs for a task or a
        scope.
        """
        kind, _, text = word.partition(":")
        if kind in ("rate", "declared"):
            return 0
        if kind in ("", "queue"):
            return int(self._link.execute("ZCARD", self._keys["leases"]))
        if kind == "name":
            raw = text.encode()
            return len(self._link.execute("ZRANGE", self._keys["holders"], b"[" + raw + b"\0", b"(" + raw + b"\1", "BYLEX"))
        leased, found = self._link.execute("ZRANGE", self._keys["leases"], 0, -1), 0
        for start in range(0, len(leased), MOST):
            records = self._link.execute("HMGET", self._keys["jobs"], *leased[start : start + MOST])
            found += sum(record is not None and _word_of(record, kind) == text for record in records)
        return found

    def paused(self) -> dict[str, WordPause]:
        """The words that are paused, or whose held jobs have not all returned; the queue, if it is paused or `alone` is set. A pause
        that waits for a restore by hand is not included.
        """
        meta = self._keys["meta"]
        fields = ("paused", "paused_by", "paused_why", "paused_until", "paused_alone")
        commands = [("HGETALL", self._keys["pauses"]), ("HMGET", meta, *fields), ("TIME",)]
        flat, values, time = map(loader.value, self._link.execute_many(commands))
        pairs = zip(flat[::2], flat[1::2], strict=True)
        found = {decode.text(word): WordPause(decode.moment_ms(value), value[:1] == b"r") for word, value in pairs}
        at, by, why, until, alone = (decode.text(value or b"") for value in values)
        until_ms = decode.moment_ms(until) if until else 0
        pauses = bool(at) and by != RESTORE and not 0 < until_ms <= decode.time_ms(time)
        if pauses or (alone and by != RESTORE):
            found[queue_word(self.store.queue)] = WordPause(until_ms if pauses else 0, not pauses, by, why, bool(alone))
        return found

    def rates(self) -> dict[str, str]:
        """The rates that a person has set: their paces in the form of `Quota.told`."""
        flat = self._link.execute("HGETALL", self._keys["limits"])
        return dict(zip(map(decode.text, flat[::2]), map(decode.text, flat[1::2]), strict=True))

    def waiting(self, rate: str) -> int:
        """The number of due jobs that wait for a token of a rate."""
        line = b"\2" + rate.encode()
        return int(self._link.execute("ZLEXCOUNT", self._keys["waiters"], b"[" + line + b"\0", b"(" + line + b"\1"))

    def allows(self, record: bytes) -> bool:
        """Whether neither the queue nor a word of this record is paused."""
        paused, name = self.paused(), in_payload(record.split(b"\n", 2)[1])
        words = [queue_word(self.store.queue), *(f"{kind}:{_word_of(record, kind)}" for kind in ("task", "scope"))]
        words += [f"name:{name.text}"] if name and name.text else []
        now_ms = decode.time_ms(self._link.execute("TIME"))
        held = (paused[word] for word in words if word in paused)
        return not any(not one.resumed and (one.until_ms == 0 or one.until_ms > now_ms) for one in held)
