"""The scripts against the model. DELAYQ_MODEL_EXAMPLES=5000 goes on for longer, with other examples each time."""

from __future__ import annotations

import os

from hypothesis import HealthCheck, settings
from hypothesis.stateful import run_state_machine_as_test

from tests.model.machine import machine

MORE = int(os.environ.get("DELAYQ_MODEL_EXAMPLES", "0"))


def test_the_scripts_do_what_the_model_does(redis_server):
    budget = settings(
        max_examples=MORE or 400,
        stateful_step_count=40,
        derandomize=not MORE,
        database=None,
        deadline=None,
        suppress_health_check=list(HealthCheck),
    )
    run_state_machine_as_test(machine(redis_server.link), settings=budget)
