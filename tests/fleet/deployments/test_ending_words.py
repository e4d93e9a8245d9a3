import pytest
import statuses

from sparkfleet.fleet.deployments.ending_words import ending_words
from sparkfleet.group.report import GroupPhase


def group(replica=0, phase=GroupPhase.DRAINING, **fields):
    return statuses.report(replica, phase, **fields)


@pytest.mark.parametrize(
    ("groups", "words"),
    [
        ((), ""),
        ((group(phase=GroupPhase.STOPPED),), ""),
        ((group(),), "big/g3/0 draining"),
        ((group(running=2, engine="custom"),), "big/g3/0 draining (2 connections)"),
        ((group(running=1),), "big/g3/0 draining (1 request)"),
        ((group(running=2, waiting=1), group(1)), "big/g3/0 draining (3 requests); big/g3/1 draining"),
        (
            tuple(map(group, range(5))),
            "big/g3/0 draining; big/g3/1 draining and 3 more groups",
        ),
    ],
)
def test_the_groups_that_end_are_named_with_their_requests(groups, words):
    assert ending_words(groups) == words
