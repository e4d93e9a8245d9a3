"""Waiting for the nodes of a fleet, as far as it needs none."""

import asyncio
from types import SimpleNamespace

import pytest
from open_client import OpenClient

from sparkfleet.controlplane.api.client_errors import Held
from sparkfleet.errors import ControlError, NodeError
from sparkfleet.fleet import node_starts
from sparkfleet.fleet.events import ignored
from sparkfleet.fleet.node_starts import FleetLifecycle


class Client(OpenClient):
    """A controller that waits for its store at the first questions, and knows the nodes of each later one."""

    def __init__(self, held, *joined):
        self.held, self.joined = held, list(joined)
        self.spoilt = {}
        self.paused = False

    async def fleet(self):
        if self.held:
            self.held -= 1
            raise Held("The head of this fleet is being moved to b.")
        now = self.joined.pop(0)
        return SimpleNamespace(nodes=[self._node(name, name in now) for name in "ab"], paused=self.paused)

    def _node(self, name, joined):
        return SimpleNamespace(name=name, joined=joined, spoilt=self.spoilt.get(name, ()))


@pytest.fixture
def lifecycle():
    """A fleet of two nodes."""
    return FleetLifecycle(
        SimpleNamespace(inventory=SimpleNamespace(head="a", nodes={"a": None, "b": None})), None
    )


async def test_nodes_that_join_later_are_waited_for(lifecycle):
    client = Client(0, "b", "ab")
    await lifecycle.until_joined(client, ignored)
    assert client.joined == []


async def test_a_new_head_may_wait_for_its_store_for_a_moment(lifecycle):
    client = Client(2, "ab")
    await lifecycle.until_joined(client, ignored, held_s=20.0)
    assert client.joined == []


async def test_a_node_that_does_not_join_has_rays_reason(lifecycle, monkeypatch):
    """Ray refused another release of Python, and only its log on the node had the reason."""

    async def ray_trouble(node):
        return f"Version mismatch (/state/logs/ray.log on {node})"

    monkeypatch.setattr(node_starts, "JOIN_S", -1.0)
    monkeypatch.setattr(lifecycle, "_programs", SimpleNamespace(ray_trouble=ray_trouble))
    with pytest.raises(ControlError, match="b did not join") as caught:
        await lifecycle.until_joined(Client(0, "a"), ignored)
    assert caught.value.means.splitlines() == [
        "Ray reports: Version mismatch (/state/logs/ray.log on b).",
        "The other nodes are up; no group is started on those that are missing.",
    ]


@pytest.mark.parametrize("held_s", [0.0, 0.3])
async def test_a_controller_that_goes_on_waiting_for_its_store_is_an_error(lifecycle, held_s):
    with pytest.raises(Held, match="being moved to b"):
        await lifecycle.until_joined(Client(1000), ignored, held_s=held_s)


async def test_a_joined_node_that_lacks_a_file_is_told_apart(lifecycle):
    """`status` named `sparkfleet up` for it, which found the fleet up and did nothing."""
    client = Client(0, "ab", "a")
    client.spoilt = {"b": ("role.json cannot be used",)}
    assert await lifecycle.joined(client) == {"a": True, "b": False}
    assert await lifecycle.joined(client) == {"a": True}


async def test_a_head_that_a_down_has_begun_to_stop_is_started_again(lifecycle):
    client = Client(0, "ab")
    client.paused = True
    assert await lifecycle.joined(client) == {"a": False, "b": True}


@pytest.mark.parametrize(
    ("off", "means", "do"),
    [
        ("c", "c was not stopped. The other 2 are stopped.", "remove c from the inventory"),
        ("bc", "b, c were not stopped. The other one is stopped.", "If they do not come back"),
    ],
)
async def test_a_node_that_is_off_keeps_no_other_one_running(monkeypatch, off, means, do):
    """Its connection was closed by the error of the first one."""
    stopped = []

    async def down(node):
        if node in off:
            raise NodeError(f"{node}: No machine answers at this address.", do="Switch it on.")
        stopped.append(node)
        return True

    async def nobody(*_):
        return {}

    monkeypatch.setattr(node_starts, "surroundings_of", nobody)
    monkeypatch.setattr(node_starts, "require_free", lambda *_, **__: None)
    inventory = SimpleNamespace(nodes=dict.fromkeys("abc"), head="a")
    access = SimpleNamespace(inventory=inventory, channels={})
    with pytest.raises(NodeError) as error:
        await FleetLifecycle(access, SimpleNamespace(down=down)).take_down()
    assert stopped == [one for one in "abc" if one not in off]
    assert error.value.means.startswith(means)
    assert do in error.value.do


