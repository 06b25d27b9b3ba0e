"""The crash points reach every failpoint of the package, and there are failpoints around every call to Redis."""

from __future__ import annotations

import ast
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from tests.crashpoints.cases import AFTER, BEFORE, DURABLE, FEW, KEYED, KINDS, OFFERING, POINTS, WITHOUT_ROWS, cases, tenth
from tests.store.board import SCRIPTS

PACKAGE = Path(__file__).parents[2] / "django_delayq"
CALLS = {*SCRIPTS, "cancel_each", "reschedule_each", "requeue_each", "resume", "adopt", "beat", "leave"} - {"inspect"}
NAMED = ("store", "self.log", "_registry", "epoch")  # what these are called on
# Exceptions to the rule: if restore is set to wait, or a row says that the queue was paused, a pause is the only call.
# that the queue was paused; and `confirm`, called in several places, has its failpoints where it is sent.
BESIDES = {
    "mirror/restore.py": {"pause", "confirm", "epoch"},
    "mirror/bring_in.py": {"epoch"},  # an empty store gets a generation, whoever asks
    "mirror/relay.py": {"epoch"},
}
# Calls of the single publishing path that ask Redis, and their callers; or scripts that are called under the breaker.
PUBLISHER = {".publish", ".publish_rows", ".bring_back", ".send", ".finish", "answer"}
# The last five: what acts on a partition is given to `queues._each`, which goes through it under the breaker.
ASKED_UNDER_IT = {".ask", ".put_in", "_send_rows", "pause", "resume", "_change", "_change_in_redis", "purge", "in_one", "empty"}
TRANSACTIONS = ("atomic(", "locked_checkpoint(", "in_time(")
WRITES = {
    "update",
    "delete",
    "save",
    "create",
    "bulk_create",
    "bulk_update",
    "get_or_create",
    "update_or_create",
    "_raw_delete",
}
ROWS = (
    "objects",
    "_all()",
    "mine",
    "open_ones",
    "row",
    "known",
    "runs",
    "free",
    "marked",
    "going_on",
    "ticks",
)  # what these are called on
# Functions whose commits have no failpoints, with the reason.
UNMARKED = {
    "mirror/site_row.py": {
        "_read": "it writes nothing: the savepoint keeps an error out of the caller's transaction",
    },
    "mirror/mirror_loop.py": {
        "retry": "by hand: whoever tries again sees what has come of it",
        "_retry_entry": "the same",
        "save": "within the transaction of `_fold_batch`, which alone is committed",
        "drop_put_off": "the same",
    },
    "producer/outbox/jobs.py": {
        "note_requeues": "a note that stays is good for one requeue, and who asked for it did mean one",
        "forget_requeues": "the same",
        "resolve": "one transaction of a person, who sees what became of it",
        "apply_all": "the transaction of `apply` for several rows; `apply` has the failpoints",
        "_note": "within the transactions of those who call it",
    },
    "producer/outbox/far_rows.py": {
        "contest": "within the transaction of its caller, who has the failpoints",
        "_changed": "within the transactions of those who call it",
        "_note": "the same",
        "_holder": "the same",
        "in_time": "the transaction of `cancel` and `move`, which have the failpoints, or of a caller who has",
        "_inserted": "the same",
        "mark_checked": "a note that stays is looked at once more",
    },
    "producer/outbox/requests.py": {
        "keep": "within the transaction of its caller",
        "end": "kept, it is carried out once more, which changes nothing; tests/mirror/test_at_commit.py plays that",
    },
    "producer/outbox/rows.py": {
        "note": "within the transactions of those who call it, or a person asks for it",
        "insert": "within the transaction of its caller, who has the failpoints",
    },
    "producer/outbox/period_keys.py": {
        "take": "with the row of the job; for a job without a row, `_free` has the failpoint behind it",
        "_take_over": "the same",
        "release": "a key that stays has a job that was refused, and the answer names that job; a day later, its period begins",
        "rename": "a key that stays has a job that neither Redis nor a row knows; a day later, its period begins",
        "ended": "within the transaction of `_fold_batch`",
        "reopen": "the same",
        "keep_ends": "within the transaction of `PruneLoop.prune`",
        "end_lost": "one statement per row, and the next look finds the rest",
        "prune": "one statement, and the next look finds the rest",
        "forget": "one transaction of a person, who asks again",
    },
    "mirror/adoption.py": dict.fromkeys(("own_id", "end_rows", "take"), "a person asks for it, and asks again"),
    "mirror/reconcile_rows.py": {
        "settle_rows": "within the transaction of `RestoreLoop._finish`",
        "give_up": "a person asks for it, and asks again",
    },
    "producer/outbox/declarations.py": {"note": "notes of what is declared, made anew each minute"},
    "producer/outbox/pauses.py": {
        "again": "a lock that changes nothing",
    },
    "mirror/prune.py": {"_step": "what is left goes ten minutes later", "delete_jobs": "within the transaction of its callers"},
    "mirror/relay.py": {"_note": "within the turn of `_answered`"},
    "mirror/restore.py": {"poll": "a turn that only reads"},
    "mirror/checkpoint.py": {
        "locked_checkpoint": "the failpoints are in the turns; an empty checkpoint says nothing",
        "note_refused": "a note that the next look makes as well",
        "note_address": "a checkpoint without an address gets one at the next look",
    },
    "console/operation_loop.py": {
        "_pause": "after trouble; a person looks at it",
        "_held": "a text beside an operation that is tried again",
    },
    "console/verbs.py": {"write_admin_log": "the admin's log, which promises nothing"},
}
UNMARKED |= {
    "periodic/overlap.py": {
        "_take": "one statement, and who dies behind it holds until its lease ends; tests/periodic/test_overlap.py plays that",
        "_note": "what a history shows, of a run that is settled behind it",
    },
    "periodic/schedule_rows.py": {
        "locked": "the lock; its callers write, and the next look of any worker does what is left",
        "withdraw": "within the transaction of its callers",
        "note": "the same",
        "cancel_withdrawn": "to cancel once more changes nothing, and any worker does",
        "_decide_anew": "the second of two at one tick, behind a run that was put off: if it dies here, the tick shows a cancelled job",
    },
    "periodic/schedules.py": {
        "run_now": "by hand: who has no answer looks whether it runs",
        "create": "by hand: a second one of the name is refused",
        "delete": "by hand, and once more if need be",
        "_save": "within the transaction of its callers",
    },
    "periodic/due_ticks.py": {
        "look": "old notes, which say nothing",
        "_created": "the next look of any worker makes what is not there",
        "_put_in_force": "within the transaction of `locked`; the next look of any worker does it again",
        "_retire_one": "the same",
        "_note_problem": "a text beside a schedule that cannot be written",
        "_save": "within the transaction of `_write`",
    },
}
UNMARKED |= {
    "contrib/gateway/idempotency.py": {
        "_update": "without it, the key is held for a minute; a repeated request continues with the same job; tests/contrib/gateway",
        "_hold": "if its process dies, it is given up after a minute; tested in tests/contrib/gateway",
        "prune": "old answers, which the next request deletes as well",
    },
    "contrib/gateway/tokens.py": {
        "find": "the last use, without a promise",
        "rotate": "by hand: a user who did not see the token revokes it",
    },
}
COMMITTED_THERE = {"_rows_first": "_publish_rows", "_within_horizon": "_publish_rows"}  # called by the commit
# People do these by hand, see what became of it, and do them again: nothing goes on by itself afterwards.
BY_HAND = ("admin/", "management/", "migrations/")
FAILPOINT = "failpoint"


