"""The code of the pages for operators compiles, and its imports exist. The example of a fork closes and opens its clients."""

from __future__ import annotations

import ast
import re
from importlib import import_module
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from django_delayq.signals import before_fork, process_started

DOCS = Path(__file__).parents[2] / "docs"
HOWTO = ("deploy", "run-workers", "run-redis", "pgbouncer", "upgrade", "monitor", "admin", "troubleshoot")
PAGES = [*(f"howto/{name}.md" for name in HOWTO), *(f"more/{name}.md" for name in ("messages", "locks", "offers", "gateway"))]


def blocks(page: str) -> list[str]:
    return re.findall(r"^```python\n(.+?)^```", (DOCS / page).read_text(), flags=re.MULTILINE | re.DOTALL)


@pytest.mark.parametrize("page", PAGES)
def test_python_blocks_compile_and_import_what_exists(page: str) -> None:
    for code in blocks(page):
        for node in ast.walk(ast.parse(code)):
            # a module of contrib needs an extra; the tests of its page run it
            if isinstance(node, ast.ImportFrom) and re.match(r"django_delayq(?!\.contrib)", node.module or ""):
                module = import_module(node.module or "")
                assert [alias.name for alias in node.names if not hasattr(module, alias.name)] == []


def test_the_example_of_a_fork_closes_and_opens_its_clients() -> None:
    [code] = blocks("howto/run-workers.md")
    done: list[str] = []
    session = SimpleNamespace(close=lambda: done.append("closed"))
    names: dict[str, Any] = {
        "bank": SimpleNamespace(session=session),
        "make_session": lambda: done.append("opened"),
        "__name__": "shop.apps",
    }
    exec(code, names)
    names["ShopConfig"].ready(None)
    try:
        before_fork.send(sender=None, worker="w", process="task-1")
        process_started.send(sender=None, worker="w", process="task-1")
    finally:
        before_fork.disconnect(names["close_clients"])
        process_started.disconnect(names["open_clients"])
    assert done == ["closed", "opened"]
