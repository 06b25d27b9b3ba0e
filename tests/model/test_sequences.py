"""Steps that model and scripts have once disagreed on, as hypothesis found them; by hand, without a search."""

from __future__ import annotations

from typing import Any

import pytest

from tests.model.machine import QueueMachine
from tests.model.wishes import Wish

URGENT = Wish(again=False, pick=0, key="", band="high", offset=-5000, delayed=False, policy="keep", expires=0, most=1, durable=False)
AWAY = {"extends": False, "later": False, "back": 0, "again": False}

Steps = list[tuple[str, dict[str, Any]]]

TWO_RUN: Steps = [
    ("a_queue_with_some_jobs", {"max_crashes": 0, "wanted": [URGENT], "confirmed": False}),
    ("a_reply_is_lost_and_the_call_is_sent_again", {"step": 0}),
    ("jobs_are_scheduled_and_claimed", {"wanted": [URGENT], "worker": "w1"}),
]
SEQUENCES: dict[str, Steps] = {
    f"a short restart behind a long outage, of which a caller knows {told} ms less": [
        *TWO_RUN,
        ("redis_is_away_for_a_while", {**AWAY, "gap": 90_000, "told": 1, "anew": False}),
        ("redis_is_away_for_a_while", {**AWAY, "gap": 15_000, "told": told, "anew": True}),
    ]
    for told in (1, 500)
}


@pytest.mark.parametrize("steps", SEQUENCES.values(), ids=SEQUENCES)
def test_the_scripts_do_what_the_model_does_in_these_steps(redis_server, steps: Steps) -> None:
    machine = QueueMachine(redis_server.link)
    for rule, given in steps:
        getattr(machine, rule)(**given)
    machine.teardown()
