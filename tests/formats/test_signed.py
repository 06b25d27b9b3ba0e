"""Signatures while a deploy rolls: what either release signs, both run; and then the form that covers the prefix alone."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from django_delayq import conf, signing
from django_delayq.signing import Signer
from tests.formats.stage import ROOT, Stage
from tests.formats.test_dumps import go_on, load
from tests.formats.test_side_by_side import push

SIGNED = Path(__file__).with_name("signed0.json")


def test_the_dump_is_signed():
    jobs = json.loads(SIGNED.read_text())["redis"]["delayq:{orders}:jobs"]["content"][1::2]
    assert jobs
    assert all(signing.split(record.encode("latin-1"))[1] for record in jobs)


def sign_what_was_moved(stage: Stage) -> None:
    """Records that expire: their expiry was moved with all dates of the dump, so the release before would have signed another."""
    signer = Signer((conf._derived("only for tests", "record"),))
    flat = stage.link.execute("HGETALL", "delayq:{orders}:jobs")
    for id, record in zip(flat[::2], flat[1::2], strict=True):
        if not signer.verifies(record, queue="orders", id=id.decode()):
            assert b"expires" in record
            stage.link.execute("HSET", "delayq:{orders}:jobs", id, signer.sign(record, queue="orders", id=id.decode()))


@pytest.mark.slow
def test_a_signed_queue_of_an_older_release_goes_on_and_is_brought_into_the_strict_form(stage):
    stage.signing = True
    expected = load(stage, SIGNED)
    sign_what_was_moved(stage)
    go_on(stage, expected, "runs", "ends")
    stage.manage(ROOT, "delayq", "upgrade", "--yes")
    found = json.loads(stage.manage(ROOT, "delayq", "resign", "--yes", "--json"))
    assert found["signed"] == found["older"] > 0
    assert found["unsigned"] == found["wrong"] == 0

    stage.signing = "strict"
    for one in expected.values():
        waits = one["ends"] == "scheduled"
        one |= {"runs later": one["runs"] + waits, "ends later": "succeeded" if waits else one["ends"]}
    stage.manage(ROOT, "delayq", "run-now", "--state", "scheduled", "--limit", "100", "--yes", "--json")
    stage.manage(ROOT, "delayq", "resume", "bank")
    go_on(stage, expected, "runs later", "ends later")


@pytest.mark.slow
def test_what_this_release_signs_before_the_upgrade_the_release_before_runs(stage, old_tree):
    stage.signing = True
    stage.manage(ROOT, "migrate", "-v", "0")
    go_on(stage, push(stage, ROOT, "new web"), "runs", "ends", tree=old_tree)
