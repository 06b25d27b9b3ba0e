"""While a deploy rolls, web processes and workers of two releases share queues, database and stream."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor

import pytest

from django_delayq.store.formats import FORMAT
from django_delayq.store.queue import QueueStore
from tests.formats.stage import ROOT, eventually
from tests.formats.test_dumps import differs, go_on, look
from tests.links import package_link

EACH = 120


def push(stage, tree, who: str) -> dict[str, dict[str, object]]:
    return dict(json.loads(stage.run(tree, "rolling.push", who, str(EACH))))


@pytest.mark.slow
def test_old_and_new_processes_share_a_queue(stage, old_tree):
    stage.manage(ROOT, "migrate", "-v", "0")  # first, as a deploy does
    old = stage.work(old_tree, "old")
    new = stage.work(ROOT, "new")
    with ThreadPoolExecutor(2) as web:
        pushing = [web.submit(push, stage, tree, who) for tree, who in ((old_tree, "old web"), (ROOT, "new web"))]
        eventually(lambda: {run.by for run in stage.runs()} == {"old", "new"}, "work for both")
        refused = stage.manage(ROOT, "delayq", "upgrade", "--yes", expect=1)
        assert f":{old.pid}:" in refused
        expected = {job: one for pushed in pushing for job, one in pushed.result().items()}

    def done() -> bool:
        runs = sum(one["runs"] for one in expected.values())
        return stage.counts().total() >= runs and not differs(stage, expected, "runs", "ends")

    eventually(done, "the end of all jobs")
    stage.leave(old)
    stage.leave(new)
    stage.manage(ROOT, "delayq", "upgrade", "--yes")
    assert stage.link.execute("HGET", "delayq:{orders}:meta", "format") == b"%d" % FORMAT
    last = stage.work(ROOT, "last")
    expected |= push(stage, ROOT, "after the upgrade")
    eventually(done, "the end of all jobs after the upgrade")
    stage.leave(last)
    assert differs(stage, expected, "runs", "ends") == {}
    assert all(run.began_ms >= run.due_ms - 1 for run in stage.runs())


@pytest.mark.slow
def test_the_release_without_formats_reads_what_format_1_is(stage, old_tree):
    stage.manage(ROOT, "migrate", "-v", "0")
    stage.manage(ROOT, "delayq", "upgrade", "--yes")
    go_on(stage, push(stage, ROOT, "new web"), "runs", "ends", tree=old_tree)


@pytest.mark.slow
def test_the_release_without_formats_runs_what_has_asked_and_leaves_its_count_to_tidy(stage, old_tree):
    stage.manage(ROOT, "migrate", "-v", "0")
    expected = dict(json.loads(stage.run(ROOT, "rolling.ask")))
    asks = "delayq:{orders}:asks"
    assert stage.link.execute("HLEN", asks) == 5
    go_on(stage, expected, "runs", "ends", tree=old_tree)
    assert stage.link.execute("HLEN", asks) == 5, "it knows nothing of them"
    store = QueueStore(package_link(stage.link), prefix="delayq", queue="orders")
    cursor = "0"
    while (cursor := store.tidy(cursor=cursor).cursor) != "0":
        pass
    assert stage.link.execute("EXISTS", asks) == 0


@pytest.mark.slow
def test_the_release_without_formats_folds_how_a_process_has_died(stage, old_tree):
    stage.manage(ROOT, "migrate", "-v", "0")
    expected = dict(json.loads(stage.run(ROOT, "rolling.crash")))
    assert len(expected) == 4
    go_on(stage, expected, "runs", "ends", tree=old_tree)
    rows = look(stage)
    assert {job: rows[job]["crashes"] for job in expected} == {job: one["crashes"] for job, one in expected.items()}
    assert {rows[job]["attempts"] for job in expected} == {1}
