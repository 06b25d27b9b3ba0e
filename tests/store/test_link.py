"""Links: what a caller sees when the server is away, dies, is full or forgets its scripts."""

from __future__ import annotations

import os
import stat
from types import SimpleNamespace

import pytest
from redis.connection import AbstractConnection

from django_delayq import clock
from django_delayq.exceptions import ConfigError, StoreUnavailable
from django_delayq.store.connection import connection_options
from django_delayq.store.connection import link as link_module
from django_delayq.store.connection.error_replies import StoreError
from django_delayq.store.connection.link import IDLE, KEPT, Link, connect
from django_delayq.store.connection.wake import WakeLine
from django_delayq.store.keys import Keys
from django_delayq.store.reads.inspector import Inspector
from django_delayq.store.scripts.queue import ScheduleItem
from tests.depths import queue_depth
from tests.servers import as_package
from tests.store.board import NOW, Board, record
from tests.worker.conftest import eventually


@pytest.fixture
def server(own_redis):
    return own_redis()


@pytest.fixture(params=["by the poll object kept", "by the client"])
def look(request, monkeypatch):
    """How a connection is looked at before a call."""
    if request.param == "by the client":
        monkeypatch.setattr(link_module, "select", None)
    else:
        pytest.importorskip("hiredis")


def test_a_server_that_is_away_is_named(tmp_path):
    link = connect(f"unix://{tmp_path}/none.sock")
    with pytest.raises(StoreUnavailable, match=r"none\.sock.*not available"):
        link.execute("PING")


def test_a_password_is_never_shown():
    link = connect("redis://user:hunter2@127.0.0.1:1/3")
    with pytest.raises(StoreUnavailable) as error:
        link.execute("PING")
    assert "hunter2" not in str(error.value)
    assert "127.0.0.1:1, db 3" in str(error.value)


def test_a_restarted_server_is_found_again_by_the_same_link(server, look):
    link = connect(server.url)
    link.execute("PING")
    server.restart()
    assert link.execute("PING") == b"PONG"


def test_what_was_sent_once_is_not_sent_again(server):
    link = connect(server.url)
    link.execute("PING")
    with pytest.raises(StoreUnavailable, match="The request may have been carried out"):
        link.execute_many([("INCR", "n"), ("QUIT",), ("PING",)])  # the server closes before the last reply
    assert link.execute("GET", "n") == b"1"


def test_a_connection_that_was_idle_for_long_is_not_used_again(server, monkeypatch):
    link = connect(server.url)
    first = link.execute("CLIENT", "ID")
    assert link.execute("CLIENT", "ID") == first
    monkeypatch.setattr(link_module, "IDLE", 0.0)
    assert link.execute("CLIENT", "ID") != first


def test_the_connections_of_a_peak_are_not_kept(server, monkeypatch):
    link = connect(server.url)

    def clients() -> int:
        return int(link.execute("INFO", "clients").partition(b"connected_clients:")[2].split()[0])

    def peak() -> None:
        for receive in [link.start(("PING",)) for _ in range(100)]:
            assert receive() == [b"PONG"]

    peak()
    eventually(lambda: clients() == KEPT)
    for _ in range(3):
        link.execute("PING")
    assert clients() == KEPT
    later = clock.monotonic() + IDLE + 1
    monkeypatch.setattr(clock, "monotonic", lambda: later)
    link.execute("PING")
    eventually(lambda: clients() == 1)


def test_a_reply_that_another_call_left_behind_is_nobody_s(server, look):
    link = connect(server.url)
    link.execute("PING")
    [(kept, _)] = link._idle
    kept.connection.send_command("ECHO", "stray")
    eventually(lambda: kept.connection.can_read(0))
    assert link.execute("PING") == b"PONG"


def test_a_reply_too_many_that_came_with_another_one_is_nobody_s(server, look):
    link = connect(server.url)
    link.execute("PING")
    [(kept, _)] = link._idle
    sent = kept.connection.send_packed_command
    kept.connection.send_packed_command = lambda *args, **kwargs: sent([b"PING\r\nECHO stray\r\n"], check_health=False)
    assert link.execute("PING") == b"PONG"
    assert link.execute("GET", "nothing") is None


