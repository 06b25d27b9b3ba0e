"""Runs calls of a project's code or of a driver that may hang, each in a separate thread. A thread whose call hangs is abandoned."""

from __future__ import annotations

import threading
from collections import defaultdict
from collections.abc import Callable
from contextvars import Context
from queue import SimpleQueue
from typing import Any, Final, Generic, TypeVar

from django_delayq import clock
from django_delayq.logger import Logger

logger = Logger("django_delayq.worker")

T = TypeVar("T")
_Calls = SimpleQueue[tuple[Callable[[], None], threading.Event] | None]


MOST_HANGING: Final = 4  # calls of one function that have not returned; beyond this number it is not called again


class _Call(Generic[T]):
    """A call that is under way. `answer`: None until it is `done`, and None if it raised, which is logged."""

    def __init__(self, question: Callable[[], T], behind: Callable[[], None]) -> None:
        self.began = clock.monotonic()
        self.done = threading.Event()
        self.answer: T | None = None
        self._question = question
        self._behind = behind

    def run(self) -> None:
        try:
            try:
                self.answer = self._question()
            finally:
                self._behind()
        except Exception:
            logger.exception("a request could not be answered")
        finally:
            with _lock:
                calls = _under_way[self._question]
                calls.remove(self)
                if not calls:
                    del _under_way[self._question]
            self.done.set()


_under_way: defaultdict[Callable[[], Any], list[_Call[Any]]] = defaultdict(list)  # of each function, the oldest first
_lock: Final = threading.Lock()


def answers(seconds: float, *questions: Callable[[], T], behind: Callable[[], None]) -> list[T | None]:
    """Calls all these functions at once, each in a separate thread, and returns their results. `behind` is called in the thread after
    each call. If a call of the same function is under way, the new caller waits for its result: many callers at once cost one call.
    The result is None if the function has not returned within the time, if it raised (which is logged), or if it was not called
    because it hangs too often.
    """
    deadline = clock.monotonic() + seconds
    calls = [_call(question, seconds, behind) for question in questions]
    return [call.answer if call is not None and call.done.wait(max(0.0, deadline - clock.monotonic())) else None for call in calls]


def _call(question: Callable[[], T], seconds: float, behind: Callable[[], None]) -> _Call[T] | None:
    """Returns a call that is under way and does not hang, or a new one; None if too many hang."""
    with _lock:
        calls = _under_way[question]
        if calls and clock.monotonic() - calls[-1].began < seconds:
            return calls[-1]
        if len(calls) >= MOST_HANGING:
            return None
        call = _Call(question, behind)
        calls.append(call)
    threading.Thread(target=call.run, name="delayq-question", daemon=True).start()
    return call


class PatientThread:
    """Runs calls in a thread.

    1. The thread starts with the first call, and runs the following calls, too.
    2. A call that takes too long keeps the thread. The next call gets another thread.
    3. The thread dies with its process.

    Args:
        tidy: called in the thread after each call.
    """

    def __init__(self, tidy: Callable[[], None]) -> None:
        self._tidy = tidy
        self._calls: _Calls | None = None

    def run(self, call: Callable[[], None], seconds: float) -> bool:
        """Runs a call in the thread, and waits. Returns False if it has not returned within the time. Exceptions are logged."""
        if self._calls is None:
            self._calls = SimpleQueue()
            threading.Thread(target=_serve, args=(self._calls, self._tidy), name="delayq-receivers", daemon=True).start()
        done = threading.Event()
        self._calls.put((call, done))
        if done.wait(seconds):
            return True
        self._calls.put(None)  # the thread ends when this call returns, if it ever does
        self._calls = None
        return False


def _serve(calls: _Calls, tidy: Callable[[], None]) -> None:
    context = Context()  # the thread may have inherited the context of a loop, in which nothing is traced
    while (given := calls.get()) is not None:
        call, done = given
        for step in (call, tidy):
            try:
                context.run(step)
            except BaseException:
                logger.exception("a call of receivers failed")
        done.set()
