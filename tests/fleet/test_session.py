"""Whether a fleet is up, as every use-case finds it out."""

import pytest

from sparkfleet import __version__
from sparkfleet.controlplane.api.client import PATIENCE_S, FleetClient
from sparkfleet.controlplane.state.head_address import HeadAddress
from sparkfleet.fleet import session as module
from sparkfleet.fleet.events import TroubleFound
from sparkfleet.fleet.session import FoundState, Session

ADDRESS = HeadAddress(
    ray="127.0.0.2:1", api="http://127.0.0.1:1", gateway_host="127.0.0.1", gateway_port=8000
)


@pytest.fixture
def session(tmp_path):
    inventory = tmp_path / "inventory.yaml"
    inventory.write_text("fleet: home\nhead: this\nnodes:\n  this: {address: local}\n")
    events = []
    found = Session(inventory, events.append)
    found.events = events
    return found


@pytest.mark.parametrize(
    ("ray", "answers", "trouble", "waited", "said"),
    [
        (False, False, "", 0, ""),
        (True, True, "", PATIENCE_S, ""),
        (
            True,
            True,
            "its work failed: OSError()",
            PATIENCE_S,
            "is restarting: its work failed: OSError().",
        ),
        (True, False, "", PATIENCE_S, "its controller has not answered"),
    ],
)
async def test_a_controller_is_waited_for_where_ray_lives(
    session, monkeypatch, capsys, ray, answers, trouble, waited, said
):
    asked = []

    async def found(node):
        return FoundState(address=ADDRESS, api_token="secret", ray=ray)

    async def answering(address, token, reach, patience_s):
        asked.append(patience_s)
        client = FleetClient(address, token)
        client.version, client.trouble = __version__, trouble
        return client if answers else None

    monkeypatch.setattr(session, "_found", found)
    monkeypatch.setattr(module, "answering", answering)
    assert (await session.find_controller() is not None) == answers
    assert asked == [waited]
    assert capsys.readouterr() == ("", ""), "a use-case does not print"
    troubles = [event.line for event in session.events if isinstance(event, TroubleFound)]
    assert [said in line for line in troubles] == ([True] if said else [])