def test_a_stopped_server_is_unavailable_and_then_found_again(server):
    link = connect(server.url)
    link.execute("PING")
    server.terminate()
    with pytest.raises(StoreUnavailable):
        link.execute("PING")
    server.start()
    assert link.execute("PING") == b"PONG"


def test_a_connection_to_a_server_that_became_a_replica_is_not_kept(server):
    link = connect(server.url)
    board = Board(link, link)
    first = board.link.execute("CLIENT", "ID")
    board.link.execute("REPLICAOF", "127.0.0.1", "1")
    with pytest.raises(StoreUnavailable):
        board.put(1)
    assert board.link.execute("CLIENT", "ID") != first, "the address may lead to the new primary by now"


@pytest.mark.slow
def test_a_server_that_does_not_answer_in_time_is_unavailable(server):
    link = connect(server.url, timeout=0.1)
    link.execute("PING")
    server.pause()
    with pytest.raises(StoreUnavailable):
        link.execute("PING")
    server.resume()
    assert link.execute("ECHO", "b") == b"b", "the late answer to the first question must not be taken for this one"


def test_a_link_that_may_rest_does_so_behind_a_late_answer_and_its_server_is_not_away(server, monkeypatch):
    link = connect(server.url)
    link.cooldown.seconds, link.cooldown.late = 5.0, 0.5
    now = [100.0]
    real = AbstractConnection.read_response
    monkeypatch.setattr("django_delayq.store.connection.link.clock", SimpleNamespace(monotonic=lambda: now[0]))
    monkeypatch.setattr("django_delayq.store.connection.link.clock", SimpleNamespace(monotonic=lambda: now[0]))
    link.execute("PING")
    took = [0.4, 0.6, 0.4]

    def late(connection):
        now[0] += took.pop(0)
        return real(connection)

    monkeypatch.setattr(AbstractConnection, "read_response", late)
    assert [link.execute("PING") for _ in range(2)] == [b"PONG"] * 2
    with pytest.raises(StoreUnavailable, match="The last attempt failed a moment ago"):
        link.execute("PING")
    assert not link.away
    now[0] += 5.0
    assert link.execute("PING") == b"PONG"
    assert not link.cooldown.active
    link.close()


def test_an_error_reply_is_an_error_and_the_link_goes_on(link):
    link.execute("SET", "text", "a")
    with pytest.raises(StoreError, match="wrong kind"):
        link.execute("LPUSH", "text", "b")
    replies = link.execute_many([("GET", "text"), ("LPUSH", "text", "b"), ("ECHO", "c")])
    assert (replies[0], replies[2]) == (b"a", b"c")
    assert isinstance(replies[1], StoreError)


@pytest.mark.parametrize("with_hiredis", [True, False])
def test_commands_are_packed_the_same_with_hiredis_and_without(link, monkeypatch, with_hiredis):
    if with_hiredis:
        pytest.importorskip("hiredis")
    else:
        monkeypatch.setattr(link_module, "_pack", link_module._plain)
    words = ["t ext", "ü", b"\x00\r\n", "", 7, -1, 0.5]
    for word in words:
        link.execute("RPUSH", "words", word)
        link.execute(link_module.Opening.of("RPUSH", "again"), word, word)
    assert link.execute("LRANGE", "again", 0, -1)[::2] == link.execute("LRANGE", "words", 0, -1)
    found = link.execute_many([("LRANGE", "words", 0, -1), ("LLEN", "words")])
    assert found == [[b"t ext", "ü".encode(), b"\x00\r\n", b"", b"7", b"-1", b"0.5"], 7]


def test_an_interrupt_while_a_reply_is_awaited_leaves_no_reply_to_another_call(link, monkeypatch):
    receive = link.start(("ECHO", "first"))
    with monkeypatch.context() as patched:
        patched.setattr(AbstractConnection, "read_response", lambda _: (_ for _ in ()).throw(KeyboardInterrupt()))
        with pytest.raises(KeyboardInterrupt):
            receive()
    assert link.execute("ECHO", "second") == b"second"


