"""Runs both checkers in strict mode over both files: python -m tests.typed. Exits with 1 if a mistake is not reported, or if an extra
one is.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).parent
ROOT = HERE.parent.parent
FILES = ("right.py", "wrong.py")


def expected() -> set[tuple[str, int]]:
    return {
        (name, number)
        for name in FILES
        for number, line in enumerate((HERE / name).read_text().splitlines(), 1)
        if line.endswith("# wrong")
    }


def by_mypy() -> set[tuple[str, int]]:
    command = [sys.executable, "-m", "mypy", "--strict", "--no-error-summary", *(str(HERE / name) for name in FILES)]
    said = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, check=False)
    assert said.returncode in (0, 1), said.stderr
    return {(Path(file).name, int(line)) for file, line in re.findall(r"^(.+?):(\d+): error:", said.stdout, flags=re.MULTILINE)}


def by_pyright() -> set[tuple[str, int]]:
    command = [sys.executable, "-m", "basedpyright", "--outputjson", "--project", str(HERE), "--pythonpath", sys.executable]
    said = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, check=False)
    found = json.loads(said.stdout)["generalDiagnostics"]
    return {(Path(one["file"]).name, one["range"]["start"]["line"] + 1) for one in found if one["severity"] == "error"}


def main() -> int:
    wrong = 0
    for checker in (by_mypy, by_pyright):
        found = checker()
        for file, line in sorted(expected() ^ found):
            wrong += 1
            print(f"{file}:{line}: {checker.__name__}: {'unnoticed' if (file, line) in expected() else 'an error that is none'}")
        print(f"{checker.__name__}: {len(found & expected())} of {len(expected())} mistakes noticed")
    return bool(wrong)


if __name__ == "__main__":
    sys.exit(main())
