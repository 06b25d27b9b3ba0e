"""The outcome of a fault. One pytest session imports and collects. Then it forks a process for each fault, which applies the fault
and runs the tests until the first failure. The tests run in one process, because processes that they start would not have the fault.
"""

from __future__ import annotations

import importlib
import json
import multiprocessing
import os
import select
import shutil
import signal
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing.queues import SimpleQueue
from pathlib import Path
from types import CodeType, FunctionType, ModuleType

import pytest

from tests import servers
from tests.mutation import targets
from tests.mutation.mutant import Mutant

PATIENCE = 120.0  # seconds; what takes longer goes round for ever, which somebody would notice
# The package has a plugin of pytest, whose asserts could have been rewritten, had it not been imported already.
IMPORTED = ("-W", "ignore:Module already imported:pytest.PytestAssertRewriteWarning")
OPTIONS = ("-q", "--no-header", "-p", "no:cacheprovider", "-p", "no:xdist", "--reuse-db", "-m", "not slow and not browser", *IMPORTED)
TABLES = "tests/mutation/tables.py"


@dataclass(frozen=True)
class Verdict:
    """`by`: the test that failed, "" for none: the fault survives. `seconds`: what that took."""

    mutant: Mutant
    by: str
    seconds: float


def judged(mutants: Sequence[Mutant], at_once: int) -> Iterator[Verdict]:
    """A verdict on each, as they come, by processes side by side."""
    context = multiprocessing.get_context("fork")
    queue: SimpleQueue[Verdict] = context.SimpleQueue()
    shares = [share for number in range(at_once) if (share := mutants[number::at_once])]
    processes = [context.Process(target=_session, args=(share, queue), daemon=True) for share in shares]
    for process in processes:
        process.start()
    for _ in mutants:
        while queue.empty():
            if any(process.exitcode for process in processes):
                raise RuntimeError("A judge has ended: do the tests pass without a fault?")
            time.sleep(0.02)
        yield queue.get()
    for process in processes:
        process.join()


def _session(mutants: Sequence[Mutant], verdicts: SimpleQueue[Verdict]) -> None:
    """One judge, with its Redis and database, in a separate process."""
    folder = servers.folder()
    redis = servers.RedisServer()
    redis.start()
    database = {
        "ENGINE": "django.db.backends.sqlite3",
        "NAME": f"{folder}/db.sqlite3",
        "OPTIONS": {"timeout": 20, "transaction_mode": "IMMEDIATE"},
        "TEST": {"NAME": f"{folder}/test.sqlite3"},
    }
    os.environ |= {
        "DELAYQ_TEST_URL": redis.url,
        "DELAYQ_TEST_SHARE": os.environ.get("PYTEST_XDIST_WORKER", ""),
        "DELAYQ_TEST_DATABASE": json.dumps(database),
    }
    files = dict.fromkeys(test for mutant in mutants for test in targets.judges(mutant.file))
    nothing = os.open(os.devnull, os.O_WRONLY)
    for number in (1, 2):
        os.dup2(nothing, number)
    judge = Judge(mutants, verdicts, redis, folder / "test.sqlite3")
    pytest.main([*OPTIONS, TABLES, *files], plugins=[judge])
    redis.stop()
    shutil.rmtree(folder, ignore_errors=True)
    os._exit(0 if judge.done else 1)


