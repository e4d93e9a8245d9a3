from __future__ import annotations

import os
from pathlib import Path
from typing import get_args

import pytest

from sparkfleet.errors import Cause, NodeError
from sparkfleet.hostfacts.container import Tool
from sparkfleet.runtime.containers import container_tools
from sparkfleet.runtime.containers.container_tools import TOOLS, ask, is_used, tool_for

HAS = "#!/bin/sh\necho sha256:1\n"
HAS_NOT = "#!/bin/sh\necho no such image >&2\nexit 1\n"


@pytest.fixture
def programs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The only directory of programs."""
    directory = tmp_path / "bin"
    directory.mkdir()
    monkeypatch.setenv("PATH", str(directory))
    return directory


def install(directory: Path, name: str, text: str) -> None:
    (directory / name).write_text(text)
    (directory / name).chmod(0o755)


def test_every_tool_is_looked_for() -> None:
    assert get_args(Tool) == TOOLS


@pytest.mark.parametrize(
    ("docker", "podman", "found"), [(HAS, HAS, "docker"), (HAS_NOT, HAS, "podman"), (None, HAS, "podman")]
)
async def test_the_tool_that_has_the_image(programs, docker, podman, found):
    for name, text in (("docker", docker), ("podman", podman)):
        if text:
            install(programs, name, text)
    assert await tool_for("x.example/engine:1") == found


async def test_an_image_that_no_tool_has(programs):
    install(programs, "docker", HAS_NOT)
    with pytest.raises(
        NodeError, match=r"the image x is not on this node\n.*docker\.\n.*docker pull x"
    ) as caught:
        await tool_for("x")
    assert caught.value.because is Cause.MISSING


AWAY = "#!/bin/sh\necho 'Cannot connect to the Docker daemon. Is it running?' >&2\nexit 1\n"
REFUSED = "#!/bin/sh\necho 'permission denied while trying to connect to the socket' >&2\nexit 1\n"


@pytest.mark.parametrize(
    ("docker", "words", "remedy"),
    [
        (AWAY, "Cannot connect to the Docker", "docker image inspect x"),
        (REFUSED, "permission denied", f"sudo systemctl restart user@{os.getuid()}.service"),
    ],
)
async def test_a_tool_that_cannot_look_is_not_taken_for_one_without_the_image(
    programs, docker, words, remedy
):
    install(programs, "docker", docker)
    install(programs, "podman", HAS_NOT)
    with pytest.raises(
        NodeError, match=f'docker cannot look for the image x on this node: "{words}'
    ) as caught:
        await tool_for("x")
    assert caught.value.because is Cause.TOOL
    assert remedy in caught.value.do
    install(programs, "podman", HAS)
    assert await tool_for("x") == "podman"


async def test_a_podman_that_is_refused_is_no_matter_of_dockers_group(programs):
    install(programs, "podman", REFUSED)
    with pytest.raises(NodeError, match="podman cannot look for the image x") as caught:
        await tool_for("x")
    assert caught.value.do == "podman image inspect x"


async def test_no_tool_at_all(programs):
    with pytest.raises(NodeError, match="neither docker nor podman is on this node"):
        await tool_for("x")


async def test_a_tool_that_does_not_answer(programs, monkeypatch):
    monkeypatch.setattr(container_tools, "ANSWER_S", 0.05)
    install(programs, "docker", "#!/bin/sh\nread forever < /dev/zero\n")
    assert await ask(("docker", "ps")) is None
    assert await ask(("podman", "ps")) is None
    with pytest.raises(NodeError, match=r"docker did not answer in 0 s if the image x is on this node\n"):
        await tool_for("x")


def test_a_podman_that_this_user_never_used_is_not_asked(programs, tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
    assert not is_used("docker")
    for name in ("docker", "podman"):
        install(programs, name, HAS)
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    assert (is_used("docker"), is_used("podman")) == (True, False)
    (tmp_path / "containers").mkdir()
    assert is_used("podman")
    (tmp_path / "containers").rmdir()
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    assert is_used("podman")
