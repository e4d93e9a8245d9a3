import time

from sparkfleet.runtime.base import RankId
from sparkfleet.runtime.past_runs import PastRuns


def rank(deployment):
    return RankId(fleet="home", deployment=deployment, generation=1, replica=0, rank=0)


def test_runs_that_began_before_the_moment_end_unless_their_rank_is_kept():
    now = time.monotonic()
    past = PastRuns(frozenset({rank("kept")}), before=now - 5)
    assert past.has(rank("a"), now - 6)
    assert not past.has(rank("a"), now - 4)
    assert not past.has(rank("kept"), now - 6)


def test_a_run_whose_start_is_not_known_or_is_of_another_boot_is_a_past_one():
    """Earlier releases note no start in the environment, and their first builds the wall clock's in a status."""
    now = time.monotonic()
    past = PastRuns(frozenset({rank("kept")}), before=now)
    assert past.has(rank("a"), None)
    assert past.has(rank("a"), now + 1e9)
    assert past.has(None, None), "an id that cannot be read is of no rank that is kept"
    assert not past.has(rank("kept"), None)
