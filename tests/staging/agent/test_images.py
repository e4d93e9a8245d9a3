from __future__ import annotations

import asyncio
import hashlib
import json
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
from docker_engine import DockerEngine
from fake_registry import FakeRegistry
from node_storage import Apart

from sparkfleet.remote.channel import Completed
from sparkfleet.staging.agent import images, transfer
from sparkfleet.staging.agent.images import ImageRequest, in_full, staged_name, work
from sparkfleet.staging.agent.protocol import LineReporter
from sparkfleet.staging.agent.scan import HeldVersion, NodeScan
from sparkfleet.staging.errors import StagingError
from sparkfleet.staging.fleet import StagingNodes
from sparkfleet.staging.manifest import File, Manifest
from sparkfleet.staging.orchestrate import stage
from sparkfleet.staging.pin_images import pin
from sparkfleet.staging.settings import Need
from sparkfleet.staging.storage_layout import directory_of

DIGEST = "d" * 64
IMAGE = f"registry.example/org/vllm@sha256:{DIGEST}"
ID = "1" * 64


@pytest.mark.parametrize(
    "image", ["vllm", "vllm:latest", "vllm@sha256:12", f"-x@sha256:{DIGEST}", f"a b@sha256:{DIGEST}"]
)
def test_an_image_without_a_digest_is_refused_with_the_reason(image):
    with pytest.raises(StagingError, match="has no digest") as refused:
        staged_name(image)
    assert "digest" in refused.value.do


@pytest.mark.parametrize("action", ["save", "load", "drop"])
def test_only_looking_and_pulling_do_with_a_tag(action, tmp_path):
    request = ImageRequest(action=action, image="registry.example/vllm:1", cache=str(tmp_path))
    with pytest.raises(StagingError, match="has no digest"):
        work(request, LineReporter())


@pytest.mark.parametrize(
    ("image", "full"),
    [
        ("vllm", "docker.io/library/vllm"),
        ("vllm:0.12", "docker.io/library/vllm:0.12"),
        ("vllm/vllm-openai:v0.27.1", "docker.io/vllm/vllm-openai:v0.27.1"),
        (f"vllm/vllm-openai@sha256:{DIGEST}", f"docker.io/vllm/vllm-openai@sha256:{DIGEST}"),
        ("nvcr.io/nvidia/vllm:26.04-py3", "nvcr.io/nvidia/vllm:26.04-py3"),
        ("spark1:5000/vllm", "spark1:5000/vllm"),
        ("localhost/tts:latest", "localhost/tts:latest"),
    ],
)
def test_a_short_name_is_the_docker_hubs(image, full):
    assert in_full(image) == full


def test_a_staged_image_has_one_name_on_every_node():
    assert staged_name(IMAGE) == f"localhost/sparkfleet-staged:{DIGEST}"


def test_an_archive_is_on_the_disk_before_it_has_its_name(tmp_path, monkeypatch):
    """After a power cut it was short, and kept: no other node could load it any more."""
    synced = []

    async def execute(argv):
        if "--output" in argv:
            Path(argv[argv.index("--output") + 1]).write_bytes(b"layers")
        described = json.dumps([{"Id": ID, "Size": 6}])
        return Completed(argv=tuple(argv), exit_code=0, stdout=described, stderr="")

    def fsync(number):
        synced.append(archive.exists())

    request = ImageRequest(action="save", image=IMAGE, cache=str(tmp_path), reserve_bytes=0)
    archive = directory_of("image", IMAGE, str(tmp_path)) / images.ARCHIVE
    monkeypatch.setattr(images, "_execute", execute)
    monkeypatch.setattr(shutil, "which", lambda name: f"/usr/bin/{name}")
    monkeypatch.setattr(os, "fsync", fsync)
    work(request, LineReporter())
    assert (archive.read_bytes(), synced) == (b"layers", [False])


@pytest.mark.parametrize(
    ("free", "words"), [(1000, "are needed"), (2000, "no space left on device")], ids=["no room", "failed"]
)
@pytest.mark.parametrize("store", ["docker's", "containerd's"])
def test_an_image_that_is_not_loaded_leaves_no_archive(store, free, words, tmp_path, monkeypatch):
    """The room for its layers was not checked, and nothing listed the archive that stayed."""
    loaded, looked = [], []
    layers, root, driver = tmp_path / "docker", tmp_path / "docker", "[[Backing Filesystem extfs]]"
    if store == "containerd's":
        root, driver = tmp_path / "other", "[[driver-type io.containerd.snapshotter.v1]]"
        monkeypatch.setattr(images, "CONTAINERD_STORE", str(layers))

    async def execute(argv):
        loaded.extend(argv[1:2] if argv[1] == "load" else ())
        failed = argv[1] in ("load", "image")
        stdout = f"{driver}\n{root}\n" if argv[1] == "info" else ""
        return Completed(
            argv=tuple(argv), exit_code=int(failed), stdout=stdout, stderr="no space left on device"
        )

    def free_bytes(path):
        looked.append(path)
        return free

    directory = directory_of("image", IMAGE, str(tmp_path))
    directory.mkdir(parents=True)
    (directory / images.ARCHIVE).write_bytes(b"x" * 1500)
    file = File(path=images.ARCHIVE, size=1500, digest=hashlib.sha256(b"x" * 1500).hexdigest())
    monkeypatch.setattr(images, "_execute", execute)
    monkeypatch.setattr(shutil, "which", lambda name: f"/usr/bin/{name}")
    monkeypatch.setattr(transfer, "free_bytes", free_bytes)
    request = ImageRequest(
        action="load", image=IMAGE, cache=str(tmp_path), tool="docker", reserve_bytes=500,
        manifest=Manifest(kind="image", name=IMAGE, files=(file,)),
    )  # fmt: skip
    with pytest.raises(StagingError, match=words):
        work(request, LineReporter())
    assert not directory.exists()
    assert (looked, loaded) == ([layers], ["load"] * (free == 2000))


