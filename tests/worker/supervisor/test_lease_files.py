"""Another worker finds the leases of a killed worker if that worker is certainly dead, and only one worker takes them."""

from __future__ import annotations

import json
import os
import signal
from dataclasses import replace
from pathlib import Path

import pytest

from django_delayq.worker import lease_table as h
from django_delayq.worker.lease_table import LeaseTable
from django_delayq.worker.supervisor import lease_files
from tests.worker.bench import line
from tests.worker.conftest import eventually

pytestmark = pytest.mark.skipif(lease_files.place() is None, reason="no /dev/shm, or no /proc, here")
ID = "0351GEiPiO6ubpyarjQkn6"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    made = lease_files.place(tmp_path)
    assert made is not None
    return made


def make(folder: Path | None) -> tuple[LeaseTable, Path | None]:
    return lease_files.make(folder, worker="w/1", store="delayq here", rows=4, lines=[line("q"), line("orders", max_crashes=7)])


def put(leases: LeaseTable, row: int = 0, id: str = ID) -> None:
    leases.put(row, line=1, id=id, fence="n1", attempt=2, taken=1.0, good_until=31.0)


@pytest.fixture
def killed(folder: Path) -> Path:
    """The leases of a killed process: one job was running, one was waiting, and a claim was under way."""
    pid = os.fork()
    if pid == 0:
        leases, _ = make(folder)
        put(leases, 0)
        put(leases, 1)
        leases.start(0, started=1.0, task=0)
        leases.claiming(0, "n9")
        os.kill(os.getpid(), signal.SIGKILL)
    os.waitpid(pid, 0)
    (path,) = folder.iterdir()
    return path


def found(folder: Path, store: str = "delayq here") -> list[lease_files.LeaseFile]:
    return list(lease_files.left(folder, store))


@pytest.mark.slow
def test_what_a_living_process_holds_is_found_when_it_dies_after_the_first_look(folder: Path) -> None:
    ours, theirs = os.pipe()
    pid = os.fork()
    if pid == 0:
        make(folder)
        os.close(ours)
        os.write(theirs, b".")
        signal.pause()
    os.close(theirs)
    os.read(ours, 1)
    seen: dict[str, lease_files.Origin | None] = {}
    (path,) = folder.iterdir()
    for _ in range(2):
        assert list(lease_files.left(folder, "delayq here", seen)) == []
        assert seen[path.name] is not None
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    os.close(ours)
    (trace,) = lease_files.left(folder, "delayq here", seen)
    trace.remove()


def test_a_file_of_another_store_is_not_opened_again(folder: Path, killed: Path) -> None:
    seen: dict[str, lease_files.Origin | None] = {}
    assert list(lease_files.left(folder, "delayq elsewhere", seen)) == []
    assert seen == {killed.name: None}
    assert list(lease_files.left(folder, "delayq here", seen)) == []
    seen.clear()
    (trace,) = lease_files.left(folder, "delayq here", seen)
    trace.remove()


def test_what_a_killed_process_held_is_found(folder: Path, killed: Path) -> None:
    (trace,) = found(folder)
    assert (trace.head.worker, trace.head.lines) == ("w/1", [("q", 0, 30_000, 3), ("orders", 0, 30_000, 7)])
    assert trace.leases is not None
    assert [(held.state, held.id, held.line) for held in trace.leases.held()] == [
        (h.RUNNING, ID, 1),
        (h.WAITING, ID, 1),
    ]
    assert trace.leases.nonces(trace.head.lines) == ["n9", ""]
    trace.remove()
    assert not killed.exists()


def test_a_file_for_which_there_is_no_memory_leaves_nothing_open_and_is_found_later(folder: Path, killed: Path, monkeypatch) -> None:
    class Unmapped(LeaseTable):
        def __init__(self, *_: object) -> None:
            raise OSError("no memory")

    before = os.listdir("/proc/self/fd")
    with monkeypatch.context() as patch:
        patch.setattr(lease_files, "LeaseTable", Unmapped)
        assert found(folder) == []
    assert os.listdir("/proc/self/fd") == before
    (trace,) = found(folder)
    trace.remove()


