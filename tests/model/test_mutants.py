"""Whether a fault of the past would be noticed: every mutant of `mutants.py` must be caught."""

from __future__ import annotations

import inspect
from importlib.resources import files
from types import ModuleType
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis.stateful import run_state_machine_as_test

from django_delayq.store.scripts import loader
from django_delayq.store.scripts.queue import QueueStore
from django_delayq.store.scripts.recovery import EpochStore
from tests.model import epoch_machine
from tests.model.machine import machine
from tests.model.mutant import Mutant
from tests.model.mutants import ALL
from tests.worker import bench as benches
from tests.worker import test_loops

# Up to the first failure, and no smaller one is looked for.
BUDGETS = [
    settings(
        max_examples=400,
        stateful_step_count=steps,
        phases=[Phase.generate],
        report_multiple_bugs=False,
        derandomize=True,
        database=None,
        deadline=None,
        suppress_health_check=list(HealthCheck),
    )
    for steps in (40, 60, 25)  # other steps are other dice
]
Noticed = (Exception, pytest.fail.Exception)


def each(where: str) -> pytest.MarkDecorator:
    """Those of such a place."""
    found = [mutant for mutant in ALL if mutant.where == where]
    return pytest.mark.parametrize("mutant", found, ids=lambda mutant: f"{mutant.file}: {mutant.name}")


def text(file: str) -> str:
    return files("django_delayq").joinpath(file).read_text("utf-8")


def mutated(mutant: Mutant) -> ModuleType:
    """The module with its fault, beside the one that the package has loaded."""
    name = "django_delayq." + mutant.file.removesuffix(".py").replace("/", ".")
    module = ModuleType(name)
    source = text(mutant.file).replace(mutant.old, mutant.new)
    exec(compile(source, mutant.file, "exec"), module.__dict__)
    return module


@pytest.fixture
def faulty_scripts(monkeypatch):
    """Makes the loader read one file with a fault in it."""
    real = loader._read

    def install(mutant: Mutant) -> None:
        def read(path: str) -> str:
            found = real(path)
            return found.replace(mutant.old, mutant.new) if mutant.file == f"store/lua/{path}" else found

        monkeypatch.setattr(loader, "_read", read)
        loader.built.cache_clear()

    yield install
    loader.built.cache_clear()


def noticed(machine: Any) -> bool:
    """Whether the machine fails by an assertion. No other error counts: a mutant that Redis cannot load shows nothing."""
    for budget in BUDGETS:
        try:
            run_state_machine_as_test(machine, settings=budget)
        except AssertionError:
            return True
        except ExceptionGroup as several:
            # Noticed, but not when tried again, because IDs contain the time of the server.
            if several.subgroup(AssertionError) is None:
                raise
            return True
    return False


def test_what_a_mutant_changes_stands_exactly_once() -> None:
    wrong = [mutant for mutant in ALL if text(mutant.file).count(mutant.old) != 1 or mutant.old == mutant.new]
    assert wrong == []


def test_each_says_what_people_saw_of_it() -> None:
    assert [mutant.name for mutant in ALL if not mutant.bug] == []


def test_no_two_mutants_have_one_name() -> None:
    names = [(mutant.file, mutant.name) for mutant in ALL]
    assert len(set(names)) == len(names)


def test_what_the_drill_cannot_notice_has_a_test() -> None:
    assert [mutant.name for mutant in ALL if not mutant.test and not (mutant.drill and mutant.where != "worker")] == []


@pytest.mark.slow
@each("lua")
def test_a_fault_in_a_script_is_noticed(redis_server, faulty_scripts, mutant: Mutant) -> None:
    faulty_scripts(mutant)
    assert noticed(machine(redis_server.link))


@pytest.mark.slow
@each("epoch")
def test_a_fault_in_what_brings_jobs_back_is_noticed(redis_server, faulty_scripts, mutant: Mutant) -> None:
    faulty_scripts(mutant)
    faulty = mutated(mutant) if mutant.file.endswith(".py") else None
    sides = [getattr(faulty, side.__name__, side) for side in (QueueStore, EpochStore)]
    assert noticed(epoch_machine.machine(redis_server.link, *sides))


@each("worker")
def test_a_fault_in_the_worker_is_noticed(redis_server, monkeypatch, caplog, mutant: Mutant) -> None:
    test = getattr(test_loops, mutant.test.rpartition("::")[2])
    faulty = mutated(mutant)
    for name, value in vars(faulty).items():
        if inspect.isclass(value) and value.__module__ == faulty.__name__ and hasattr(benches, name):
            monkeypatch.setattr(benches, name, value)
    bench = benches.Bench(redis_server.link)
    have = {"bench": bench, "monkeypatch": monkeypatch, "caplog": caplog}
    with pytest.raises(Noticed):
        test(**{name: have[name] for name in inspect.signature(test).parameters})
