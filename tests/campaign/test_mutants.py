"""Which faults are put in for the drill."""

from __future__ import annotations

from tests.campaign.mutants import UNSEEN, chosen
from tests.model.mutants import ALL


def test_all_are_played_and_of_a_sample_those_that_must_be_noticed() -> None:
    assert chosen() == ALL
    sample = chosen(sample=34)
    assert len(sample) == -(-sum(f"{mutant.file}: {mutant.name}" not in UNSEEN for mutant in ALL) // 34)
    assert not {f"{mutant.file}: {mutant.name}" for mutant in sample} & UNSEEN.keys()
    floors = {mutant.file.partition("/")[0] for mutant in sample}
    assert floors == {"store", "worker"}
    assert {mutant.file.endswith(".lua") for mutant in sample} == {True, False}


def test_one_word_chooses_by_file_and_name() -> None:
    assert {mutant.name for mutant in chosen("stale")} == {mutant.name for mutant in ALL if "stale" in mutant.name}