class Judge:
    """A plugin that replaces pytest's loop. `done`: all faults have been judged."""

    def __init__(self, mutants: Sequence[Mutant], verdicts: SimpleQueue[Verdict], redis: servers.RedisServer, database: Path) -> None:
        self.mutants = mutants
        self.verdicts = verdicts
        self.redis = redis
        self.database = database
        self.failed = ""  # the first test that has failed
        self.done = False

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed and not self.failed:
            self.failed = report.nodeid

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        """For each fault a fork, which runs the tests of that file."""
        from django.db import connections

        (tables,) = (item for item in session.items if _file(item) == TABLES)
        items = [item for item in session.items if item is not tables]
        _run(tables, items[0])  # what belongs to the whole session is made here, and is there in each fork
        connections.close_all()
        empty = self.database.with_suffix(".empty")
        shutil.copy(self.database, empty)
        for mutant in self.mutants:
            began = time.monotonic()
            shutil.copy(empty, self.database)
            files = targets.judges(mutant.file)
            order = sorted(
                (item for item in items if _file(item) in files),
                key=lambda item: files.index(_file(item)),
            )
            by = "" if self.failed else self._forked(mutant, order)
            self.verdicts.put(Verdict(mutant, by, time.monotonic() - began))
        self.done = not self.failed
        return True

    def _forked(self, mutant: Mutant, items: Sequence[pytest.Item]) -> str:
        """The test that fails with that fault, "" if none does."""
        out, into = os.pipe()
        child = os.fork()
        if not child:
            with suppress(BaseException):
                put_in(mutant)
                os.write(into, b"|")
                self._try(items)
                os.write(into, self.failed.encode()[:900] or b"none")
            os._exit(0)  # nothing that belongs to the parent is closed here
        os.close(into)
        begun = os.read(out, 1)
        ready, _, _ = select.select([out], [], [], PATIENCE)
        said = os.read(out, 1000).decode() if ready else "it went on for ever"
        os.close(out)
        assert begun, f"{mutant.key} cannot be put in"
        with suppress(ProcessLookupError):
            os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        if not self.redis.ready():  # a script that goes round for ever has it
            self.redis.kill()
            self.redis.start()
        return "" if said == "none" else said or "it ended without a word"

    def _try(self, items: Sequence[pytest.Item]) -> None:
        for item, after in zip(items, [*items[1:], None], strict=True):
            _run(item, after)
            if self.failed:
                return


def _run(item: pytest.Item, after: pytest.Item | None) -> None:
    item.config.hook.pytest_runtest_protocol(item=item, nextitem=after)


def _file(item: pytest.Item) -> str:
    return item.nodeid.partition("::")[0]


def put_in(mutant: Mutant) -> None:
    """From here on this process has the fault.

    Raises:
        LookupError: the fault is in no function that can be found.
    """
    if mutant.file.endswith(".lua"):
        _in_script(mutant)
    else:
        _in_module(mutant)


def _in_script(mutant: Mutant) -> None:
    """In the text that is read when the script is next called."""
    from django_delayq.store.scripts import loader

    real = loader._read

    def read(path: str) -> str:
        found = real(path)
        return mutant.of(found) if mutant.file == f"store/lua/{path}" else found

    loader._read = read
    loader.built.cache_clear()


def _in_module(mutant: Mutant) -> None:
    """In the function around it: everybody who has imported that one has the fault."""
    function, code = changed(mutant)
    function.__code__ = code


def changed(mutant: Mutant) -> tuple[FunctionType, CodeType]:
    """The function that has the fault, and its code with it.

    Raises:
        LookupError: none can be found that takes it.
    """
    module = importlib.import_module("django_delayq." + mutant.file.removesuffix(".py").replace("/", "."))
    text = (targets.PACKAGE / mutant.file).read_text("utf-8")
    for (function, new), (_, old) in zip(_functions(module, mutant.of(text)), _functions(module, text), strict=True):
        if new != old and new.co_freevars == old.co_freevars:
            return function, new
    raise LookupError(f"no function takes {mutant.key}")


def _functions(module: ModuleType, text: str) -> list[tuple[FunctionType, CodeType]]:
    """The functions of a module, methods too, each with its code in that text."""
    found = []

    def look(code: CodeType, place: object) -> None:
        for inner in code.co_consts:
            if isinstance(inner, CodeType):
                one = vars(place).get(inner.co_name)
                one = getattr(one, "fget", None) or getattr(one, "__func__", one)
                while hasattr(one, "__wrapped__"):
                    one = one.__wrapped__
                if isinstance(one, FunctionType):
                    found.append((one, inner))
                elif isinstance(one, type):
                    look(inner, one)

    look(compile(text, str(module.__file__), "exec"), module)
    return found
