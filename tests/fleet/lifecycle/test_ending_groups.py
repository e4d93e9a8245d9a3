"""Words for the groups for which a `down` waits."""

import pytest
import statuses

from sparkfleet.errors import ControlError
from sparkfleet.fleet.lifecycle import ending_groups as module
from sparkfleet.fleet.lifecycle.ending_groups import EndingGroups, words_of
from sparkfleet.group.report import GroupPhase


def group(replica=0, phase=GroupPhase.DRAINING, **fields):
    return statuses.report(replica, phase, **fields)


def status(*groups):
    return statuses.fleet(statuses.deployment(*groups))


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
    assert words_of(status(*groups)) == words


async def test_they_are_read_until_the_controller_is_gone(monkeypatch):
    monkeypatch.setattr(module, "FIRST_S", 0.0)
    monkeypatch.setattr(module, "LOOK_S", 0.0)
    seen = []

    class Client:
        answers = 3

        async def __aenter__(self):
            return self

        async def __aexit__(self, *_):
            pass

        async def fleet(self):
            seen.append(ending.words)
            self.answers -= 1
            if self.answers < 0:
                raise ControlError("it is gone")
            return status(group())

    class Session:
        async def find_controller(self):
            return Client()

    ending = EndingGroups(Session())
    await ending.watch()
    assert seen == ["", *["big/g3/0 draining"] * 3]
    assert ending.words == ""
