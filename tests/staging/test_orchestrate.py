"""Real programs, real rsync, real HTTP, on loopback; the nodes are this machine with a cache each."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
from pathlib import Path

import pytest
from tiny_copy import MODEL, snapshot_of

from sparkfleet.specs.inventory import Node
from sparkfleet.staging.errors import StagingError
from sparkfleet.staging.manifest import StagingItem
from sparkfleet.staging.orchestrate import stage, survey
from sparkfleet.staging.settings import Need
from sparkfleet.staging.storage_layout import size_of

pytestmark = pytest.mark.integration
SHARD = "model-00001-of-00002.safetensors"
PATIENCE_S = 60


async def test_from_the_hub_once_then_over_the_rails(hub, serve, machines, staging, wanted_files):
    nodes = ("n1", "n2", "n3")
    endpoint = await serve(hub.app())
    (staged,) = await staging(Need.model(MODEL, nodes), *nodes, endpoint=endpoint)
    for node in nodes:
        assert snapshot_of(machines.cache(node), hub.commit) == wanted_files
    size = sum(map(len, wanted_files.values()))
    assert hub.bytes_sent == size
    assert staged.commit == hub.commit
    assert staged.moved_bytes == 3 * size
    assert {progress.phase for progress in machines.heard} == {"looking", "hub", "link", "done"}
    # Again: nobody is asked, nothing moves.
    asked = len(hub.asked)
    (again,) = await staging(Need.model(MODEL, nodes), *nodes, endpoint="http://127.0.0.1:9")
    assert (again.commit, again.moved_bytes, len(hub.asked)) == (hub.commit, 0, asked)


async def test_only_missing_files_move(hub, held, machines, staging, wanted_files):
    held("n1")
    blobs = machines.cache("n2") / "models--tests--tiny" / "blobs"
    blobs.mkdir(parents=True)
    source = machines.cache("n1") / "models--tests--tiny" / "blobs"
    whole, part = sorted(source.iterdir(), key=lambda path: path.stat().st_size)[-2:]
    (blobs / whole.name).write_bytes(whole.read_bytes())
    (blobs / f"{part.name}.incomplete").write_bytes(part.read_bytes()[:2_000_000])
    (staged,) = await staging(Need.model(MODEL, ("n2",)), "n1", "n2")
    assert snapshot_of(machines.cache("n2"), hub.commit) == wanted_files
    assert staged.moved_bytes == sum(map(len, wanted_files.values())) - 1_000_000 - 2_000_000


async def test_a_damaged_part_is_fetched_again(hub, held, machines, staging, wanted_files):
    held("n1")
    source = machines.cache("n1") / "models--tests--tiny" / "blobs"
    largest = max(source.iterdir(), key=lambda path: path.stat().st_size)
    blobs = machines.cache("n2") / "models--tests--tiny" / "blobs"
    blobs.mkdir(parents=True)
    (blobs / f"{largest.name}.incomplete").write_bytes(b"x" * 2_000_000)
    await staging(Need.model(MODEL, ("n2",)), "n1", "n2")
    assert snapshot_of(machines.cache("n2"), hub.commit) == wanted_files
    assert any("damaged" in progress.text for progress in machines.heard)


async def test_a_bad_copy_at_the_source_is_never_accepted(held, machines, staging):
    held("n1")
    source = machines.cache("n1") / "models--tests--tiny" / "blobs"
    largest = max(source.iterdir(), key=lambda path: path.stat().st_size)
    largest.write_bytes(b"x" * largest.stat().st_size)  # the right size, the wrong bytes
    with pytest.raises(StagingError, match="sha256"):
        await staging(Need.model(MODEL, ("n2",)), "n1", "n2")
    there = machines.cache("n2") / "models--tests--tiny"
    assert not (there / "blobs" / largest.name).exists()
    assert not (there / "refs" / "main").exists()


async def test_wrong_bytes_from_the_hub_are_never_accepted(hub, serve, machines, staging, wanted_files):
    hub.served[SHARD] = b"x" * len(wanted_files[SHARD])
    with pytest.raises(StagingError, match=SHARD):
        await staging(Need.model(MODEL, ("n1",)), "n1", endpoint=await serve(hub.app()))
    assert not (machines.cache("n1") / "models--tests--tiny" / "snapshots").exists()


def _all_but_one_and_a_part(blobs, whole):
    """True if so many files are whole and of one more a MiB is there; bytes on the wire do not count."""
    parts = [path for path in blobs.glob("*.incomplete") if (size_of(path) or 0) >= 1_048_576]
    return len(parts) == 1 and len(list(blobs.iterdir())) - 1 == whole


async def test_interrupted_it_goes_on_from_every_byte(hub, serve, machines, staging, wanted_files):
    wanted_files[SHARD] = hub.files[SHARD] = os.urandom(24 << 20)  # what arrives is kept by pieces of 10 MiB
    hub.hold[SHARD] = asyncio.Event()
    endpoint = await serve(hub.app())
    work = asyncio.ensure_future(staging(Need.model(MODEL, ("n1",)), "n1", endpoint=endpoint))
    async with asyncio.timeout(PATIENCE_S):
        await hub.started.wait()
        blobs = machines.cache("n1") / "models--tests--tiny" / "blobs"
        while not _all_but_one_and_a_part(blobs, len(wanted_files) - 1):
            await asyncio.sleep(0.05)
    work.cancel()
    with pytest.raises(asyncio.CancelledError):
        await work
    kept = max(path.stat().st_size for path in blobs.iterdir() if path.name.endswith(".incomplete"))
    assert kept > 0
    hub.hold.clear()
    before = hub.bytes_sent
    await staging(Need.model(MODEL, ("n1",)), "n1", endpoint=endpoint)
    assert snapshot_of(machines.cache("n1"), hub.commit) == wanted_files
    assert hub.bytes_sent - before <= len(wanted_files[SHARD]) - kept + 100
    assert [asked[1] for asked in hub.asked if asked[0].endswith(SHARD)][-1].startswith("bytes=")


async def test_two_runs_at_once_download_once(hub, serve, machines, staging, wanted_files):
    endpoint = await serve(hub.app())
    need = Need(wanted=Need.model(MODEL, ()).wanted, nodes=("n1",), hub="always")
    await asyncio.gather(*(staging(need, "n1", endpoint=endpoint) for _ in range(2)))
    assert snapshot_of(machines.cache("n1"), hub.commit) == wanted_files
    assert hub.bytes_sent == sum(map(len, wanted_files.values()))


async def test_without_a_link_the_lan_is_used_and_reported(hub, held, machines, staging, wanted_files):
    held("n1")  # loopback: the kernel's own choice is not the LAN address of n2
    await staging(Need.model(MODEL, ("n2",)), "n1", "n2", linked=False)
    assert snapshot_of(machines.cache("n2"), hub.commit) == wanted_files
    assert any("over the LAN" in progress.text for progress in machines.heard)


async def test_without_a_route_a_node_downloads_itself(hub, serve, held, machines, staging, wanted_files):
    held("n1")
    endpoint = await serve(hub.app())
    local = Node(address="local")

    async def run(need, **settings):
        inventory = machines.inventory("n1", "n2", linked=False)
        inventory = inventory.model_copy(update={"nodes": {**inventory.nodes, "n2": local}})
        channels = machines.channels("n1", "n2")
        return await stage(
            inventory,
            channels,
            [need],
            machines.heard.append,
            settings=machines.settings("n1", "n2", **settings),
        )

    with pytest.raises(StagingError, match=r"not linked.*failed, too.*not reachable"):
        await run(Need.model(MODEL, ("n1", "n2")), endpoint="http://127.0.0.1:9")
    with pytest.raises(StagingError, match="not linked") as refused:
        await run(Need(wanted=StagingItem.model(MODEL), nodes=("n2",), hub="never"), endpoint=endpoint)
    assert "failed, too" not in refused.value.what
    await run(Need.model(MODEL, ("n1", "n2")), endpoint=endpoint)
    assert snapshot_of(machines.cache("n2"), hub.commit) == wanted_files
    assert any("n2 downloads it from the Hub" in progress.text for progress in machines.heard)


def keep_from_the_hub(channel):
    """Gives downloads on a node the address of a Hub that nobody serves."""
    run = channel.run

    async def lonely(argv, *, stdin=b"", **more):
        request = json.loads(stdin or b"{}")
        if argv[-1].endswith("hub_download"):
            request["endpoint"] = "http://127.0.0.1:9"
        return await run(argv, stdin=json.dumps(request).encode(), **more)

    channel.run = lonely


async def test_without_a_route_the_next_node_downloads_if_the_first_does_not_reach_the_hub(
    hub, serve, held, machines, wanted_files
):
    held("n1")
    endpoint = await serve(hub.app())
    inventory = machines.inventory("n1", "n2", "n3", linked=False)
    local = Node(address="local")
    inventory = inventory.model_copy(update={"nodes": {**inventory.nodes, "n2": local, "n3": local}})
    channels = machines.channels("n1", "n2", "n3")
    keep_from_the_hub(channels["n2"])
    with pytest.raises(StagingError, match="n2 failed, too"):
        await stage(
            inventory,
            channels,
            [Need.model(MODEL, ("n2", "n3"))],
            machines.heard.append,
            settings=machines.settings("n1", "n2", "n3", endpoint=endpoint),
        )
    assert snapshot_of(machines.cache("n3"), hub.commit) == wanted_files


async def test_no_room_is_refused_before_anything_moves(hub, serve, machines, staging):
    endpoint = await serve(hub.app())
    with pytest.raises(StagingError, match="does not fit") as refused:
        await staging(Need.model(MODEL, ("n1",)), "n1", endpoint=endpoint, reserve_bytes=1 << 60)
    assert "prune" in refused.value.do
    assert hub.bytes_sent == 0


async def test_a_node_without_a_way_to_the_hub_lets_another_try(hub, serve, machines, wanted_files):
    endpoint = await serve(hub.app())
    channels = machines.channels("n1", "n2")
    keep_from_the_hub(channels["n1"])
    heard = machines.heard
    await stage(
        machines.inventory("n1", "n2"),
        channels,
        [Need.model(MODEL, ("n1", "n2"))],
        heard.append,
        settings=machines.settings("n1", "n2", endpoint=endpoint),
    )
    assert snapshot_of(machines.cache("n1"), hub.commit) == wanted_files
    lines = [progress for progress in heard if "Trying another node" in progress.text]
    assert lines
    assert not [one.text for one in lines if one.text.startswith("n1")], "its node is shown before it"


async def test_push_of_a_model_on_no_node(staging):
    need = Need(wanted=Need.model(MODEL, ()).wanted, nodes=("n2",), hub="never")
    with pytest.raises(StagingError, match="no node has a complete copy of tests/tiny"):
        await staging(need, "n1", "n2")


async def test_a_node_that_is_not_there(staging):
    for need in (Need.model(MODEL, ("n1", "n9")), Need.image(f"x@sha256:{'a' * 64}", ("n9",))):
        with pytest.raises(StagingError, match="n9 is not a node of this fleet"):
            await staging(need, "n1")


async def test_a_need_without_nodes(staging):
    assert (await staging(Need.model(MODEL, ()), "n1"))[0].paths == {}


async def test_survey_lists_complete_and_incomplete_models(held, machines):
    for node in ("n1", "n2"):
        held(node)
    blobs = machines.cache("n2") / "models--tests--tiny" / "blobs"
    max(blobs.iterdir(), key=lambda path: path.stat().st_size).unlink()
    seen = await survey(machines.channels("n1", "n2"), settings=machines.settings("n1", "n2"))
    one, two = (seen[node].everything[0] for node in ("n1", "n2"))
    assert (one.name, one.revisions, one.complete) == (MODEL, ("main",), True)
    assert not two.complete
    assert one.held_bytes - two.held_bytes == 3_000_000


OPERATOR = """
import asyncio, sys
from sparkfleet.remote.local import LocalChannel
from sparkfleet.staging.agent_client import call
from sparkfleet.staging.agent.rsync_serve import Serving, ServeRequest

