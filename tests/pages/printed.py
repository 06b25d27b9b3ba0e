"""The texts that the package can print: the strings in its sources, split at each value."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import django_delayq

PACKAGE = Path(django_delayq.__file__).parent
GAP = re.compile(r"%\(\w+\)[sd]|%[-.\d]*[sdfgr]|\{[\w.:,!\[\]]*\}")
SHORTEST = 3  # letters of a part; a shorter part would fit anywhere
CUT = 8  # characters of a text before it is cut
VALUES = re.compile(r"<.*?>|'[^']*'|\b[\w:]+(\.[\w<>]+)+\b|\b\w{22}\b|\b(ERROR|WARNING|INFO)\b|\S*\d\S*")
# Messages of Redis that our errors quote.
OF_REDIS = (
    "command not allowed when used memory > 'maxmemory'",
    "this user has no permissions to run the 'client|setname' command",
    "this user has no permissions to access one of the keys used as arguments",
    "invalid username-password pair or user is disabled",
)


def _texts(tree: ast.AST) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield node.value


@cache
def parts() -> list[str]:
    """Returns each piece of text between values, the longest first."""
    texts = [text for path in PACKAGE.rglob("*.py") for text in _texts(ast.parse(path.read_text()))]
    texts += [text for path in PACKAGE.rglob("*.lua") for text in re.split(r"[\"'\n]", path.read_text())]
    found = {part.strip() for text in texts for part in GAP.split(text)}
    return sorted((part for part in found if len(re.sub(r"\W", "", part)) >= SHORTEST and " " in part), key=len, reverse=True)


def strange_words(line: str) -> list[str]:
    """Returns the words of a line that are neither text of the package nor values such as ids, numbers and names. "…" cuts a text."""
    if line.endswith("…"):
        line = _without_beginning(line.removesuffix("…").rstrip())
    for part in (*OF_REDIS, *parts()):
        line = line.replace(part, " ")
    return re.findall(r"[A-Za-z]{4,}", VALUES.sub(" ", line))


def _without_beginning(line: str) -> str:
    """Returns the line without the end that a text of the package begins with."""
    for length in range(len(line), CUT, -1):
        end = line[-length:]
        if any(part.startswith(end) for part in parts()):
            return line[:-length]
    return line
