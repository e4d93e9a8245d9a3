"""An image of vLLM's CPU build without a registry: empty directories, into which each node shows its own programs.

What would be layers of an image are volumes that the user's `containers.conf` gives to every container: /usr, and the
environment of these tests with its interpreter. The image itself says where programs are found, as others do. Rootless
podman, with one user id only: a node has no /etc/subuid.
"""

import io
import json
import sys
import tarfile
from pathlib import Path

import known_models
import pytest

from sparkfleet.lab.inside.node_settings import REAL

NAME = "localhost/sparkfleet-test-vllm-cpu"
"""The engine in an image is recognised by the image's name if nothing else is known of it."""
_DIRECTORIES = ("etc", "proc", "sys", "dev", "run", "tmp", "usr", "root", "var", "var/tmp")
_LINKS = ("bin", "lib", "lib64", "sbin")
_FILES = ("passwd", "group", "nsswitch.conf", "ld.so.cache")
_KNOWN = "root/.cache/vllm/modelinfos"
_FIRST = "first"
"""Directory in which an image has programs that are found before all others."""
_WITHOUT_GPU = f"""#!/usr/bin/python3 -IS
import os, sys
words = ["podman", *sys.argv[1:]]
for pair in (["--device", "nvidia.com/gpu=all"], ["--device", "/dev/infiniband"], ["--ulimit", "memlock=-1:-1"]):
    words = next((words[:at] + words[at + 2:] for at in range(len(words)) if words[at:at + 2] == pair), words)
os.execv("{REAL}/podman", words)
"""
_STORAGE = '[storage]\ndriver = "overlay"\n'


def programs(prefix=sys.prefix):
    """Directories of the host that the engine of an environment runs from."""
    return list(dict.fromkeys(("/usr", sys.base_prefix, str(prefix))))


def prepared(lab):
    """An image of vLLM on the first node, of which all can run it. Skips with the reason if containers cannot be run."""
    first = lab.nodes[0].name
    if lab.exec(first, ["sh", "-c", "command -v podman"]).returncode != 0:
        pytest.skip("podman is not installed")
    for node in lab.nodes:
        settle(lab, node.name)
    image = lay(lab, first)
    if reason := refused(lab, first):
        pytest.skip(f"podman runs nothing in a lab here: {reason}")
    return image


def settle(lab, node, prefix=sys.prefix):
    """Prepare a node's user for containers that see the programs of an environment."""
    volumes = json.dumps([f"{path}:{path}:ro" for path in programs(prefix)])
    texts = {"storage.conf": _STORAGE, "containers.conf": f"[containers]\nvolumes = {volumes}\n"}
    for name, text in texts.items():
        place = f"$HOME/.config/containers/{name}"
        write = f'mkdir -p "$HOME/.config/containers" && cat > "{place}"'
        _done(lab.exec(node, ["sh", "-c", write], stdin=text))


def without_gpu(lab, node):
    """Let a node's podman leave out the flags for a GPU and RDMA: a lab has names of devices only, and its host may
    not let memory be locked."""
    place = "/run/lab/podman"
    for argv, text in (
        (("tee", place), _WITHOUT_GPU),
        (("chmod", "755", place), ""),
        (("mount", "--bind", place, "/usr/bin/podman"), ""),
    ):
        _done(lab.exec(node, list(argv), root=True, stdin=text))


def refused(lab, node, image=f"{NAME}:1"):
    """Reason why a node cannot run containers; "" if it can. The image has to be there."""
    argv = (
        "podman",
        "run",
        "--rm",
        "--network",
        "host",
        "--log-driver=none",
        image,
        "sh",
        "-c",
        "exit 7",
    )
    tried = lab.exec(node, list(argv), timeout_s=120)
    return "" if tried.returncode == 7 else tried.stderr.strip()


def lay(lab, node, name=NAME, python="", prefix=sys.prefix, own=None, tool="podman"):
    """Make an image on a node; its name with its digest.

    Args:
        lab: the simulated Sparks.
        node: one of them.
        name: the image's, without a tag.
        python: a program that stands in it where others have their interpreter; "": none does.
        prefix: the environment that its engine is of.
        own: further files of it, path to text or bytes; below `first/` programs that are found before all others.
        tool: the container tool that gets it. Docker has no digest of it, so that it is known by its id.
    """
    place = "/var/tmp/image.tar"
    unpacked = "import sys; open(sys.argv[1], 'wb').write(bytes.fromhex(sys.stdin.read()))"
    _done(lab.exec(node, ["python3", "-c", unpacked, place], stdin=_archive(python, prefix, own or {}).hex()))
    path = f"ENV PATH=/{_FIRST}:{Path(prefix, 'bin')}:/usr/bin:/bin"
    _done(lab.exec(node, [tool, "import", "--change", path, place, f"{name}:1"], timeout_s=120))
    by = "{{.Id}}" if tool == "docker" else "{{.Digest}}"
    told = _done(lab.exec(node, [tool, "image", "inspect", "--format", by, f"{name}:1"]))
    return f"{name}@{told.stdout.split()[-1]}"


def _archive(python, prefix, own):
    """Everything in it is root's: there is no other user to give it to."""
    file = io.BytesIO()
    with tarfile.open(fileobj=file, mode="w") as tar:
        for name in dict.fromkeys((*_DIRECTORIES, *(path.lstrip("/") for path in programs(prefix)))):
            tar.addfile(_member(name, tarfile.DIRTYPE))
        for name in _LINKS:
            tar.addfile(_member(name, tarfile.SYMTYPE, f"usr/{name}"))
        texts = {f"etc/{name}": Path("/etc", name).read_bytes() for name in _FILES}
        texts |= {
            f"{_KNOWN}/{file.name}": file.read_bytes() for file in known_models.directory().glob("*.json")
        }
        if python:
            texts[f"{_FIRST}/python3"] = python.encode()
        for path, text in (texts | {path: _bytes(text) for path, text in own.items()}).items():
            member = _member(path, tarfile.REGTYPE)
            member.mode = 0o755 if path.startswith(f"{_FIRST}/") else 0o644
            _add(tar, member, text)
    return file.getvalue()


def _bytes(text):
    return text.encode() if isinstance(text, str) else text


def _add(tar, member, text):
    member.size = len(text)
    tar.addfile(member, io.BytesIO(text))


def _member(name, kind, target=""):
    member = tarfile.TarInfo(name)
    member.type, member.linkname = kind, target
    member.mode = 0o644 if kind == tarfile.REGTYPE else 0o755
    return member


def _done(run):
    assert run.returncode == 0, run.stderr
    return run
