from __future__ import annotations

import asyncio
import socket

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sparkfleet.errors import NodeError
from sparkfleet.runtime.files.rankfiles import RankFiles
from sparkfleet.runtime.supervisor_client import ask, parse_answer


@pytest.fixture
def files(tmp_path):
    return RankFiles(tmp_path, "rank")


async def serving(files, respond):
    listener = socket.socket(socket.AF_UNIX)
    with files.address() as path:
        listener.bind(path)
    return await asyncio.start_unix_server(respond, sock=listener)


async def test_nobody_is_there(files):
    assert await ask(files, "status") is None
    files.socket.write_text("no socket")
    assert await ask(files, "status") is None


async def test_a_supervisor_that_is_silent(files):
    held = asyncio.Event()

    async def respond(reader, writer):
        await reader.read()
        writer.close()
        held.set()

    async with await serving(files, respond):
        with pytest.raises(NodeError, match=r"did not answer within 0\.05 s"):
            await ask(files, "status", timeout_s=0.05)
        await held.wait()


@pytest.mark.parametrize("answer", [b"", b"half an answ"])
async def test_a_supervisor_that_dies_over_its_answer(files, answer):

    async def respond(reader, writer):
        await reader.readline()
        writer.write(answer)
        writer.close()

    async with await serving(files, respond):
        assert await ask(files, "status") is None


def test_a_refusal_has_no_status():
    assert parse_answer("rank", b'{"ok": false, "error": "it has an owner"}').status is None


@given(st.binary() | st.sampled_from([b"null", b"[]", b"{}", b'{"ok": true}', b'{"ok": 1, "status": {}}']))
def test_what_is_no_answer_is_a_node_error(line):
    with pytest.raises(NodeError, match="returned an answer that cannot be read"):
        parse_answer("rank", line)
