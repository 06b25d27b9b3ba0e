"""Neighbours on the host: the embedded server's directory is private. Other users can block neither its start nor the health port."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import shutil
import socket
import stat
import tempfile
import threading
import urllib.error
import urllib.request
from collections import deque
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from django_delayq.exceptions import ConfigError, StoreUnavailable
from django_delayq.store.connection import embedded
from django_delayq.store.connection.link import connect
from django_delayq.worker.supervisor import lease_files
from tests.ports import free_port
from tests.worker.conftest import Shop, eventually


@pytest.fixture
def home() -> Iterator[Path]:
    """A short path, because a socket's path has a limit."""
    with tempfile.TemporaryDirectory(prefix="dq-") as folder:
        home = Path(folder, "data")
        yield home
        if home.is_dir() and not home.is_symlink():
            embedded.stop(home)


def open_to_others(home: Path) -> dict[str, str]:
    """Returns the paths on which other users have any permission."""
    paths = [home, *home.rglob("*")]
    modes = {str(path.relative_to(home)): stat.S_IMODE(path.lstat().st_mode) for path in paths}
    return {name: f"{mode:04o}" for name, mode in modes.items() if mode & 0o077}


def test_everything_that_the_embedded_server_writes_is_private_whatever_the_directory_was(home):
    home.mkdir()
    home.chmod(0o755)
    before = os.umask(0o022)
    try:
        link = connect({"EMBEDDED": str(home)})
        link.execute("SET", "iban", "SECRET")
        link.close()
    finally:
        os.umask(before)
    assert any(path.suffix == ".aof" for path in home.rglob("*"))
    assert open_to_others(home) == {}


def test_what_an_older_release_left_open_is_closed_at_the_next_call(home):
    embedded.ensure(home)
    for name in ("", "lock", "running", "valkey.log", "appendonlydir"):
        (home / name).chmod(0o755 if (home / name).is_dir() else 0o644)
    embedded.ensure(home)  # it runs already
    assert open_to_others(home) == {}


@pytest.mark.parametrize("name", ["notes.txt", "appendonly.aof"])
def test_a_directory_that_others_use_too_is_neither_closed_to_them_nor_believed(home, name):
    home.mkdir()
    home.chmod(0o777)
    (home / name).write_text("of somebody")
    with pytest.raises(ConfigError, match=rf"open to other users.*{name}.*an empty directory"):
        embedded.ensure(home)
    assert home.stat().st_mode & 0o777 == 0o777


def test_a_directory_that_is_a_symbolic_link_is_refused(home):
    elsewhere = home.parent / "elsewhere"
    elsewhere.mkdir()
    home.symlink_to(elsewhere)
    with pytest.raises(ConfigError, match=rf"{home}: it is a symbolic link\. Remove it"):
        embedded.ensure(home)
    assert list(elsewhere.iterdir()) == []


@pytest.mark.parametrize("name", ["lock", "running", "valkey.log", ".gitignore"])
def test_a_file_that_is_a_symbolic_link_is_refused_and_what_it_leads_to_stays(home, name):
    home.mkdir(mode=0o700)
    victim = home.parent / "victim"
    victim.write_text("theirs")
    (home / name).symlink_to(victim)
    with pytest.raises(ConfigError, match=f"{name}: it is a symbolic link"):
        embedded.ensure(home)
    (home / name).unlink()
    assert victim.read_text() == "theirs"


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a directory to another user")
def test_a_directory_of_another_user_is_refused(home):
    home.mkdir(mode=0o700)
    os.chown(home, 65534, 65534)
    with pytest.raises(ConfigError, match=r"of another user \(65534\)"):
        embedded.ensure(home)
    os.chown(home, 0, 0)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a file to another user")
def test_a_socket_of_another_user_is_no_server_of_ours(home):
    home.mkdir(mode=0o700)
    with socket.socket(socket.AF_UNIX) as theirs:
        theirs.bind(str(home / "valkey.sock"))
        os.chown(home / "valkey.sock", 65534, 65534)
        with pytest.raises(ConfigError, match=r"valkey\.sock: it is of another user"):
            embedded.ensure(home)
    shutil.rmtree(home)


def test_a_lock_that_somebody_keeps_is_an_error_after_a_while_and_no_start_that_hangs(home, monkeypatch):
    monkeypatch.setattr(embedded, "LOCK_SECONDS", 0.2, raising=False)
    home.mkdir(mode=0o700)
    with ThreadPoolExecutor(1) as pool, open(home / "lock", "ab") as theirs:
        fcntl.flock(theirs, fcntl.LOCK_EX)
        start = pool.submit(embedded.ensure, home)
        with pytest.raises(StoreUnavailable, match=rf"another process has held the lock {home}/lock"):
            start.result(timeout=60)
    embedded.ensure(home)


