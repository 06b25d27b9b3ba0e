"""Which files of the package are given faults, and which tests judge each, the cheapest first. All of these work within one process."""

from __future__ import annotations

from pathlib import Path

import django_delayq
from tests.mutation import lua, python
from tests.mutation.mutant import Mutant, named

PACKAGE = Path(django_delayq.__file__).parent
MODEL = "tests/mutation/by_model.py"
# The tests of one script. Those of other scripts follow, and then the model.
SCRIPTS = {
    "schedule": "tests/store/test_schedule.py",
    "claim": "tests/store/test_claim.py",
    "settle": "tests/store/test_settle.py",
    "offer": "tests/store/test_offers.py",
    "include/target": "tests/store/test_offers.py",
    "lock": "tests/store/test_locks.py",
    "prolong": "tests/store/test_locks.py",
    "unlock": "tests/store/test_locks.py",
    "include/locks": "tests/store/test_locks.py",
    "restore": "tests/store/test_restore.py",
    "sweep": "tests/store/test_restore.py",
    "confirm": "tests/store/test_restore.py",
    "trim": "tests/store/test_restore.py",
    "tidy": "tests/store/test_tidy.py",
    "resign": "tests/security/test_resign.py",
    "inspect": "tests/store/test_inspector.py",
    "include/schedule_fast_path": "tests/store/test_schedule_fast_path.py",
    "include/spread": "tests/store/test_spread.py",
    "include/bulk": "tests/store/test_withdrawn.py",
    "include/timer_election": "tests/store/test_timer_election.py",
    "include/alive": "tests/store/test_claim.py",
    "include/asks": "tests/store/test_asks.py",
    "include/lines": "tests/store/test_names.py",
    "include/concurrency_name": "tests/store/test_names.py",
    "include/back": "tests/store/test_settle.py",
    "include/fair_words": "tests/store/test_fair.py",
    "include/words": "tests/store/test_word_pauses.py",
    "include/first_date": "tests/store/test_at_most.py",
    "include/limits": "tests/store/test_word_pauses.py",
    "limit": "tests/store/test_word_pauses.py",
}
OTHERS = "tests/store/test_changes.py"
STORE = [
    "tests/store/test_settle.py",
    "tests/store/test_schedule.py",
    "tests/store/test_contests.py",
    "tests/store/test_schedule_fast_path.py",
    "tests/store/test_at_most.py",
    "tests/store/test_claim.py",
    "tests/store/test_pulled.py",
    "tests/store/test_asks.py",
    "tests/store/test_names.py",
    "tests/store/test_fair.py",
    "tests/store/test_word_pauses.py",
    "tests/store/test_claim.py",
    "tests/store/test_timer_election.py",
    "tests/store/test_changes.py",
    "tests/store/test_tidy.py",
    "tests/store/test_tidy.py",
    "tests/store/test_offers.py",
    "tests/store/test_locks.py",
    "tests/store/test_inspector.py",
    "tests/store/test_epoch.py",
    "tests/store/test_behind.py",
    "tests/store/test_restore.py",
    "tests/store/test_spread.py",
    "tests/store/test_inspector.py",
    "tests/store/test_formats.py",
    "tests/store/test_workers.py",
    "tests/store/test_scripts.py",
    "tests/security/test_writer.py",
]
MODULES = {
    "store/scripts/queue.py": [*STORE, MODEL],
    "store/scripts/recovery.py": ["tests/store/test_restore.py", "tests/store/test_epoch.py", MODEL],
    "producer/outbox/rows.py": ["tests/mirror/test_fold.py", "tests/mirror/test_outbox_insert.py", "tests/admin/test_words.py"],
    "mirror/fold.py": [
        "tests/mirror/test_fold.py",
        "tests/mirror/test_set_aside.py",
        "tests/mirror/test_ends.py",
        "tests/security/test_writer.py",
        "tests/security/test_signing.py",
        "tests/mirror/test_atomic_runs.py",
        "tests/mirror/test_rolled_back.py",
        "tests/mirror/test_running.py",
        "tests/mirror/test_forgotten.py",
        "tests/mirror/test_pauses.py",
        "tests/mirror/test_once_for.py",
    ],
    "producer/outbox/period_keys.py": ["tests/mirror/test_once_for.py", "tests/contrib/gateway/test_scheduled_once.py"],
    "producer/lookup.py": [
        "tests/producer/test_schedule.py",
        "tests/mirror/test_answers.py",
        "tests/mirror/test_table.py",
        "tests/mirror/test_keys.py",
        "tests/producer/test_outage.py",
        "tests/producer/test_partitions.py",
    ],
    "producer/acts.py": [
        "tests/producer/test_async_api.py",
        "tests/producer/test_inputs.py",
        "tests/producer/test_schedule.py",
        "tests/mirror/test_answers.py",
        "tests/mirror/test_keys.py",
        "tests/mirror/test_table.py",
    ],
    "producer/put.py": [
        "tests/producer/test_schedule.py",
        "tests/producer/test_many.py",
        "tests/producer/test_refusals.py",
        "tests/mirror/test_keys.py",
        "tests/mirror/test_far.py",
        "tests/mirror/test_debounce.py",
    ],
    "worker/process/settler.py": ["tests/worker/process/test_settler.py", "tests/worker/test_loops.py"],
    "worker/process/mover.py": ["tests/worker/test_loops.py", "tests/worker/test_fair.py", "tests/worker/process/test_seldom.py"],
    "worker/outcome.py": ["tests/worker/process/test_executor.py", "tests/worker/test_loops.py"],
    "worker/process/executor.py": [
        "tests/worker/process/test_executor.py",
        "tests/worker/process/test_asking.py",
        "tests/security/test_signing.py",
        "tests/worker/test_receivers.py",
        "tests/worker/test_loops.py",
        "tests/worker/test_interruptions.py",
    ],
}


def files() -> list[str]:
    """Every file that gets faults, unchanged."""
    scripts = sorted(str(path.relative_to(PACKAGE)) for path in (PACKAGE / "store/lua").rglob("*.lua"))
    return [*scripts, *MODULES]


def mutants(file: str) -> list[Mutant]:
    """All faults of one file."""
    text = (PACKAGE / file).read_text("utf-8")
    return list(named(file, text, (lua if file.endswith(".lua") else python).changes(text)))


def judges(file: str) -> list[str]:
    """The files of tests that judge it, in their order."""
    if not file.endswith(".lua"):
        return MODULES[file]
    first = SCRIPTS.get(file.removeprefix("store/lua/").removesuffix(".lua"), OTHERS)
    return [first, *(test for test in STORE if test != first), MODEL]
