"""Declared ports of custom workloads on which another program listens."""

import pytest
from control_values import plan
from fake_channel import FakeChannel

from sparkfleet.fleet.planning.taken_ports import taken_ports

LINE = 'LISTEN 0 4096 {} 0.0.0.0:* users:(("{}",pid=12,fd=3))\n'


def listening(*sockets):
    text = "".join(LINE.format(*one) for one in sockets)
    return {"this": FakeChannel("this", {("ss",): text})}


def custom(name="tts", port=3000):
    return plan(name, engine="custom", port=port)


@pytest.mark.parametrize("address", ["127.0.0.1:3000", "*:3000", "[::]:3000"])
async def test_a_port_of_another_program_is_named_before_the_start_that_fails(address):
    (line,) = await taken_ports(listening((address, "grafana"), ("*:22", "sshd")), [custom()], [])
    assert line == (
        "warning: tts: grafana listens on port 3000 of this, so its start there fails."
        " Give it another `port` (also in its `command`)."
    )


async def test_the_workload_that_runs_there_and_other_addresses_are_no_obstacle():
    nodes = listening(("192.168.100.10:3000", "raylet"), ("127.0.0.1:3001", "serve"))
    assert await taken_ports(nodes, [custom(), custom("stt", 3001)], [custom("stt", 3001)]) == ()


async def test_a_node_that_cannot_list_its_sockets_hides_no_plan():
    assert await taken_ports({"this": FakeChannel("this", {})}, [custom()], []) == ()


async def test_without_a_declared_port_no_node_is_asked():
    assert await taken_ports({}, [plan("tiny")], []) == ()
