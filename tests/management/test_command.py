"""The command as a shell sees it: exit codes, output streams, no tracebacks."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

from django_delayq.management import change_commands
from django_delayq.management.commands.delayq import Command
from django_delayq.management.output import duration, print_table, progress
from tests.management.conftest import lose_redis

VERBS = (
    "status",
    "list",
    "inspect",
    "cancel",
    "reschedule",
    "run-now",
    "requeue",
    "pause",
    "resume",
    "purge",
    "prune",
    "doctor",
)


@pytest.fixture
def shell(orders, monkeypatch, capsys):
    """Runs the command as manage.py does. Returns the exit code, standard output and standard error."""
    monkeypatch.setattr("django.core.management.base.connections.close_all", lambda: None)

    def run(*words: str) -> tuple[int, str, str]:
        code = 0
        try:
            Command().run_from_argv(["manage.py", "delayq", *words])
        except SystemExit as end:
            code = int(end.code or 0)
        return code, *capsys.readouterr()

    return run


def test_done_is_exit_code_0(shell):
    code, out, error = shell("pause", "orders")
    assert (code, out, error) == (0, "orders is paused.\n", "")


def test_not_done_is_exit_code_1(shell):
    code, out, error = shell("cancel", "--key", "o:7", "--queue", "orders")
    assert (code, out.splitlines()[0], error) == (1, "cancel: 1 unknown.", "")


@pytest.mark.parametrize(
    "words",
    [
        (),
        ("stauts",),
        ("pause",),
        ("pause", "oders"),
        ("inspect", "7"),
        ("list", "--limit", "0"),
        ("list", "--state", "waiting"),
        ("cancel",),
        ("purge", "orders", "--sure"),
    ],
)
def test_wrong_usage_is_exit_code_2(shell, words):
    code, out, error = shell(*words)
    assert (code, out) == (2, "")
    assert error
    assert "Traceback" not in error


def test_a_slip_in_the_subcommand_is_one_line_with_the_nearest(shell):
    assert shell("stauts")[2] == "Unknown subcommand stauts (did you mean 'status'?). See delayq --help.\n"


def test_without_a_subcommand_there_is_a_line_for_each(shell):
    error = shell()[2]
    assert all(f"    {verb} " in error for verb in VERBS)


def test_an_outage_is_one_line_on_standard_error(shell, settings):
    lose_redis(settings)
    code, out, error = shell("restore")
    assert (code, out) == (1, "")
    assert error.startswith("CommandError: Redis at ")
    assert len(error.splitlines()) == 1


def test_wrong_settings_are_a_sentence(shell, settings):
    settings.DELAYQ = {**settings.DELAYQ, "LEASE": "soon"}
    code, _, error = shell("status")
    assert code == 1
    assert error.startswith('CommandError: DELAYQ["LEASE"]: ')


def test_wrong_settings_do_not_keep_the_doctor_from_a_document(shell, settings):
    """System checks before the command would print their own text instead."""
    settings.DELAYQ = {**settings.DELAYQ, "LEASE": "soon"}
    code, out, error = shell("doctor", "--json")
    assert (code, error) == (1, "")
    assert json.loads(out)["findings"][0]["code"] == "E002"


def test_warnings_of_checks_do_not_join_the_output(shell, settings):
    settings.CACHES = {"default": {"BACKEND": "django.core.cache.backends.redis.RedisCache", "LOCATION": settings.DELAYQ["REDIS"]}}
    assert shell("list", "--json") == (0, "[]\n", "")


@pytest.mark.parametrize("verb", VERBS)
def test_every_subcommand_explains_itself_and_knows_json(shell, verb):
    code, out, _ = shell(verb, "--help")
    assert code == 0
    assert "--json" in out


def test_the_help_names_every_subcommand(shell):
    _, out, _ = shell("--help")
    assert all(f"    {verb} " in out for verb in VERBS)


def test_python_without_docstrings_prints_the_same_help(shell):
    _, wanted, _ = shell("--help")
    command = [sys.executable, "-OO", "-m", "django", "delayq", "--help"]
    shown = subprocess.run(command, env=os.environ, stdout=subprocess.PIPE, text=True, check=True).stdout
    assert shown.partition("positional arguments:")[2] == wanted.partition("positional arguments:")[2]


def test_the_actor_is_known_even_without_a_user_name(monkeypatch):
    def nobody() -> str:
        raise OSError("no username set in the environment")

    monkeypatch.setattr(change_commands.getpass, "getuser", nobody)
    assert change_commands.actor() == "cli"


def test_a_table_has_columns_as_wide_as_what_they_hold(capsys):
    print_table(sys.stdout, ("name", "count"), [("a long name", 7), ("b", 12)])
    assert capsys.readouterr().out == "name         count\na long name      7\nb               12\n"


@pytest.mark.parametrize(("seconds", "text"), [(0, "-"), (-1, "-"), (0.4, "<1s"), (90.2, "1m30s")])
def test_durations_are_short(seconds, text):
    assert duration(seconds) == text


def test_progress_without_rich_is_a_line_for_each_tenth(monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "rich.console", None)
    with progress(1000, "purging orders", quiet=False) as advance:
        for _ in range(5):
            advance(200)
    lines = capsys.readouterr().err.splitlines()
    assert lines[0] == "purging orders: 200 of 1000"
    assert lines[-1] == "purging orders: 1000 of 1000"


@pytest.mark.parametrize(("total", "quiet"), [(199, False), (1000, True)])
def test_few_jobs_and_json_show_no_progress(capsys, total, quiet):
    with progress(total, "purging orders", quiet=quiet) as advance:
        advance(total)
    assert capsys.readouterr().err == ""
