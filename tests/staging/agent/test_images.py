from __future__ import annotations

import asyncio
import hashlib
import json
import os
import shutil
from pathlib import Path

import pytest

from sparkfleet.remote.channel import Completed
from sparkfleet.staging.agent import images, transfer
from sparkfleet.staging.agent.held_image import ImageHeld
from sparkfleet.staging.agent.image_architectures import own_architecture
from sparkfleet.staging.agent.images import ImageRequest, staged_name, work
from sparkfleet.staging.agent.protocol import LineReporter
from sparkfleet.staging.agent.scan import HeldVersion, NodeScan
from sparkfleet.staging.errors import StagingError
from sparkfleet.staging.fleet import StagingNodes
from sparkfleet.staging.manifest import File, Manifest
from sparkfleet.staging.orchestrate import stage
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
        return {node: ImageHeld(tool="docker", id=ID if node == "n1" else "") for node in nodes}

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


@pytest.mark.parametrize("holder", ["arm64", "amd64"])
async def test_an_image_comes_only_from_a_node_that_has_it_for_these_processors(
    holder, machines, tmp_path, monkeypatch
):
    """A Spark got the build of the x86-64 head: one digest, two builds."""
    asked = []
    sealed = Manifest(kind="image", name=IMAGE, files=(File(path=images.ARCHIVE, size=1, digest="a" * 64),))

    async def act(fleet, nodes, request, needed):
        asked.append((request.action, tuple(nodes)))
        pulled = request.action != "look"
        return {
            node: ImageHeld(tool="docker", id=ID if pulled or node == "n0" else "", machine=machine,
                            architecture=machine if pulled or node == "n0" else "")
            for node in nodes for machine in [holder if node == "n0" else "arm64"]
        }  # fmt: skip

    async def seal(fleet, kind, name, nodes):
        return dict.fromkeys(nodes, sealed)

    async def look(fleet, needed, request):
        held = HeldVersion(kind="image", name=IMAGE, complete=True, held={images.ARCHIVE: 1})
        return {node: NodeScan(free_bytes=1 << 40, manifests=(held,)) for node in fleet.channels}

    monkeypatch.setattr(StagingNodes, "images", act)
    monkeypatch.setattr(StagingNodes, "seal", seal)
    monkeypatch.setattr(StagingNodes, "look", look)
    nodes, needed = ("n0", "n1", "n2"), ("n1", "n2")
    await stage(machines.inventory(*nodes), machines.channels(*nodes), [Need.image(IMAGE, needed)])
    of_n0 = [("save", ("n0",)), ("load", needed), ("drop", ("n0", *needed))]
    of_n1 = [("pull", ("n1",)), ("save", ("n1",)), ("load", ("n2",)), ("drop", ("n1", "n2"))]
    assert asked[1:] == (of_n0 if holder == "arm64" else of_n1)


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

    def make(
        name: str = "docker",
        answer: str = "",
        version: int = 0,
        known: str = "*",
        words: str = "permission denied",
    ) -> None:
        program = tmp_path / "bin" / name
        program.parent.mkdir(exist_ok=True)
        program.write_text(
            f'#!/bin/sh\necho {name} "$@" >> {log}\n'
            f"case $1 in version) echo '{words}' >&2; exit {version};; esac\n"
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


def test_of_two_digests_the_one_of_the_list_of_builds_counts(tool, tmp_path):
    """By the digest of one build, a node of another architecture pulled that build."""
    both = [f"org/vllm@sha256:{digest}" for digest in ("c" * 64, DIGEST)]
    tool(answer=described(RepoDigests=both, Digest=f"sha256:{DIGEST}"))
    found = work(
        ImageRequest(action="look", image="docker.io/org/vllm:1", cache=str(tmp_path)), LineReporter()
    )
    assert found.digest == DIGEST


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


def other_architecture():
    return {"amd64": "arm64", "arm64": "amd64"}[own_architecture()]


def test_an_image_for_other_processors_is_reported_and_gets_no_staged_name(tool, tmp_path):
    tool(answer=described(Architecture=other_architecture()))
    found = work(ImageRequest(action="look", image=IMAGE, cache=str(tmp_path)), LineReporter())
    assert (found.id, found.architecture, found.machine) == (ID, other_architecture(), own_architecture())
    assert not found.runs_here
    assert " tag " not in tool.log.read_text()


@pytest.mark.parametrize("image", [IMAGE, "org/vllm:1-other", "localhost/tts:latest"])
def test_and_is_an_error_when_it_was_pulled(image, tool, tmp_path):
    """It was staged, and its container ended at once: exec format error."""
    tool(answer=described(Architecture=other_architecture()))
    words = f"is built for {other_architecture()}, and this node is {own_architecture()}"
    with pytest.raises(StagingError, match=words) as refused:
        work(ImageRequest(action="pull", image=image, cache=str(tmp_path)), LineReporter())
    assert "exec format error" in refused.value.means
    assert " tag " not in tool.log.read_text()


@pytest.mark.parametrize(
    "words",
    [
        "no matching manifest for linux/arm64/v8 in the manifest list entries",
        'failed to resolve reference "docker.io/org/vllm:1": no match for platform in manifest: not found',
        "Error: choosing an image from manifest list docker://org/vllm:1: no image found in image index for architecture "
        'arm64, variant "v8", OS linux',
    ],
    ids=["docker", "containerd", "podman"],
)
def test_an_image_without_a_build_for_the_node(words, tool, tmp_path):
    """The remedy was a login."""
    program = tmp_path / "bin" / "docker"
    tool()
    program.write_text(f"#!/bin/sh\ncase $1 in image|pull) echo '{words}' >&2; exit 1;; esac\n")
    with pytest.raises(StagingError, match="docker could not download it") as refused:
        work(ImageRequest(action="pull", image="org/vllm:1", cache=str(tmp_path)), LineReporter())
    assert refused.value.do == "Name an image, or a tag of it, that has a build for this architecture."


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


def test_docker_without_its_daemon_is_reported_with_the_command_that_starts_it(tool, tmp_path):
    words = (
        "Cannot connect to the Docker daemon at unix:///var/run/docker.sock. Is the docker daemon running?"
    )
    tool("docker", version=1, words=words)
    request = ImageRequest(action="pull", image="localhost/tts:latest", cache=str(tmp_path))
    with pytest.raises(StagingError, match="Cannot connect") as refused:
        work(request, LineReporter())
    assert "systemctl start docker" in refused.value.do
    tool("podman")
    with pytest.raises(StagingError, match="tts:latest was not found: docker is installed") as refused:
        work(request, LineReporter())
    assert "systemctl start docker" in refused.value.do, "docker may have it: podman does not"


@pytest.mark.parametrize("answer", ["no json", "[]", "{}", described(Id="x"), described(Size="big")])
def test_a_tool_that_describes_images_oddly(tool, tmp_path, answer):
    tool(answer=answer)
    with pytest.raises(StagingError, match="has an unknown form"):
        work(ImageRequest(action="look", image=IMAGE, cache=str(tmp_path)), LineReporter())