def test_a_forked_child_has_connections_of_its_own(link):
    link.execute("PING")
    mine = link.execute("CLIENT", "ID")
    reader, writer = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.write(writer, str(link.execute("CLIENT", "ID")).encode())
        os._exit(0)
    os.waitpid(pid, 0)
    assert int(os.read(reader, 100)) != mine
    assert link.execute("CLIENT", "ID") == mine
    os.close(reader)
    os.close(writer)


def test_a_full_server_refuses_schedules_only(server):
    link = connect(server.url)
    board = Board(link)
    board.put(1)
    board.put(2)
    link.execute("CONFIG", "SET", "maxmemory", "1")
    with pytest.raises(StoreUnavailable):
        board.put(3)
    assert len(board.claim().jobs) == 2
    assert board.extend(1) == "ok"
    assert board.settle(1, "ack") == "done"
    assert board.settle(2, "retry") == "done"
    assert board.store.pause() is True
    link.execute("CONFIG", "SET", "maxmemory", "0")
    assert board.put(3) == "created"
    assert "scheduled 3" in board.happened()


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ("nowhere", "not an alias in CACHES"),
        ("default", "does not use Redis"),
        ("tests.nothing.factory", "cannot be imported"),
        ("tests.store.test_link.no_client", "must return a redis.Redis"),
        ({"HOST": "x"}, 'without "URL"'),
        ("redis://host:notaport/0", "no usable address"),
        ("redis://host:6379/x", "no database number"),
        ("rediss://host/1/2", "no database number"),
        ("redis://host/-1", "no database number"),
    ],
)
def test_a_spec_that_names_no_server_is_explained(spec, message):
    with pytest.raises(ConfigError, match=message):
        connect(spec).execute("PING")


def no_client() -> str:
    return "not a client"


@pytest.mark.parametrize("backend", ["django_redis.cache.RedisCache", "django.core.cache.backends.redis.RedisCache"])
def test_a_cache_alias_lends_its_address_but_not_its_pool(settings, own_redis, backend):
    server = own_redis(port=True)
    settings.CACHES = {"default": {"BACKEND": backend, "LOCATION": f"{server.tcp_url}/2"}}
    link = connect("default", name="private")
    link.execute("SET", "a", b"\xff")
    assert link.execute("GET", "a") == b"\xff"
    assert b"name=private" in link.execute("CLIENT", "LIST")
    assert connect(f"{server.tcp_url}/2").execute("GET", "a") == b"\xff"


def test_the_wake_line_becomes_readable_when_an_earlier_job_comes(board):
    import select

    line = WakeLine(board.link, [board.keys])
    line.arm()
    board.claim()
    assert select.select([line], [], [], 0)[0] == []
    board.put(1, NOW + 10)
    assert select.select([line], [], [], 5)[0] == [line]
    assert line.drain() == board.keys["wake"]
    line.close()


def test_a_broken_wake_line_says_so_and_connects_anew(server):
    link = connect(server.url)
    board = Board(link)
    line = WakeLine(link, [board.keys])
    line.arm()
    server.restart()
    with pytest.raises(StoreUnavailable, match="wake line"):
        line.drain()
    line.arm()
    link.execute("LPUSH", board.keys["wake"], "1")
    assert line.drain() == board.keys["wake"]
    line.close()


def test_a_wake_line_of_which_a_firewall_has_forgotten_connects_anew(board, monkeypatch):
    """The server answers when a wait is over. Without an answer by then, it is unavailable."""
    now = [clock.monotonic()]
    monkeypatch.setattr(clock, "monotonic", lambda: now[0])
    line = WakeLine(board.link, [board.keys])
    line.arm()
    connection = line.connection
    now[0] += 34
    line.arm()
    assert line.connection is connection
    now[0] += 2
    line.arm()
    assert line.connection is not connection
    line.close()


def test_a_wake_line_for_which_nobody_has_called_waits_again(board, monkeypatch):
    monkeypatch.setattr(WakeLine, "waits", 1)
    line = WakeLine(board.link, [board.keys])
    line.arm()
    assert line.wait(30)
    assert (line.drain(), line.armed) == ("", False)
    line.arm()
    board.link.execute("LPUSH", board.keys["wake"], "1")
    assert line.drain() == board.keys["wake"]
    line.close()


