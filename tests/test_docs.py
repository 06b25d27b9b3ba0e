"""The documentation: what is generated is there and says something, every page is reached, links lead somewhere, Python compiles."""

from __future__ import annotations

import argparse
import inspect
import re
import sys
from functools import cache
from importlib import import_module
from pathlib import Path
from types import ModuleType

import pytest
from django.dispatch import Signal

import django_delayq
from django_delayq import conf, signals
from django_delayq.contrib.gateway.responses import REFUSALS
from django_delayq.contrib.gateway.urls import ROUTES
from django_delayq.contrib.prometheus.metrics import METRICS
from django_delayq.findings import KINDS
from django_delayq.logger import LOGGERS
from django_delayq.management.look_commands import HTTP_MEANINGS
from django_delayq.setting_readers import HTTP
from django_delayq.store.keys import NAMES
from tests.store.board import SCRIPTS

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
PACKAGE = ROOT / "django_delayq"
PAGES = sorted(str(page.relative_to(DOCS).with_suffix("")) for page in DOCS.rglob("*.md") if "_build" not in page.parts)
DIRECTIVE = re.compile(r"^```\{(delayq-[\w-]+)\} ?(.*)$", flags=re.MULTILINE)
TOCTREE = re.compile(r"^```\{toctree\}\n(.*?)^```$", flags=re.MULTILINE | re.DOTALL)
LINK = re.compile(r"\]\(([^)\s]+)\)")


@cache
def page(name: str) -> str:
    return (DOCS / f"{name}.md").read_text()


def section(name: str, heading: str) -> str:
    found = re.search(rf"^## {re.escape(heading)}\n(.*?)(?=^## |\Z)", page(name), flags=re.MULTILINE | re.DOTALL)
    return found[1] if found else ""


def the_same(code: set[str], docs: set[str], where: str) -> None:
    assert not code - docs, f"{where} does not name: {', '.join(sorted(code - docs))}"
    assert not docs - code, f"{where} names what is not there: {', '.join(sorted(docs - code))}"


# what is generated


@pytest.fixture(scope="module")
def generated() -> ModuleType:
    """The module of the documentation that makes it."""
    sys.path.insert(0, str(DOCS / "_ext"))
    try:
        return import_module("generated")
    finally:
        sys.path.pop(0)


USED = sorted({(name, argument, where) for where in PAGES for name, argument in DIRECTIVE.findall(page(where))})
OTHERS = {"delayq-transitions"}  # of an extension of its own


def test_every_directive_is_used(generated):
    assert {name for name, _, _ in USED} - OTHERS == set(generated.DIRECTIVES)


@pytest.mark.parametrize(("name", "argument"), sorted({(name, argument) for name, argument, _ in USED if name not in OTHERS}))
def test_what_is_generated_says_something_of_each_item(generated, name, argument):
    text = generated.DIRECTIVES[name](argument)
    for rows in re.findall(r"(?:^\|.*\n)+", text, flags=re.MULTILINE):
        head, _, *body = (re.split(r" (?<!\\)\| ", line.strip("| \n")) for line in rows.splitlines())
        assert body
        if head[0].startswith("Member"):  # names and types say it
            continue
        empty = [row for row in body if not row[0].strip("` ") or (head[-1] in ("Meaning", "What to do", "Names") and len(row[-1]) < 4)]
        assert not empty, f"says nothing: {empty}"
    assert "None: None" not in text


def test_every_check_is_on_one_page_once(generated):
    text = "".join(generated.DIRECTIVES[name](argument) for name, argument, _ in USED if name == "delayq-checks")
    assert sorted(re.findall(r"^\| `(?:delayq\.)?([EWD]\d{3})`", text, flags=re.MULTILINE)) == sorted(KINDS)


def test_every_row_of_the_tables_is_generated(generated):
    make = generated.DIRECTIVES
    assert set(re.findall(r"\{confval\} (\w+)", make["delayq-settings"](""))) == set(conf.SETTINGS)
    assert set(HTTP_MEANINGS) == set(HTTP)
    assert [f"`{code}`" in make["delayq-refusals"]("") for code in REFUSALS] == [True] * len(REFUSALS)
    assert [f"### {route.name}\n" in make["delayq-operations"]("") for route in ROUTES] == [True] * len(ROUTES)
    metrics = make["delayq-metrics"]("workers") + make["delayq-metrics"]("queues")
    assert [f"`{name}`" in metrics for name in METRICS] == [True] * len(METRICS)
    there = [name for name, value in vars(signals).items() if isinstance(value, Signal)]
    assert [f"`{name}`" in make["delayq-signals"]("") for name in there] == [True] * len(there)


@pytest.mark.parametrize("path", sorted({argument for name, argument, _ in USED if name == "delayq-arguments"}))
def test_every_option_of_a_function_is_in_its_docstring(generated, path):
    function = getattr(django_delayq, path.rpartition(".")[2])
    named = {name for names, _ in generated.described(function) for name in names}
    parameters = inspect.signature(function).parameters.values()
    wanted = {one.name for one in parameters if one.kind is one.KEYWORD_ONLY}
    assert wanted <= named
    assert named <= {one.name for one in parameters}


