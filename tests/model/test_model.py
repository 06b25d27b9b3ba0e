"""The scripts against the model. DELAYQ_MODEL_EXAMPLES=5000 goes on for longer, with other examples each time. A red run tells its
steps as they came; with DELAYQ_MODEL_SHRINK=1 fewer are looked for, which takes up to five minutes.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis.stateful import RuleBasedStateMachine, run_state_machine_as_test

from django_delayq.store.connection.places import Nodes
from tests.conftest import missing
from tests.deployments import deployed
from tests.model.epoch_machine import machine as epoch_machine
from tests.model.machine import machine
from tests.servers import ServerMissing

pytestmark = pytest.mark.slow

MORE = int(os.environ.get("DELAYQ_MODEL_EXAMPLES", "0"))
SHRINKS = os.environ.get("DELAYQ_MODEL_SHRINK") == "1"


def play(made: Callable[[], RuleBasedStateMachine], examples: int) -> None:
    budget = settings(
        max_examples=MORE or examples,
        stateful_step_count=40,
        phases=[Phase.generate, Phase.shrink] if SHRINKS else [Phase.generate],
        report_multiple_bugs=False,
        derandomize=not MORE,
        database=None,
        deadline=None,
        suppress_health_check=list(HealthCheck),
    )
    run_state_machine_as_test(made, settings=budget)


def test_the_scripts_do_what_the_model_does(redis_server):
    play(machine(redis_server.link), 400)


def test_what_redis_forgets_comes_back_as_the_model_does_it(redis_server):
    play(epoch_machine(redis_server.link), 200)


PARTITION = 2
MACHINES = {"jobs": machine, "losses": epoch_machine}


@pytest.mark.parametrize("made", MACHINES.values(), ids=MACHINES)
def test_a_partition_is_a_queue_of_its_own(redis_server, made):
    play(made(redis_server.link, partition=PARTITION), 150)


@pytest.mark.parametrize("made", MACHINES.values(), ids=MACHINES)
@pytest.mark.parametrize("name", ["sentinel", "servers", "redis7", "valkey9"])
def test_in_each_deployment_the_scripts_do_the_same(name, made):
    """A Cluster refuses every call that is about keys of two slots."""
    with contextlib.ExitStack() as stack:
        try:
            found = stack.enter_context(deployed(name, "q"))
        except ServerMissing as error:
            missing(str(error))
        there = Nodes(found.shared, found.own, name="tests", timeout=60)  # the model says nothing about slow replies
        stack.callback(there.close)
        play(made(there.of("q", PARTITION), partition=PARTITION), 60)
