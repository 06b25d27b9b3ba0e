"""The documentation and the code say the same: what one of them names, the other one knows."""

from __future__ import annotations

import argparse
import inspect
import re
from functools import cache
from importlib import import_module
from pathlib import Path

import pytest
from django.apps import apps
from django.dispatch import Signal

import django_delayq
from django_delayq import conf, setting_readers
from django_delayq.management.commands.delayq import Command as Delayq
from django_delayq.management.commands.delayq_worker import Command as Worker
from django_delayq.periodic import declarations
from django_delayq.producer.options import OPTIONS
from django_delayq.store.keys import NAMES
from django_delayq.store.scripts import SCRIPTS

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
PAGES = sorted(page.stem for page in DOCS.glob("*.md"))
NOT_OURS = """
    broker, enqueue, enqueued, eta, countdown, dead, bury, revive, reaper, handle, handles, manager, util, helper, common, data
"""
CHECK = re.compile(r"\b[EWD]\d{3}\b")


def words(text: str) -> list[str]:
    return [word.strip() for word in text.replace("\n", " ").split(",")]


@cache
def page(name: str) -> str:
    return (DOCS / f"{name}.md").read_text()


def section(name: str, heading: str) -> str:
    found = re.search(rf"^## {re.escape(heading)}\n(.*?)(?=^## |\Z)", page(name), flags=re.MULTILINE | re.DOTALL)
    return found[1] if found else ""


def table_column(text: str, number: int = 0) -> set[str]:
    """The code words of one column of every table in `text`, without the heads."""
    body = re.sub(r"^\|.*\n(?=\|---)", "", text, flags=re.MULTILINE)
    rows = [line.strip().strip("|").split("|") for line in body.splitlines() if line.startswith("| ")]
    return {word for row in rows if number < len(row) for word in re.findall(r"`([^`]+)`", row[number])}


def code_words(name: str) -> set[str]:
    return set(re.findall(r"`([^`\n]+)`", page(name)))


def the_same(code: set[str], docs: set[str], where: str) -> None:
    assert not code - docs, f"{where} does not name: {', '.join(sorted(code - docs))}"
    assert not docs - code, f"{where} names what is not there: {', '.join(sorted(docs - code))}"


def options_of(parser: argparse.ArgumentParser) -> set[str]:
    return {text for action in parser._actions for text in action.option_strings if text.startswith("--")} - {"--help"}


def worker_options() -> set[str]:
    parser = argparse.ArgumentParser()
    Worker().add_arguments(parser)
    return options_of(parser)


def subcommands() -> dict[str, argparse.ArgumentParser]:
    parser = argparse.ArgumentParser()
    Delayq().add_arguments(parser)
    return next(action.choices for action in parser._actions if isinstance(action, argparse._SubParsersAction))


def check_ids() -> set[str]:
    package = ROOT / "django_delayq"
    sources = [
        package / "checks.py",
        package / "conf.py",
        package / "setting_readers.py",
        package / "store/fitness.py",
        package / "store/rights.py",
        *package.glob("management/**/*.py"),
        *package.glob("contrib/**/*.py"),
        *package.glob("periodic/*.py"),
        *package.glob("targets/*.py"),
    ]
    return {id for source in sources for id in CHECK.findall(source.read_text())}


# settings


def test_settings_are_all_described_and_no_others():
    the_same({*conf.DEFAULTS}, table_column(section("settings", "All keys")), "The table of docs/settings.md")


@pytest.mark.parametrize("key", [key for key in conf.DEFAULTS if key != "QUEUES"])
def test_a_setting_is_described_with_its_default_and_place(key):
    row = next(line for line in page("settings").splitlines() if line.startswith(f"| `{key}` |"))
    cells = [cell.strip() for cell in row.strip("|").split("|")]
    default = conf.DEFAULTS[key]
    written = f"`{default!r}`".replace("'", '"')
    assert cells[1] == written, f"docs/settings.md: the default of {key} is {written}"
    assert cells[3] == ("yes" if key in conf.PER_QUEUE else "no"), f"docs/settings.md: may {key} stand in a queue?"