async def test_an_image_that_is_not_loaded_leaves_no_archive_at_its_source(machines, tmp_path, monkeypatch):
    asked = []
    file = File(path=images.ARCHIVE, size=1, digest="a" * 64)
    sealed = Manifest(kind="image", name=IMAGE, files=(file,))

    async def act(fleet, nodes, request, needed):
        asked.append((request.action, tuple(nodes)))
        if request.action == "load":
            raise StagingError("could not load it")
        return {node: images.ImageHeld(tool="docker", id=ID if node == "n1" else "") for node in nodes}

    async def seal(fleet, kind, name, nodes):
        return {"n1": sealed}

    async def look(fleet, needed, request):
        held = HeldVersion(kind="image", name=IMAGE, complete=True, held={images.ARCHIVE: 1})
        return {node: NodeScan(free_bytes=1 << 40, manifests=(held,)) for node in ("n1", "n2")}

    monkeypatch.setattr(StagingNodes, "images", act)
    monkeypatch.setattr(StagingNodes, "seal", seal)
    monkeypatch.setattr(StagingNodes, "look", look)
    nodes = ("n1", "n2")
    with pytest.raises(StagingError, match="could not load it"):
        await stage(machines.inventory(*nodes), machines.channels(*nodes), [Need.image(IMAGE, nodes)])
    assert asked[-1] == ("drop", nodes)


async def test_two_runs_at_once_save_an_image_once(tmp_path, monkeypatch):
    """The second one emptied the first one's directory, whose half an archive then got the final name."""
    saved = []

    async def execute(argv):
        if "--output" in argv:
            saved.append(argv)
            with Path(argv[argv.index("--output") + 1]).open("wb") as archive:  # noqa: ASYNC230
                for layer in (b"one", b"two"):
                    archive.write(layer)
                    archive.flush()
                    await asyncio.sleep(0.05)
        described = json.dumps([{"Id": ID, "Size": 6}])
        return Completed(argv=tuple(argv), exit_code=0, stdout=described, stderr="")

    async def run(after_s):
        await asyncio.sleep(after_s)
        return await asyncio.to_thread(work, request, LineReporter())

    request = ImageRequest(action="save", image=IMAGE, cache=str(tmp_path), reserve_bytes=0)
    archive = directory_of("image", IMAGE, str(tmp_path)) / images.ARCHIVE
    monkeypatch.setattr(images, "_execute", execute)
    monkeypatch.setattr(shutil, "which", lambda name: f"/usr/bin/{name}")
    await asyncio.gather(run(0.0), run(0.07))
    assert (archive.read_bytes(), len(saved)) == (b"onetwo", 1)


@pytest.fixture
def tool(tmp_path, monkeypatch):
    """A docker that has one image (or none, or another after a load), and notes what it is asked."""
    log = tmp_path / "asked"

    def make(name: str = "docker", answer: str = "", version: int = 0, known: str = "*") -> None:
        program = tmp_path / "bin" / name
        program.parent.mkdir(exist_ok=True)
        program.write_text(
            f'#!/bin/sh\necho {name} "$@" >> {log}\n'
            f"case $1 in version) echo 'permission denied' >&2; exit {version};; esac\n"
            f"case $1:$2:$3 in image:inspect:{known}) {f'echo {answer!r}' if answer else 'exit 1'};;"
            " image:inspect:*) exit 1;; pull:*) test -z \"$OFFLINE\" || { echo 'no such host' >&2; exit 1; };; esac\n"
        )
        program.chmod(0o755)

    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:/bin")
    make.log = log
    return make


def described(**more):
    return json.dumps([{"Id": f"sha256:{ID}", "Size": 1000, **more}])


def test_look_reports_the_image(tool, tmp_path):
    tool(answer=described())
    found = work(ImageRequest(action="look", image=IMAGE, cache=str(tmp_path)), LineReporter())
    assert (found.tool, found.id, found.size) == ("docker", ID, 1000)
    assert f"docker tag {ID} {staged_name(IMAGE)}" in tool.log.read_text()


