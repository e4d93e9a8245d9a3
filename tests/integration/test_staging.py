"""Staging in a lab: real SSH, real rsync, real namespaces; a Hub that only this machine has."""

from __future__ import annotations

import asyncio
import hashlib
import importlib.util
import os
import random
import shutil
import signal
import socket
import sys
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from aiohttp import web

from sparkfleet.lab import Lab
from sparkfleet.remote.open_channel import open_channels
from sparkfleet.specs.load import load_inventory
from sparkfleet.staging.orchestrate import stage
from sparkfleet.staging.settings import Need, StagingSettings

pytestmark = [
    pytest.mark.integration,
    pytest.mark.skipif(os.geteuid() != 0 or shutil.which("rsync") is None, reason="needs root and rsync"),
]

ROOT = Path(__file__).parents[2]
MODEL = "tests/tiny"
SHARD_BYTES = 6_000_000
PATIENCE_S = 240

_SPEC = importlib.util.spec_from_file_location("lab_fake_hub", ROOT / "tests" / "staging" / "fake_hub.py")
assert _SPEC is not None
assert _SPEC.loader is not None
fake_hub = importlib.util.module_from_spec(_SPEC)
sys.modules["lab_fake_hub"] = fake_hub
_SPEC.loader.exec_module(fake_hub)


def repository() -> dict[str, bytes]:
    shards = {
        f"model-0000{i}-of-00004.safetensors": random.Random(i).randbytes(SHARD_BYTES) for i in range(1, 5)
    }
    return {"config.json": b'{"model_type": "llama"}', **shards}


SIZE = sum(map(len, repository().values()))


class Fleet:
    """A lab with a Hub on its management LAN."""

    def __init__(self, lab: Lab, inventory, channels, hub, endpoint: str) -> None:
        self.lab, self.inventory, self.channels, self.hub = lab, inventory, channels, hub
        self.nodes = tuple(node.name for node in lab.nodes)
        self.settings = StagingSettings(
            python=dict.fromkeys(self.nodes, sys.executable),
            endpoint=endpoint,
            reserve_bytes=0,
        )
        self.heard = []

    async def stage(self, *nodes: str):
        need = Need.model(MODEL, nodes or self.nodes)
        async with asyncio.timeout(PATIENCE_S):
            (staged,) = await stage(
                self.inventory, self.channels, [need], self.heard.append, settings=self.settings
            )
        return staged

    def received(self, node: str) -> dict[str, int]:
        """Bytes that each netdev of a node has received, by the kernel's own count."""
        lines = self.lab.exec(node, ["cat", "/proc/net/dev"]).stdout.splitlines()[2:]
        return {
            name.strip(): int(rest.split()[0]) for name, _, rest in (line.partition(":") for line in lines)
        }

    def rails(self, node: str) -> set[str]:
        return {
            rail[link.nodes.index(node)].netdev
            for link in self.inventory.links
            if node in link.nodes
            for rail in link.rails
        }

    def digests(self, node: str) -> dict[str, str]:
        program = (
            "import hashlib, pathlib; p = pathlib.Path.home()/'.cache/huggingface/hub/models--tests--tiny';"
            "c = (p/'refs'/'main').read_text();"
            "[print(f.name, hashlib.sha256(f.read_bytes()).hexdigest()) for f in (p/'snapshots'/c).iterdir()]"
        )
        said = self.lab.exec(node, [sys.executable, "-S", "-c", program])
        assert said.returncode == 0, said.stderr
        return dict(line.split() for line in said.stdout.splitlines())

    def processes(self, node: str) -> list[str]:
        said = self.lab.exec(node, ["ps", "-eo", "args"]).stdout.splitlines()
        return [line for line in said if "sparkfleet.staging" in line or "rsync" in line]


DIGESTS = {path: hashlib.sha256(content).hexdigest() for path, content in repository().items()}


@asynccontextmanager
async def fleet_of(count: int, tmp_path: Path):
    shares = {str(ROOT), sys.prefix, sys.base_prefix} - {"/usr", "/usr/local"}
    lab = await asyncio.to_thread(Lab.up, nodes=count, shares=sorted(shares))
    try:
        (tmp_path / "inventory.yaml").write_text(lab.inventory())
        inventory = load_inventory(tmp_path / "inventory.yaml")
        channels = open_channels(inventory)
        hub = fake_hub.FakeHub(repository())
        runner = web.AppRunner(hub.app(), shutdown_timeout=0.1)
        await runner.setup()
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
            probe.connect((lab.nodes[0].address, 9))
            host = probe.getsockname()[0]
        await web.TCPSite(runner, host, 0).start()
        try:
            yield Fleet(lab, inventory, channels, hub, f"http://{host}:{runner.addresses[0][1]}")
        finally:
            await asyncio.gather(*(channel.close() for channel in channels.values()))
            await runner.cleanup()
    finally:
        await asyncio.to_thread(lab.down)


