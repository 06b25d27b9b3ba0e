"""The two machines of tests/model, as judges of a fault: the same steps each time, up to the first failure, and no smaller one is
looked for. Named on the command line, so that no other run collects it.
"""

from __future__ import annotations

from hypothesis import HealthCheck, Phase, settings
from hypothesis.stateful import run_state_machine_as_test

from tests.model import epoch_machine, machine

BUDGET = settings(
    max_examples=30,
    stateful_step_count=40,
    phases=[Phase.generate],
    report_multiple_bugs=False,
    derandomize=True,
    database=None,
    deadline=None,
    suppress_health_check=list(HealthCheck),
)


def test_the_scripts_do_what_the_model_does(redis_server):
    run_state_machine_as_test(machine.machine(redis_server.link), settings=BUDGET)


def test_what_redis_forgets_comes_back_as_the_model_does_it(redis_server):
    run_state_machine_as_test(epoch_machine.machine(redis_server.link), settings=BUDGET)
