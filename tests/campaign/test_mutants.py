"""Which faults are put in for the drill."""

from __future__ import annotations

from tests.campaign.mutants import chosen
from tests.model.mutants import ALL


def test_all_are_played_and_of_a_sample_some_of_each_floor() -> None:
    assert sorted(map(str, chosen())) == sorted(map(str, ALL))
    sample = chosen(sample=4)
    assert len(sample) == -(-len(ALL) // 4)
    assert {mutant.file.partition("/")[0] for mutant in sample} == {"store", "worker"}
    assert {mutant.file.endswith(".lua") for mutant in sample} == {True, False}


def test_one_word_chooses_by_file_and_name() -> None:
    assert {mutant.name for mutant in chosen("wiped")} == {mutant.name for mutant in ALL if "wiped" in mutant.name}
