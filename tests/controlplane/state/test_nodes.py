from sparkfleet.controlplane.state.nodes import RanksOf
from sparkfleet.runtime.base import RankId


def rank(deployment, generation):
    return RankId(fleet="home-1", deployment=deployment, generation=generation, replica=4, rank=1)


def test_all_ranks_of_a_generation_are_of_it_and_no_others():
    kept = RanksOf([("tiny", 2), ["other", 1]])
    assert rank("tiny", 2) in kept
    assert rank("other", 1) in kept
    assert rank("tiny", 1) not in kept
    assert rank("tin", 2) not in kept
    assert None not in kept
