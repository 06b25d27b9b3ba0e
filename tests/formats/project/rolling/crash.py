"""Fills a queue with jobs whose process has died, as a worker of this release leaves them, which says how: `python -m rolling.crash`.
Prints what is to become of each, and with which words its run is to be told of.
"""

import json
import sys

from django_delayq import ids
from django_delayq.worker.outcome_detail import of_crash
from rolling.fill import WORKER, claim, expected, outcome_of, put, store
from rolling.tasks import note


def main() -> None:
    """Some that run again, and one that has died too often. Nothing of it is known to the database."""
    told = {"killed": -9, "ended by itself": 3, "lost with its worker": None, "poison": -11}
    jobs = {put(note, name, ends="succeeded", runs=1).id: name for name in told}
    for claimed in claim():
        job = ids.full(claimed.id)
        name = jobs[job]
        detail = of_crash(told[name])
        item = outcome_of(claimed.id, claimed.attempt, claimed.fence, "crash", 0, detail)
        most = 0 if name == "poison" else 3
        assert store("orders").settle([item], worker=WORKER, max_crashes=most) == ["done"]
        if name == "poison":
            expected[str(job)] |= {"ends": "failed", "runs": 0, "crashes": []}
        else:
            expected[str(job)] |= {"crashes": [json.loads(detail)["d"]]}
    json.dump(expected, sys.stdout)


if __name__ == "__main__":
    main()
