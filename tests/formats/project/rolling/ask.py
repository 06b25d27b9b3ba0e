"""Fills a queue with jobs that have asked, as a worker of this release leaves them: `python -m rolling.ask`. Only releases that know
`NotYet` can. Prints what is to become of each.
"""

import json
import sys
from unittest import mock

import rolling.fill as filling
from django_delayq import ids
from rolling.fill import claim, expected, fold, put, settle
from rolling.tasks import note


def asks(name: str, *, times: int, delay: int, **options) -> None:
    """Schedules one that has asked so often, and asks again after that many ms."""
    job = put(note, name, ends="succeeded", runs=1, **options)
    for number in range(1, times + 1):
        [claimed] = [one for one in claim(job.queue) if one.id == job.short_id]
        settle(claimed, "ask", delay=delay if number == times else 0, d="not yet")


def main() -> None:
    """Waiting ones, one that has failed in between, and one that the dead worker runs."""
    with mock.patch.object(filling, "WORKER", "gone:2:w"):
        asks("has asked once", times=1, delay=1_000)
        asks("has asked three times, with a key", times=3, delay=1_500, key="asks")
        asks("has asked, of redis durability", times=2, delay=1_000, queue="quick")
        asks("has asked, and expires tomorrow", times=2, delay=1_000, expires="1d")
        fold()
        asks("has asked, and the mirror does not know", times=2, delay=0)
        asks("has asked, and fails in between", times=2, delay=0)
        for one in claim():
            if expected[str(ids.full(one.id))]["name"] == "has asked, and fails in between":
                settle(one, "retry", delay=1_000)  # the other one is left to its lease
    json.dump(expected, sys.stdout)


if __name__ == "__main__":
    main()
