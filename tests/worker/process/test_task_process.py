"""The look at other databases that record the queues of a task process."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from django_delayq.store.scripts import site
from django_delayq.store.scripts.site import Facts, SiteRefused
from django_delayq.worker.process.task_process import SiteWatch
from tests.store.board import Board
from tests.store.conftest import board, link
from tests.worker.bench import line

__all__ = ["board", "link"]

OURS, THEIRS = (f"2-00000000000000{last}" for last in ("aa", "bb"))
Checkpoints = Mapping[tuple[str, int], Facts] | None


class Database(site.Database):
    """One that answers with these checkpoints, one after the other; the last one again."""

    def __init__(self, *answers: Checkpoints) -> None:
        self.answers = list(answers)
        self.asked = 0

    def all_partition_facts(self) -> Checkpoints:
        self.asked += 1
        return self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]


def recorded(token: str, event: str = "5-1") -> Checkpoints:
    return {("q", 0): Facts("", event, token)}


@pytest.fixture
def watch(board: Board, monkeypatch: pytest.MonkeyPatch):
    """Looks by that database, at a queue whose mirror has trimmed up to "5-1"."""
    monkeypatch.setattr(site, "LAG", 0.0)
    monkeypatch.setattr(site, "_refused", {})
    board.put(1)
    board.log.trim("5-1", token=OURS)

    def by(database: Database) -> SiteWatch:
        monkeypatch.setattr(site, "_database", database)
        return SiteWatch([line().on(board.store.link, "t")])

    return by


def test_a_queue_that_another_database_records_is_not_claimed_until_it_does_not(watch, board):
    database = Database(recorded(THEIRS))
    looking = watch(database)
    looking.look()
    with pytest.raises(SiteRefused, match="another database"):
        board.claim()
    database.answers = [recorded(OURS)]
    looking.look()
    assert len(board.claim().jobs) == 1


def test_a_queue_without_a_checkpoint_is_recorded_by_another_database(watch, board):
    watch(Database({})).look()
    with pytest.raises(SiteRefused):
        board.claim()


@pytest.mark.parametrize("answers", [(recorded(OURS),), (recorded("", "4-1"), recorded(OURS)), (None,)], ids=["own", "late", "away"])
def test_its_own_queue_goes_on_also_when_the_database_shows_a_commit_late_or_is_away(watch, board, answers):
    watch(Database(*answers)).look()
    assert len(board.claim().jobs) == 1


def test_the_database_is_asked_only_when_the_mirror_has_trimmed(watch, board):
    database = Database(recorded(OURS))
    looking = watch(database)
    for _ in range(3):
        looking.look()
    assert database.asked == 1
    board.log.trim("6-1", found=OURS, token=(newer := "3-00000000000000aa"))
    database.answers = [recorded(newer, "6-1")]
    looking.look()
    assert database.asked == 2


def test_while_redis_is_away_nothing_is_judged(watch, board, monkeypatch):
    database = Database(recorded(THEIRS))
    looking = watch(database)
    monkeypatch.setattr(
        type(board.store.link), "_send", lambda self, commands: (_ for _ in ()).throw(self._unavailable(OSError("away")))
    )
    looking.look()
    assert database.asked == 0
