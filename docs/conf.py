"""Sphinx: `make docs`. No network is needed."""

from __future__ import annotations

import re
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "docs" / "_ext")]
VERSION = re.search(r'^__version__ = "(.+)"$', (ROOT / "django_delayq" / "__init__.py").read_text(), re.MULTILINE)
assert VERSION is not None

project = "django-delayq"
author = copyright = "the authors of django-delayq"
release = version = VERSION[1]
extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon", "from_code"]
extensions += ["promises", "states"]
autodoc_typehints = "signature"
autodoc_member_order = "bysource"
autodoc_default_options = {"members": True, "undoc-members": False}
napoleon_numpy_docstring = False
# What a docstring names has a place here. What others document has none, since no build needs the network; nor has what is not public.
nitpicky = True
OTHERS = r"(datetime|collections|contextlib|types|typing|uuid|django|django_tasks|redis)\..*|datetime"
ERRORS = "InvalidTask|TaskResultDoesNotExist|SynchronousOnlyOperation|DatabaseError|CancelledError"
ROOMS = r"producer|worker|testing|admin|mirror|periodic|record|store|contrib\.destinations\.offering"
INSIDE = rf"django_delayq\.({ROOMS})\..*|(.*\.)?[PRTF]|durations\.Delay|(.*\.)?(Holder|WorkTime)|Conflict|Durability"
UNPACKED = r"(.*\.)?(UntimedOptions|PushOptions)"
nitpick_ignore_regex = [("py:.*", f"{OTHERS}|{ERRORS}|{INSIDE}|{UNPACKED}")]
exclude_patterns = ["_build", "_ext"]
templates_path = ["_templates"]
html_static_path = ["_static"]
html_search_scorer = str(ROOT / "docs" / "_ext" / "scorer.js")
html_theme = "furo"
html_title = f"django-delayq {release}"
html_copy_source = False
myst_heading_anchors = 3
