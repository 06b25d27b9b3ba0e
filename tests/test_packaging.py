"""The content of the wheel and the sdist, built here without the network."""

from __future__ import annotations

import configparser
import re
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from email.message import Message
from email.parser import HeaderParser
from pathlib import Path, PurePath

import pytest

import django_delayq

ROOT = Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())


@pytest.fixture(scope="module")
def built(tmp_path_factory) -> Path:
    """A folder with the wheel and the sdist."""
    folder = tmp_path_factory.mktemp("dist")
    command = [sys.executable, "-m", "hatchling", "build", "-d", str(folder)]
    subprocess.run(command, cwd=ROOT, check=True, capture_output=True)
    return folder


@pytest.fixture(scope="module")
def wheel(built) -> zipfile.ZipFile:
    (path,) = built.glob("*.whl")
    return zipfile.ZipFile(path)


@pytest.fixture(scope="module")
def metadata(wheel) -> Message:
    (name,) = (name for name in wheel.namelist() if name.endswith("/METADATA"))
    return HeaderParser().parsestr(wheel.read(name).decode())


def git_lists(*options: str) -> list[str]:
    """Lines of `git ls-files`."""
    listed = subprocess.run(["git", "ls-files", *options], cwd=ROOT, capture_output=True, text=True, check=False)
    if listed.returncode:
        pytest.skip("not a git checkout")
    return listed.stdout.splitlines()


def sources() -> set[str]:
    """The files of the package that git knows, or would take."""
    names = git_lists("--cached", "--others", "--exclude-standard", "django_delayq")
    return {name for name in names if (ROOT / name).exists()}


def test_the_wheel_holds_every_file_of_the_package_and_nothing_else(wheel):
    inside = {name for name in wheel.namelist() if ".dist-info/" not in name}
    assert inside == sources()


def test_the_wheel_holds_what_is_no_python(wheel):
    names = wheel.namelist()
    assert "django_delayq/py.typed" in names
    assert "django_delayq/migrations/0001_initial.py" in names
    assert {name for name in names if name.endswith((".po", ".mo"))} == {
        f"django_delayq/locale/{language}/LC_MESSAGES/django.{kind}" for language in ("de", "zh_Hans") for kind in ("po", "mo")
    }
    scripts = {PurePath(name).stem for name in names if PurePath(name).match("django_delayq/store/lua/*.lua")}
    assert scripts >= {
        "schedule",
        "claim",
        "extend",
        "settle",
        "cancel",
        "reschedule",
        "requeue",
        "pause",
        "purge",
        "tidy",
        "inspect",
    }


def test_the_wheel_carries_the_licence(wheel):
    assert any(name.endswith(".dist-info/licenses/LICENSE") for name in wheel.namelist())


def test_the_repository_holds_no_symbolic_link():
    assert [line for line in git_lists("-s") if line.startswith("120000")] == []


def test_the_sdist_can_be_tested_and_has_no_leftovers(built):
    (path,) = built.glob("*.tar.gz")
    with tarfile.open(path) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    assert sources() <= names
    assert {
        "pyproject.toml",
        "LICENSE",
        "README.md",
        "CHANGELOG.md",
        "SECURITY.md",
        "Makefile",
        "tests/conftest.py",
    } <= names
    rubbish = re.compile(r"(^|/)(\.venv|\.demo|\.delayq|__pycache__|\.make)(/|$)|\.pyc$|\.sqlite3")
    assert [name for name in names if rubbish.search(name)] == []


def test_three_packages_are_enough_at_run_time(metadata):
    needed = [line for line in metadata.get_all("Requires-Dist") or [] if "extra ==" not in line]
    assert sorted(re.split(r"[<>=!~ ]", line)[0] for line in needed) == ["django", "django-redis", "redis"]
    assert set(metadata.get_all("Provides-Extra") or []) == {
        "embedded",
        "cli",
        "hiredis",
        "tasks",
        "cron",
        "prometheus",
        "otel",
        "sentry",
        "http",
    }


def test_the_metadata_says_what_the_project_says(metadata):
    assert metadata["Version"] == django_delayq.__version__
    assert metadata["Requires-Python"] == ">=3.11"
    assert metadata["License-Expression"] == "BSD-3-Clause"
    assert "delay queue" in metadata["Summary"]


def test_others_find_what_they_look_for_by_entry_points(wheel):
    (path,) = (name for name in wheel.namelist() if name.endswith(".dist-info/entry_points.txt"))
    points = configparser.ConfigParser()
    points.read_string(wheel.read(path).decode())
    assert {name: dict(points[name]) for name in points.sections()} == {
        "opentelemetry_instrumentor": {"delayq": "django_delayq.contrib.otel:DelayqInstrumentor"},
        "pytest11": {"delayq": "django_delayq.testing.plugin"},
    }
    assert {"django_delayq/testing/plugin.py", "django_delayq/contrib/otel.py"} <= set(wheel.namelist())


def test_the_readme_is_the_long_description(metadata):
    assert metadata.get_payload().startswith("# django-delayq")


def test_every_dependency_group_is_installed_by_something():
    recipes = (ROOT / "scripts" / "setup.sh").read_text() + (ROOT / ".ci" / "run").read_text()
    used = set(re.findall(r"--group ([a-z]+)", recipes))
    included = {entry["include-group"] for group in PROJECT["dependency-groups"].values() for entry in group if isinstance(entry, dict)}
    assert set(PROJECT["dependency-groups"]) == used | included | {"dev"}
    assert used <= set(PROJECT["dependency-groups"])


def test_the_selections_of_the_makefile_contain_existing_tests():
    for name in ("database", "server", "redis8", "versions", "diagonal"):
        done = subprocess.run([sys.executable, "scripts/select_tests.py", name], cwd=ROOT, capture_output=True, text=True, check=True)
        chosen = done.stdout.split()
        assert chosen, name
        assert [path for path in chosen if not (ROOT / path).exists()] == [], name


def test_make_help_lists_the_targets_that_people_call():
    done = subprocess.run(["make", "help"], cwd=ROOT, capture_output=True, text=True, check=True)
    listed = {word for line in done.stdout.splitlines() for word in re.split(r"\s{2,}", line.strip())[0].split()}
    text = (ROOT / "README.md").read_text() + (ROOT / "CONTRIBUTING.md").read_text()
    named = {word for line in re.findall(r"\bmake ([a-z0-9 -]+)", text) for word in line.split() if "-" in word}
    assert {"demo", "test", "verify", "lint", "types", "docs"} | named <= listed
