from sparkfleet.controlplane.nodes import RanksOf
from sparkfleet.runtime.base import RankId


def rank(deployment, generation):
    return RankId(fleet="home-1", deployment=deployment, generation=generation, replica=4, rank=1)


def test_ranks_of_all_other_groups_are_left_out():
    kept = RanksOf([("tiny", 2, 4), ["other", 1, 4]], {"tiny": 2, "other": 1, "tin": 2})
    assert rank("tiny", 2) in kept
    assert rank("other", 1) in kept
    assert rank("tiny", 1) not in kept
    assert rank("tin", 2) not in kept
    assert RankId(fleet="home-1", deployment="tiny", generation=2, replica=3, rank=1) not in kept
    assert None not in kept


def test_what_was_applied_after_the_list_was_made_is_kept():
    """A sweep goes on for as long as engines take to end, and killed what was started meanwhile."""
    kept = RanksOf([("tiny", 2, 4)], {"tiny": 2})
    assert rank("tiny", 3) in kept
    assert rank("new", 1) in kept
    assert rank("tiny", 1) not in kept