def test_the_keys_of_http_are_described_with_their_defaults():
    rows = [line.strip("|").split("|") for line in section("settings", "HTTP").splitlines() if line.startswith("| `")]
    told = {row[0].strip(): row[1].strip() for row in rows}
    assert told == {f"`{key}`": f"`{default!r}`".replace("'", '"') for key, (default, _) in setting_readers.HTTP.items()}


def test_every_option_of_deliver_is_described():
    options = {name for name, one in inspect.signature(django_delayq.deliver).parameters.items() if one.kind is one.KEYWORD_ONLY}
    the_same(options, table_column(section("http", "What is sent")), "docs/http.md, What is sent")
    missing = {name for name in OPTIONS if name not in options and f"`{name}`" not in section("http", "What is sent")}
    assert not missing, f"docs/http.md does not name: {', '.join(sorted(missing))}"


def test_every_way_in_which_a_delivery_fails_is_described():
    from django_delayq.targets import answers, webhook

    named = code_words("http")
    missing = [code for code in (*answers.TEXTS, *webhook.TEXTS) if code not in named]
    assert not missing, f"docs/http.md does not name the codes: {', '.join(missing)}"


# tasks


def public_names(path: str) -> set[str]:
    """Of a module that projects import: `__all__`, else what it defines without an underscore."""
    module = import_module(path)
    if listed := getattr(module, "__all__", None):
        return set(listed)
    own = {name for name, value in vars(module).items() if getattr(value, "__module__", None) == path and isinstance(value, type)}
    return {name for name in own | {n for n, v in vars(module).items() if isinstance(v, Signal)} if name[0] != "_"}


def test_what_projects_may_import_is_listed_in_one_place():
    rows = re.findall(r"^\| `(django_delayq[\w.]*)` \| (.+) \|$", page("reference"), flags=re.MULTILINE)
    assert {path: set(re.findall(r"`(\w+)`", names)) for path, names in rows} == {path: public_names(path) for path, _ in rows}
    assert {path for path, _ in rows} == {
        "django_delayq",
        *(
            f"django_delayq.{name}"
            for name in (
                "exceptions",
                "signals",
                "models",
                "contrib.http",
                "contrib.tasks",
                "contrib.otel",
                "contrib.sentry",
                "testing",
                "testing.kit",
                "admin",
            )
        ),
    }


@pytest.mark.parametrize("where", [DOCS / "journey.md", ROOT / "CONTRIBUTING.md"], ids=lambda path: path.stem)
def test_every_file_that_is_named_exists(where):
    package = Path(django_delayq.__file__).parent
    named = set(re.findall(r"`((?:[a-z_]+/)*[a-z_]+\.(?:py|lua|md))`", where.read_text()))
    assert {name for name in named if not any((root / name).exists() for root in (package, ROOT, package / "producer"))} <= {
        "__init__.py"
    }


def test_a_job_passes_at_most_thirty_files_and_wears_at_most_ten_shapes():
    table = page("journey").partition("## Where is it decided?")[0]
    legs = [line.split("|")[2:4] for line in table.splitlines() if line.startswith("| **")]
    assert len(legs) == 7
    files = [name for passed, _ in legs for name in re.findall(r"`([a-z_/]+\.(?:py|lua))`", passed)]
    shapes = {name for _, worn in legs for name in re.findall(r"`([A-Z]\w+)`", worn)}
    assert len(files) == len(set(files)) <= 30
    assert len(shapes) <= 10


def test_where_something_is_decided_leads_to_a_name_in_that_file():
    package = Path(django_delayq.__file__).parent
    rows = re.findall(r"^\| ([^|*]+) \| `([^`]+)` \| `(\w+)` \|$", section("journey", "Where is it decided?"), flags=re.MULTILINE)
    asked = [what for what, _, _ in rows]
    assert len(asked) == len(set(asked)) > 30
    assert [name for _, path, name in rows if not re.search(rf"\b{name}\b", (package / path).read_text())] == []
    lines = [line for line in section("journey", "Where is it decided?").splitlines() if line.startswith("| ") and "**" not in line]
    assert len(lines) == len(rows) + 1  # and the head


