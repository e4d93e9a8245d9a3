"""A custom workload that listens where no request arrives, or where other machines reach it."""

import asyncio
import sys

import pytest
from group_world import SECRET, group_launch

from sparkfleet.errors import EngineError
from sparkfleet.group import exposed_sockets
from sparkfleet.group.exposed_sockets import Listening, elsewhere, refuse_exposed, sockets_of, watch_sockets
from sparkfleet.group.group_launch import RankPlacement
from sparkfleet.group.ranks import local_rank
from sparkfleet.group.ranks.local_rank import LocalRank
from sparkfleet.hostfacts.network.listening_sockets import ListeningSocket
from sparkfleet.runtime.base import RankSpec
from sparkfleet.runtime.files.fleet_paths import FleetPaths
from sparkfleet.runtime.files.rankfiles import RankFiles
from sparkfleet.runtime.ports import free_port
from sparkfleet.runtime.process_runtime import ProcessRuntime


def sockets(*places):
    return tuple(ListeningSocket(address=address, port=port) for address, port in places)


@pytest.mark.parametrize(
    ("found", "words", "same_port"),
    [
        ((), "", False),
        ((("*", 5005),), "*:5005", True),
        (
            (("10.0.0.1", 5005), ("*", 5005)),
            "*:5005, 10.0.0.1:5005",
            True,
        ),  # IPv4 as it should be, IPv6 everywhere
        ((("10.0.0.1", 5005), ("192.168.1.5", 5005)), "10.0.0.1:5005, 192.168.1.5:5005", True),
        ((("10.0.0.1", 5005), ("::1", 5005)), "", False),
        ((("10.0.0.1", 5005), ("*", 9000)), "", False),
        ((("10.0.0.1", 5005), ("127.0.0.1", 9000)), "", False),
        ((("127.0.0.1", 5005),), "127.0.0.1:5005", True),
        ((("127.0.0.1", 9000), ("10.0.0.2", 5005)), "10.0.0.2:5005, 127.0.0.1:9000", True),
        ((("*", 8080),), "*:8080", False),
        ((("::1", 5005),), "[::1]:5005", True),
    ],
)
def test_only_a_workload_that_listens_and_not_there_is_misplaced(found, words, same_port):
    assert elsewhere(sockets(*found), "10.0.0.1", 5005) == (words, same_port)


@pytest.mark.parametrize("address", ["*", "192.168.1.5"])
async def test_a_healthy_workload_that_other_machines_reach_is_refused_with_what_mends_it(address):
    async def read():
        return Listening(
            address="127.0.0.1", port=5005, sockets=sockets((address, 5005), ("127.0.0.1", 9000))
        )

    with pytest.raises(EngineError) as caught:
        await refuse_exposed(read)
    assert f"{address}:5005" in caught.value.what
    assert "its requests arrive at 127.0.0.1:5005" in caught.value.what
    assert "without a key" in caught.value.means
    assert "$SPARKFLEET_HOST" in caught.value.do
    assert "0.0.0.0" not in caught.value.do


@pytest.mark.parametrize("places", [(), (("127.0.0.1", 5005), ("::1", 5005)), (("*", 9000),)])
async def test_a_healthy_workload_that_nobody_else_reaches_is_not_refused(places):
    readings = iter([None, Listening(address="127.0.0.1", port=5005, sockets=sockets(*places))])

    async def read():
        return next(readings)

    await refuse_exposed(read)
    await refuse_exposed(read)
    assert next(readings, None) is None


def test_the_sockets_of_a_container_whose_processes_are_roots_are_found_by_their_port():
    theirs, roots, other = (
        ListeningSocket(address="*", port=port, pid=pid)
        for port, pid in ((5005, 7), (5005, None), (22, None))
    )
    assert sockets_of({7}, 5005, (theirs, roots, other)) == (theirs,)
    assert sockets_of({8}, 5005, (theirs, roots, other)) == (roots,)
    assert sockets_of({8}, 5006, (theirs, roots, other)) == ()


