"""A custom workload that listens where no request arrives."""

import asyncio
import sys

import pytest
from group_world import SECRET, order

from sparkfleet.errors import EngineError
from sparkfleet.group import misplaced
from sparkfleet.group.launch_plan import RankPlacement
from sparkfleet.group.misplaced import Listening, elsewhere, watch_sockets
from sparkfleet.group.rank import LocalRank
from sparkfleet.hostfacts.network.listening_sockets import ListeningSocket
from sparkfleet.runtime.base import RankSpec
from sparkfleet.runtime.files.fleet_paths import FleetPaths
from sparkfleet.runtime.process import ProcessRuntime


def sockets(*places):
    return tuple(ListeningSocket(address=address, port=port) for address, port in places)


@pytest.mark.parametrize(
    ("found", "words", "same_port"),
    [
        ((), "", False),
        ((("*", 5005),), "", False),
        ((("10.0.0.1", 5005), ("127.0.0.1", 9000)), "", False),
        ((("127.0.0.1", 5005),), "127.0.0.1:5005", True),
        ((("127.0.0.1", 9000), ("10.0.0.2", 5005)), "10.0.0.2:5005, 127.0.0.1:9000", True),
        ((("*", 8080),), "*:8080", False),
        ((("::1", 5005),), "[::1]:5005", True),
    ],
)
def test_only_a_workload_that_listens_and_not_there_is_misplaced(found, words, same_port):
    assert elsewhere(sockets(*found), "10.0.0.1", 5005) == (words, same_port)


async def test_its_port_on_a_wrong_address_is_named_at_once_and_ends_the_start_soon(monkeypatch):
    monkeypatch.setattr(misplaced, "LOOK_S", 0.01)
    monkeypatch.setattr(misplaced, "CONCLUSIVE_S", 0.05)
    said = []

    async def read():
        return Listening(address="10.0.0.1", port=5005, sockets=sockets(("127.0.0.1", 5005)))

    with pytest.raises(EngineError) as caught:
        await asyncio.wait_for(watch_sockets(read, said.append), 5)
    assert caught.value.what == "It listens on 127.0.0.1:5005, and its requests arrive at 10.0.0.1:5005."
    assert said[0] == "it listens on 127.0.0.1:5005, and its requests arrive at 10.0.0.1:5005"
    assert misplaced.CONCLUSIVE_S < 60


async def test_another_port_is_named_and_waited_for(monkeypatch):
    monkeypatch.setattr(misplaced, "LOOK_S", 0.01)
    monkeypatch.setattr(misplaced, "CONCLUSIVE_S", 0.02)
    said = []

    async def read():
        places = [("*", 9000)] if len(said) < 20 else [("*", 9000), ("*", 5005)]
        return Listening(address="10.0.0.1", port=5005, sockets=sockets(*places))

    with pytest.raises(TimeoutError):
        await asyncio.wait_for(watch_sockets(read, said.append), 1)
    assert said[0] == "it listens on *:9000, and its requests arrive at 10.0.0.1:5005"
    assert said[-1] == ""


LISTENS = """
import socket, subprocess, sys, time
if sys.argv[1:]:
    listener = socket.create_server(("127.0.0.1", 0))
    print(listener.getsockname()[1], flush=True)
    time.sleep(60)
subprocess.run([sys.executable, __file__, "child"])
"""
EXPECTED = (("SPARKFLEET_HOST", "10.9.9.9"), ("SPARKFLEET_PORT", "4711"))


async def test_sockets_are_those_of_a_ranks_children_and_of_nobody_else(tmp_path):
    """A real supervisor, whose engine's child listens; this process listens, too."""
    program = tmp_path / "listens.py"
    program.write_text(LISTENS)
    own = await asyncio.start_server(lambda reader, writer: None, "127.0.0.1", 0)
    launch = order(placements=(RankPlacement(node="this"),))
    runtime = ProcessRuntime(tmp_path / "run", FleetPaths(tmp_path).label)
    rank = LocalRank(FleetPaths(tmp_path), runtime, launch, 0, SECRET)
    log = tmp_path / "log"
    spec = RankSpec(
        id=rank._id,
        digest="listens",
        argv=(sys.executable, str(program)),
        env=EXPECTED,
        log_path=str(log),
        port=1,
        host="127.0.0.1",
    )
    await runtime.start(spec)
    rank._rank = await runtime.own(rank._id)
    try:
        for _ in range(200):
            if (found := await rank.sockets()) and found.sockets:
                break
            await asyncio.sleep(0.05)
        (one,) = found.sockets
        assert (found.address, found.port) == ("10.9.9.9", 4711)
        assert (one.address, str(one.port) in log.read_text()) == ("127.0.0.1", True)
    finally:
        await rank.stop()
        own.close()
