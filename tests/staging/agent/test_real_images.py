"""Images in stores of real podman and real Docker: pulled from a registry on loopback, and copied from node to node."""

from __future__ import annotations

import asyncio
import os
import random
import shutil
import subprocess
import tarfile
import tempfile
from contextlib import ExitStack
from io import BytesIO
from pathlib import Path

import docker_engine
import pytest
from fake_registry import FakeRegistry
from node_storage import Apart

from sparkfleet.staging.agent.image_architectures import own_architecture
from sparkfleet.staging.agent.images import staged_name
from sparkfleet.staging.fleet import StagingNodes
from sparkfleet.staging.orchestrate import stage
from sparkfleet.staging.pin_images import pin
from sparkfleet.staging.settings import Need

pytestmark = pytest.mark.integration


class Podman:
    """Nodes with a podman store each."""

    name = "podman"

    def __init__(self, stack):
        pass

    def storage(self, root):
        """The environment of a node."""
        root.mkdir()
        conf = root / "storage.conf"
        conf.write_text(f'[storage]\ndriver = "vfs"\ngraphroot = "{root}/graph"\nrunroot = "{root}/run"\n')
        return {"CONTAINERS_STORAGE_CONF": str(conf)}

    def digest(self, own):
        """By which a node knows an image that was built on it."""
        return ask(self.name, own, "image", "inspect", "localhost/tiny:1", "--format", "{{.Digest}}")


class Docker:
    """Nodes with a Docker engine each."""

    name = "docker"

    def __init__(self, stack):
        self._stack = stack

    def storage(self, root):
        """The environment of a node, whose engine runs until the end of the test."""
        directory = self._stack.enter_context(
            tempfile.TemporaryDirectory(prefix="docker", dir="/tmp", ignore_cleanup_errors=True)
        )
        engine = self._stack.enter_context(docker_engine.running(Path(directory)))
        return {"DOCKER_HOST": engine.url}

    def digest(self, own):
        """By which a node knows an image that was built on it: Docker has no digest of one that was never pushed."""
        return ask(self.name, own, "image", "inspect", "localhost/tiny:1", "--format", "{{.Id}}")


