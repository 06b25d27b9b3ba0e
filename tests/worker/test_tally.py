"""A text that one process writes and others read: it is never incomplete, even if a writer was killed."""

from __future__ import annotations

import os
import signal
import time

import pytest

from django_delayq.worker.tally import LatestText


def test_what_was_written_last_is_read() -> None:
    board = LatestText(4096)
    assert board.read() == b""
    assert board.write(b"first, and longer")
    assert board.write(b"second")
    assert board.read() == b"second"


def test_what_is_too_long_leaves_the_last_text() -> None:
    board = LatestText(4096)
    board.write(b"short")
    assert board.write(b"x" * 5000) is False
    assert board.read() == b"short"


def test_a_text_that_was_begun_is_none_until_another_was_written() -> None:
    board = LatestText(4096)
    board.write(b"whole")
    board._map[0] |= 1  # a writer was killed after this
    board._map[16:18] = b"XX"
    assert board.read() == b""
    board.write(b"new")
    assert board.read() == b"new"


@pytest.mark.slow
def test_a_reader_of_another_process_sees_whole_texts_only() -> None:
    board = LatestText(1 << 20)
    pid = os.fork()
    if pid == 0:
        number = 0
        while True:
            number = (number + 1) % 10
            board.write(str(number).encode() * (1 + 30_000 * number))
    try:
        seen: set[bytes] = set()
        deadline = time.monotonic() + 30
        while len(seen) < 5 and time.monotonic() < deadline:
            text = board.read()
            assert len(set(text)) <= 1, "two texts are mixed"
            if text:
                assert len(text) == 1 + 30_000 * int(text[:1])
                seen.add(text[:1])
        assert len(seen) >= 5
    finally:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
