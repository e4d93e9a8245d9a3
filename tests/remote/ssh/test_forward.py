from __future__ import annotations

import asyncio
import os

import pytest

from sparkfleet.remote.ssh.channel import SshChannel
from sparkfleet.remote.unreachable import Refused


async def echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Answers only after the other side has sent everything: half-closing must work."""
    writer.write(await reader.read())
    await writer.drain()
    writer.close()
    await writer.wait_closed()


async def ask(address: tuple[str, int], sent: bytes) -> bytes:
    reader, writer = await asyncio.open_connection(*address)
    try:
        writer.write(sent)
        writer.write_eof()
        return await reader.read()
    finally:
        writer.close()
        await writer.wait_closed()


async def test_a_port_of_the_node_is_on_our_loopback(ssh, serving):
    async with serving(echo) as port, ssh.forward("127.0.0.1", port) as address:
        assert address[0] == "127.0.0.1"
        assert address[1] != port
        assert await ask(address, b"hello") == b"hello"


async def test_many_connections_at_a_time(ssh, serving):
    async with serving(echo) as port, ssh.forward("127.0.0.1", port) as address:
        sent = [os.urandom(10_000) + bytes([i]) for i in range(40)]
        assert await asyncio.gather(*(ask(address, s) for s in sent)) == sent


async def test_much_passes_both_ways_and_commands_pass_beside_it(ssh, serving):
    sent = os.urandom(12_000_000)
    async with serving(echo) as port, ssh.forward("127.0.0.1", port) as address:
        asking = asyncio.create_task(ask(address, sent))
        assert (await ssh.run(["echo", "beside"])).stdout == "beside\n"
        assert await asking == sent


async def test_a_client_that_does_not_read_holds_the_sender(ssh, serving):
    written = 0

    async def pour(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal written
        try:
            while True:
                writer.write(b"x" * 65536)
                await writer.drain()
                written += 65536
        except OSError:
            stopped.set()

    stopped = asyncio.Event()
    async with serving(pour) as port, ssh.forward("127.0.0.1", port) as address:
        _, writer = await asyncio.open_connection(*address, limit=65536)
        before = 0
        async with asyncio.timeout(60):
            while written == 0 or written != before:  # until nothing moves any more
                before = written
                await asyncio.sleep(0.2)
        assert 0 < written < 64 << 20
        writer.transport.abort()
        await asyncio.wait_for(stopped.wait(), 10)
        assert (await ssh.run(["echo", "alive"])).stdout == "alive\n"


async def test_a_closed_port_ends_only_the_connection(ssh, caplog):
    async with ssh.forward("127.0.0.1", 1) as address:
        reader, writer = await asyncio.open_connection(*address)
        with pytest.raises(ConnectionResetError):
            await reader.readexactly(1)
        writer.close()
    assert (await ssh.run(["echo", "alive"])).stdout == "alive\n"
    assert not caplog.records, "whoever calls the port has the words for it: a fleet that is down, mostly"


async def test_leaving_ends_every_connection_and_the_listener(ssh, serving):
    ended = asyncio.Event()

    async def hold(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"x")
        await reader.read()
        ended.set()
        writer.close()

    async with serving(hold) as port:
        async with ssh.forward("127.0.0.1", port) as address:
            reader, writer = await asyncio.open_connection(*address)
            assert await reader.readexactly(1) == b"x"
        with pytest.raises(ConnectionResetError):
            await reader.readexactly(1)
        writer.close()
        await asyncio.wait_for(ended.wait(), 10)
        with pytest.raises(ConnectionRefusedError):
            await asyncio.open_connection(*address)


async def test_a_missing_node_is_reported_at_once(sshd):
    sshd.keygen("host")
    async with sshd.channel(1) as channel:
        with pytest.raises(Refused):
            async with channel.forward("127.0.0.1", 1):
                pass


async def test_a_forward_lives_on_after_the_connection_was_lost(sshd, proxied, serving):
    with sshd.running():
        async with (
            proxied(sshd.port).listening() as proxy,
            sshd.channel(proxy.port) as channel,
            serving(echo) as port,
            channel.forward("127.0.0.1", port) as address,
        ):
            assert await ask(address, b"one") == b"one"
            proxy.cut()
            while channel._connection.is_open:
                await asyncio.sleep(0.01)
            assert await ask(address, b"two") == b"two"


async def test_jump_hosts_are_gone_through_and_verified(sshd, tmp_path):
    inner = type(sshd)((tmp_path / "inner", (tmp_path / "inner").mkdir())[0])
    with sshd.running(), inner.running():
        hops = [sshd.hop(name="gate"), inner.hop(name="inner")]
        channel = SshChannel("inner", hops)
        assert (await channel.run(["echo", "in"])).stdout == "in\n"
        await channel.close()
        wrong = SshChannel("inner", [sshd.hop(name="gate", pins=inner.hop().pins), inner.hop(name="inner")])
        with pytest.raises(Exception, match="gate: its SSH host key is"):
            await wrong.run(["true"])
        await wrong.close()
        nowhere = SshChannel("inner", [sshd.hop(name="gate"), inner.hop(1, name="inner")])
        with pytest.raises(Refused, match="the jump host cannot reach"):
            await nowhere.run(["true"])
        await nowhere.close()


async def test_a_port_that_sends_first_and_much_is_read_completely(ssh, serving):
    sent = os.urandom(6_000_000)

    async def speak(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(sent)
        await writer.drain()
        writer.close()
        await writer.wait_closed()

    async with serving(speak) as port, ssh.forward("127.0.0.1", port) as address:
        reader, writer = await asyncio.open_connection(*address)
        await asyncio.sleep(0.3)  # more waits than a tunnel holds
        assert await reader.read() == sent
        writer.close()
        await writer.wait_closed()
