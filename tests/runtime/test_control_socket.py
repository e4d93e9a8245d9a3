"""The supervisor's socket: only the owner's end starts the lease, and nonsense is refused."""

from __future__ import annotations

import asyncio
import json
import socket

import pytest
from rank_processes import IDLE

from sparkfleet.runtime.control_socket import ControlSocket
from sparkfleet.runtime.files.rankfiles import RankFiles

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


def spoken(files: RankFiles, *lines: bytes) -> list[dict[str, object]]:
    with socket.socket(socket.AF_UNIX) as link, files.address() as path:
        link.connect(path)
        link.sendall(b"".join(lines))
        link.shutdown(socket.SHUT_WR)
        with link.makefile("rb") as answers:
            return [json.loads(line) for line in answers]


@pytest.mark.parametrize(
    "line", [b"\n", b"{\n", b"[]\n", b'{"op": 1}\n', b'{"op": "reboot"}\n', b"\xff\xfe\n"]
)
async def test_nonsense_is_refused_and_changes_nothing(runtime, herald, make_spec, rank_id, line):
    started = await runtime.start(make_spec(herald.script(IDLE)))
    files = RankFiles.of(runtime._run_dir, str(rank_id))
    refused, status = await asyncio.to_thread(spoken, files, line, b'{"op": "status"}\n')
    assert refused["ok"] is False
    assert status["status"]["pid"] == started.pid


async def test_an_endless_line_ends_the_connection_only(runtime, herald, make_spec, rank_id):
    started = await runtime.start(make_spec(herald.script(IDLE)))
    files = RankFiles.of(runtime._run_dir, str(rank_id))
    with pytest.raises(OSError, match=r"Broken pipe|reset"):
        await asyncio.to_thread(spoken, files, b"x" * 10_000_000)
    assert (await runtime.list())[0].pid == started.pid
