"""Reads the translatable strings from the sources, and the catalogs, without GNU gettext."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

from django.utils.translation import templatize

PACKAGE = Path(__file__).parents[2] / "django_delayq"
LANGUAGES = {"de": 2, "zh_Hans": 1}  # with the number of plural forms
SINGULAR = {"_", "now", "gettext", "gettext_lazy"}  # `now` is gettext at the time of the call, beside `_`, the lazy one
PLURAL = {"ngettext", "ngettext_lazy"}
_LITERAL = r"""u?('(?:[^'\\]|\\.)*'|"(?:[^"\\]|\\.)*")"""
_IN_TEMPLATE = re.compile(rf"\b(n?gettext)\(\s*{_LITERAL}(?:\s*,\s*{_LITERAL})?", re.DOTALL)

Text = tuple[str, str]  # singular; plural, or ""


def sources() -> dict[Text, list[str]]:
    """Returns every text with the files that contain it."""
    found: dict[Text, list[str]] = {}
    for path in sorted([*PACKAGE.rglob("*.py"), *PACKAGE.rglob("*.html")]):
        read = _of_python if path.suffix == ".py" else _of_template
        for text in read(path.read_text()):
            places = found.setdefault(text, [])
            place = str(path.relative_to(PACKAGE))
            if place not in places:
                places.append(place)
    return found


def _of_python(text: str) -> Iterator[Text]:
    for node in ast.walk(ast.parse(text)):
        if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Name):
            continue
        count = 1 if node.func.id in SINGULAR else 2 if node.func.id in PLURAL else 0
        given = [each.value for each in node.args[:count] if isinstance(each, ast.Constant)]
        strings = [each for each in given if isinstance(each, str)]
        if count and len(strings) == count:
            yield strings[0], strings[1] if count == 2 else ""


def _of_template(text: str) -> Iterator[Text]:
    for name, one, many in _IN_TEMPLATE.findall(templatize(text)):
        yield ast.literal_eval(one), ast.literal_eval(many) if name == "ngettext" else ""


def catalog_path(language: str, kind: str) -> Path:
    """`kind`: po or mo."""
    return PACKAGE / "locale" / language / "LC_MESSAGES" / f"django.{kind}"


def catalog(language: str) -> tuple[dict[Text, list[str]], str]:
    """Returns the translations in each form, and the header."""
    found: dict[Text, list[str]] = {}
    header = ""
    for block in catalog_path(language, "po").read_text().split("\n\n"):
        fields: dict[str, str] = {}
        name = ""
        for line in block.splitlines():
            if line.startswith("#") or not line.strip():
                continue
            if not line.startswith('"'):
                name, _, line = line.partition(" ")
                fields[name] = ""
            fields[name] += ast.literal_eval(line)
        if "msgid" not in fields:
            continue
        forms = [text for field, text in fields.items() if field.startswith("msgstr")]
        if not fields["msgid"]:
            header = forms[0]
            continue
        both = (fields["msgid"], fields.get("msgid_plural", ""))
        assert both not in found, f"{both} stands there twice"
        found[both] = forms
    return found, header
