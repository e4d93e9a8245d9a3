"""A rank whose supervisor is of the first build (commit 7a783744): today's code finds it, adopts it, and ends it cleanly.

The lines and the names of the files are those that its supervisor was seen to use. `FORMER` answers with them.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
from collections.abc import AsyncIterator

import pytest

from sparkfleet.errors import NodeError
from sparkfleet.runtime.base import Phase, RankId
from sparkfleet.runtime.environment import labels
from sparkfleet.runtime.supervisor_client import parse_answer

ID = RankId(fleet="is home", deployment="qwen", generation=1, replica=0, rank=0)
NAME = "is_home_qwen_g1_0_0-acb1b78f9314"
STATUS = {
    "id": {"fleet": "is home", "deployment": "qwen", "generation": 1, "replica": 0, "rank": 0},
    "digest": "27d7148f2b0888cb",
    "phase": "running",
    "port": 20000,
    "pid": 7251,
    "started_at": 1795742032.2356098,
    "exit_code": None,
    "reason": "",
    "owned": False,
}
LABELS = {"SPARKFLEET_FLEET": "home", "SPARKFLEET_RANK": "home/qwen/g1/0/0"}

FORMER = """
import fcntl, json, os, socket, sys
name, status = sys.argv[1], json.loads(sys.argv[2])
lock = open(name + ".lock", "w")
fcntl.flock(lock, fcntl.LOCK_EX)
listener = socket.socket(socket.AF_UNIX)
listener.bind(name + ".sock")
listener.listen()
print("listens", flush=True)
owner = None
def line():
    return json.dumps({"ok": True, "grace_s": 0.5, "status": status}).encode() + b"\\n"
while status["phase"] == "running":
    client, _ = listener.accept()
    for request in client.makefile():
        op = json.loads(request)["op"]
        if op == "stop":
            status |= {"phase": "exited", "exit_code": -15, "reason": "stopped: it was asked to stop"}
            break
        if op == "own":
            status["owned"] = True
        client.sendall(line())
    else:
        client.close()
with open(name + ".last", "wb") as last:
    last.write(line())
client.sendall(line())
os.unlink(name + ".sock")
"""
"""Such a supervisor, of one connection at a time, without an engine."""


@pytest.fixture
async def former(runtime, tmp_path) -> AsyncIterator[asyncio.subprocess.Process]:
    """It runs, and holds the rank's lock."""
    run_dir = tmp_path / "run"
    run_dir.mkdir(mode=0o700)
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-c", FORMER, NAME, json.dumps(STATUS)),
        cwd=run_dir,
        stdout=asyncio.subprocess.PIPE,
    )
    assert process.stdout is not None
    assert await process.stdout.readline() == b"listens\n"
    yield process
    if process.returncode is None:
        process.kill()
    await process.wait()


async def test_it_is_found_adopted_and_ended(runtime, former, tmp_path):
    (found,) = await runtime.list()
    assert found.model_dump(mode="json") == STATUS
    rank = await runtime.own(ID)
    assert rank is not None
    ended = await rank.stop()
    assert (ended.phase, ended.exit_code, ended.reason) == (
        Phase.EXITED,
        -15,
        "stopped: it was asked to stop",
    )
    assert await former.wait() == 0
    last = await runtime.post_mortem(ID)
    assert last is not None
    assert last.reason == ended.reason
    assert sorted(os.listdir(tmp_path / "run")) == [f"{NAME}.last", f"{NAME}.lock"]


async def test_another_command_is_refused_and_leaves_it_alone(runtime, former, make_spec):
    with pytest.raises(NodeError, match="already runs, with another command"):
        await runtime.start(make_spec(("sleep", "60"), id=ID))
    (found,) = await runtime.list()
    assert found.phase is Phase.RUNNING


async def test_a_supervisor_answers_with_the_fields_that_the_former_release_knows(runtime, herald, make_spec):
    """An upgrade that goes back reads them with the former code, which refuses others."""
    started = await runtime.start(make_spec(herald.script("import time; time.sleep(60)")))
    assert started.model_dump().keys() == STATUS.keys()
    line = json.dumps({"ok": True, "grace_s": 0.5, "status": STATUS}).encode()
    assert parse_answer(NAME, line).status is not None


def test_the_labels_by_which_leftovers_are_found_are_the_same():
    assert labels("home", "home/qwen/g1/0/0") == LABELS
