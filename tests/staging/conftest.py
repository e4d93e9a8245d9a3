"""Fixtures of the tests of `staging`: a Hub on loopback, and nodes that are this machine with caches of their own."""

from __future__ import annotations

import importlib.util
import random
import shutil
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack
from pathlib import Path
from types import ModuleType

import pytest
from aiohttp import web
from tiny_copy import MODEL

from sparkfleet.remote.local import LocalChannel
from sparkfleet.specs.inventory import Inventory, Link, Node, RailEnd
from sparkfleet.staging.orchestrate import stage
from sparkfleet.staging.progress import TransferProgress
from sparkfleet.staging.settings import Need, StagingSettings


def _beside(name: str) -> ModuleType:
    """A module beside this file."""
    spec = importlib.util.spec_from_file_location(name, Path(__file__).with_name(f"{name}.py"))
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


fake_hub = _beside("fake_hub")
fake_registry = _beside("fake_registry")

Staging = Callable[..., Awaitable[object]]

HOST_KEY = "SHA256:" + "A" * 43


def content(seed: int, size: int) -> bytes:
    return random.Random(seed).randbytes(size)


@pytest.fixture
def files() -> dict[str, bytes]:
    """A repository with weights in two shards and everything that is not wanted."""
    return {
        ".gitattributes": b"*.safetensors filter=lfs",
        "README.md": b"# Tiny",
        "config.json": b'{"model_type": "llama"}',
        "model-00001-of-00002.safetensors": content(1, 3_000_000),
        "model-00002-of-00002.safetensors": content(2, 1_000_000),
        "model.safetensors.index.json": b'{"weight_map": {"a": "model-00001-of-00002.safetensors",'
        b' "b": "model-00002-of-00002.safetensors"}}',
        "original/consolidated.00.pth": content(3, 5000),
        "pytorch_model.bin": content(4, 5000),
        "tokenizer.json": content(5, 400),
        "picture of it.png": content(6, 400),
        "empty.txt": b"",
    }


WANTED = {
    "README.md",
    "config.json",
    "model-00001-of-00002.safetensors",
    "model-00002-of-00002.safetensors",
    "model.safetensors.index.json",
    "tokenizer.json",
    "empty.txt",
}


@pytest.fixture
def wanted_files(files: dict[str, bytes]) -> dict[str, bytes]:
    return {path: files[path] for path in WANTED}


@pytest.fixture
async def serve() -> AsyncIterator[Callable[[web.Application], Awaitable[str]]]:
    """Serves an application on loopback; yields its address."""
    async with AsyncExitStack() as stack:

        async def start(app: web.Application) -> str:
            runner = web.AppRunner(app, shutdown_timeout=0.1)
            await runner.setup()
            stack.push_async_callback(runner.cleanup)
            await web.TCPSite(runner, "127.0.0.1", 0).start()
            return f"http://127.0.0.1:{runner.addresses[0][1]}"

        yield start


@pytest.fixture
def hub(files: dict[str, bytes]) -> fake_hub.FakeHub:
    return fake_hub.FakeHub(files)


class Machines:
    """Nodes n1, n2, … of one fleet that all are this machine: n1's rails are at 127.0.1.1 and 127.0.1.129, and so on."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.heard: list[TransferProgress] = []

    def cache(self, node: str) -> Path:
        return self.root / node / "hub"

    def channels(self, *nodes: str) -> dict[str, LocalChannel]:
        return {node: LocalChannel(node) for node in nodes}

    def settings(self, *nodes: str, **more: object) -> StagingSettings:
        return StagingSettings.model_validate(
            {
                "cache": {node: str(self.cache(node)) for node in nodes},
                "reserve_bytes": 0,
                **more,
            }
        )

    def inventory(self, *nodes: str, linked: bool = True) -> Inventory:
        """All of them at one switch, by two rails each. Loopback addresses are refused in real inventories."""
        links = tuple(
            Link.model_construct(
                nodes=(node,), switch="switch", rails=tuple((_end(node, rail),) for rail in range(2))
            )
            for node in nodes
        )
        return Inventory.model_construct(
            fleet="test",
            head=nodes[0],
            nodes={node: _node(node) for node in nodes},
            links=links if linked else (),
        )


def _end(node: str, rail: int) -> RailEnd:
    number = int(node.removeprefix("n"))
    return RailEnd.model_construct(netdev=f"rail{rail}", rdma=None, address=f"127.{rail}.1.{number}/16")


def _node(node: str) -> Node:
    number = int(node.removeprefix("n"))
    return Node(address=f"127.9.9.{number}", user="nobody", host_key=HOST_KEY)


@pytest.fixture
def machines(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Machines:
    for name in ("HF_TOKEN", "HF_HOME", "HF_HUB_CACHE", "HF_ENDPOINT", "HF_HUB_OFFLINE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return Machines(tmp_path)


@pytest.fixture
def staging(machines: Machines) -> Staging:
    """staging(need, nodes, …) stages it on a fleet of these nodes."""

    async def run(need: Need, *nodes: str, linked: bool = True, **settings: object) -> object:
        return await stage(
            machines.inventory(*nodes, linked=linked),
            machines.channels(*nodes),
            [need],
            machines.heard.append,
            settings=machines.settings(*nodes, **settings),
        )

    return run


@pytest.fixture(scope="session")
def pulled(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The cache of a node that has pulled the model; made by the first test that needs it in each process."""
    return tmp_path_factory.mktemp("pulled") / "hub"


@pytest.fixture
async def held(
    hub: fake_hub.FakeHub,
    serve: Callable[[web.Application], Awaitable[str]],
    machines: Machines,
    staging: Staging,
    pulled: Path,
) -> Callable[[str], object]:
    """held(node): it has the model, as if it had pulled it."""
    if not pulled.exists():
        await staging(Need.model(MODEL, ("n1",)), "n1", endpoint=await serve(hub.app()))
        shutil.move(machines.cache("n1"), pulled)
        machines.heard.clear()
        hub.asked.clear()
    return lambda node: shutil.copytree(pulled, machines.cache(node), symlinks=True)
