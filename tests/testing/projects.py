"""Small projects in a folder. Their tests run in a separate process, as in a user's project."""

from __future__ import annotations

import os
import subprocess
import sys
from importlib.metadata import entry_points
from pathlib import Path

ROOT = Path(__file__).parents[2]
INSTALLED = any(point.name == "delayq" for point in entry_points(group="pytest11"))
SETTINGS = """
SECRET_KEY = "x"
INSTALLED_APPS = ["django.contrib.auth", "django.contrib.contenttypes", "django_delayq", "shop"]
DATABASES = {{"default": {database}}}
USE_TZ = True
DELAYQ = {delayq}
"""
TASKS = """
import django_delayq as delayq

@delayq.task
def close(number): ...
"""
IN_MEMORY = {"ENGINE": "django.db.backends.sqlite3", "NAME": ":memory:"}


def project(folder: Path, tests: str, *, database: object = IN_MEMORY, delayq: object = None) -> Path:
    """Makes a project with the app "shop", its task `close`, and these tests."""
    given = {"REDIS": "redis://127.0.0.1:1/0"} if delayq is None else delayq  # the developer's own: a connection to it fails
    (folder / "shop").mkdir()
    (folder / "shop" / "__init__.py").touch()
    (folder / "shop" / "tasks.py").write_text(TASKS)
    (folder / "config.py").write_text(SETTINGS.format(database=database, delayq=given))
    (folder / "pytest.ini").write_text("[pytest]\nDJANGO_SETTINGS_MODULE = config\npython_files = test_*.py\n")
    (folder / "test_shop.py").write_text(tests)
    return folder


def run(folder: Path, *command: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """Runs a Python command in that folder, in an environment without the settings of these tests."""
    env = {name: value for name, value in os.environ.items() if not name.startswith(("DELAYQ_", "PYTEST_", "DJANGO_"))}
    env |= {"PYTHONPATH": f"{folder}:{ROOT}", "TMPDIR": str(folder), **environment}
    return subprocess.run([sys.executable, *command], cwd=folder, env=env, capture_output=True, text=True, timeout=600, check=False)


def run_pytest(folder: Path, *options: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """Runs pytest with the plugin from its entry point, or loads the plugin by name if the install is older."""
    brought = INSTALLED and "PYTEST_DISABLE_PLUGIN_AUTOLOAD" not in environment
    plugin = () if brought else ("-p", "django_delayq.testing.plugin")
    # Hypothesis, which these tests have and a user's need not, is imported by its plugin for a second.
    left_out = ("-p", "no:cacheprovider", "-p", "no:hypothesispytest")
    return run(folder, "-m", "pytest", "-q", *left_out, *plugin, *options, **environment)