def heard(line):
    print(line.model_dump_json(), flush=True)

request = ServeRequest.model_validate_json(sys.stdin.read())
asyncio.run(call(LocalChannel("n1"), (sys.executable, "rsync_serve"), request, Serving, on_line=heard))
"""


async def test_a_sender_ends_when_the_operator_is_killed(machines, tmp_path):
    (machines.cache("n1") / "models--tests--tiny" / "blobs").mkdir(parents=True)
    request = {
        "kind": "hub",
        "name": MODEL,
        "cache": str(machines.cache("n1")),
        "listen": [{"address": "127.0.1.1", "peer": "127.0.1.2"}],
        "secret": "s" * 32,
        "limit_s": 600.0,
    }
    operator = await asyncio.create_subprocess_exec(
        sys.executable, "-c", OPERATOR, stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE,
        env={**os.environ, "TMPDIR": str(tmp_path)},
    )  # fmt: skip
    operator.stdin.write(json.dumps(request).encode())
    operator.stdin.close()
    async with asyncio.timeout(PATIENCE_S):
        serving = json.loads(await operator.stdout.readline())["value"]
        handle = os.pidfd_open(serving["pid"])
        os.kill(operator.pid, signal.SIGKILL)
        gone = asyncio.Event()
        asyncio.get_running_loop().add_reader(handle, gone.set)
        await gone.wait()
        asyncio.get_running_loop().remove_reader(handle)
        os.close(handle)
        await operator.wait()
    assert not list(Path(tmp_path).glob("sparkfleet-serve-*"))
