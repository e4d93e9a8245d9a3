"""State of a fleet, up or down, as every use-case finds it."""

import pytest

from sparkfleet import __version__
from sparkfleet.controlplane.api.api_calls import PATIENCE_S
from sparkfleet.controlplane.api.client import FleetClient
from sparkfleet.controlplane.state.head_address import HeadAddress
from sparkfleet.errors import NodeError, UnreachableError, UnreadableStateError, WrongFleetError
from sparkfleet.fleet import controller_finder as module
from sparkfleet.fleet.controller_finder import NoControllerError
from sparkfleet.fleet.events import TroubleFound
from sparkfleet.fleet.node_access import FoundState
from sparkfleet.fleet.session import Session
from sparkfleet.remote.channel import Completed

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


@pytest.fixture
def head(session, monkeypatch):
    """head(fields…, answers=…): what the probe of the head finds, and the controller that answers there."""
    asked = []

    def head(answers=None, trouble="", fleet="home", refuses=False, **fields):
        async def found(node):
            return FoundState.model_validate({"api_token": "secret", **fields})

        async def answering(address, token, reach, patience_s):
            asked.append(patience_s)
            if refuses:
                raise WrongFleetError("The API token is missing or wrong.")
            client = FleetClient(address, token)
            client.version, client.trouble, client.fleet_name = __version__, trouble, fleet
            return client if answers else None

        monkeypatch.setattr(session.access, "state", found)
        monkeypatch.setattr("sparkfleet.controlplane.api.client.answering", answering)
        return asked

    return head


@pytest.mark.parametrize(
    ("ray", "answers", "trouble", "waited", "line"),
    [
        (False, False, "", 0, ""),
        (True, True, "", PATIENCE_S, ""),
        (True, True, "its work failed: OSError()", PATIENCE_S, "does not work: its work failed: OSError()."),
    ],
)
async def test_a_controller_is_waited_for_if_ray_lives(
    session, head, capsys, ray, answers, trouble, waited, line
):
    asked = head(answers, trouble, address=ADDRESS, ray=ray)
    assert (await session.find_controller() is not None) == answers
    assert asked == [waited]
    assert capsys.readouterr() == ("", ""), "a use-case does not print"
    troubles = [event.line for event in session.events if isinstance(event, TroubleFound)]
    assert [line in one for one in troubles] == ([True] if line else [])


async def test_ray_without_a_controller_is_not_down(session, head):
    head(address=ADDRESS, ray=True)
    with pytest.raises(
        NoControllerError, match="Ray runs on this, but the controller does not answer"
    ) as caught:
        await session.find_controller()
    assert caught.value.exit_code == 5
    assert "`sparkfleet up`" in caught.value.do


async def test_a_controller_that_cannot_listen_is_named_by_its_own_note_and_not_waited_for_long(
    session, head
):
    why = "The controller's API cannot listen on 127.0.0.1:9: Address already in use."
    asked = head(address=ADDRESS, ray=True, controller={"api": why})
    with pytest.raises(NoControllerError) as caught:
        await session.find_controller()
    assert why in caught.value.what
    assert asked == [module.QUICK_S]


async def test_a_secret_without_which_no_controller_starts_is_named_and_not_waited_for_long(session, head):
    """`status` named it only after 25 s: it waited for the controller."""
    why = "/s/ray.token does not have 64 hexadecimal digits"
    asked = head(address=ADDRESS, ray=True, spoilt=(why,))
    with pytest.raises(NoControllerError) as caught:
        await session.find_controller()
    assert why in caught.value.what
    assert "put that file back" in caught.value.do
    assert asked == [module.QUICK_S]


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"unreadable": ("/s/address.json: Permission denied",)}, "/s/address.json: Permission denied"),
        ({"missing": ("/s/address.json",), "runs": 7}, "/s/address.json is missing"),
    ],
)
async def test_what_cannot_be_read_is_not_down(session, head, fields, words):
    head(**fields)
    with pytest.raises(UnreadableStateError) as caught:
        await session.find_controller()
    assert words in caught.value.what
    assert caught.value.exit_code == 5


async def test_the_state_of_another_user_has_the_remedies(session, head):
    """After `sudo -E sparkfleet up`, which leaves files of root in the user's home."""
    head(root="/home/jürgen müller/s", unreadable=("/s/role.json: Permission denied (/s belongs to root)",))
    with pytest.raises(UnreadableStateError) as caught:
        await session.find_controller()
    assert "sudo chown -R $USER '/home/jürgen müller/s'" in caught.value.do
    assert "as that user" in caught.value.do


async def test_files_that_are_missing_while_nothing_runs_mean_down(session, head):
    head(missing=("/s/address.json", "/s/api.token"))
    assert await session.find_controller() is None


async def test_a_head_that_cannot_be_reached_is_not_down(session, monkeypatch):
    async def found(node):
        raise NodeError("this: no route to host")

    monkeypatch.setattr(session.access, "state", found)
    with pytest.raises(UnreachableError, match="no route to host") as caught:
        await session.find_controller()
    assert caught.value.exit_code == 4


@pytest.mark.parametrize("fields", [{"fleet": "other"}, {"refuses": True}])
async def test_another_fleets_controller_is_not_down(session, head, fields):
    head(True, address=ADDRESS, ray=True, **fields)
    with pytest.raises(WrongFleetError) as caught:
        await session.find_controller()
    assert caught.value.exit_code == 6
    assert "api.token" in str(caught.value) or "other" in str(caught.value)


@pytest.mark.parametrize("python", ["/opt/python", ""])
async def test_down_is_carried_out_on_a_node_whose_role_cannot_be_read(session, head, monkeypatch, python):
    """It was skipped there, and `down` reported success."""
    head(python=python or None, unreadable=("/s/role.json: Permission denied",))
    ran = []

    class Channel:
        async def run(self, argv, **_):
            ran.append(argv[0])
            return Completed(argv=tuple(argv), exit_code=0, stdout="", stderr="")

    async def pythons(*_):
        return {"this": "/installed"}

    monkeypatch.setattr(session.access, "_opened", {"this": Channel()})
    monkeypatch.setattr(session.programs, "pythons", pythons)
    assert (await session.lifecycle.take_down()).was_up
    assert ran == [python or "/installed"]


class Outcomes:
    """A channel on which the outcome of a start is a file."""

    node = "this"

    def __init__(self, address):
        self._address = address

    async def read(self, path):
        assert path == "/outcome"
        return self._address.model_dump_json()


async def test_every_field_of_the_heads_address_is_read_from_its_outcome(tmp_path):
    """Lists in JSON are tuples in the address: one with origins was refused, and no fleet came up."""
    file = tmp_path / "inventory.yaml"
    file.write_text("fleet: home\nhead: this\nnodes:\n  this: {address: local}\n")
    address = HeadAddress(
        ray="127.0.0.2:1",
        api="http://127.0.0.1:1",
        gateway_host="127.0.0.1",
        gateway_port=8000,
        max_body_bytes=1,
        origins=("https://a.example",),
    )
    session = Session(file)
    session.access._opened = {"this": Outcomes(address)}
    assert await session.lifecycle.until_up("/outcome", lambda event: None) == address
