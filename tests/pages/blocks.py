"""Makes a project from a page whose code blocks begin with the name of their file."""

from __future__ import annotations

import re
import shutil
import textwrap
from collections.abc import Iterator
from pathlib import Path

DOCS = Path(__file__).parents[2] / "docs"
BASE = Path(__file__).parent / "project"
HEAD = r"(?:# ([\w/]+\.py)|\{# ([\w/]+\.\w+) #\})"
BLOCK = re.compile(rf"^( *)```(?:python|django)\n *{HEAD}\n(.*?)^ *```$", flags=re.MULTILINE | re.DOTALL)


def blocks(page: Path) -> Iterator[tuple[str, str]]:
    """Returns file and code of each block that names a file."""
    for _, module, template, code in BLOCK.findall(page.read_text()):
        yield module or template, textwrap.dedent(code)


def project(folder: Path, page: Path, tests: Path | None) -> Path:
    """Makes the bare project of this folder with these tests. Each block of the page is added to the end of its file."""
    home = folder / "project"
    shutil.copytree(BASE, home, ignore=shutil.ignore_patterns("__pycache__"))
    for name, code in blocks(page):
        file = home / name
        file.parent.mkdir(exist_ok=True, parents=True)
        with file.open("a") as out:
            out.write(f"\n{code}")
    if tests is not None:
        shutil.copy(tests, home / "test_page.py")
    return home
