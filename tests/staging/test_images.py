from __future__ import annotations

import json
import shutil
import subprocess
import tarfile
from io import BytesIO

import pytest

from sparkfleet.nodes.local import LocalChannel
from sparkfleet.staging.errors import StagingError
from sparkfleet.staging.images import ImageRequest, staged_name, work
from sparkfleet.staging.lines import Reporter
from sparkfleet.staging.settings import Need
from sparkfleet.staging.stage import stage

DIGEST = "d" * 64
IMAGE = f"registry.example/org/vllm@sha256:{DIGEST}"
ID = "1" * 64


@pytest.mark.parametrize(
    "image", ["vllm", "vllm:latest", "vllm@sha256:12", f"-x@sha256:{DIGEST}", f"a b@sha256:{DIGEST}"]
)
def test_an_image_without_a_digest_is_refused_with_the_reason(image):
    with pytest.raises(StagingError, match="does not name one image for good") as refused:
        staged_name(image)
    assert "digest" in refused.value.do


def test_a_staged_image_has_one_name_on_every_node():
    assert staged_name(IMAGE) == f"localhost/sparkfleet-staged:{DIGEST}"


@pytest.fixture
def tool(tmp_path, monkeypatch):
    """A docker that has one image (or none, or another after a load), and notes what it is asked."""
    log = tmp_path / "asked"

    def make(name: str = "docker", answer: str = "", version: int = 0) -> None:
        program = tmp_path / "bin" / name
        program.parent.mkdir(exist_ok=True)
        program.write_text(
            f'#!/bin/sh\necho {name} "$@" >> {log}\n'
            f"case $1 in version) echo 'permission denied' >&2; exit {version};; esac\n"
            f"case $1:$2 in image:inspect) {f'echo {answer!r}' if answer else 'exit 1'};; esac\n"
        )
        program.chmod(0o755)

    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:/bin")
    make.log = log
    return make


def described(**more):
    return json.dumps([{"Id": f"sha256:{ID}", "Size": 1000, **more}])


def test_look_says_what_is_there(tool, tmp_path):
    tool(answer=described())
    found = work(ImageRequest(action="look", image=IMAGE, cache=str(tmp_path)), Reporter())
    assert (found.tool, found.id, found.size) == ("docker", ID, 1000)
    assert f"docker tag {ID} {staged_name(IMAGE)}" in tool.log.read_text()


def test_a_docker_that_does_not_answer_gives_way_to_podman(tool, tmp_path):
    tool("docker", version=1)
    tool("podman", answer=described(Id=ID))
    found = work(ImageRequest(action="look", image=IMAGE, cache=str(tmp_path)), Reporter())
    assert (found.tool, found.id) == ("podman", ID)


def test_a_docker_that_this_user_may_not_ask_is_said(tool, tmp_path):
    tool("docker", version=1)
    with pytest.raises(StagingError, match="permission denied") as refused:
        work(ImageRequest(action="look", image=IMAGE, cache=str(tmp_path), tool="docker"), Reporter())
    assert "group docker" in refused.value.do


@pytest.mark.parametrize("answer", ["no json", "[]", "{}", described(Id="x"), described(Size="big")])
def test_a_tool_that_describes_images_oddly(tool, tmp_path, answer):
    tool(answer=answer)
    with pytest.raises(StagingError, match="not understood"):
        work(ImageRequest(action="look", image=IMAGE, cache=str(tmp_path)), Reporter())


class Apart(LocalChannel):
    """A node with container storage of its own."""

    def __init__(self, node, own):
        super().__init__(node)
        self._own = own

    async def run(self, argv, *, env=None, **more):
        return await super().run(argv, env={**self._own, **(env or {})}, **more)


def storage(root):
    root.mkdir()
    conf = root / "storage.conf"
    conf.write_text(f'[storage]\ndriver = "vfs"\ngraphroot = "{root}/graph"\nrunroot = "{root}/run"\n')
    return {"CONTAINERS_STORAGE_CONF": str(conf)}


def podman(own, *words):
    done = subprocess.run(
        ["podman", *words],
        check=False,
        env={"PATH": "/usr/bin:/bin", "HOME": "/nowhere", **own},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


@pytest.mark.integration
@pytest.mark.skipif(shutil.which("podman") is None, reason="needs podman")
async def test_an_image_goes_from_node_to_node(machines, tmp_path):
    one, two = storage(tmp_path / "s1"), storage(tmp_path / "s2")
    with tarfile.open(tmp_path / "root.tar", "w") as tar:
        entry = tarfile.TarInfo("hello")
        entry.size = 200_000
        tar.addfile(entry, BytesIO(b"x" * 200_000))
    podman(one, "import", "-q", str(tmp_path / "root.tar"), "localhost/tiny:1")
    digest = podman(one, "image", "inspect", "localhost/tiny:1", "--format", "{{.Digest}}")
    wanted = podman(one, "image", "inspect", "localhost/tiny:1", "--format", "{{.Id}}")
    image = f"localhost/tiny@{digest}"
    (staged,) = await stage(
        machines.inventory("n1", "n2"),
        {"n1": Apart("n1", one), "n2": Apart("n2", two)},
        [Need.image(image, ("n1", "n2"))],
        machines.heard.append,
        settings=machines.settings("n1", "n2", tool="podman"),
    )
    assert staged.paths == dict.fromkeys(("n1", "n2"), staged_name(image))
    for own in (one, two):
        assert podman(own, "image", "inspect", staged_name(image), "--format", "{{.Id}}") == wanted
    assert staged.moved_bytes > 200_000
    assert any(progress.phase == "link" for progress in machines.heard)
    assert not [path for node in ("n1", "n2") for path in machines.cache(node).rglob("*.tar")]
