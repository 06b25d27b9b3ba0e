"""Sphinx: `make docs`. No network is needed."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
VERSION = re.search(r'^__version__ = "(.+)"$', (ROOT / "django_delayq" / "__init__.py").read_text(), re.MULTILINE)
assert VERSION is not None

project = "django-delayq"
author = copyright = "the authors of django-delayq"
release = version = VERSION[1]
extensions = ["myst_parser"]
exclude_patterns = ["_build"]
html_theme = "furo"
html_title = f"django-delayq {release}"
html_copy_source = False
myst_heading_anchors = 3