@pytest.mark.parametrize("command", ["delayq", "delayq_gateway", "delayq_worker"])
def test_every_option_of_a_command_says_what_it_does(generated, command):
    parser = generated._parser(command)
    parsers = [parser, *(generated.subparsers(command).values() if command != "delayq_worker" else ())]
    actions = [(one.prog, action.dest) for one in parsers for action in generated._arguments(one) if len(action.help or "") < 3]
    assert actions == []
    assert all(isinstance(one, argparse.ArgumentParser) and (one.description or one is parser) for one in parsers)


def test_every_logger_is_in_the_table():
    made = {name for path in PACKAGE.rglob("*.py") for name in re.findall(r"\bLogger\(\"([\w.]+)\"\)", path.read_text())}
    assert made == set(LOGGERS)


# the code map, and internals


@pytest.mark.parametrize("where", [DOCS / "code-map.md", ROOT / "CONTRIBUTING.md"], ids=lambda path: path.stem)
def test_every_file_that_is_named_exists(where):
    named = set(re.findall(r"`((?:[a-z_]+/)*[a-z_]+\.(?:py|lua|md))`", where.read_text()))
    assert {name for name in named if not any((root / name).exists() for root in (PACKAGE, ROOT, PACKAGE / "producer"))} <= {
        "__init__.py"
    }


def test_where_something_is_decided_leads_to_a_name_in_that_file():
    rows = re.findall(r"^\| ([^|*]+) \| `([^`]+)` \| `(\w+)` \|$", section("code-map", "Where is it decided?"), flags=re.MULTILINE)
    asked = [what for what, _, _ in rows]
    assert len(asked) == len(set(asked)) > 45
    assert [name for _, path, name in rows if not re.search(rf"\b{name}\b", (PACKAGE / path).read_text())] == []
    lines = [line for line in section("code-map", "Where is it decided?").splitlines() if line.startswith("| ") and "**" not in line]
    assert len(lines) == len(rows) + 1  # and the head


@pytest.mark.parametrize(
    ("directive", "expected"), [("delayq-scripts", set(SCRIPTS)), ("delayq-keys", {name or "workers" for name in NAMES.values()})]
)
def test_every_script_and_every_key_has_a_description(generated, directive, expected):
    rows = [re.split(r" (?<!\\)\| ", line.strip("| ")) for line in generated.DIRECTIVES[directive]("").splitlines()[2:]]
    assert {name for row in rows for name in re.findall(r"`([^`]+)`", row[0])} == expected
    assert [row for row in rows if any(len(cell.strip()) < 2 for cell in row)] == []


# the pages themselves


def listed(name: str) -> list[str]:
    """The pages in the tables of contents of a page, and those to which it links."""
    lines = [line.strip() for block in TOCTREE.findall(page(name)) for line in block.splitlines() if line and not line.startswith(":")]
    lines += [link.partition(".md")[0] for link in LINK.findall(page(name)) if ".md" in link and "://" not in link]
    found = [((DOCS / name).parent / line).resolve() for line in lines]
    return [str(path.relative_to(DOCS)) for path in found if path.with_suffix(".md").exists() and path.is_relative_to(DOCS)]


def test_every_page_can_be_reached():
    reached, todo = {"index"}, ["index"]
    while todo:
        for name in listed(todo.pop()):
            if name not in reached:
                reached.add(name)
                todo.append(name)
    the_same(set(PAGES), reached, "No table of contents and no link, from docs/index.md on,")


@pytest.mark.parametrize("name", [*PAGES, "README"])
def test_links_lead_to_a_file(name):
    path = ROOT / "README.md" if name == "README" else DOCS / f"{name}.md"
    prose = re.sub(r"^ *```.*?^ *```$|`[^`\n]+`", "", path.read_text(), flags=re.DOTALL | re.MULTILINE)
    files = [link.partition("#")[0] for link in LINK.findall(prose) if "://" not in link and not link.startswith(("#", "mailto:"))]
    assert [file for file in files if not (path.parent / file).exists()] == []


@pytest.mark.parametrize("name", PAGES)
def test_python_blocks_compile(name):
    for number, block in enumerate(re.findall(r"^ *```python\n(.*?)^ *```$", page(name), re.MULTILINE | re.DOTALL), 1):
        indent = len(block) - len(block.lstrip(" "))
        code = "\n".join(line[indent:] for line in block.splitlines())
        try:
            compile(code, f"docs/{name}.md, python block {number}", "exec")
        except SyntaxError as error:
            pytest.fail(f"docs/{name}.md, python block {number}, line {error.lineno}: {error.msg}")


def test_words_for_the_search_are_for_pages_that_exist():
    sys.path.insert(0, str(DOCS / "_ext"))
    try:
        assert set(import_module("search_words").WORDS) <= set(PAGES)
    finally:
        sys.path.pop(0)
