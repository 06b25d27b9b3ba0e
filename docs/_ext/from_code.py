"""The extension of Sphinx: `names` in docstrings as links or code, the fields of models, and the directives of `generated`."""

from __future__ import annotations

import re
from importlib import import_module
from typing import Any

import django
import generated
import search_words
from django.conf import settings
from docutils import nodes
from sphinx import addnodes
from sphinx.application import Sphinx
from sphinx.util.docutils import SphinxDirective

CODE = re.compile(r"(?<![`:])`([^`\n]+)`(?!`)")


def set_up() -> None:
    """Django with the settings that importing the package needs. Nothing is connected to."""
    settings.configure(
        SECRET_KEY="documentation",
        USE_TZ=True,
        INSTALLED_APPS=[
            "django.contrib.admin",
            "django.contrib.auth",
            "django.contrib.contenttypes",
            "django.contrib.messages",
            "django.contrib.sessions",
            "django_delayq",
            "django_delayq.contrib.gateway",
        ],
        DATABASES={"default": {"ENGINE": "django.db.backends.sqlite3", "NAME": ":memory:"}},
        DELAYQ={"REDIS": "redis://127.0.0.1:1/0"},
    )
    django.setup()


def public() -> dict[str, str]:
    """The short names of the face and of its classes' members -> where the reference has them."""
    found: dict[str, str] = {}
    for path in reversed(generated.FACES):
        module = import_module(path)
        for name in getattr(module, "__all__", ()):
            found[name] = f"{path}.{name}"
            found[f"delayq.{name}"] = f"{path}.{name}"
    return found


def prose(app: Sphinx, what: str, name: str, obj: Any, options: Any, lines: list[str]) -> None:
    """`x` is written for readers of the source. Here it is a link where x is public, else code."""
    if what in ("attribute", "data", "property"):
        lines[:] = [line.replace(": ", "; ") for line in lines]  # napoleon takes what stands before a colon for a type
    _raises_in_words(lines)
    names = public()

    def marked(found: re.Match[str]) -> str:
        text = found[1]
        place = names.get(text.removesuffix("()"))
        own = place is None or place == name or name.startswith(f"{place}.")
        return f"``{text}``" if own else f":py:obj:`{text} <{place}>`"

    lines[:] = [CODE.sub(marked, line) for line in lines]
    if what == "class" and hasattr(obj, "_meta") and hasattr(obj._meta, "get_fields") and not obj._meta.proxy:
        fields = [field for field in obj._meta.get_fields() if getattr(field, "concrete", False)]
        lines += ["", *(f"- ``{field.name}``: {field.get_internal_type()}" for field in fields), ""]


def _raises_in_words(lines: list[str]) -> None:
    """An item of `Raises:` that is no "Error: when" ("As `schedule`.") becomes a sentence after the others."""
    if "Raises:" not in lines:
        return
    begin = lines.index("Raises:")
    sentence, items = "", False
    for number, line in list(enumerate(lines))[begin + 1 :]:
        if line.startswith("    ") and not re.match(r"    [A-Z][\w, ]+:", line) and (line[4:5] != " " or sentence):
            sentence += f" {line.strip()}"
            lines[number] = ""
        elif line.strip():
            items = True
    if sentence:
        sentence = re.sub(r"^As ", "the same exceptions as ", sentence.strip())
        lines += ["", f"Raises {sentence}", ""]
    if sentence and not items:
        lines[begin] = ""


class Generated(SphinxDirective):
    """Parses the Markdown that a function of `generated` returns for the argument."""

    optional_arguments = 1
    final_argument_whitespace = True

    def run(self) -> list[nodes.Node]:
        """Called by Sphinx."""
        text = generated.DIRECTIVES[self.name](self.arguments[0] if self.arguments else "")
        return self.parse_text_to_nodes(text, allow_section_headings=True)


def add_search_words(app: Sphinx, doctree: nodes.document) -> None:
    """Makes a page findable by the words of `search_words`, which a reader uses and the page may not."""
    words = [word.strip() for word in search_words.WORDS.get(app.env.docname, "").split(",")]
    entries = [("single", word, "", "main", None) for word in words if word]
    if entries:
        doctree.append(addnodes.index(entries=entries))
        doctree.append(nodes.meta(name="keywords", content=", ".join(sorted({part for word in words for part in word.split()}))))


def make_scrollable_parts_focusable(app: Sphinx, page: str, template: str, context: dict[str, Any], doctree: Any) -> None:
    """Code and tables that are too wide can be scrolled with the keyboard. The theme allows this only with a mouse."""
    body = context.get("body", "")
    context["body"] = body.replace("<pre>", '<pre tabindex="0">').replace(
        '<div class="table-wrapper', '<div tabindex="0" class="table-wrapper'
    )


def setup(app: Sphinx) -> dict[str, bool]:
    """Called by Sphinx."""
    set_up()
    app.connect("autodoc-process-docstring", prose, priority=100)  # before napoleon, which knows no marks
    app.connect("doctree-read", add_search_words)
    app.connect("html-page-context", make_scrollable_parts_focusable)
    for name in generated.DIRECTIVES:
        app.add_directive(name, Generated)
    return {"parallel_read_safe": True}
