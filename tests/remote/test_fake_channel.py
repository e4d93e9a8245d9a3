from __future__ import annotations

import pytest
from fake_channel import Call, FakeChannel

from sparkfleet.errors import NodeError
from sparkfleet.remote.channel import Channel, Completed


def test_is_a_channel():
    channel: Channel = FakeChannel("spark1")
    assert channel.node == "spark1"


async def test_the_longest_prefix_answers():
    channel = FakeChannel("spark1", {("ip",): "any", ("ip", "-j", "link"): "links"})
    assert (await channel.run(["ip", "-j", "link", "show"])).stdout == "links"
    assert (await channel.run(["ip", "address"])).stdout == "any"


async def test_answers_may_be_results_errors_or_functions():
    failed = Completed(argv=("false",), exit_code=1, stdout="", stderr="no")

    def echo(call: Call) -> Completed:
        return Completed(argv=call.argv, exit_code=0, stdout=call.stdin.decode() + call.env["A"], stderr="")

    channel = FakeChannel("spark1", {("false",): failed, ("cat",): echo, ("ssh",): NodeError("unreachable")})
    assert await channel.run(["false"]) == failed
    assert (await channel.run(["cat"], stdin=b"in", env={"A": "b"})).stdout == "inb"
    with pytest.raises(NodeError, match="unreachable"):
        await channel.run(["ssh"])


async def test_calls_are_recorded_also_those_without_a_response():
    channel = FakeChannel("spark1")
    with pytest.raises(NodeError, match="spark1 has no response"):
        await channel.run(["reboot", "now"], stdin=b"yes")
    assert channel.calls == [Call(("reboot", "now"), {}, b"yes")]


async def test_files():
    channel = FakeChannel("spark1", files={"/proc/meminfo": b"MemTotal"})
    await channel.write("/etc/x", b"content", mode=0o644)
    assert await channel.read("/proc/meminfo", limit=3) == b"Mem"
    assert await channel.read("/proc/meminfo", offset=3, limit=2) == b"To"
    assert await channel.read("/etc/x") == b"content"
    assert channel.modes == {"/etc/x": 0o644}
    with pytest.raises(NodeError, match="does not exist"):
        await channel.read("/missing")


async def test_output_may_come_in_pieces():
    seen = []
    channel = FakeChannel("spark1", {("tail",): ("one", "two\n"), ("cat",): "whole"})
    assert (await channel.run(["tail"], on_output=seen.append)).stdout == "onetwo\n"
    await channel.run(["cat"], on_output=seen.append)
    await channel.run(["cat"])
    assert seen == [b"one", b"two\n", b"whole"]


async def test_forwarding_gives_the_address_itself_and_remembers():
    channel = FakeChannel("spark1")
    async with channel.forward("127.0.0.1", 8265) as address:
        assert address == ("127.0.0.1", 8265)
    assert channel.forwarded == [("127.0.0.1", 8265)]


async def test_a_closed_channel_answers_nothing():
    channel = FakeChannel("spark1", {("true",): ""}, {"/x": b""})
    await channel.close()
    assert channel.is_closed
    for asked in (channel.run(["true"]), channel.read("/x"), channel.write("/x", b"")):
        with pytest.raises(NodeError, match="the channel was closed"):
            await asked