# the health port


class Flood:
    """Opens connections that send nothing, repeatedly, for as long as the block lasts."""

    def __init__(self, port: int, at_once: int = 60) -> None:
        self.port, self.at_once = port, at_once
        self.over = threading.Event()
        self.thread = threading.Thread(target=self.run)
        self.made = 0

    def run(self) -> None:
        idle: deque[socket.socket] = deque()
        while not self.over.is_set():
            for _ in range(self.at_once):
                with contextlib.suppress(OSError):
                    idle.append(socket.create_connection(("127.0.0.1", self.port), timeout=1))
                    self.made += 1
            while len(idle) > 3 * self.at_once:
                idle.popleft().close()
            self.over.wait(0.1)
        for each in idle:
            each.close()

    def __enter__(self) -> Flood:
        self.thread.start()
        eventually(lambda: self.made > 2 * self.at_once)
        return self

    def __exit__(self, *_: object) -> None:
        self.over.set()
        self.thread.join()


def ask(port: int, path: str, host: str = "127.0.0.1") -> tuple[int, dict[str, object]]:
    """Returns the status and the response. The status is 0 if there is no response."""
    try:
        with urllib.request.urlopen(f"http://{host}:{port}/{path}", timeout=30) as answer:
            return answer.status, json.load(answer)
    except urllib.error.HTTPError as error:
        with error:
            return error.code, json.load(error)
    except OSError:
        return 0, {}


@pytest.mark.slow
def test_a_flood_of_connections_that_say_nothing_fails_no_probe(shop: Shop):
    port = free_port()
    shop.work("--health-port", str(port))
    eventually(lambda: ask(port, "ready")[0] == 200)
    with Flood(port):
        assert [ask(port, "health")[0] for _ in range(50)] == [200] * 50


def test_half_a_request_holds_up_no_whole_one(shop: Shop):
    port = free_port()
    shop.work("--health-port", str(port))
    eventually(lambda: ask(port, "ready")[0] == 200)
    slow = [socket.create_connection(("127.0.0.1", port), timeout=30) for _ in range(200)]
    for each in slow:
        with contextlib.suppress(OSError):
            each.send(b"GET /health HT")
    assert ask(port, "health")[0] == 200
    for each in slow:
        each.close()


def test_the_health_port_listens_where_it_is_told(shop: Shop):
    port = free_port()
    worker = shop.work("--health-port", str(port), "--health-host", "127.0.0.2")
    eventually(lambda: ask(port, "ready", "127.0.0.2")[0] == 200)
    assert ask(port, "ready", "127.0.0.1")[0] == 0
    assert f"127.0.0.2:{port}" in worker.text()


def test_an_answer_to_a_probe_names_neither_host_nor_process(shop: Shop):
    port = free_port()
    worker = shop.work("--health-port", str(port))
    eventually(lambda: ask(port, "ready")[0] == 200)
    assert ask(port, "health") == (200, {"missing": []})
    assert ask(port, "ready") == (200, {"store": True, "state": "working"})
    assert str(worker.pid) in worker.text()  # the log shows it to users who may read it


@pytest.mark.parametrize(
    ("options", "code", "text"),
    [
        (["--health-host", "127.0.0.1"], 2, "--health-host requires --health-port"),
        (["--health-port", "8081", "--health-host", "192.0.2.1"], 1, "cannot listen on 192.0.2.1:8081"),
    ],
)
def test_an_address_where_nobody_can_listen_is_told(shop: Shop, options, code, text):
    worker = shop.work(*options)
    assert worker.wait() == code
    assert text in worker.text()


@pytest.mark.slow
@pytest.mark.skipif(lease_files.place() is None, reason="no /dev/shm, or no /proc, here")
def test_files_of_a_killed_worker_are_removed_by_who_gives_back_what_it_held(shop: Shop):
    place = lease_files.place()
    first = shop.work("--processes", "2")
    shop.put_many("nap", [(number, 600) for number in range(4)])
    eventually(lambda: shop.leases() == 4)
    files = list(place.glob(f"{first.pid}-*"))
    assert len(files) == 2
    (place / f"{first.pid}-abc.new").write_bytes(b"")  # as if it had been starting a third one
    first.kill_tree()
    shop.work()
    eventually(lambda: not list(place.glob(f"{first.pid}-*")))
