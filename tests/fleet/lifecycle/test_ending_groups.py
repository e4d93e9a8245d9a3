"""Groups for which a `down` waits."""

import statuses

from sparkfleet.errors import ControlError
from sparkfleet.fleet.lifecycle import ending_groups as module
from sparkfleet.fleet.lifecycle.ending_groups import EndingGroups
from sparkfleet.group.report import GroupPhase


def status():
    return statuses.fleet(statuses.deployment(statuses.report(0, GroupPhase.DRAINING)))


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
            return status()

    class Session:
        async def find_controller(self):
            return Client()

    ending = EndingGroups(Session())
    await ending.watch()
    assert seen == ["", *["big/g3/0 draining"] * 3]
    assert ending.words == ""
