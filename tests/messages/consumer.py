"""A consumer of the sample project: `python -m tests.messages.consumer NAME [BATCH WHERE]`. It waits for a line on standard input.
Then it pulls until the queue is empty, and writes down the messages that it holds. In batch number BATCH it kills itself at the point
WHERE: `taken`, `half` (half of the batch is settled) or `settled`.
"""

from __future__ import annotations

import os
import signal
import sys
import time

import django

LEASE = 1.0  # seconds


def main(name: str, batch_number: int = 0, where: str = "") -> None:
    django.setup()
    import django_delayq as delayq
    from tests.app import record
    from tests.depths import queue_depth

    ledger = record.own(os.environ["APP_FOLDER"], f"consumer-{name}")
    number = 0

    def dies(place: str) -> None:
        if (number, place) == (batch_number, where):
            os.kill(os.getpid(), signal.SIGKILL)

    print("ready", flush=True)
    sys.stdin.readline()
    while True:
        sent = time.monotonic_ns()
        batch = delayq.pull("mail", 5, wait="500ms", lease=LEASE)
        number += 1
        for message in batch:
            ledger.write(what="took", id=message.short_id, fence=message.fence, attempt=message.attempt, sent=sent)
        if not batch and not _left(queue_depth("mail")):
            return
        if batch:
            dies("taken")
        for place, message in enumerate(batch):
            if place == 2:
                dies("half")
            ledger.write(what="ends", id=message.short_id, fence=message.fence)  # before: from here on others may have it
            message.ack()
        if batch:
            dies("settled")


def _left(depth) -> int:
    return depth.scheduled + depth.running


if __name__ == "__main__":
    main(sys.argv[1], *(int(word) if word.isdigit() else word for word in sys.argv[2:]))
