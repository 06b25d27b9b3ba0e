"""A copy of the package with a fault, for processes that import it instead of the real one."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import django_delayq
from tests.model.mutant import Mutant

PACKAGE = Path(django_delayq.__file__).parent
ROOT = Path(__file__).parents[2]


def copy(mutant: Mutant | None, folder: Path) -> dict[str, str]:
    """Writes the package, with the fault, under `folder`. Returns the environment in which Python finds it first."""
    target = folder / PACKAGE.name
    shutil.copytree(PACKAGE, target, ignore=shutil.ignore_patterns("__pycache__"))
    if mutant is not None:
        file = target / mutant.file
        file.write_text(file.read_text("utf-8").replace(mutant.old, mutant.new), "utf-8")
    # Without the safe path the current directory, which has the real one, would come before.
    return {"PYTHONSAFEPATH": "1", "PYTHONPATH": os.pathsep.join([str(folder), str(ROOT)])}
