"""The cost of the test kit for a project: a test that schedules, asserts, advances the time by half an hour and asserts again; and
projects of 500 tests that only use the fixture, run by pytest.

    python -m benchmarks.kit [--seconds 20]

Starts the server of the test kit. The database is SQLite in memory, in a transaction that is rolled back, as with TestCase. The
limits are 10,000 such tests per minute, 5 ms per test, and one second for the first; on a busy machine, in CPU time of this process.
The fixture adds at most three seconds to a project of 500 tests.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from typing import Any

from benchmarks import kit_project

LEAST_PER_MINUTE, MOST_MS, MOST_FIRST, MOST_ADDED = 10_000, 5.0, 1.0, 3.0
TESTS = 500


def main() -> int:
    """Measures, prints. Returns 1 when a figure is out of bounds."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=20.0)
    options = parser.parse_args()
    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "benchmarks.settings")
    os.environ["BENCH_DURABILITY"] = "outbox"
    import django
    from django.test.utils import setup_databases, setup_test_environment

    django.setup()
    setup_test_environment()
    setup_databases(verbosity=0, interactive=False)
    return measure(options.seconds)


def measure(seconds: float) -> int:
    """With Django set up."""
    from django.test import TestCase

    from benchmarks.tasks import nothing
    from django_delayq.testing.kit import one_kit

    class Case(TestCase):
        """For its transactions."""

    atomics: Any = Case
    timers = [time.perf_counter(), time.process_time()]
    kit = one_kit()
    kit.start()
    kit.assert_not_scheduled()
    kit.stop()
    first = passed(timers)

    timers = [time.perf_counter(), time.process_time()]
    for _ in range(TESTS):
        kit.start()
        kit.stop()
    around = [spent / TESTS * 1000 for spent in passed(timers)]

    done, timers = 0, [time.perf_counter(), time.process_time()]
    while passed(timers)[0] < seconds:
        opened = atomics._enter_atomics()
        kit.start()
        nothing.using(delay="30m").schedule(str(done))
        kit.assert_scheduled(nothing, args=[str(done)], delay="30m")
        assert len(kit.advance("30m")) == 1
        kit.assert_not_scheduled()
        kit.stop()
        atomics._rollback_atomics(opened)
        done += 1
    rates = [done / spent * 60 for spent in passed(timers)]

    print(f"{'':36}{'passed':>10}{'computed':>10}")
    print(f"{'first test, s':36}{first[0]:10.2f}{first[1]:10.2f}   at most {MOST_FIRST:g}")
    print(f"{'around each further one, ms':36}{around[0]:10.2f}{around[1]:10.2f}   at most {MOST_MS:g}")
    print(f"{'schedule, assert, advance, assert':36}{rates[0]:10,.0f}{rates[1]:10,.0f}   a minute, at least {LEAST_PER_MINUTE:,}")
    added = []
    for shape, without, with_it in kit_project.measured():
        added.append(with_it - without)
        print(f"{shape + ', s':36}{without:10.2f}{with_it:10.2f}   without and with it: at most {MOST_ADDED:g} more")
    return int(max(rates) < LEAST_PER_MINUTE or min(around) > MOST_MS or min(first) > MOST_FIRST or max(added) > MOST_ADDED)


def passed(timers: list[float]) -> tuple[float, float]:
    """Seconds since then: passed, and computed by this process."""
    return time.perf_counter() - timers[0], time.process_time() - timers[1]


if __name__ == "__main__":
    sys.exit(main())
