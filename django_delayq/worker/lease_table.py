"""The leases of one task process, in memory that it shares with the supervisor: one row per claimed job.

The task process writes a row when it claims, starts and settles a job. The supervisor reads the rows to extend leases, to check hard
deadlines, and to give back the jobs of a killed process. Neither waits for the other. They share no lock, because a killed process
would keep it. Two rules make a read in the middle of a write harmless:

1. The state byte is written last, and set to EMPTY first. A reader compares the `turn` of the row before and after the read.
2. Each use of a row has a new `turn`. Values that the supervisor writes into a row (lost, cancel, abort, good until) carry the turn
   that they are meant for. They have no effect on the next job of the row.
"""

from __future__ import annotations

import mmap
import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

EMPTY: Final = 0
WAITING: Final = 1  # claimed, in the buffer of this process
RUNNING: Final = 2
SETTLING: Final = 3  # it has ended; Redis has not confirmed that yet

NEVER: Final = -1  # retry_ms: the attempt was the last one
ASK: Final = -2  # retry_ms: the task's own backoff function decides
UNKNOWN_TASK: Final = 0xFFFFFFFF

LAYOUT: Final = 2  # increase it with each change of the layout: a worker may read a table that another version left behind

# The head: what the process has done so far (8-byte counters), whether it asks to be replaced, whether it ended regularly, whether it
# has begun to claim; then a nonce per line, of a claim that may be under way.
_DONE: Final = 0
_FAILED: Final = 1
_RETIRES: Final = 2
_LEFT: Final = 3
_CLAIMS: Final = 4
_HEAD: Final = 64
_NONCE: Final = 32
# A row; offsets in bytes. The first part is written by the task process, the last by the supervisor.
_ROW: Final = 192
_TURN, _STATE, _LINE, _ATTEMPT, _TASK, _PROGRESS_TURN = 0, 4, 8, 12, 16, 20
_TAKEN, _STARTED, _HARD, _RETRY_MS, _GOOD_UNTIL = 24, 32, 40, 48, 56
_ID, _FENCE, _PROGRESS = 64, 88, 120
_ABORT_TURN, _LOST_TURN, _CANCEL_TURN, _EXTENDED_TURN, _EXTENDED = 160, 164, 168, 172, 176
_CLAIMED: Final = struct.Struct("=IB3xIIIIdddqd24s32s")  # the first part, in the order of the offsets, up to _PROGRESS
_BEGUN: Final = struct.Struct("=ddq")  # _STARTED, _HARD, _RETRY_MS
_TEXTS: Final = struct.Struct("24s32s")
_PROGRESS_TEXT: Final = struct.Struct("40s")


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaseSlot:
    """A row as the supervisor read it. Times are monotonic seconds, which all processes of one machine share; 0: not set."""

    row: int
    turn: int
    state: int
    line: int
    id: str
    fence: str
    attempt: int
    task: int
    taken: float
    started: float
    hard: float
    retry_ms: int
    progress: str
    progress_turn: int


