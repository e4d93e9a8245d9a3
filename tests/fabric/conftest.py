"""Sparks and their cables as nodes see them, and a node that answers commands by what it was given."""

import base64

import pytest
from fake_channel import FakeChannel, program_request, program_result

from sparkfleet.fabric.port_scan import NeighbourAnswer, PortScan
from sparkfleet.hostfacts.network.netdev import NetAddress, Netdev
from sparkfleet.hostfacts.network.rdma import RdmaLink
from sparkfleet.remote.batch import PROGRAM
from sparkfleet.remote.channel import Completed
from sparkfleet.specs.load import load_inventory, parse_inventory

RDMA = {
    "enp1s0f0np0": "rocep1s0f0",
    "enP2p1s0f0np0": "roceP2p1s0f0",
    "enp1s0f1np1": "rocep1s0f1",
    "enP2p1s0f1np1": "roceP2p1s0f1",
}

HALVES = tuple(zip(list(RDMA)[::2], list(RDMA)[1::2], strict=True))
"""The two netdevs of each QSFP port."""


def _netdev(node, name, *addresses, carrier=True, mtu=1500, up=True, **more):
    """A netdev whose MAC and link-local address tell node and device."""
    number = [*RDMA, "enP7s7"].index(name)
    mac = f"4c:bb:47:00:{node:02x}:{number:02x}"
    given = tuple(NetAddress(address=one) for one in addresses)
    local = NetAddress(address=f"fe80::{node}:{number}/64", scope="link")
    return Netdev(
        name=name, mac=mac, mtu=mtu, up=up, carrier=carrier, state="UP", addresses=(*given, local), **more
    )


def _spark(number, *netdevs, **more):
    """A Spark: its management network, and what is given."""
    names = {one.name for one in netdevs}
    lan = _netdev(number, "enP7s7", f"192.168.1.{10 + number}/24")
    return PortScan(
        node=f"spark{number}",
        netdevs=(lan, *netdevs),
        management="enP7s7",
        rdma=tuple(
            RdmaLink(device=device, port=1, netdev=name, active=True)
            for name, device in RDMA.items()
            if name in names
        ),
        networks=("192.168.1.0/24",),
        **more,
    )


@pytest.fixture(scope="session")
def netdev():
    """netdev(node number, name, *addresses) → a Netdev."""
    return _netdev


@pytest.fixture(scope="session")
def spark():
    """spark(number, *netdevs) → a NodeView with a management network."""
    return _spark


@pytest.fixture(scope="session")
def cabled(netdev, spark):
    """cabled(2, ((1, 1), (2, 1)), …) → views of Sparks with these cables, each rail with an answer on both ends."""

    def make(count, *cables, method="ipv6"):
        ends = {number: {} for number in range(1, count + 1)}
        for one, other in cables:
            for half in (0, 1):
                for (node, port), (peer, peer_port) in ((one, other), (other, one)):
                    theirs = netdev(peer, HALVES[peer_port][half])
                    answer = {"address": theirs.link_local[0]} if method == "ipv6" else {"mac": theirs.mac}
                    ends[node][HALVES[port][half]] = NeighbourAnswer(
                        netdev=HALVES[port][half], method=method, **answer
                    )
        return [
            spark(number, *(netdev(number, name) for name in answer), answers=tuple(answer.values()))
            for number, answer in ends.items()
        ]

    return make


@pytest.fixture
def batched():
    """batched(name, {argv prefix: output}) → a channel that answers `run_batch`, too."""

    def make(name, answers):
        def find(argv):
            match = max((key for key in answers if tuple(argv[: len(key)]) == key), key=len, default=None)
            found = answers.get(match)
            return found(argv) if callable(found) else found

        def batch(call):
            return Completed(
                argv=call.argv,
                exit_code=0,
                stdout=program_result([_packed(find(argv)) for argv in program_request(call)["argvs"]]),
                stderr="",
            )

        alone = {key: value for key, value in answers.items() if isinstance(value, str)}
        return FakeChannel(name, {**alone, PROGRAM.argv: batch})

    return make


def _packed(found):
    if found is None:
        return {"missing": True}
    stdout, exit_code = found if isinstance(found, tuple) else (found, 0)
    return {"exit_code": exit_code, "outputs": [[base64.b64encode(stdout.encode()).decode(), 0], ["", 0]]}


@pytest.fixture
def two(pytestconfig):
    """The inventory of two cabled Sparks in the documentation."""
    return load_inventory(pytestconfig.rootpath / "docs/examples/inventory-two-sparks.yaml")


@pytest.fixture
def switched():
    """switched(count): an inventory of Sparks on one switch."""
    key = "SHA256:" + "A" * 43

    def switched(count):
        nodes = "".join(
            f'  s{n}: {{address: 10.0.0.{n}, user: u, host_key: "{key}"}}\n' for n in range(1, count + 1)
        )
        links = "".join(
            f"  - nodes: [s{n}]\n    switch: sw\n    rails:\n"
            f"      - [{{netdev: a0, rdma: r0, address: 192.168.100.{n}/24}}]\n"
            f"      - [{{netdev: a1, rdma: r1, address: 192.168.101.{n}/24}}]\n"
            for n in range(1, count + 1)
        )
        return parse_inventory(f"fleet: f\nhead: s1\nnodes:\n{nodes}links:\n{links}")

    return switched