async def test_two_sparks_from_the_hub_once_then_over_both_rails(tmp_path):
    async with fleet_of(2, tmp_path) as fleet:
        before = {node: fleet.received(node) for node in fleet.nodes}
        staged = await fleet.stage()
        assert fleet.hub.bytes_sent == SIZE
        assert {node: fleet.digests(node) for node in fleet.nodes} == dict.fromkeys(fleet.nodes, DIGESTS)
        assert staged.moved_bytes == 2 * SIZE
        (copier,) = {progress.node for progress in fleet.heard if progress.phase == "link"}
        after = fleet.received(copier)
        moved = {netdev: after[netdev] - before[copier][netdev] for netdev in after}
        rails = fleet.rails(copier)
        assert all(moved[rail] > SIZE / 5 for rail in rails), moved
        assert (
            sum(count for netdev, count in moved.items() if netdev not in rails and netdev != "lo")
            < SIZE / 10
        )

        # One rail is cut: it goes over the other, and says so.
        fleet.lab.exec(copier, ["rm", "-rf", "/home/nvidia/.cache/huggingface"])
        link = fleet.lab.links[0].name
        fleet.lab.cut(link, 0)
        await fleet.stage()
        assert fleet.digests(copier) == DIGESTS
        assert any("continuing over the others" in progress.text for progress in fleet.heard)
        assert fleet.hub.bytes_sent == SIZE


async def test_four_sparks_at_a_switch_and_an_interruption_that_loses_nothing(tmp_path):
    async with fleet_of(4, tmp_path) as fleet:
        await fleet.stage("spark1")
        for cable in fleet.lab.links:
            fleet.lab.slow(cable.name, gbit=0.05)
        moving = asyncio.Event()

        def heard(progress):
            fleet.heard.append(progress)
            if progress.phase == "link" and progress.done_bytes > SIZE / 4:
                moving.set()

        need = Need.model(MODEL, fleet.nodes)
        work = asyncio.ensure_future(
            stage(fleet.inventory, fleet.channels, [need], heard, settings=fleet.settings)
        )
        async with asyncio.timeout(PATIENCE_S):
            await asyncio.wait(
                (asyncio.ensure_future(moving.wait()), work), return_when=asyncio.FIRST_COMPLETED
            )
        assert moving.is_set()
        work.cancel()
        with pytest.raises(asyncio.CancelledError):
            await work
        for cable in fleet.lab.links:
            fleet.lab.mend(cable.name)
        staged = await fleet.stage()
        assert fleet.hub.bytes_sent == SIZE
        assert {node: fleet.digests(node) for node in fleet.nodes} == dict.fromkeys(fleet.nodes, DIGESTS)
        assert staged.moved_bytes < 3 * SIZE - SIZE / 5  # the bytes of the first run are not moved again
        senders = {(progress.source, progress.node) for progress in fleet.heard if progress.phase == "link"}
        assert len({source for source, _ in senders}) > 1  # who has it sends it on
        assert not [progress for progress in fleet.heard if progress.phase == "lan"]


OPERATOR = """
import asyncio, sys
from pathlib import Path
from sparkfleet.remote.open_channel import open_channels
from sparkfleet.specs.load import load_inventory
from sparkfleet.staging.settings import Need, StagingSettings
from sparkfleet.staging.orchestrate import stage

inventory = load_inventory(Path(sys.argv[1]))
settings = StagingSettings(python=dict.fromkeys(inventory.nodes, sys.executable), reserve_bytes=0)
need = Need.model("tests/tiny", tuple(inventory.nodes))
asyncio.run(stage(inventory, open_channels(inventory), [need], lambda p: print(p.phase, p.done_bytes, flush=True),
                  settings=settings))
"""


async def test_a_killed_operator_leaves_no_process_on_any_node(tmp_path):
    async with fleet_of(2, tmp_path) as fleet:
        await fleet.stage("spark1")
        for cable in fleet.lab.links:
            fleet.lab.slow(cable.name, gbit=0.02)
        operator = await asyncio.create_subprocess_exec(
            sys.executable, "-c", OPERATOR, str(tmp_path / "inventory.yaml"), stdout=asyncio.subprocess.PIPE
        )
        async with asyncio.timeout(PATIENCE_S):
            async for line in operator.stdout:
                if line.startswith(b"link"):
                    break
            else:
                pytest.fail(f"the operator ended before it copied: exit code {await operator.wait()}")
            assert fleet.processes("spark1")
            operator.send_signal(signal.SIGKILL)
            await operator.wait()
            while any(fleet.processes(node) for node in fleet.nodes):
                await asyncio.sleep(0.2)
        for cable in fleet.lab.links:
            fleet.lab.mend(cable.name)
        await fleet.stage()
        assert fleet.digests("spark2") == DIGESTS

        # The same nodes without a cable between them: the LAN carries it, and that is said.
        fleet.lab.exec("spark2", ["rm", "-rf", "/home/nvidia/.cache/huggingface"])
        fleet.inventory = fleet.inventory.model_copy(update={"links": ()})
        fleet.heard.clear()
        await fleet.stage()
        assert fleet.digests("spark2") == DIGESTS
        assert any("copying over the LAN" in progress.text for progress in fleet.heard)
        assert "link" not in {progress.phase for progress in fleet.heard}