async def test_its_port_on_a_wrong_address_is_named_at_once_and_ends_the_start_soon(monkeypatch):
    monkeypatch.setattr(exposed_sockets, "LOOK_S", 0.01)
    monkeypatch.setattr(exposed_sockets, "CONCLUSIVE_S", 0.05)
    said = []

    async def read():
        return Listening(address="10.0.0.1", port=5005, sockets=sockets(("127.0.0.1", 5005)))

    with pytest.raises(EngineError) as caught:
        await asyncio.wait_for(watch_sockets(read, said.append), 5)
    assert caught.value.what == "It listens on 127.0.0.1:5005, and its requests arrive at 10.0.0.1:5005."
    assert said[0] == "it listens on 127.0.0.1:5005, and its requests arrive at 10.0.0.1:5005"
    assert exposed_sockets.CONCLUSIVE_S < 60


async def test_another_port_is_named_and_waited_for(monkeypatch):
    monkeypatch.setattr(exposed_sockets, "LOOK_S", 0.01)
    monkeypatch.setattr(exposed_sockets, "CONCLUSIVE_S", 0.02)
    said = []

    async def read():
        places = [("*", 9000)] if len(said) < 20 else [("*", 9000), ("10.0.0.1", 5005)]
        return Listening(address="10.0.0.1", port=5005, sockets=sockets(*places))

    watch = asyncio.create_task(watch_sockets(read, said.append))
    async with asyncio.timeout(60):  # each look waits for its turn on a busy machine
        while not said or said[-1]:
            await asyncio.sleep(0.01)
    assert not watch.done(), "another port ends no start"
    watch.cancel()
    assert said[0] == "it listens on *:9000, and its requests arrive at 10.0.0.1:5005"
    assert len(said) > 20, "it was named longer than what is conclusive"


LISTENS = """
import os, socket, subprocess, sys, time
if sys.argv[1:]:
    listener = socket.create_server((sys.argv[1], int(sys.argv[2])))
    time.sleep(60)
subprocess.run([sys.executable, __file__, *os.environ["LISTENS_ON"].split(":")])
"""


@pytest.mark.parametrize(("address", "place"), [("127.0.0.1", "127.0.0.1"), ("0.0.0.0", "*")])
async def test_sockets_are_those_of_a_ranks_children_and_of_nobody_else(
    tmp_path, monkeypatch, address, place
):
    """A real supervisor, whose engine's child listens; this process listens, too."""
    monkeypatch.setattr(local_rank, "halted_words", lambda container: f"container {container!r} is paused")
    program = tmp_path / "listens.py"
    program.write_text(LISTENS)
    own = await asyncio.start_server(lambda reader, writer: None, "127.0.0.1", 0)
    fields = {"engine": "custom", "command": ("serve",), "port": free_port("127.0.0.1")}
    launch = group_launch(
        placements=(RankPlacement(node="this"),), candidate=group_launch().candidate.model_copy(update=fields)
    )
    runtime = ProcessRuntime(tmp_path / "run", FleetPaths(tmp_path).label)
    rank = LocalRank(FleetPaths(tmp_path), runtime, launch, 0, SECRET)
    spec = RankSpec(
        id=rank._id,
        digest="listens",
        argv=(sys.executable, str(program)),
        env=(("LISTENS_ON", f"{address}:{fields['port']}"),),
        log_path=str(tmp_path / "log"),
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
        assert (found.address, found.port) == ("127.0.0.1", fields["port"])
        assert (one.address, one.port) == (place, fields["port"])
        assert found.halted == "container '' is paused"
        RankFiles.of(tmp_path / "run", str(rank._id)).container.write_text("c0ffee\n")
        monkeypatch.setattr(FleetPaths, "run", tmp_path / "run")
        assert (await rank.sockets()).halted == "container 'c0ffee' is paused"
    finally:
        await rank.stop()
        own.close()
