"""How late do jobs start on an idle system? 2,000 jobs due over 20 s, one worker, defaults:

    python -m benchmarks.lateness [--jobs 2000] [--seconds 20] [--workers 1]

Prints p50, p99 and the maximum of (start of the task - run_at), in ms. benchmarks/metrics/lateness.py measures it.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path


def main() -> int:
    """Our own figures alone. Returns 1 when a job started early."""
    sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # for `python benchmarks/lateness.py`
    from benchmarks.metrics.lateness import lateness
    from benchmarks.systems import OWN

    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--jobs", type=int, default=2000)
    options.add_argument("--seconds", type=float, default=20.0)
    options.add_argument("--workers", type=int, default=1)
    given = options.parse_args()
    found = lateness(OWN, given.jobs, given.seconds, given.workers)
    print(f"{given.jobs:,} jobs due over {given.seconds:g} s, {given.workers} worker{'s' * (given.workers > 1)}, defaults")
    print("lateness  p50 {p50:.2f} ms   p99 {p99:.2f} ms   max {max:.2f} ms   early {early:.0f}".format(**found))
    return int(found["early"] > 0)


if __name__ == "__main__":
    raise SystemExit(main())