def trees() -> Iterator[tuple[str, ast.Module]]:
    for path in sorted(PACKAGE.rglob("*.py")):
        yield str(path.relative_to(PACKAGE)), ast.parse(path.read_text())


def failpoints(tree: ast.AST) -> list[ast.Call]:
    return [
        node for node in ast.walk(tree) if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == FAILPOINT
    ]


def name(call: ast.Call) -> str:
    (argument,) = call.args
    assert isinstance(argument, ast.Constant), f"line {call.lineno}: the name of a failpoint stands there literally"
    return str(argument.value)


def to_redis(tree: ast.AST) -> list[ast.Call]:
    """Calls of scripts, and the others that change something in Redis, by the names of what they are called on."""
    return [
        node
        for node in ast.walk(tree)
        if isinstance(node, ast.Call)
        and isinstance(node.func, ast.Attribute)
        and node.func.attr in CALLS
        and any(word in ast.unparse(node.func.value) for word in NAMED)
    ]


def test_every_failpoint_is_reached_by_cases_and_every_case_has_a_failpoint() -> None:
    there = Counter(name(call) for _, tree in trees() for call in failpoints(tree))
    assert {point.name for point in POINTS} == there.keys()
    repeated = {name for name, count in there.items() if count > 1}
    # The failpoints of a run and its steps, and of transactions and single statements that commit.
    assert repeated == {"effects.commit", "effects.committed", "producer.commit"}


def test_failpoints_stand_before_and_after_every_call_that_changes_redis() -> None:
    found = 0
    for file, tree in trees():
        if not file.startswith(("worker/", "mirror/")):
            continue
        for function in (node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)):
            marks = [call.lineno for call in failpoints(function)]
            for call in to_redis(function):
                if call.func.attr in BESIDES.get(file, ()):
                    continue
                found += 1
                assert any(line < call.lineno for line in marks), f"{file}:{call.lineno} has no failpoint before it"
                assert any(line > (call.end_lineno or 0) for line in marks), f"{file}:{call.lineno} has none behind it"
    assert found >= 12


def commits(function: ast.FunctionDef) -> list[ast.With | ast.Call]:
    """Transactions, the outer ones only, and single statements that write to the database outside of them."""
    found: list[ast.With | ast.Call] = []

    def visit(node: ast.AST) -> None:
        if isinstance(node, ast.With) and any(
            ast.unparse(item.context_expr).partition("(")[0].rpartition(".")[2] + "(" in TRANSACTIONS for item in node.items
        ):
            found.append(node)
            return
        if (
            isinstance(node, ast.Call)
            and isinstance(node.func, ast.Attribute)
            and node.func.attr in WRITES
            and any(word in ast.unparse(node.func.value) for word in ROWS)
        ):
            found.append(node)
            return
        for child in ast.iter_child_nodes(node):
            if not isinstance(child, ast.FunctionDef):  # it is looked at by itself
                visit(child)

    visit(function)
    return found