def test_one_worker_alone_gives_it_back_and_another_if_that_one_dies(folder: Path, killed: Path) -> None:
    (trace,) = found(folder)
    assert found(folder) == []
    trace.close()
    (again,) = found(folder)
    again.remove()
    assert found(folder) == []


def test_what_a_living_process_holds_is_left_alone(folder: Path) -> None:
    leases, path = make(folder)
    put(leases)
    assert found(folder) == []
    assert path is not None
    assert path.exists()
    leases.close()


@pytest.mark.slow
def test_a_stopped_process_lives(folder: Path) -> None:
    read, write = os.pipe()
    pid = os.fork()
    if pid == 0:
        make(folder)
        os.write(write, b"1")
        signal.pause()
    os.read(read, 1)
    os.kill(pid, signal.SIGSTOP)
    os.waitpid(pid, os.WUNTRACED)
    assert found(folder) == []
    os.kill(pid, signal.SIGKILL)
    (trace,) = eventually(lambda: found(folder))  # though its parent has not waited for it yet
    trace.close()
    os.waitpid(pid, 0)
    for end in (read, write):
        os.close(end)


def test_a_number_that_another_process_bears_now_is_gone() -> None:
    me = lease_files.origin()
    assert not me.gone()
    assert replace(me, born=str(int(me.born) - 1)).gone()


@pytest.mark.parametrize("machine", ["", "another start of it"])
def test_nobody_judges_a_process_of_another_machine(machine: str) -> None:
    assert not replace(lease_files.origin(), machine=machine, born="1").gone()


def test_another_store_is_no_business_of_ours(folder: Path, killed: Path) -> None:
    assert found(folder, "delayq there") == []
    assert killed.exists()


def test_a_file_of_another_version_is_dropped(folder: Path, killed: Path) -> None:
    text = killed.read_bytes()
    length = int.from_bytes(text[-8:], "big")
    head = json.dumps({**json.loads(text[-8 - length : -8]), "layout": h.LAYOUT + 1}).encode()
    killed.write_bytes(text[: -8 - length] + head + len(head).to_bytes(8, "big"))
    assert found(folder) == []
    assert not killed.exists()


@pytest.mark.parametrize("text", [b"", b"x", b"\xff" * 4000, b"{}" + (2).to_bytes(8, "big")])
def test_litter_is_left_alone_and_removed_when_it_is_old(folder: Path, text: bytes) -> None:
    path = folder / "litter"
    path.write_bytes(text)
    assert found(folder) == []
    lease_files.touch([path])
    assert found(folder) == []
    assert path.exists()
    os.utime(path, (0, 0))
    assert found(folder) == []
    assert not path.exists()


def test_what_a_process_was_writing_when_it_died_is_removed_at_the_next_look(folder: Path) -> None:
    pid = os.fork()
    if pid == 0:
        os.posix_fallocate = lambda *_: os.kill(os.getpid(), signal.SIGKILL)
        make(folder)
    os.waitpid(pid, 0)
    assert len(list(folder.iterdir())) == 1
    assert found(folder) == []
    assert list(folder.iterdir()) == []


def test_what_a_process_is_writing_stays(folder: Path) -> None:
    path = folder / f"{os.getpid()}-abc.new"
    path.write_bytes(b"x")
    assert found(folder) == []
    assert path.exists()


def test_a_head_that_lies_about_its_size_is_litter(folder: Path, killed: Path) -> None:
    killed.write_bytes(killed.read_bytes()[64:])
    assert found(folder) == []


def test_a_folder_that_others_may_write_to_is_not_used(folder: Path) -> None:
    folder.chmod(0o777)
    assert lease_files.place(folder.parent) is None


def test_lease_table_are_plain_memory_where_there_is_no_room(tmp_path: Path) -> None:
    for place in (None, tmp_path / "missing"):
        leases, path = make(place)
        assert path is None
        put(leases)
        assert [held.id for held in leases.held()] == [ID]
        leases.close()
