"""Calls that may hang, of a project's code or of a driver: in a thread of their own, which is left behind when they do."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable
from queue import SimpleQueue
from typing import Any, Final, TypeVar

from django_delayq import clock
from django_delayq.logger import Logger

logger = Logger("django_delayq.worker")

T = TypeVar("T")
_Calls = SimpleQueue[tuple[Callable[[], None], threading.Event] | None]


MOST_HANGING: Final = 4  # calls of one question that have not come back; beyond it the next ones are not made
_hanging: Counter[Callable[[], Any]] = Counter()
_lock: Final = threading.Lock()


def answers(seconds: float, *questions: Callable[[], T], behind: Callable[[], None]) -> list[T | None]:
    """What these functions return, all called at once, each in a thread of its own; `behind` is called there behind each. None for one
    that has not come back within so many seconds, that raises (which is logged), or that was not called since it hangs too often.
    """
    found: list[T | None] = [None] * len(questions)
    threads = []

    def ask(number: int, question: Callable[[], T]) -> None:
        try:
            try:
                found[number] = question()
            finally:
                behind()
        except Exception:
            logger.exception("a question could not be answered")
        finally:
            with _lock:
                _hanging[question] -= 1

    for number, question in enumerate(questions):
        with _lock:
            if _hanging[question] >= MOST_HANGING:
                continue
            _hanging[question] += 1
        threads.append(threading.Thread(target=ask, args=(number, question), name="delayq-question", daemon=True))
        threads[-1].start()
    deadline = clock.monotonic() + seconds
    for thread in threads:
        thread.join(max(0.0, deadline - clock.monotonic()))
    return list(found)  # as it is now: a late answer changes nothing


class PatientThread:
    """1. The thread starts with the first call, and serves those that follow. 2. A call that takes too long keeps it; the next one gets
    another. 3. It dies with its process.

    Args:
        tidy: called there behind each call.
    """

    def __init__(self, tidy: Callable[[], None]) -> None:
        self._tidy = tidy
        self._calls: _Calls | None = None

    def run(self, call: Callable[[], None], seconds: float) -> bool:
        """Calls it there, and waits. False: it has not come back within so many seconds. What it raises is logged."""
        if self._calls is None:
            self._calls = SimpleQueue()
            threading.Thread(target=_serve, args=(self._calls, self._tidy), name="delayq-receivers", daemon=True).start()
        done = threading.Event()
        self._calls.put((call, done))
        if done.wait(seconds):
            return True
        self._calls.put(None)  # the thread ends when this call comes back, if ever
        self._calls = None
        return False


def _serve(calls: _Calls, tidy: Callable[[], None]) -> None:
    while (given := calls.get()) is not None:
        call, done = given
        for step in (call, tidy):
            try:
                step()
            except BaseException:
                logger.exception("a call of receivers failed")
        done.set()
