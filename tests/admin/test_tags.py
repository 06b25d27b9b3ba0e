"""The template tags in a project without Django's admin."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

PROJECT = """
import django
from django.conf import settings
from django.template import engines

settings.configure(
    INSTALLED_APPS=["django.contrib.contenttypes", "django.contrib.auth", "django_delayq"],
    TEMPLATES=[{"BACKEND": "django.template.backends.django.DjangoTemplates", "APP_DIRS": True}],
)
django.setup()
template = "{% load delayq %}{{ task|task_name|breakable }} {{ text|visible }} {{ number|grouped }} {{ date|moment }}"
print(engines["django"].from_string(template).render({"task": "shop.tasks", "text": "<b>", "number": 7, "date": None}))
"""


def test_templates_that_use_the_tags_render_without_the_admin():
    root = Path(__file__).parents[2]
    done = subprocess.run([sys.executable, "-c", PROJECT], cwd=root, capture_output=True, text=True, timeout=60, check=False)
    assert (done.stdout.strip(), done.returncode) == ("shop.<wbr>tasks &lt;b&gt; 7", 0), done.stderr