def test_the_depth_of_a_queue(board, link):
    now = int(link.execute("TIME")[0]) * 1000
    board.put(1, now - 5000, now=now)
    board.put(2, now + 60_000, now=now, band="high")
    for number in (3, 4, 5):
        board.put(number, now - 9000, now=now)
    board.claim(want=3, now=now)
    board.settle(3, "retry", delay=60_000, now=now)
    board.settle(4, "fail", now=now)
    board.store.pause(actor="clerk", reason="lunch")
    depth = queue_depth("q", Inspector(link, prefix="t"))
    assert (depth.scheduled, depth.due, depth.running, depth.retrying, depth.failed) == (3, 1, 1, 1, 1)
    assert 5000 <= depth.oldest_late_ms < 10_000
    assert (depth.paused, depth.paused_by, depth.paused_reason) == (True, "clerk", "lunch")


def test_a_job_as_redis_knows_it(board, link):
    board.put(1, key="k")
    board.claim()
    board.extend(1, progress="2/5")
    board.store.cancel(record(1).id, actor="clerk")
    inspector = Inspector(link, prefix="t")
    view = inspector.job("q", record(1).id)
    assert view is not None
    assert (view.state, view.attempt, view.fence, view.progress, view.cancel_by) == ("running", 1, "n1", "2/5", "clerk")
    assert view.record == record(1, key="k")
    assert inspector.find("q", "k") == record(1).id
    assert inspector.job("q", record(2).id) is None


def test_the_facts_about_the_server(link):
    facts = Inspector(link, prefix="t").server()
    assert facts.version >= (6, 2)
    assert facts.policy == "noeviction"
    assert (facts.aof, facts.rdb, facts.role) == (False, False, "master")
    assert abs(facts.skew) < 1


def test_events_are_read_in_pages_and_trimmed(board):
    for number in (1, 2, 3):
        board.put(number)
    first = board.log.read("0-0", 2)
    assert [entry.items[0].kind for entry in first] == ["scheduled"] * 2
    last = board.log.last_id()
    board.log.trim(first[-1].id)
    assert board.log.length() == 1
    board.log.trim(last)
    assert (board.log.length(), board.log.last_id()) == (0, last)


def test_schedule_wants_a_date_or_a_delay(board):
    with pytest.raises(ValueError, match="either due_ms or delay_ms"):
        board.store.schedule([ScheduleItem.of(record(1))])


def test_a_script_is_loaded_also_by_who_rests_behind_late_answers(server):
    link = connect(server.url)
    board = Board(link, link)
    link.execute("SCRIPT", "FLUSH")
    link.set_cooldown(60.0, 1e-9)  # any answer is late
    assert board.put(1) == "created"
    link.close()


def open_sockets() -> set[int]:
    """The inodes of the sockets of this process."""
    facts = []
    for name in os.listdir("/proc/self/fd"):
        try:
            facts.append(os.fstat(int(name)))
        except OSError:  # the one by which the folder was read
            continue
    return {one.st_ino for one in facts if stat.S_ISSOCK(one.st_mode)}


def test_links_and_lines_are_closed_and_named_and_go_on(redis_server) -> None:
    before = open_sockets()
    link = connect(as_package(redis_server.url))
    link.execute("PING")
    line = WakeLine(Link(link.factory, link.where), [Keys("delayq", "default")])
    line.arm()
    mine = open_sockets() - before
    assert len(mine) == 2
    closed = connection_options.close_all()
    assert mine <= set(closed)
    assert all(name.startswith("a connection of delayq to Redis at ") for name in closed.values())
    assert not mine & open_sockets()
    assert not set(closed) & open_sockets()
    assert link.execute("PING") == b"PONG"
    line.close()
    link.close()


def test_nothing_is_left_to_close_where_nothing_is_open(redis_server) -> None:
    connection_options.close_all()
    assert connection_options.close_all() == {}
