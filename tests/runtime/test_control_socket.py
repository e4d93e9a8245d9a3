"""The supervisor's socket: only the owner's end starts the lease."""

from __future__ import annotations

import asyncio
import json
import socket

from sparkfleet.runtime.control_socket import ControlSocket

LEASE_S = 600.0


async def asked(path, operation):
    """A client that sent an operation, with the answer."""
    reader, writer = await asyncio.open_unix_connection(path)
    writer.write(json.dumps({"op": operation}).encode() + b"\n")
    return writer, json.loads(await reader.readline())


async def closed(writer, control):
    """The client is gone, and the socket has noticed."""
    served = len(control._serving)
    writer.close()
    await writer.wait_closed()
    async with asyncio.timeout(5):
        while len(control._serving) == served:
            await asyncio.sleep(0)


async def test_a_client_that_leaves_does_not_take_the_rank_from_its_owner(tmp_path):
    path = str(tmp_path / "s")
    control = ControlSocket(lambda: {"ok": True}, stop=lambda why: None, lease_s=LEASE_S)
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(path)
        await control.open(listener)
        owner, answer = await asked(path, "own")
        assert (answer, control.owned) == ({"ok": True}, True)
        for operation in ("status", "own", "wait-for-nothing"):
            other, _ = await asked(path, operation)
            await closed(other, control)
            assert control.owned
            assert control._lease.cancelled(), "it would end the engine although its owner lives"
        await closed(owner, control)
        assert not control.owned
        assert not control._lease.cancelled()
        await control.farewell(0.0)
