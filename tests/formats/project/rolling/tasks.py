"""Tasks that record each run in a file: name, job, attempt, start and due date (ms), and process."""

import os
import time

import django_delayq as delayq


def _write(name: str) -> None:
    job = delayq.current()
    words = (
        name,
        job.id,
        job.attempt,
        time.time_ns() // 1_000_000,
        round(job.run_at.timestamp() * 1000),
        os.environ["ROLLING_NAME"],
    )
    ledger = os.open(os.environ["ROLLING_LEDGER"], os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    try:
        os.write(ledger, (" ".join(map(str, words)) + "\n").encode())
    finally:
        os.close(ledger)


@delayq.task(name="rolling.note", queue="orders")
def note(name: str) -> None:
    """Writes its line."""
    _write(name)
