"""A process of the sample project that takes the lock "till".

`python -m tests.locks.holder crowd THREADS ROUNDS`: each thread takes it ROUNDS times, and adds one to a number in a file without any
other guard. `python -m tests.locks.holder holds`: takes it once, and holds it until the process learns that the lock is lost. The
process writes down what it sees.
"""

from __future__ import annotations

import os
import sys
import threading
from pathlib import Path

import django

LEASE = 1.0  # seconds


def crowd(folder: Path, threads: int, rounds: int) -> None:
    import django_delayq as delayq
    from tests.app import record

    till = folder / "till"

    def works() -> None:
        for _ in range(rounds):
            with delayq.lock("till", wait="120s", lease=LEASE) as lock:
                ledger.write(what="took", fence=lock.fence)
                number = int(till.read_text())
                lock.check()
                till.write_text(str(number + 1))
                ledger.write(what="ends", fence=lock.fence)

    ledger = record.own(folder, "crowd")
    workers = [threading.Thread(target=works) for _ in range(threads)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()


def holds(folder: Path) -> None:
    import django_delayq as delayq
    from django_delayq import clock
    from tests.app import record

    ledger = record.own(folder, "holder")
    try:
        with delayq.lock("till", lease=LEASE) as lock:
            ledger.write(what="took", fence=lock.fence)
            while True:
                clock.sleep(0.01)
                lock.check()
    except delayq.LeaseLost as error:
        ledger.write(what="lost", code=error.code, fence=error.fields["fence"])


def main(what: str, *numbers: int) -> None:
    django.setup()
    folder = Path(os.environ["APP_FOLDER"])
    if what == "crowd":
        crowd(folder, *numbers)
    else:
        holds(folder)


if __name__ == "__main__":
    main(sys.argv[1], *map(int, sys.argv[2:]))