class LeaseTable:
    """The shared memory of one task process. The supervisor creates it before the fork, and closes it.

    Args:
        rows: how many jobs the process may hold at once, including jobs that wait to be settled.
        lines: how many lines (queue partitions) it serves.
        descriptor: of the file that is the memory; -1 for memory without a file.
    """

    def __init__(self, rows: int, lines: int, descriptor: int = -1) -> None:
        self.rows = rows
        self.worker = ""  # whose process this is
        self._base = _base(lines)
        self._map = mmap.mmap(descriptor, self.size(rows, lines))
        view = memoryview(self._map)
        self._bytes = view
        self._u32 = view.cast("I")
        self._i64 = view.cast("q")
        self._f64 = view.cast("d")

    @staticmethod
    def size(rows: int, lines: int) -> int:
        """The size in bytes."""
        return _base(lines) + rows * _ROW

    def close(self) -> None:
        """Releases the memory."""
        for view in (self._f64, self._i64, self._u32, self._bytes):
            view.release()
        self._map.close()

    # written by the task process

    def put(self, row: int, *, line: int, id: str, fence: str, attempt: int, taken: float, good_until: float) -> int:
        """Writes a claimed job that waits. Returns the turn of the row."""
        at = self._base + row * _ROW
        self._bytes[at + _STATE] = EMPTY
        turn = (self._u32[at >> 2] + 1) & 0xFFFFFFFF
        _CLAIMED.pack_into(
            self._map, at, turn, EMPTY, line, attempt, UNKNOWN_TASK, 0, taken, 0.0, 0.0, NEVER, good_until, id.encode(), fence.encode()
        )
        self._bytes[at + _STATE] = WAITING
        return turn

    def start(self, row: int, *, started: float, task: int, hard: float = 0.0, retry_ms: int = NEVER) -> None:
        """Records that the job in the row runs. `hard`: when the supervisor ends it; `retry_ms`: the delay that follows then."""
        at = self._base + row * _ROW
        self._u32[(at + _TASK) >> 2] = task
        _BEGUN.pack_into(self._map, at + _STARTED, started, hard, retry_ms)
        self._bytes[at + _STATE] = RUNNING

    def settling(self, row: int) -> None:
        """Records that the run has ended."""
        self._bytes[self._base + row * _ROW + _STATE] = SETTLING

    def empty(self, row: int) -> None:
        """Frees the row, because Redis has confirmed how the run ended."""
        self._bytes[self._base + row * _ROW + _STATE] = EMPTY

    def progress(self, row: int, text: str) -> None:
        """Writes the progress of the job in the row, "done/total"."""
        at = self._base + row * _ROW
        _PROGRESS_TEXT.pack_into(self._map, at + _PROGRESS, text.encode()[:40])
        self._u32[(at + _PROGRESS_TURN) >> 2] += 1

    def claiming(self, line: int, nonce: str) -> None:
        """Records the nonce of a claim that may be under way ("": none). The supervisor repeats that claim if this process dies now."""
        struct.pack_into("32s", self._map, _HEAD + line * _NONCE, nonce.encode())

    def claimed(self) -> None:
        """Records that Redis has answered a claim of this process."""
        self._i64[_CLAIMS] = 1

    def count(self, done: int, failed: int) -> None:
        """Adds to what this process has settled. Called by one thread at a time."""
        self._i64[_DONE] += done
        self._i64[_FAILED] += failed

    def retire(self) -> None:
        """Asks the supervisor to replace this process, which then finishes the jobs that it holds."""
        self._i64[_RETIRES] = 1

    def leave(self) -> None:
        """Records that the process ends regularly. A task that ends the process with `os._exit(0)` does not call this."""
        self._i64[_LEFT] = 1

    # read by the task process

    def is_lost(self, row: int, turn: int) -> bool:
        """Whether the supervisor found that another worker has the job."""
        return self._u32[(self._base + row * _ROW + _LOST_TURN) >> 2] == turn

    def is_at_work(self, row: int, turn: int) -> bool:
        """Whether the row still has the job of that turn, and the job has not ended."""
        at = self._base + row * _ROW
        return self._bytes[at + _STATE] in (WAITING, RUNNING) and self._u32[at >> 2] == turn

    def lose(self, row: int, turn: int) -> None:
        """Records that another worker has the job of that turn."""
        self._u32[(self._base + row * _ROW + _LOST_TURN) >> 2] = turn

    def is_cancelled(self, row: int, turn: int) -> bool:
        """Whether the supervisor found a cancel request."""
        return self._u32[(self._base + row * _ROW + _CANCEL_TURN) >> 2] == turn

    def aborted(self) -> set[tuple[int, int]]:
        """Row and turn of all held jobs whose runs the supervisor wants to end."""
        turns, at = self._u32[self._base >> 2 :: _ROW >> 2], self._u32[(self._base + _ABORT_TURN) >> 2 :: _ROW >> 2]
        found = {(row, turn) for row, (turn, ended) in enumerate(zip(turns, at, strict=True)) if turn == ended}
        return {(row, turn) for row, turn in found if self._bytes[self._base + row * _ROW + _STATE] != EMPTY}

    def good_until(self, row: int, turn: int) -> float:
        """The time until which the lease is certainly valid."""
        at = self._base + row * _ROW
        claimed = self._f64[(at + _GOOD_UNTIL) >> 3]
        if self._u32[(at + _EXTENDED_TURN) >> 2] != turn:
            return claimed
        return max(claimed, self._f64[(at + _EXTENDED) >> 3])

    # read and written by the supervisor

    def held(self) -> Iterator[LeaseSlot]:
        """All rows that are not empty, and were not being written during the read."""
        states = self._bytes[self._base + _STATE : self._base + self.rows * _ROW : _ROW].tobytes()
        if not any(states):  # the usual case; three loops call this several times a second
            return
        for row in (row for row, state in enumerate(states) if state != EMPTY):
            at = self._base + row * _ROW
            state = self._bytes[at + _STATE]
            if state != EMPTY:
                found = self._read(row, at, state)
                if found is not None:
                    yield found

    def state(self, held: LeaseSlot) -> int | None:
        """The current state of the job's row; None if the job is no longer in the row."""
        at = self._base + held.row * _ROW
        state = self._bytes[at + _STATE]
        return state if state != EMPTY and self._u32[at >> 2] == held.turn else None

    def cancel(self, held: LeaseSlot) -> None:
        """Records for the process that the job should stop."""
        self._u32[(self._base + held.row * _ROW + _CANCEL_TURN) >> 2] = held.turn

    def abort(self, held: LeaseSlot) -> None:
        """Records for the process that the job must stop. The process reads it when it is called, see
        `worker/process/task_process.py`.
        """
        self._u32[(self._base + held.row * _ROW + _ABORT_TURN) >> 2] = held.turn

    def extended(self, held: LeaseSlot, until: float) -> None:
        """Records for the process until when the lease is certainly valid."""
        at = self._base + held.row * _ROW
        self._f64[(at + _EXTENDED) >> 3] = until
        self._u32[(at + _EXTENDED_TURN) >> 2] = held.turn

    def nonces(self, lines: Sequence[object]) -> list[str]:
        """Per line, the nonce of a claim that may have been under way; "" for none."""
        raw = (struct.unpack_from("32s", self._map, _HEAD + line * _NONCE)[0] for line in range(len(lines)))
        return [_text(nonce) for nonce in raw]

    def counts(self) -> tuple[int, int]:
        """How many jobs the process has settled, and how many of them had failed."""
        return self._i64[_DONE], self._i64[_FAILED]

    def claims(self) -> bool:
        """Whether the process has begun to claim."""
        return bool(self._i64[_CLAIMS])

    def retires(self) -> bool:
        """Whether the process asks to be replaced."""
        return bool(self._i64[_RETIRES])

    def left(self) -> bool:
        """Whether the process ended regularly, after it recorded how its runs ended."""
        return bool(self._i64[_LEFT])

    def _read(self, row: int, at: int, state: int) -> LeaseSlot | None:
        u32, f64, word, double = self._u32, self._f64, at >> 2, at >> 3
        turn = u32[word]
        id, fence = _TEXTS.unpack_from(self._map, at + _ID)
        held = LeaseSlot(
            row=row,
            turn=turn,
            state=state,
            line=u32[word + (_LINE >> 2)],
            id=_text(id),
            fence=_text(fence),
            attempt=u32[word + (_ATTEMPT >> 2)],
            task=u32[word + (_TASK >> 2)],
            taken=f64[double + (_TAKEN >> 3)],
            started=f64[double + (_STARTED >> 3)],
            hard=f64[double + (_HARD >> 3)],
            retry_ms=self._i64[double + (_RETRY_MS >> 3)],
            progress=_text(_PROGRESS_TEXT.unpack_from(self._map, at + _PROGRESS)[0]),
            progress_turn=u32[word + (_PROGRESS_TURN >> 2)],
        )
        again = self._bytes[at + _STATE]
        return held if again != EMPTY and u32[word] == turn else None


def _base(lines: int) -> int:
    base = _HEAD + _NONCE * lines
    return base + -base % 64


def _text(raw: bytes) -> str:
    return raw.rstrip(b"\0").decode("utf-8", "replace")
