"""Two databases, one Redis: neither touches what is the other's. A copy of a database runs nothing until a person adopts its queues."""

from __future__ import annotations

import json
import re
import shutil
import sqlite3
from contextlib import closing

import pytest

from tests.worker.conftest import eventually
from tests.worker.sites import MakeSite, contents, site

__all__ = ["site"]


def test_the_worker_of_another_site_refuses_the_queue_and_changes_nothing(site: MakeSite, own_redis) -> None:
    server = own_redis()
    one, two = site("one", server), site("two", server)
    one.schedule(1)
    before = contents(server)
    said = two.refused("--burst")
    for word in (one.id, two.id, "'default'", "PREFIX", "another Redis database", "manage.py delayq adopt"):
        assert word in said
    assert contents(server) == before
    one.work()
    eventually(lambda: one.states() == {"succeeded": 1})
    assert (one.ran(), two.ran()) == ([1], [])


def test_a_worker_for_a_queue_that_the_owner_has_not_touched_yet_is_refused(site: MakeSite, own_redis) -> None:
    server = own_redis()
    one, two = site("one", server), site("two", server)
    one.schedule(1)
    before = contents(server)
    assert one.id in two.refused("--burst", "--queues", "fast")
    assert contents(server) == before


def test_what_the_other_site_schedules_stays_a_row_or_is_refused(site: MakeSite, own_redis) -> None:
    server = own_redis()
    one, two = site("one", server), site("two", server)
    one.schedule(1)
    one.schedule(2, "--queue", "fast")
    before = contents(server)
    assert "Redis did not accept committed jobs (1)" in two.schedule(3)
    assert two.rows("SELECT state, published FROM delayq_job") == [("scheduled", None)]
    assert one.id in two.schedule(4, "--queue", "fast", code=1)
    assert contents(server) == before


COMMANDS = (
    ("pause", "default"),
    ("purge", "default", "--yes"),
    ("cancel", "--key", "k", "--queue", "default"),
    ("cancel", "--key", "another", "--queue", "default"),
    ("status",),
    ("restore", "--yes"),
)


@pytest.mark.slow
def test_commands_refuse_the_queue_of_another_site_and_name_both(site: MakeSite, own_redis) -> None:
    server = own_redis()
    one, two = site("one", server), site("two", server)
    one.schedule(1, "--key", "k")
    before = contents(server)
    for words in COMMANDS:
        said = two.manage("delayq", *words, code=1)
        assert one.id in said, words
        assert two.id in said, words
    assert contents(server) == before
    assert one.rows("SELECT state FROM delayq_job") == [("scheduled",)]


def test_doctor_and_check_name_both_sites(site: MakeSite, own_redis) -> None:
    server = own_redis()
    one, two = site("one", server), site("two", server)
    one.schedule(1)
    found = json.loads(two.manage("delayq", "doctor", "--json", code=1))["findings"]
    [error] = [each for each in found if each["code"] == "E025" and "'default'" in each["message"]]
    assert error["level"] == "error"
    assert one.id in error["message"]
    assert two.id in error["message"]
    assert "delayq.E025" in two.manage("check", "--deploy", code=1)


def test_a_copy_of_the_database_with_a_redis_of_its_own_runs_nothing_until_it_is_adopted(site: MakeSite, own_redis) -> None:
    live = site("live", own_redis())
    live.schedule(1)
    live.work()
    eventually(lambda: live.states() == {"succeeded": 1})
    live.stop()
    live.schedule(2)
    live.schedule(3, "--delay", "1s")
    eventually(lambda: live.states() == {"succeeded": 1, "scheduled": 2})
    eventually(lambda: live.rows("SELECT address FROM delayq_checkpoint WHERE address IS NOT NULL"))
    other = own_redis()
    copy = site("copy", other, of=live)
    before = copy.everything()
    assert "manage.py delayq adopt" in copy.refused()
    assert contents(other) == {}
    assert copy.everything() == before
    assert copy.ran() == []
    told = json.loads(copy.manage("delayq", "adopt", "--yes", "--json", "--reason", "staging"))
    assert (told["rows"], told["cancelled"]) == (2, 0)
    assert copy.id != live.id
    copy.work()
    eventually(lambda: copy.states() == {"succeeded": 3})
    assert copy.ran() == [2, 3]
    assert copy.rows("SELECT reason FROM delayq_event WHERE kind = 'adopted' AND queue = 'default'") == [("staging",)]
    live.work()
    eventually(lambda: live.states() == {"succeeded": 3})
    assert live.ran() == [1, 2, 3]


@pytest.mark.slow
def test_a_copy_that_is_adopted_empty_runs_nothing_of_the_original(site: MakeSite, own_redis) -> None:
    live = site("live", own_redis())
    live.schedule(1)
    live.work()
    eventually(lambda: live.states() == {"succeeded": 1})
    live.schedule(2, "--delay", "1h", "--key", "k")
    eventually(lambda: live.rows("SELECT count(*) FROM delayq_job WHERE published IS NULL") == [(0,)])
    live.stop()
    live.schedule(3, "--delay", "1h")
    copy = site("copy", own_redis(), of=live)
    told = json.loads(copy.manage("delayq", "adopt", "--empty", "--yes", "--json"))
    assert (told["rows"], told["cancelled"]) == (2, 2)
    assert copy.states() == {"succeeded": 1, "cancelled": 2}
    copy.work()
    copy.schedule(4, "--key", "k")
    eventually(lambda: copy.states() == {"succeeded": 2, "cancelled": 2})
    assert copy.ran() == [4]


