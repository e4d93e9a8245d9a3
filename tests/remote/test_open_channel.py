from __future__ import annotations

import pytest

from sparkfleet.remote.local import LocalChannel
from sparkfleet.remote.open_channel import open_channel, open_channels
from sparkfleet.remote.ssh.channel import SshChannel
from sparkfleet.specs.inventory import Inventory, Node


@pytest.fixture(autouse=True)
def home(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))


def test_a_local_node_needs_no_ssh():
    assert isinstance(open_channel("here", Node(address="local")), LocalChannel)


def test_every_node_of_an_inventory_gets_its_channel():
    remote = Node(address="192.168.1.11", user="nvidia", host_key="SHA256:" + "A" * 43)
    inventory = Inventory(fleet="home", head="here", nodes={"here": Node(address="local"), "spark2": remote})
    channels = open_channels(inventory)
    assert {name: type(channel) for name, channel in channels.items()} == {
        "here": LocalChannel,
        "spark2": SshChannel,
    }
    assert [channel.node for channel in channels.values()] == ["here", "spark2"]


async def test_a_channel_from_the_inventory_reaches_the_node(sshd):
    with sshd.running():
        node = Node(
            address="127.0.0.1",
            port=sshd.port,
            user=sshd.user,
            host_key=sshd.fingerprint("host"),
            identity_file=str(sshd.identity),
        )
        channel = open_channel("spark1", node)
        assert (await channel.run(["echo", "in"])).stdout == "in\n"
        await channel.close()