def test_every_logger_is_listed():
    package = Path(django_delayq.__file__).parent
    made = {name for path in package.rglob("*.py") for name in re.findall(r"\bLogger\(\"([\w.]+)\"\)", path.read_text())}
    assert made <= code_words("reference")


def test_every_option_of_periodic_is_described():
    described = table_column(section("periodic", "Declare"))
    the_same({"cron", *declarations.OPTIONS}, described, "docs/periodic.md, Declare")


# commands and worker


def test_every_subcommand_has_a_section():
    described = set(re.findall(r"^## delayq ([\w-]+)$", page("commands"), flags=re.MULTILINE))
    the_same(set(subcommands()), described, "docs/commands.md")


@pytest.mark.parametrize("name", sorted(subcommands()))
def test_every_option_of_a_subcommand_is_described(name):
    described = {word for word in table_column(section("commands", f"delayq {name}")) if word.startswith("--")}
    the_same(options_of(subcommands()[name]), described, f"docs/commands.md, delayq {name}")


def test_every_option_of_the_worker_is_described():
    the_same(worker_options(), table_column(section("worker", "Options")), "docs/worker.md, Options")


# checks


def test_every_check_is_described():
    described = {word.removeprefix("delayq.") for word in table_column(page("checks")) if CHECK.search(word)}
    the_same(check_ids(), described, "docs/checks.md")


# internals


def test_every_script_is_described():
    the_same(set(SCRIPTS), table_column(section("internals", "Scripts")), "docs/internals.md, Scripts")


def test_every_key_is_described():
    the_same(set(NAMES.values()) - {""}, table_column(section("internals", "Keys")), "docs/internals.md, Keys")


# admin


def test_every_permission_is_described():
    models = [model._meta for model in apps.get_app_config("delayq").get_models()]
    ours = {f"delayq.{name}" for meta in models for name, _ in meta.permissions}
    ours |= {f"delayq.{action}_{meta.model_name}" for meta in models for action in meta.default_permissions}
    missing = ours - table_column(section("admin", "Permissions"))
    assert not missing, f"docs/admin.md does not name the permissions: {', '.join(sorted(missing))}"


# words


@pytest.mark.parametrize("name", [*PAGES, "README"])
def test_no_foreign_words_are_used(name):
    text = (ROOT / "README.md").read_text() if name == "README" else page(name)
    prose = re.sub(r"```.*?```|`[^`\n]+`", "", text, flags=re.DOTALL)
    used = [word for word in words(NOT_OURS) if re.search(rf"\b{word}\b", prose, flags=re.IGNORECASE)]
    assert not used, f"{name}.md uses words that are not ours: {', '.join(used)}"


# the pages themselves


def test_every_page_can_be_reached():
    listed = set(re.findall(r"^(\w+)$", page("index"), flags=re.MULTILINE))
    the_same(set(PAGES) - {"index"}, listed, "docs/index.md")
    readme = set(re.findall(r"\(docs/(\w+)\.md\)", (ROOT / "README.md").read_text()))
    the_same(set(PAGES) - {"index"}, readme, "README.md")


@pytest.mark.parametrize("name", PAGES)
def test_python_blocks_compile(name):
    for number, block in enumerate(re.findall(r"^ *```python\n(.*?)^ *```$", page(name), re.MULTILINE | re.DOTALL), 1):
        indent = len(block) - len(block.lstrip(" "))
        code = "\n".join(line[indent:] for line in block.splitlines())
        try:
            compile(code, f"docs/{name}.md, python block {number}", "exec")
        except SyntaxError as error:
            pytest.fail(f"docs/{name}.md, python block {number}, line {error.lineno}: {error.msg}")