def ask(tool, own, *words):
    done = subprocess.run(
        [tool, *words],
        check=False,
        env={"PATH": os.environ["PATH"], "HOME": "/nowhere", **own},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def built(tool, own, directory, *words):
    """`localhost/tiny:1` in a node's storage, or what other words of `import` ask for."""
    with tarfile.open(directory / "root.tar", "w") as tar:
        entry = tarfile.TarInfo("hello")
        entry.size = 200_000
        tar.addfile(entry, BytesIO(random.Random(0).randbytes(200_000)))  # no tool packs it smaller
    options, name = (words[:-1], words[-1]) if words else ((), "localhost/tiny:1")
    ask(tool, own, "import", *options, str(directory / "root.tar"), name)


@pytest.fixture(params=[Podman, Docker], ids=["podman", "docker"])
def real(request):
    """A container tool with stores that are apart from the user's."""
    if shutil.which("podman") is None or os.geteuid() != 0:
        pytest.skip("needs podman, and root for stores that are apart from the user's")
    with ExitStack() as stack:
        yield request.param(stack)


async def test_a_tag_is_pulled_once_and_all_nodes_get_that_image(machines, tmp_path, serve, real):
    """And the registry knows it by the digest that was found."""
    maker = Podman(None).storage(tmp_path / "other")
    built("podman", maker, tmp_path)
    ask("podman", maker, "save", "--format=oci-dir", f"--output={tmp_path}/layout", "localhost/tiny:1")
    registry = FakeRegistry(tmp_path / "layout")
    place = (await serve(registry.app())).removeprefix("http://")
    conf = tmp_path / "registries.conf"
    conf.write_text(f'[[registry]]\nlocation = "{place}"\ninsecure = true\n')
    nodes = ("n1", "n2")
    own = {name: real.storage(tmp_path / name) for name in nodes}
    channels = {name: Apart(name, {**own[name], "CONTAINERS_REGISTRIES_CONF": str(conf)}) for name in nodes}
    settings = machines.settings(*nodes, tool=real.name)
    tag = f"{place}/tiny:1"
    found = await pin(channels, Need.image(tag, nodes), machines.heard.append, settings=settings)
    assert (found.image, found.node) == (f"{tag}@sha256:{registry.digest}", "n1")
    need = Need.image(found.image, nodes)
    (staged,) = await stage(
        machines.inventory(*nodes), channels, [need], machines.heard.append, settings=settings
    )
    layers = "{{json .RootFS.Layers}}"
    wanted = ask("podman", maker, "image", "inspect", "localhost/tiny:1", "--format", layers)
    for node in nodes:
        assert ask(real.name, own[node], "image", "inspect", staged.paths[node], "--format", layers) == wanted


async def test_a_node_that_has_another_architectures_build_gets_its_own(machines, tmp_path, serve, real):
    """And no node gets the build of n1, which has it under the digest of the list of builds, from there."""
    maker = Podman(None).storage(tmp_path / "other")
    for architecture in ("amd64", "arm64"):
        built("podman", maker, tmp_path, f"--arch={architecture}", f"localhost/tiny:{architecture}")
    ask("podman", maker, "manifest", "create", "all:1")
    for architecture in ("amd64", "arm64"):
        ask("podman", maker, "manifest", "add", "all:1", f"containers-storage:localhost/tiny:{architecture}")
    ask("podman", maker, "manifest", "push", "--all", "all:1", f"oci:{tmp_path}/layout")
    registry = FakeRegistry(tmp_path / "layout")
    place = (await serve(registry.app())).removeprefix("http://")
    conf = tmp_path / "registries.conf"
    conf.write_text(f'[[registry]]\nlocation = "{place}"\ninsecure = true\n')
    nodes, known = ("n1", "n2", "n3"), {"CONTAINERS_REGISTRIES_CONF": str(conf)}
    own = {name: {**real.storage(tmp_path / name), **known} for name in nodes}
    tag, other = f"{place}/tiny:1", {"amd64": "arm64", "arm64": "amd64"}[own_architecture()]
    await asyncio.to_thread(ask, real.name, own["n1"], "pull", "--quiet", f"--platform=linux/{other}", tag)
    channels = {name: Apart(name, own[name]) for name in nodes}
    settings = machines.settings(*nodes, tool=real.name)
    found = await pin(channels, Need.image(tag, ("n2", "n3")), machines.heard.append, settings=settings)
    assert (found.image, found.node) == (f"{tag}@sha256:{registry.digest}", "n2")
    need = Need.image(found.image, nodes)
    (staged,) = await stage(
        machines.inventory(*nodes), channels, [need], machines.heard.append, settings=settings
    )
    for node in nodes:
        form = ("--format", "{{.Architecture}}")
        assert ask(real.name, own[node], "image", "inspect", staged.paths[node], *form) == own_architecture()
    assert staged.moved_bytes > 200_000, "only n2 has pulled it"


async def test_an_image_goes_from_node_to_node(machines, tmp_path, real):
    one, two = real.storage(tmp_path / "s1"), real.storage(tmp_path / "s2")
    built(real.name, one, tmp_path)
    digest = real.digest(one)
    wanted = ask(real.name, one, "image", "inspect", "localhost/tiny:1", "--format", "{{.Id}}")
    image = f"localhost/tiny@{digest}"
    channels = {"n1": Apart("n1", one), "n2": Apart("n2", two)}
    settings = machines.settings("n1", "n2", tool=real.name)
    need = Need.image(image, ("n1", "n2"))
    (staged,) = await stage(
        machines.inventory("n1", "n2"), channels, [need], machines.heard.append, settings=settings
    )
    assert staged.paths == dict.fromkeys(("n1", "n2"), staged_name(image))
    for own in (one, two):
        assert ask(real.name, own, "image", "inspect", staged_name(image), "--format", "{{.Id}}") == wanted
    assert staged.moved_bytes > 200_000
    fleet = StagingNodes(channels, settings, machines.heard.append)
    held = await fleet.staged_images({"n1": (), "n2": ()}, needed=())
    assert {node: [(i.digest, i.names) for i in found.images] for node, found in held.items()} == {
        "n1": [(digest.removeprefix("sha256:"), ("localhost/tiny:1",))],
        "n2": [(digest.removeprefix("sha256:"), ())],
    }
    assert all(found.images[0].size >= 200_000 for found in held.values())
    removed = await fleet.staged_images({"n2": [digest.removeprefix("sha256:")]}, needed=("n2",))
    assert [image.tool for image in removed["n2"].images] == [real.name]
    assert ask(real.name, two, "images", "--quiet") == ""
    assert ask(real.name, one, "image", "inspect", staged_name(image), "--format", "{{.Id}}") == wanted
    assert any(progress.phase == "link" for progress in machines.heard)
    assert not [path for node in ("n1", "n2") for path in machines.cache(node).rglob("*.tar")]