def test_a_tag_is_answered_with_the_digest_that_its_repository_has(tool, tmp_path):
    others = [f"mirror.example/vllm@sha256:{'e' * 64}", "odd", f"docker.io/org/vllm@sha256:{DIGEST}"]
    tool(answer=described(RepoDigests=others))
    found = work(ImageRequest(action="look", image="org/vllm:1", cache=str(tmp_path)), LineReporter())
    assert (found.id, found.digest) == (ID, DIGEST)
    assert "docker tag" not in tool.log.read_text(), "it is named once it is known for good"


@pytest.mark.parametrize("references", [None, [], [f"localhost/other@sha256:{DIGEST}"]])
def test_an_image_that_no_registry_has_has_no_digest(tool, tmp_path, references):
    tool(answer=described(RepoDigests=references))
    found = work(
        ImageRequest(action="look", image="localhost/tts:latest", cache=str(tmp_path)), LineReporter()
    )
    assert (found.id, found.digest) == (ID, "")


def test_and_is_found_by_its_identity(tool, tmp_path):
    tool(answer=described(), known=ID)
    image = f"localhost/tts:latest@sha256:{ID}"
    assert work(ImageRequest(action="look", image=image, cache=str(tmp_path)), LineReporter()).id == ID
    assert f"docker tag {ID} {staged_name(image)}" in tool.log.read_text()


def test_it_is_pulled_by_its_full_name_and_by_its_digest_alone(tool, tmp_path):
    tool(answer=described())
    for image in ("org/vllm:1", f"org/vllm:1@sha256:{DIGEST}"):
        work(ImageRequest(action="pull", image=image, cache=str(tmp_path)), LineReporter())
    pulled = [line for line in tool.log.read_text().splitlines() if " pull " in line]
    assert pulled == [
        "docker pull --quiet docker.io/org/vllm:1",
        f"docker pull --quiet docker.io/org/vllm@sha256:{DIGEST}",
    ]


def test_a_node_without_the_registry_gets_an_error_with_alternatives(tool, tmp_path, monkeypatch):
    monkeypatch.setenv("OFFLINE", "1")
    tool()
    with pytest.raises(StagingError, match=r"could not download it: .no such host") as refused:
        work(ImageRequest(action="pull", image="org/vllm:1", cache=str(tmp_path)), LineReporter())
    assert "`docker load` it on one node" in refused.value.do


def test_an_image_built_on_a_node_is_not_requested_from_a_registry(tool, tmp_path):
    tool()
    with pytest.raises(StagingError, match="built on a node"):
        work(ImageRequest(action="pull", image="localhost/tts:latest", cache=str(tmp_path)), LineReporter())
    assert " pull " not in tool.log.read_text()


def test_the_tool_that_has_the_image_is_used(tool, tmp_path, monkeypatch):
    (tmp_path / ".local/share/containers").mkdir(parents=True)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("XDG_DATA_HOME", raising=False)
    tool("docker")
    tool("podman", answer=described(Id=ID))
    found = work(
        ImageRequest(action="look", image="localhost/tts:latest", cache=str(tmp_path)), LineReporter()
    )
    assert (found.tool, found.id) == ("podman", ID)


def test_a_docker_that_does_not_answer_gives_way_to_podman(tool, tmp_path):
    tool("docker", version=1)
    tool("podman", answer=described(Id=ID))
    found = work(ImageRequest(action="look", image=IMAGE, cache=str(tmp_path)), LineReporter())
    assert (found.tool, found.id) == ("podman", ID)


def test_docker_without_permission_is_reported(tool, tmp_path):
    tool("docker", version=1)
    with pytest.raises(StagingError, match="permission denied") as refused:
        work(ImageRequest(action="look", image=IMAGE, cache=str(tmp_path), tool="docker"), LineReporter())
    assert "group docker" in refused.value.do


@pytest.mark.parametrize("answer", ["no json", "[]", "{}", described(Id="x"), described(Size="big")])
def test_a_tool_that_describes_images_oddly(tool, tmp_path, answer):
    tool(answer=answer)
    with pytest.raises(StagingError, match="has an unknown form"):
        work(ImageRequest(action="look", image=IMAGE, cache=str(tmp_path)), LineReporter())


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
        engine = DockerEngine(Path(directory))
        self._stack.callback(engine.remove)
        try:
            engine.start()
        except RuntimeError as error:
            pytest.skip(f"no Docker engine starts here: {error}")
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


def built(tool, own, directory):
    """`localhost/tiny:1` in a node's storage."""
    with tarfile.open(directory / "root.tar", "w") as tar:
        entry = tarfile.TarInfo("hello")
        entry.size = 200_000
        tar.addfile(entry, BytesIO(random.Random(0).randbytes(200_000)))  # no tool packs it smaller
    ask(tool, own, "import", str(directory / "root.tar"), "localhost/tiny:1")


@pytest.fixture(params=[Podman, Docker], ids=["podman", "docker"])
def real(request):
    """A container tool with stores that are apart from the user's."""
    if shutil.which("podman") is None or os.geteuid() != 0:
        pytest.skip("needs podman, and root for stores that are apart from the user's")
    if request.param is Docker and (why := docker_engine.cannot_run()):
        pytest.skip(why)
    with ExitStack() as stack:
        yield request.param(stack)


@pytest.mark.integration
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


@pytest.mark.integration
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
