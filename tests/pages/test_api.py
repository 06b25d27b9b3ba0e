"""docs/reference/api documents every public name. Each name is in objects.inv and has a description."""

from __future__ import annotations

import inspect
import os
import re
import subprocess
import sys
import zlib
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path

import pytest
from django.dispatch import Signal

from django_delayq import conf
from tests.pages.blocks import DOCS
from tests.test_docs import generated, the_same

__all__ = ["generated"]  # a fixture

PAGES = sorted((DOCS / "reference" / "api").glob("*.md"))


def documented() -> set[str]:
    """Returns the full names that the directives of the pages document."""
    found, module = set(), ""
    for page in PAGES:
        for directive, name in re.findall(r"^\.\. (\w+):: ([\w.]+)$", page.read_text(), flags=re.MULTILINE):
            if directive in ("currentmodule", "automodule"):
                module = name
            else:
                assert f"{module}.{name}" not in found, f"{page.name}: twice"
                found.add(f"{module}.{name}")
    return found


def test_every_public_name_is_on_one_page(generated):
    names = {f"{path}.{name}" for path in generated.FACES for name in generated.public(path)}
    again = {name.replace("django_delayq.", "django_delayq.exceptions.", 1) for name in names if name.count(".") == 1}
    the_same(names - again, documented(), "docs/reference/api")


def test_every_public_name_says_what_it_is(generated):
    silent = [f"{path}.{name}" for path in generated.FACES for name in generated.public(path) if not describes(path, name)]
    assert silent == []


def describes(path: str, name: str) -> bool:
    """Returns whether the name has a text, and whether the members of a class have one."""
    thing = getattr(import_module(path), name)
    if isinstance(thing, Signal):  # a constant: the comment beside it is its text
        source = Path(inspect.getsourcefile(import_module(path))).read_text()
        return bool(re.search(rf"^{name}: Final = Signal\(\)  #: \w", source, flags=re.MULTILINE))
    own = vars(thing).get("__doc__") if isinstance(thing, type) else thing.__doc__
    members = vars(thing) if isinstance(thing, type) and "admin" not in path and "models" not in path else {}
    open_ones = [key for key, value in members.items() if key[0] != "_" and (callable(value) or isinstance(value, property))]
    return bool((own or "").strip()) and all(inspect.getdoc(getattr(thing, key)) for key in open_ones)


@pytest.mark.slow
@pytest.mark.skipif(find_spec("sphinx") is None, reason="Sphinx is not installed: make docs")
def test_the_pages_build_without_a_warning_and_without_the_network(tmp_path):
    environment = {name: value for name, value in os.environ.items() if not name.startswith("DJANGO")}
    command = [sys.executable, "-m", "sphinx", "-W", "--keep-going", "-q", "-E", "-b", "html", "-d", str(tmp_path / "trees")]
    nowhere = {"http_proxy": "http://127.0.0.1:9", "https_proxy": "http://127.0.0.1:9"}
    done = subprocess.run([*command, str(DOCS), str(tmp_path / "html")], env={**environment, **nowhere}, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    names = inventory(tmp_path / "html" / "objects.inv")
    assert documented() <= names
    assert {*conf.SETTINGS} <= names


def inventory(path: Path) -> set[str]:
    """Returns the names in an objects.inv."""
    body = path.read_bytes().split(b"\n", 4)[4]
    return {line.split(" ")[0] for line in zlib.decompress(body).decode().splitlines()}