def test_failpoints_stand_before_and_after_every_commit() -> None:
    found, unmarked = 0, {file: set[str]() for file in UNMARKED}
    for file, tree in trees():
        if file.startswith(BY_HAND):
            continue
        functions = [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)]
        named = {function.name: function for function in functions}
        for function in functions:
            marks = [call.lineno for call in failpoints(function)]
            for commit in commits(function):
                if function.name in UNMARKED.get(file, ()):
                    unmarked[file].add(function.name)
                    continue
                found += 1
                end = commit.end_lineno or 0
                here = f"{file}:{commit.lineno} {function.name}"
                first = commit.lineno if isinstance(commit, ast.With) else 0
                assert any(first < line <= end for line in marks), f"{here} has no failpoint before its commit"
                behind = any(line > end for line in marks)
                called = named.get(COMMITTED_THERE.get(function.name, ""))
                assert behind or (called and failpoints(called)), f"{here} has no failpoint behind its commit"
    assert unmarked == {file: set(functions) for file, functions in UNMARKED.items()}  # no reason outlives its function
    assert found >= 18


def test_the_commits_of_a_function_are_found() -> None:
    text = """
def function():
    with transaction.atomic(using=using):
        with locked_checkpoint(queue, 0, using):
            Job.objects.create()
    if Job.objects.filter(pk=1).update(state="x"):
        mine.delete()
    counts.update(a)
    with lock:
        Step.objects.bulk_create([])
"""
    [function] = ast.parse(text).body
    assert isinstance(function, ast.FunctionDef)
    found = commits(function)
    assert [node.lineno for node in found] == [3, 6, 7, 10]


def test_producers_ask_redis_under_the_breaker_which_has_the_failpoints() -> None:
    asking: dict[str, list[tuple[str, bool]]] = {}  # what asks -> the functions that call it, and whether under the breaker
    for file, tree in trees():
        if file not in {f"producer/{name}.py" for name in ("put", "put_back", "queues", "lookup", "job", "changes", "edit")}:
            continue
        guarded = {
            call
            for block in ast.walk(tree)
            if isinstance(block, ast.With) and "stores.guarded(" in ast.unparse(block.items[0])
            for call in ast.walk(block)
        }
        scripts = set(to_redis(tree))
        for function in (node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)):
            for call in (node for node in ast.walk(function) if isinstance(node, ast.Call)):
                dot = "." if isinstance(call.func, ast.Attribute) else ""
                called = "a script" if call in scripts else dot + ast.unparse(call.func).rpartition(".")[2]
                method = [argument.arg for argument in function.args.args[:1]] == ["self"]
                asking.setdefault(called, []).append(("." * method + function.name, call in guarded))
    bare, found = {"a script", *PUBLISHER}, 0
    while True:  # callers outside of it must be called within it
        calls = [call for name in bare for call in asking.get(name, ())]
        more = {function for function, guarded in calls if not guarded} - bare
        if not more:
            break
        bare |= more
        found += len(calls)
    assert found >= 8
    assert bare == {"a script", *PUBLISHER, *ASKED_UNDER_IT}, "these ask Redis, and what calls them is not under the breaker"


def test_every_case_is_there_once() -> None:
    names = [case.name for case in cases()]
    assert (
        len(set(names))
        == len(names)
        == sum(
            len(AFTER if point.reply else BEFORE) - (point.stage == "untold")
            for point in POINTS
            for kind in point.kinds
            for operation in point.operations
            if not (kind in WITHOUT_ROWS and operation == "requeue")
        )
    )
    assert {case.kind for case in cases()} == {*KINDS, *OFFERING}
    for point in POINTS:
        if point.kinds == DURABLE:  # there is a row, and Redis has to hear of it, once more perhaps
            brought = ("relay.", "restore.", "adopter.", "far.", "bring_in.")
            assert point.name in ("producer.commit", "producer.committed") or point.name.startswith(brought)
        elif point.kinds in (FEW, KEYED):  # rows that people change, or time
            changing = ("publish.", "outbox.", "operations.", "prune.", "relay.", "restore.cancel", "restore.note", "ticks.", "far.")
            changing += ("pauses.",)
            assert point.name.startswith(changing)
        else:
            assert point.kinds == KINDS or point.name.startswith(("effects.", "offer.", "producer.took_key"))


def test_the_tenth_of_every_day_has_every_failpoint_kind_and_action() -> None:
    chosen = list(tenth())
    assert len(chosen) < len(list(cases())) / 8
    assert {case.point for case in chosen} == set(POINTS)
    assert {case.kind for case in chosen} == {*KINDS, *OFFERING}
    assert {case.action for case in chosen} == set(AFTER)
