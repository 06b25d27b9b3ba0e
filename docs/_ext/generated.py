"""The parts of the reference that are made of the code: each function returns Markdown for one directive."""

from __future__ import annotations

import argparse
import inspect
import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any

PACKAGE = Path(__file__).resolve().parents[2] / "django_delayq"
FACES = (  # what a project may import
    "django_delayq",
    "django_delayq.exceptions",
    "django_delayq.signals",
    "django_delayq.models",
    "django_delayq.contrib.http",
    "django_delayq.contrib.otel",
    "django_delayq.contrib.sentry",
    "django_delayq.contrib.tasks",
    "django_delayq.testing",
    "django_delayq.testing.kit",
    "django_delayq.admin",
)
PLAIN = (type(None), str, int, float, bool, tuple)  # defaults that a reader can write
NO_OPTIONS = ("help", "version", "verbosity", "settings", "pythonpath", "traceback", "no_color", "force_color", "skip_checks")


def table(heads: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A Markdown table."""
    lines = [heads, ["---"] * len(heads), *rows]
    return "".join(f"| {' | '.join(' '.join(cell.split()).replace('|', chr(92) + '|') for cell in row)} |\n" for row in lines)


def code(text: object) -> str:
    """As code."""
    return f"`{text}`"


def literal(value: object) -> str:
    """A default as Python writes it, with double quotes; nothing for empty text."""
    return "" if value == "" else "`" + repr(value).replace("'", '"') + "`"


def plain(text: str) -> str:
    """Text of the code as Markdown: `x` stays code, and so become settings, options, calls and commands. Nothing else is markup."""
    found, end = [], 0
    for match in _names().finditer(text):
        found += [_escaped(text[end : match.start()]), code(match[0].strip("`"))]
        end = match.end()
    return "".join([*found, _escaped(text[end:])])


@cache
def _names() -> re.Pattern[str]:
    from django_delayq import conf, setting_readers

    ours = "|".join(sorted({*conf.SETTINGS, *setting_readers.HTTP}, key=len, reverse=True))
    return re.compile(
        r"`[^`]+`"
        r"|DELAYQ(?:\[['\"]\w+['\"]\])*"
        rf"|\b(?:{ours}|[A-Z]+_[A-Z_]+|TASKS|CACHES|DATABASES|DEBUG|OPTIONS|KEY|KIND|MAXLEN)\b(?:\[['\"]\w+['\"]\])*"
        r"|(?<![\w-])--[a-z][\w-]*"
        r"|manage\.py [a-z_]+(?: [a-z-]+)?(?: --state [a-z]+| --[\w-]+| [A-Z]{2,})*"
        r'|pip install "[^"]+"|ACL SETUSER [^;]+|(?<!\w)(?:\+[a-z|]+ ?)+\b|redis-cli (?:--cluster \S+|-p \d+(?: [A-Z]+)+)'
        r"|\b[a-z]+(?:\+[a-z]+)?://(?:\S*[^\s,;:.)\"'\]}])?"
        r"|\{\"[^}]*\}|\"[^\"\n]{1,120}\"|(?<!\w)'[^'\n]{1,40}'(?!\w)|(?<![\w`])(?:None|True|False)\b"
        r"|\b[a-z_]+=(?:'[^']*'|\d+|(?=[\s,.)]|$))|\b[\w.]+\(\)|\bwhsec_"
    )


def _escaped(text: str) -> str:
    return re.sub(r"([*_<\[\]])", r"\\\1", text)


def sentence(text: str) -> str:
    """With a capital and a full stop."""
    text = text.strip()
    return text[:1].upper() + text[1:].rstrip(".") + "." if text else ""


# settings


def settings(_: str = "") -> str:
    """Every key of DELAYQ."""
    from django_delayq import conf
    from django_delayq.management.look_commands import document

    return "\n".join(_setting(**document(name)) for name in conf.SETTINGS)


def http_settings(_: str = "") -> str:
    """Every key of DELAYQ["HTTP"]."""
    from django_delayq import setting_readers
    from django_delayq.management.look_commands import HTTP_MEANINGS

    rows = [(code(name), literal(default), plain(HTTP_MEANINGS[name])) for name, (default, _) in setting_readers.HTTP.items()]
    return table(("Key", "Default", "Meaning"), rows)


def _setting(name: str, default: object, accepts: str, meaning: str, per_queue: bool) -> str:
    from django_delayq import conf

    place = "in a queue only" if conf.SETTINGS[name].scope == "queue" else "in `DELAYQ` or in a queue" if per_queue else "in `DELAYQ`"
    for value in re.findall('"([a-z]+)"', accepts):
        meaning = re.sub(rf"\bWith {value},", f"With `{value}`,", meaning)
    head = f"````{{confval}} {name}\n:default: {literal(default)}\n"
    return f"{head}\n{plain(meaning)}\n\n- Accepts: {plain(accepts)}\n- Where: {place}\n````\n"


# checks


def checks(commands: str) -> str:
    """The findings that these commands report first, with commas between them."""
    from django_delayq.findings import KINDS

    wanted = [command.strip() for command in commands.split(",")]
    rows = [
        (
            f"`{'' if code[0] == 'D' else 'delayq.'}{code}`",
            kind.level,
            plain(kind.meaning),
            plain(kind.remedy),
        )
        for code, kind in KINDS.items()
        if kind.command in wanted
    ]
    return table(("Id", "Level", "Meaning", "What to do"), rows)


# commands


def _parser(command: str) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser()
    package = {"delayq": "django_delayq", "delayq_worker": "django_delayq", "delayq_gateway": "django_delayq.contrib.gateway"}[command]
    import_module(f"{package}.management.commands.{command}").Command().add_arguments(parser)
    return parser


def subparsers(command: str) -> Mapping[str, argparse.ArgumentParser]:
    """The subcommands by name."""
    return next(action.choices for action in _parser(command)._actions if isinstance(action, argparse._SubParsersAction))


def subcommands(command: str) -> str:
    """A section for each subcommand, with its options."""
    return "\n".join(_section(command, name, parser) for name, parser in subparsers(command).items())


def _section(command: str, name: str, parser: argparse.ArgumentParser) -> str:
    usage = [_usage(action) for action in _arguments(parser) if not action.option_strings]
    line = " ".join([f"manage.py {command} {name}", *usage, "[options]"])
    text = plain(sentence(parser.description or ""))
    return f"({command}-{name})=\n## {command} {name}\n\n```text\n{line}\n```\n\n{text}\n\n{_options(parser)}"


def options(command: str) -> str:
    """The options of a command without subcommands."""
    return _options(_parser(command), defaults=True)


def _arguments(parser: argparse.ArgumentParser) -> Iterator[argparse.Action]:
    for action in parser._actions:
        if action.dest not in NO_OPTIONS and action.help != argparse.SUPPRESS and not isinstance(action, argparse._SubParsersAction):
            yield action


def _usage(action: argparse.Action) -> str:
    name = str(action.metavar or "|".join(action.choices or ()) or action.dest.upper())
    return {"?": f"[{name}]", "*": f"[{name} …]"}.get(str(action.nargs), name)


def _options(parser: argparse.ArgumentParser, *, defaults: bool = False) -> str:
    rows = []
    for action in _arguments(parser):
        name = ", ".join(action.option_strings) or _usage(action).strip("[] …")
        value = "" if action.nargs == 0 or not action.option_strings else f" {_value(action)}"
        rows.append((f"`{name}{value}`", plain(sentence(str(action.help or "")))))
    return table(("Option", "Meaning"), rows)


def _value(action: argparse.Action) -> str:
    return "|".join(action.choices) if action.choices and not action.metavar else str(action.metavar or action.dest.upper())


# options of functions


def arguments(path: str) -> str:
    """The arguments of a function with their defaults, by the `Args` of its docstring."""
    module, _, name = path.rpartition(".")
    function = getattr(import_module(module), name)
    defaults = {one.name: one.default for one in inspect.signature(function).parameters.values() if isinstance(one.default, PLAIN)}
    rows = []
    for names, meaning in described(function):
        usual = {literal(defaults[one]) if one in defaults else "" for one in names}
        rows.append((", ".join(map(code, names)), usual.pop() if len(usual) == 1 else "", plain(sentence(meaning))))
    return table(("Option", "Default", "Meaning"), rows)


def described(function: Callable[..., Any]) -> Iterator[tuple[list[str], str]]:
    """Names and meaning of each item in the `Args` of a docstring."""
    found = re.search(r"^Args:\n(.*?)(?=^\w|\Z)", inspect.getdoc(function) or "", flags=re.MULTILINE | re.DOTALL)
    for names, meaning in re.findall(r"^    ([\w, ]+): (.*?)(?=^    \w|\Z)", found[1] if found else "", flags=re.MULTILINE | re.DOTALL):
        yield names.split(", "), " ".join(meaning.split())


# metrics, signals, loggers, permissions, import paths


def metrics(of: str) -> str:
    """The metrics of workers, or of queues."""
    from django_delayq.contrib.prometheus import metrics

    found = {"workers": metrics.OF_WORKERS, "queues": metrics.OF_QUEUES}[of]
    rows = [(code(name), one.kind, ", ".join(map(code, one.labels)), plain(one.meaning)) for name, one in found.items()]
    return table(("Name", "Type", "Labels", "Meaning"), rows)


def indicators(_: str = "") -> str:
    """What each indicator of the dashboard measures, and its limits."""
    from django.utils.translation import override

    from django_delayq.console.health import LABELS, MEASURES

    with override(None):
        rows = [
            (
                str(LABELS[one.sign]),
                plain(one.meaning),
                *("" if limit == math.inf else f"{limit:g}" for limit in (one.late, one.bad)),
                one.finding and code(one.finding),
                one.metric and code(one.metric),
            )
            for one in MEASURES.values()
        ]
    return table(("Indicator", "Measure", "`late` from", "`bad` from", "Finding", "Metric"), rows)


def signals(_: str = "") -> str:
    """Every signal, by the comment beside it."""
    source = (PACKAGE / "signals.py").read_text()
    found = re.findall(r"^(\w+): Final = Signal\(\)  #: (.+)$", source, flags=re.MULTILINE)
    return table(("Signal", "Meaning"), [(code(name), plain(sentence(text))) for name, text in found])


def loggers(_: str = "") -> str:
    """Every logger."""
    from django_delayq.logger import LOGGERS

    return table(("Logger", "What it logs"), [(code(name), plain(text)) for name, text in LOGGERS.items()])


def permissions(_: str = "") -> str:
    """The permissions of the apps' models."""
    from django.apps import apps

    rows = []
    for label in ("delayq", "delayq_gateway"):
        for model in sorted(apps.get_app_config(label).get_models(), key=lambda model: str(model._meta.model_name)):
            meta = model._meta
            own = [(f"{action}_{meta.model_name}", f"Can {action} {meta.verbose_name_plural}") for action in meta.default_permissions]
            rows += [(code(f"{label}.{name}"), f"{text}.") for name, text in (*own, *meta.permissions)]
    return table(("Permission", "Meaning"), rows)


def imports(_: str = "") -> str:
    """The names that a project may import, by module."""
    return table(("Import from", "Names"), [(code(path), ", ".join(map(code, sorted(public(path))))) for path in FACES])


def public(path: str) -> list[str]:
    """The names in `__all__`, else the classes and signals that a module defines."""
    from django.dispatch import Signal

    module = import_module(path)
    if listed := getattr(module, "__all__", None):
        return list(listed)
    own = [name for name, value in vars(module).items() if getattr(value, "__module__", None) == path and isinstance(value, type)]
    return [name for name in own + [name for name, value in vars(module).items() if isinstance(value, Signal)] if name[0] != "_"]


def search_terms(_: str = "") -> str:
    """The terms of the search in the admin."""
    from django_delayq.console.search_fields import FIELDS

    rows = [(", ".join(code(f"{name}:{value}") for value in field.values), field.finds) for name, field in FIELDS.items()]
    return table(("Term", "Finds jobs"), rows)


# the gateway


def operations(_: str = "") -> str:
    """A section for each operation of the gateway."""
    from django_delayq.contrib.gateway.urls import ROUTES

    return "\n".join(_operation(route) for route in ROUTES)


def _operation(route: Any) -> str:
    query = "?" + "&".join(f"{name}=…" for name in route.query) if route.query else ""
    lines = [f"(gateway-{route.name})=\n### {route.name}\n", f"```text\n{route.method} {route.path}{query}\n```\n"]
    lines.append(f"{plain(sentence(route.summary))} Token verb: `{route.verb}`.\n")
    if members := (route.body or {}).get("properties"):
        required = set(route.body.get("required", ()))
        rows = [(code(name), _type(schema), "yes" if name in required else "") for name, schema in members.items()]
        lines.append(table(("Member of the body", "Type", "Required"), rows))
    answers = [
        (str(status), plain(text), ", ".join(map(code, schema.get("properties", {}))))
        for status, (text, schema) in route.answers.items()
    ]
    lines.append(table(("Status", "Answer", "Members"), answers))
    if route.problems:
        lines.append(f"More refusal codes: {', '.join(map(code, route.problems))}.\n")
    return "\n".join(lines)


def _type(schema: Mapping[str, Any]) -> str:
    if "enum" in schema:
        return ", ".join("null" if one is None else code(one) for one in schema["enum"])
    kinds = schema.get("type", "any")
    if isinstance(kinds, str) and kinds == "array":
        inner = schema.get("items", {})
        named = ", ".join(map(code, inner.get("properties", ())))
        return f"array of {_type(inner)}" + (f" ({named})" if named else "")
    if "anyOf" in schema or "oneOf" in schema:
        return " or ".join(map(_type, schema.get("anyOf") or schema["oneOf"]))
    return " or ".join(kinds) if isinstance(kinds, list) else str(kinds)


def refusals(_: str = "") -> str:
    """Every code with which the gateway refuses."""
    from django_delayq.contrib.gateway.responses import REFUSALS

    rows = [
        (str(one.status), code(name), plain(re.sub(r"\{\w+\}", "…", one.detail)), plain(re.sub(r"\{\w+\}", "…", one.remedy)))
        for name, one in sorted(REFUSALS.items(), key=lambda item: item[1].status)
    ]
    return table(("Status", "Code", "Meaning", "What to do"), rows)


# the engine, for docs/internals.md


def scripts(_: str = "") -> str:
    """Every script, by the first line of its header, and its cost."""
    rows = []
    for path in sorted((PACKAGE / "store" / "lua").glob("*.lua")):
        name, header = path.stem, path.read_text()
        moves = re.search(rf"^-- {name}: (.+)$", header, flags=re.MULTILINE)
        cost = re.search(r"^-- (O\(.+)$", header, flags=re.MULTILINE)
        rows.append((code(name), _arrows(sentence(moves[1] if moves else "")), _escaped(cost[1].rstrip(".") if cost else "")))
    return table(("Script", "Meaning", "Cost"), rows)


def redis_keys(_: str = "") -> str:
    """Every key in Redis, by the table in `keys.py`."""
    from django_delayq.store.keys import NAMES

    writers = {key: names for keys, names in _rows_of_keys("key | written by") for key in keys.split(", ")}
    rows = []
    for keys, kind, holds, lives in _rows_of_keys("key | type | holds | lives"):
        full = ", ".join(code(NAMES[key] or key) for key in keys.split(", "))
        rows.append((full, kind, _arrows(holds), _arrows(lives), ", ".join(map(code, writers[keys.split(", ")[0]].split(", ")))))
    return table(("Key", "Type", "Holds", "Lifetime", "Written by"), rows)


def meta_fields(_: str = "") -> str:
    """Every field of `meta`, by the table in `keys.py`."""
    rows = [(", ".join(map(code, fields.split(", "))), _arrows(holds)) for fields, holds in _rows_of_keys("field of meta | holds")]
    return table(("Field", "Meaning"), rows)


def _rows_of_keys(head: str) -> list[list[str]]:
    from django_delayq.store import keys

    lines = (keys.__doc__ or "").partition(f"| {head} |")[2].partition("\n\n")[0].splitlines()[2:]
    return [[cell.strip() for cell in line.strip("| ").split(" | ")] for line in lines]


def _arrows(text: str) -> str:
    return plain(text).replace("->", "→")


DIRECTIVES: Mapping[str, Callable[[str], str]] = {
    "delayq-settings": settings,
    "delayq-http-settings": http_settings,
    "delayq-checks": checks,
    "delayq-subcommands": subcommands,
    "delayq-options": options,
    "delayq-arguments": arguments,
    "delayq-metrics": metrics,
    "delayq-indicators": indicators,
    "delayq-signals": signals,
    "delayq-loggers": loggers,
    "delayq-permissions": permissions,
    "delayq-imports": imports,
    "delayq-search-terms": search_terms,
    "delayq-operations": operations,
    "delayq-refusals": refusals,
    "delayq-scripts": scripts,
    "delayq-keys": redis_keys,
    "delayq-meta-fields": meta_fields,
}
