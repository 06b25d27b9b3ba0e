"""Jobs that share a name, on real workers. `python -m tests.worker.serial_run` is the same with 10,000 jobs."""

from __future__ import annotations

import pytest

from tests.worker import serial_run
from tests.worker.conftest import Shop


@pytest.mark.slow
def test_of_a_name_one_runs_at_a_time_oldest_first_while_workers_are_killed(shop: Shop) -> None:
    shop.settings = {"MAX_CRASHES": 20}
    assert serial_run.play(shop, jobs=200, names=10, seconds=0.01, workers=2, kills=3) == []


@pytest.mark.parametrize(
    ("ledger", "words"),
    [
        (["began a 1 0", "began a 2 1", "ended a 1 0", "ended a 2 1"], "turn 2 of that name has begun"),
        (["began a 1 0", "began a 1 1", "ended a 1 0", "ended a 1 1"], "two runs of one turn"),
        (["began a 1 1", "ended a 1 1", "began a 2 0", "ended a 2 0"], "not the oldest first"),
        (["began a 1 0", "ended a 1 0", "began a 2 1"], "1 jobs have not ended"),
    ],
)
def test_the_ledger_sees_what_breaks_the_promise(ledger: list[str], words: str) -> None:
    assert any(words in found for found in serial_run.wrong(ledger, 2))


def test_the_ledger_takes_what_keeps_it() -> None:
    lost = ["began a 1 0", "began a 2 0", "ended a 2 0", "began b 3 1", "ended b 3 1"]
    assert serial_run.wrong(lost, 2) == []
