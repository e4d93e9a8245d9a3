"""Outlines of checkpoints are read from all nodes at once; an error of one node does not affect the others."""

from __future__ import annotations

import asyncio
import json

from fake_channel import FakeChannel

from sparkfleet.checkpoints.remote_metadata import MetadataRequest, Outline, program
from sparkfleet.errors import FactError, NodeError
from sparkfleet.remote.channel import Completed
from sparkfleet.remote.local import LocalChannel
from sparkfleet.remote.metadata import ask_outlines

WANTED = (MetadataRequest.of("/models/x"), MetadataRequest.of("Org/Name"))


def fake(node, answer):
    return FakeChannel(node, {program(): answer})


def said(*lines):
    """An answer as it arrives, cut where it does not fit."""
    text = "".join(json.dumps(line) + "\n" for line in (*lines, {"end": True}))
    return (text[:7], text[7:50], text[50:])


async def test_outlines_by_node():
    channels = {
        "spark1": fake("spark1", said()),
        "spark2": fake("spark2", said({"at": 0, "directory": "/models/x"}, {"at": 1, "error": "odd"})),
    }
    found = await ask_outlines(channels, WANTED)
    assert found == {
        "spark1": (None, None),
        "spark2": (Outline(directory="/models/x"), Outline(error="odd")),
    }


async def test_a_node_is_queried_once_and_never_through_a_shell():
    channel = fake("spark1", said())
    hostile = MetadataRequest.of("/models/$(reboot); `reboot`")
    await ask_outlines({"spark1": channel}, (*WANTED, hostile))
    (call,) = channel.calls
    assert call.argv == program()
    asked = json.loads(call.stdin)["wanted"]
    assert [one["directory"] or one["id"] for one in asked] == [
        "/models/x",
        "Org/Name",
        "/models/$(reboot); `reboot`",
    ]


async def test_all_nodes_at_the_same_time():
    both = asyncio.Barrier(2)

    class Waiting(FakeChannel):
        async def run(self, argv, **more):
            await both.wait()  # never comes, unless the other is asked meanwhile
            return await super().run(argv, **more)

    channels = {name: Waiting(name, {program(): said()}) for name in ("spark1", "spark2")}
    assert len(await ask_outlines(channels, WANTED, timeout_s=20)) == 2


async def test_a_node_with_unexpected_output():
    killed = Completed(argv=("python3",), exit_code=-9, stdout="", stderr="out of memory\n")
    channels = {
        "spark1": fake("spark1", NodeError("spark1: no answer")),
        "spark2": fake("spark2", "Welcome!\n"),
        "spark3": fake("spark3", killed),
        "spark4": fake("spark4", '{"at": 0, "directory": "/models/x"}\n'),
        "spark5": fake("spark5", said()),
    }
    found = await ask_outlines(channels, WANTED)
    assert [type(one) for one in found.values()] == [NodeError, FactError, NodeError, NodeError, tuple]
    assert "spark2: reading checkpoints: the node printed 'Welcome!'" in str(found["spark2"])
    assert "exit code -9): out of memory" in str(found["spark3"])
    assert "no output" in str(found["spark4"])


async def test_a_program_that_never_ends_is_ended(monkeypatch):
    monkeypatch.setattr("sparkfleet.remote.metadata.program", lambda: ("yes", "x" * 1000))
    channel = LocalChannel("spark1")
    found = await ask_outlines({"spark1": channel}, WANTED, timeout_s=60)
    assert isinstance(found["spark1"], FactError)
    await channel.close()


async def test_a_real_directory(tmp_path):
    (tmp_path / "config.json").write_text("{}")
    channel = LocalChannel("spark1")
    found = await ask_outlines(
        {"spark1": channel}, [MetadataRequest.of(str(tmp_path)), MetadataRequest.of("/does/not/exist")]
    )
    outline, nothing = found["spark1"]
    assert [(file.name, file.size) for file in outline.files] == [("config.json", 2)]
    assert nothing is None
    await channel.close()
