"""docs/api.md: every public name is there and in objects.inv, says what it is, and what it names is to be found."""

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
from tests.test_docs import public_names, the_same

PAGE = (DOCS / "api.md").read_text()
PATHS = re.findall(r"^\| `(django_delayq[\w.]*)` \|", (DOCS / "reference.md").read_text(), flags=re.MULTILINE)
PUBLIC = sorted({(path, name) for path in PATHS for name in public_names(path)})


def documented() -> set[str]:
    """The full names that the directives of the page bear."""
    found, module = set(), ""
    for directive, name in re.findall(r"^\.\. (\w+):: ([\w.]+)$", PAGE, flags=re.MULTILINE):
        if directive in ("currentmodule", "automodule"):
            module = name
        else:
            found.add(f"{module}.{name}")
    return found


def test_every_public_name_stands_in_the_reference_once():
    again = {f"django_delayq.exceptions.{name}" for name in public_names("django_delayq.exceptions") & public_names("django_delayq")}
    the_same({f"{path}.{name}" for path, name in PUBLIC} - again, documented(), "docs/api.md")


@pytest.mark.parametrize(("path", "name"), PUBLIC)
def test_every_public_name_says_what_it_is(path, name):
    thing = getattr(import_module(path), name)
    if isinstance(thing, Signal):  # a constant: what it says stands beside it
        source = Path(inspect.getsourcefile(import_module(path))).read_text()
        assert re.search(rf"^{name}: Final = Signal\(\)  #: \w", source, flags=re.MULTILINE)
        return
    own = vars(thing).get("__doc__") if isinstance(thing, type) else thing.__doc__
    assert (own or "").strip()
    if isinstance(thing, type) and "admin" not in path and "models" not in path:
        members = {
            key: value for key, value in vars(thing).items() if key[0] != "_" and (callable(value) or isinstance(value, property))
        }
        silent = [key for key in members if not inspect.getdoc(getattr(thing, key))]
        assert not silent, f"{path}.{name} says nothing of: {', '.join(silent)}"


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
    assert set(conf.DEFAULTS) <= names


def inventory(path: Path) -> set[str]:
    """The names in an objects.inv."""
    body = path.read_bytes().split(b"\n", 4)[4]
    return {line.split(" ")[0] for line in zlib.decompress(body).decode().splitlines()}