@pytest.mark.slow
def test_a_wipe_at_the_same_address_needs_no_step(site: MakeSite, own_redis) -> None:
    server = own_redis()
    one = site("one", server)
    one.schedule(1)
    one.work()
    eventually(lambda: one.states() == {"succeeded": 1})
    one.stop()
    one.schedule(2)
    server.call("FLUSHALL")
    one.schedule(3)
    one.work()
    eventually(lambda: one.states() == {"succeeded": 3})
    server.call("FLUSHALL")
    one.schedule(4)
    eventually(lambda: one.states() == {"succeeded": 4})
    assert one.ran() == [1, 2, 3, 4]


@pytest.mark.slow
def test_a_site_that_takes_the_queue_of_another_stops_the_workers_of_that_one(site: MakeSite, own_redis) -> None:
    server = own_redis()
    one, two = site("one", server), site("two", server)
    one.schedule(1)
    worker = one.work()
    eventually(lambda: one.states() == {"succeeded": 1})
    one.schedule(2, "--delay", "1h")
    two.schedule(10)
    refused = two.manage("delayq", "adopt", "--yes", code=1)
    assert "within the last minute" in refused
    two.manage("delayq", "adopt", "--yes", "--force")
    eventually(lambda: "of another site" in worker.text())
    two.work()
    eventually(lambda: two.states() == {"succeeded": 1})
    assert (one.ran(), two.ran()) == ([1], [10])
    assert one.rows("SELECT state FROM delayq_job ORDER BY id") == [("succeeded",), ("scheduled",)]
    said = re.findall(r"\[(\d+)\].*(the queue '\w+'|workers) of another site", worker.text())
    assert len(said) == len(set(said)), "each process says it once of each queue"
    worker.kill_tree()
    one.workers = []
    two.stop()
    one.manage("delayq", "adopt", "--yes", "--force")
    one.manage("delayq", "run-now", "--state", "scheduled", "--yes")
    one.work()
    eventually(lambda: one.states() == {"succeeded": 2})


@pytest.mark.slow
@pytest.mark.parametrize("stopped", [False, True], ids=["whole", "stopped half-way, and asked for again"])
def test_a_database_that_is_behind_redis_stops_until_it_is_adopted(site: MakeSite, own_redis, stopped: bool) -> None:
    server = own_redis()
    one = site("one", server)
    one.schedule(1)
    one.work()
    eventually(lambda: one.states() == {"succeeded": 1})
    one.stop()
    one.schedule(2, "--delay", "1h")
    older = one.folder / "older.sqlite3"
    one.rows("PRAGMA wal_checkpoint(TRUNCATE)")
    shutil.copy(one.database, older)
    one.work()
    one.schedule(3)
    eventually(lambda: one.states() == {"succeeded": 2, "scheduled": 1})
    eventually(lambda: one.rows("SELECT count(*) FROM delayq_job WHERE published IS NULL") == [(0,)])
    one.stop()
    one.rows("PRAGMA wal_checkpoint(TRUNCATE)")
    shutil.copy(older, one.database)
    before = contents(server)
    assert "lost commits" in one.refused()
    assert contents(server) == before
    if stopped:  # the database has its new id, and Redis the former one
        one.rows("UPDATE delayq_site SET former = site, site = 'ffffffffffffffff'")
    former = one.id
    one.manage("delayq", "adopt", "--yes", "--force")
    assert (one.id == former) is stopped, "the database that is ahead of this one has the former id"
    assert one.rows("SELECT former FROM delayq_site") == [("",)]
    one.work()
    eventually(lambda: one.rows("SELECT count(*) FROM delayq_job WHERE published IS NULL") == [(0,)])
    one.manage("delayq", "run-now", "--state", "scheduled", "--yes")
    eventually(lambda: one.states() == {"succeeded": 2})
    assert one.ran() == [1, 2, 3]


def test_a_worker_waits_for_the_database_before_its_first_write(site: MakeSite, own_redis) -> None:
    one = site("one", own_redis())
    one.schedule(1)
    away = one.database.with_suffix(".away")
    one.rows("PRAGMA wal_checkpoint(TRUNCATE)")
    one.database.rename(away)
    worker = one.work()
    eventually(lambda: "is waiting for the database" in worker.text(), worker.text())
    one.database.unlink(missing_ok=True)
    away.rename(one.database)
    eventually(lambda: one.states() == {"succeeded": 1})


def test_redis_durability_without_tables_is_refused_clearly(site: MakeSite, own_redis) -> None:
    one = site("one", own_redis())
    with closing(sqlite3.connect(one.database)) as connection:
        connection.execute("DROP TABLE delayq_site")
    said = one.schedule(1, "--queue", "fast", code=1)
    assert "id of this site could not be read" in said
    assert "manage.py migrate" in said