class Starts:
    """The node program, on nodes of which some are off."""

    def __init__(self, off):
        self.off, self.begun = off, []

    async def pythons(self, *_):
        return {}

    async def prepare(self, apply):
        return SimpleNamespace(api_token="token")

    async def start_head(self, apply):
        await self.begin("a")
        return {"outcome": "up.json", "comes_back": "systemd"}

    def joining(self, node, prepared, *, joined):
        return node

    async def join(self, node, request):
        await self.begin(node)
        return {"comes_back": "cron" if node == "b" else ""}

    async def begin(self, node):
        if node in self.off:
            raise NodeError(f"{node}: No route to host", do="Switch it on.")
        await asyncio.sleep(0)  # a start takes longer than a refusal
        self.begun.append(node)


async def bring_up(monkeypatch, off):
    """(the error of `up` with these nodes off, the nodes that it started, those that it did not wait for)"""
    starts = Starts(off)
    inventory = SimpleNamespace(nodes=dict.fromkeys("abcd"), head="a")
    lifecycle = FleetLifecycle(SimpleNamespace(inventory=inventory, channels={}, reach=None), starts)
    left_out = []

    async def nobody(*_):
        return {}

    async def until_joined(client, on_event, without=()):
        left_out.extend(without)

    monkeypatch.setattr(node_starts, "surroundings_of", nobody)
    monkeypatch.setattr(node_starts, "require_free", lambda *_, **__: None)
    monkeypatch.setattr(node_starts, "FleetClient", lambda *_, **__: None)
    monkeypatch.setattr(lifecycle, "until_up", lambda *_: nobody())
    monkeypatch.setattr(lifecycle, "until_joined", until_joined)
    with pytest.raises(NodeError) as error:
        await lifecycle.bring_up(())
    return error.value, starts.begun, left_out


async def test_a_node_that_is_off_keeps_no_other_one_down(monkeypatch):
    """One of eight without power: `up` ended with its error in the middle of the others' starts."""
    error, begun, left_out = await bring_up(monkeypatch, "c")
    assert (begun, left_out) == (["a", "b", "d"], ["c"])
    assert error.means.startswith("c is missing from the fleet, which is up on a, b, d.")
    assert error.do == "Switch it on. Then run `sparkfleet up` again: what runs goes on."


async def test_without_its_head_no_fleet_is_up(monkeypatch):
    error, _, left_out = await bring_up(monkeypatch, "ac")
    assert (error.what, error.means, left_out) == ("a: No route to host", "", [])


async def test_a_node_that_would_join_with_another_python_is_refused_with_the_ways_out(monkeypatch):
    """Ray of the others went on with 3.12, and their watchdogs got 3.11: the node waited for its join in vain."""

    class Programs:
        async def version_in_use(self):
            return "3.12"

        async def pythons(self, on_event, wheels):
            return dict.fromkeys("abcd", "/h/.local/share/sparkfleet/env/0a-py3.11/bin/python")

    async def nobody(*_):
        return {}

    monkeypatch.setattr(node_starts, "surroundings_of", nobody)
    monkeypatch.setattr(node_starts, "require_free", lambda *_, **__: None)
    inventory = SimpleNamespace(nodes=dict.fromkeys("abcd"), head="a")
    lifecycle = FleetLifecycle(SimpleNamespace(inventory=inventory, channels={}), Programs())
    with pytest.raises(ControlError, match=r"runs on Python 3\.12.*only 3\.11 in common with d") as error:
        await lifecycle.bring_up((), joined="abc")
    assert error.value.do.startswith("`sparkfleet upgrade` changes all nodes to 3.11")
