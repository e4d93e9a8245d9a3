"""The firewall's rules, loaded by nftables into the namespace of a node, and tried with sockets of three neighbours."""

import json
import os
import shutil
import subprocess
import sys
from contextlib import suppress

import pytest
from address_values import cable, inventory, spark

from sparkfleet.fabric.firewall import firewall_request, rules

pytestmark = pytest.mark.skipif(
    os.geteuid() != 0 or shutil.which("nft") is None or shutil.which("ip") is None,
    reason="network namespaces of its own need root, and nftables",
)

SSH, BELOW, RAY, ENGINE, GATEWAY, ABOVE = 22, 10001, 10002, 40000, 18000, 61000
PORTS = (SSH, BELOW, RAY, ENGINE, GATEWAY, ABOVE)
EVERYBODYS = {SSH, BELOW, GATEWAY, ABOVE}

SET_UP = """
for one in node member foreign rail; do ip netns add $1-$one; ip -n $1-$one link set lo up; done
connect() {  # neighbour, netdev of the node, number of the subnet
    ip -n $1-node link add $3 type veth peer name eth0 netns $1-$2
    ip -n $1-node addr add 10.99.$4.1/24 dev $3
    ip -n $1-$2 addr add 10.99.$4.2/24 dev eth0
    ip -n $1-node addr add fd99:$4::1/64 dev $3 nodad
    ip -n $1-$2 addr add fd99:$4::2/64 dev eth0 nodad
    ip -n $1-node link set $3 up
    ip -n $1-$2 link set eth0 up
}
connect $1 member lan0 1
connect $1 foreign lan1 2
connect $1 rail $2 3
"""
LISTEN = """
import socket, sys
servers = [socket.create_server(("::", int(port)), family=socket.AF_INET6, dualstack_ipv6=True) for port in sys.argv[1:]]
print("listens", flush=True)
sys.stdin.read()
"""
"""Listens on every address."""
ASK = """
import asyncio, json, sys
host, *ports = sys.argv[1:]

async def is_open(port):
    try:
        _, writer = await asyncio.wait_for(asyncio.open_connection(host, int(port)), 5)
    except (OSError, asyncio.TimeoutError):
        return False
    writer.close()
    return True

async def main():
    found = await asyncio.gather(*map(is_open, ports))
    print(json.dumps([int(port) for port, one in zip(ports, found) if one]))

asyncio.run(main())
"""
FLEET = inventory({"a": spark(1), "b": spark(2)}, (cable("a", "b", 100),))
FLEET = FLEET.model_copy(
    update={"gateway": FLEET.gateway.model_copy(update={"host": "0.0.0.0", "port": GATEWAY})}
)
REQUEST = firewall_request(FLEET, "a", {"a": ("10.99.1.1",), "b": ("10.99.1.2", "fd99:1::2")})


class Spaces:
    """A node in a namespace, with a member of the fleet, a foreign machine and a machine on its rail beside it."""

    def __init__(self):
        self.name = f"sparkfleet-{os.getpid()}"

    def argv(self, which, *words):
        return ["ip", "netns", "exec", f"{self.name}-{which}", *words]

    def started(self, which, program, *words):
        """A Python program in a namespace, once it has printed its first line."""
        process = subprocess.Popen(
            self.argv(which, sys.executable, "-I", "-c", program, *words),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert process.stdout.readline()
        return process

    def opened(self, which, host):
        """The ports of the node that a neighbour reaches."""
        words = (sys.executable, "-I", "-c", ASK, host, *map(str, PORTS))
        done = subprocess.run(self.argv(which, *words), capture_output=True, text=True, check=True)
        return set(json.loads(done.stdout))

    def load(self, text):
        """Load a file of rules in the node, twice: the second time replaces the first."""
        for _ in range(2):
            subprocess.run(self.argv("node", "nft", "-f", "-"), input=text, text=True, check=True)


@pytest.fixture
def spaces():
    """The four namespaces, with programs that listen in the node and in the foreign machine; removed at the end."""
    made = Spaces()
    (netdev,) = REQUEST["netdevs"][:1]
    processes = []
    try:
        subprocess.run(["sh", "-euc", SET_UP, "sh", made.name, netdev], check=True)
        processes += [made.started(which, LISTEN, *map(str, PORTS)) for which in ("node", "foreign")]
        yield made
    finally:
        for one in processes:
            one.kill()
            one.communicate()
        for which in ("node", "member", "foreign", "rail"):
            with suppress(OSError):
                subprocess.run(["ip", "netns", "delete", f"{made.name}-{which}"], check=False)


@pytest.mark.timeout(600)
def test_ports_of_the_fleet_are_closed_to_foreign_machines_and_open_to_nodes_rails_and_ssh(spaces):
    assert spaces.opened("foreign", "10.99.2.1") == set(PORTS), "without rules everything is open"
    spaces.load(rules(REQUEST))
    assert spaces.opened("foreign", "10.99.2.1") == EVERYBODYS
    assert spaces.opened("foreign", "fd99:2::1") == EVERYBODYS
    assert spaces.opened("member", "10.99.1.1") == set(PORTS)
    assert spaces.opened("member", "fd99:1::1") == set(PORTS)
    assert spaces.opened("rail", "10.99.3.1") == set(PORTS)
    assert spaces.opened("node", "127.0.0.1") == set(PORTS)
    assert spaces.opened("node", "10.99.2.2") == set(PORTS), "answers to the node's own connections pass"
    subprocess.run(spaces.argv("node", "nft", "delete", "table", "inet", "sparkfleet"), check=True)
    assert spaces.opened("foreign", "10.99.2.1") == set(PORTS), "removed is removed"
