"""`delayq embedded`: whether the project's own server runs, and how to stop it."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from django_delayq.store.connection import embedded


@pytest.fixture
def home(settings) -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="dq-") as folder:
        home = Path(folder, "data")
        settings.DELAYQ = {**settings.DELAYQ, "REDIS": {"EMBEDDED": str(home)}}
        yield home
        embedded.stop(home)


def test_it_is_looked_at_and_stopped(run, home):
    embedded.ensure(home)
    pid = int((home / "valkey.pid").read_text())
    said = run("embedded")
    assert (said.code, said.lines) == (
        0,
        [f"A server is running in {home}, process {pid}, and answers. To stop it, run manage.py delayq embedded stop."],
    )
    assert run("embedded", "status", "--json").json == {"directory": str(home), "pid": pid, "answers": True, "stopped": False}
    stopped = run("embedded", "stop")
    assert stopped.code == 0
    assert stopped.lines == [
        f"Stopped the server. Its data is saved in {home}. The next process that needs the server starts it again."
    ]
    assert run("embedded", "--json").json == {"directory": str(home), "pid": 0, "answers": False, "stopped": False}


def test_what_does_not_run_is_not_started_to_be_looked_at(run, home):
    for act, code in (("status", 1), ("stop", 0)):
        said = run("embedded", act)
        assert (said.code, said.lines) == (code, [f"No server is running in {home}."])
    assert not home.exists()


def test_a_server_that_others_have_started_is_left_alone(run, settings):
    said = run("embedded", "stop")
    assert said.code == 2
    assert 'DELAYQ["REDIS"] is ' in said.error
    assert "Stop that server in the way it was started" in said.error


def test_what_it_cannot_do_is_refused(run):
    assert run("embedded", "start").code == 2 or "invalid choice" in run("embedded", "start").error
