"""Follows a tutorial: writes its files, runs its commands, and compares its output blocks with the real output."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path

ROOT = Path(__file__).parents[2]
BLOCK = re.compile(r"^```(python|ini|console|text)\n(.*?)^```$|^<!-- (.*?) -->$", flags=re.MULTILINE | re.DOTALL)
# The environment of the test covers these steps: the package is installed, and the folder exists.
BEFORE = ("mkdir ", "python3 -m venv ", "pip install ")
SECONDS = 120  # for one command


class Walk:
    """One directory, through all chapters."""

    def __init__(self, folder: Path, acts: Mapping[str, Callable[[Walk], None]]) -> None:
        self.folder = folder
        self.acts = acts
        self.printed = ""
        programs = folder.parent / "bin"
        programs.mkdir()
        for name, module in (("python", ""), ("django-admin", "-m django"), ("pytest", "-m pytest")):
            (programs / name).write_text(f'#!/bin/sh\nexec {sys.executable} {module} "$@"\n')
            (programs / name).chmod(0o755)
        kept = {name: text for name, text in os.environ.items() if not name.startswith(("DELAYQ", "DJANGO", "PYTEST", "PYTHON"))}
        server = {"DELAYQ_EMBEDDED_DIR": str(folder.parent / "valkey"), "DELAYQ_TEST_DIR": str(folder.parent / "valkey")}
        self.environment = {**kept, **server, "PATH": f"{programs}:{os.environ['PATH']}", "PYTHONPATH": str(ROOT)}

    def do(self, page: Path) -> None:
        """Runs all blocks of a page, in their order."""
        for language, body, act in BLOCK.findall(page.read_text()):
            if act:
                self.acts[act](self)
            elif language in ("python", "ini"):
                self._write(body, page)
            elif language == "console":
                self.printed = "".join(self.run(line[2:]) for line in body.splitlines() if line.startswith("$ "))
            else:
                self._compare(body, page)

    def run(self, command: str) -> str:
        """Returns the output of one command."""
        if command.startswith(BEFORE):
            return ""
        done = subprocess.run(
            ["bash", "-e", "-o", "pipefail", "-c", command],
            cwd=self.folder,
            env=self.environment,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=SECONDS,
            check=False,
        )
        assert done.returncode == 0, f"$ {command}\n{done.stdout}{done.stderr}"
        return done.stdout + done.stderr

    def _write(self, body: str, page: Path) -> None:
        head, _, code = body.partition("\n")
        named = re.fullmatch(r"# ([\w/]+\.\w+)", head)
        assert named, f"{page.name}: a Python block begins with its file, not with {head}"
        with (self.folder / named[1]).open("a") as out:
            out.write(f"\n{code}")

    def _compare(self, body: str, page: Path) -> None:
        there = {shape(line) for line in self.printed.splitlines()}
        for line in body.splitlines():
            assert shape(line) in there, f"{page.name} shows:\n{line}\nand what is printed is:\n{self.printed}"

    def end(self) -> None:
        """Stops the server."""
        self.run('python -c "from django_delayq.store.connection import embedded; embedded.stop()"')
        shutil.rmtree(self.folder.parent / "valkey", ignore_errors=True)


def shape(line: str) -> str:
    """Returns a line without ids, dates, durations and column widths."""
    return " ".join(re.sub(r"\b\w{22}\b|\d{4}-\d\d-\d\d[ T][\d:]+Z?|\d+\.\d+ ?m?s\b", "…", line).split())
