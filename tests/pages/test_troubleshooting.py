"""docs/howto/troubleshoot.md quotes the output of the package, and SQLite behaves as the page describes."""

from __future__ import annotations

import ast
import re
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from django.db import OperationalError
from django.db.backends.base.base import BaseDatabaseWrapper
from django.db.utils import ConnectionHandler

from django_delayq import exceptions
from tests.pages.printed import strange_words
from tests.tasks_for_tests import close_order

DOCS = Path(__file__).parents[2] / "docs"
PAGE = (DOCS / "howto" / "troubleshoot.md").read_text()
# Texts in the place of a value: names of classes, queues and arguments, the policy and role of Redis, and single words of our own.
NAMES = {
    *dir(exceptions),
    "CommandError",
    "SynchronousOnlyOperation",
    "Poison",
    "default",
    "orders",
    "order",
    "allkeys",
    "slave",
    "SIGKILL",
    *["too", "many", "positional", "arguments"],  # Python's own words for arguments that do not fit
}
VALUES = NAMES | {"Queue", "answered", "held", "queue"}
TABLE = re.compile(r"^(queue|default|orders) ")  # of `delayq status`, compared as a whole
BLOCKS = re.findall(r"^ *```text\n(.*?)^ *```$", PAGE, flags=re.MULTILINE | re.DOTALL)
LINES = [line.strip() for block in BLOCKS for line in block.splitlines() if line.strip()]

Connect = Callable[[dict[str, object]], BaseDatabaseWrapper]


# what is printed


@pytest.mark.parametrize("line", [line for line in LINES if not TABLE.match(line)])
def test_what_the_page_quotes_is_printed_by_the_package(line):
    strange = [word for word in strange_words(line) if word not in VALUES]
    assert not strange, f"docs/howto/troubleshoot.md quotes what no source has: {', '.join(strange)} in {line}"


def test_a_cut_quotation_must_begin_a_text_of_the_package():
    assert strange_words("No task named 'orders.gone' is registered in this process. …") == []
    assert strange_words("No task named 'orders.gone' is unknown to this …") == ["unknown", "this"]


def test_a_text_that_the_package_does_not_have_is_noticed():
    assert strange_words("WARNING job 0352SWWzw5BIyw5FgmMCW7 is parked for a while: nobody knows pigeons") == [
        "while",
        "nobody",
        "knows",
        "pigeons",
    ]


def shape(line: str) -> str:
    """Returns an output line of a command without its values: for a queue, only its name and whether it is paused."""
    if re.match(r"(default|orders) ", line.strip()):
        return line.split()[0] + " paused" * ("paused since" in line)
    return " ".join(line.split())


@pytest.mark.django_db(transaction=True)
def test_status_and_doctor_answer_as_the_page_shows(run, delayq_redis):
    close_order.using(queue="orders").schedule(42)
    run("pause", "orders", "--reason", "provider is down")
    printed = {shape(line) for line in [*run("status").lines, *run("doctor").lines]}
    shown = [line for line in [*BLOCKS[0].splitlines(), *BLOCKS[1].splitlines()] if line.strip()]
    assert len(shown) == 6
    assert printed >= {shape(line) for line in shown}


# SQLite


@pytest.fixture
def connect(tmp_path) -> Iterator[Connect]:
    """Returns connections to one file, with these OPTIONS."""
    opened: list[BaseDatabaseWrapper] = []

    def make(options: dict[str, object]) -> BaseDatabaseWrapper:
        settings = {"ENGINE": "django.db.backends.sqlite3", "NAME": str(tmp_path / "db.sqlite3"), "OPTIONS": options}
        connection = ConnectionHandler({"default": settings})["default"]
        connection.inc_thread_sharing()
        opened.append(connection)
        return connection

    yield make
    for connection in opened:
        connection.close()


def ask(connection: BaseDatabaseWrapper, sql: str) -> list[tuple[int, ...]]:
    with connection.cursor() as cursor:
        return list(cursor.execute(sql).fetchall())


def sqlite_options() -> dict[str, object]:
    """Returns the OPTIONS for SQLite in docs/howto/run-redis.md."""
    section = (DOCS / "howto" / "run-redis.md").read_text().partition("\n## SQLite\n")[2]
    found = re.search(r'"OPTIONS": (\{.*?\})', section)
    assert found is not None
    return dict(ast.literal_eval(found[1]))


@pytest.mark.django_db
@pytest.mark.parametrize("options", [{}, {"timeout": 20}, {"timeout": 20, "init_command": "PRAGMA journal_mode=WAL;"}])
def test_of_two_transactions_that_begin_by_reading_one_is_refused_at_once(connect, options):
    one, other = connect(options), connect(options)
    ask(one, "CREATE TABLE shelf AS SELECT 0 AS n")
    for connection in (one, other):
        connection.ensure_connection()
        connection._start_transaction_under_autocommit()
        assert ask(connection, "SELECT n FROM shelf") == [(0,)]
    ask(one, "UPDATE shelf SET n = n + 1")
    with pytest.raises(OperationalError, match="database is locked"):
        ask(other, "UPDATE shelf SET n = n + 1")
    other.connection.rollback()
    one.connection.commit()


@pytest.mark.django_db
def test_with_the_options_of_the_page_the_second_waits_and_both_count(connect):
    options = sqlite_options()
    assert options["transaction_mode"] == "IMMEDIATE"
    one, other = connect(options), connect(options)
    ask(one, "CREATE TABLE shelf AS SELECT 0 AS n")
    ask(other, "SELECT n FROM shelf")

    def change(connection: BaseDatabaseWrapper, meanwhile: Callable[[], None] | None = None) -> None:
        connection._start_transaction_under_autocommit()
        ((before,),) = ask(connection, "SELECT n FROM shelf")
        if meanwhile:
            meanwhile()
        ask(connection, f"UPDATE shelf SET n = {before + 1}")
        connection.connection.commit()

    second = threading.Thread(target=change, args=(other,))
    change(one, second.start)
    second.join()
    assert ask(one, "SELECT n FROM shelf") == [(2,)]
