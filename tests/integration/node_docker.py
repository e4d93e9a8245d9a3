"""A Docker engine in a node of the lab, as on DGX OS: root's, used by the node's user through the group `docker`."""

import shlex
import shutil
from pathlib import Path

import box_image
import docker_engine
import pytest

_AT = Path("/run/docker-engine")


def _programs(name="dockerd"):
    """Directory of the engine that the search path has first, if it has this program: another release may be there."""
    found = Path(shutil.which("dockerd", path=docker_engine.PATH) or "/usr/sbin/dockerd").parent
    return found if (found / name).exists() else Path("/usr/bin")


_START = f"""
mkdir -p {_AT} && export PATH={_programs()}:$PATH:/usr/sbin:/sbin
cat > {_AT}/containerd.toml <<END
{docker_engine.containerd_config(_AT)}
END
if [ ! -S {_AT}/c.sock ]; then
    setsid {shlex.join(docker_engine.containerd_argv(_AT))} >>{_AT}/log 2>&1 </dev/null &
fi
setsid {shlex.join(docker_engine.dockerd_argv(_AT, "unix:///run/docker.sock"))} >>{_AT}/log 2>&1 </dev/null &
for _ in $(seq 300); do docker version >/dev/null 2>&1 && exit 0; sleep 0.1; done
tail -5 {_AT}/log >&2; exit 1
"""
_END = f"""
pid=$(cat {_AT}/pid) && kill "$pid"
while kill -0 "$pid" 2>/dev/null; do sleep 0.1; done
"""
_CLIENT = """#!/usr/bin/python3 -IS
import os, sys
words = ["docker", *sys.argv[1:]]
for pair in (["--gpus", "all"], ["--device", "/dev/infiniband"], ["--ulimit", "memlock=-1:-1"]):
    words = next((words[:at] + words[at + 2:] for at in range(len(words)) if words[at:at + 2] == pair), words)
if words[1:2] == ["run"]:
    words[2:2] = {volumes}
os.execv("{real}", words)
"""
_REAL = str(_AT / "docker")


def prepared(lab):
    """An image of vLLM on the first node, for an engine on every one. Skips with the reason if none can be run."""
    if why := docker_engine.cannot_run():
        pytest.skip(why)
    for node in lab.nodes:
        if why := start(lab, node.name):
            pytest.skip(f"no Docker engine starts in a lab here: {why}")
        _show_programs(lab, node.name)
    first = lab.nodes[0].name
    image = box_image.lay(lab, first, tool="docker")
    tried = lab.exec(
        first, ["docker", "run", "--rm", "--network=host", f"{box_image.NAME}:1", "sh", "-c", "exit 7"]
    )
    if tried.returncode != 7:
        pytest.skip(f"Docker runs nothing in a lab here: {tried.stderr.strip()}")
    return image


def start(lab, node):
    """Starts what does not run of it, and waits until it answers; the reason if it does not."""
    done = lab.exec(node, ["bash", "-s"], root=True, stdin=_START, timeout_s=120)
    return "" if done.returncode == 0 else done.stderr.strip() or "it does not answer"


def end(lab, node):
    """Ends dockerd and its containers, as an update of its packages does."""
    done = lab.exec(node, ["bash", "-s"], root=True, stdin=_END, timeout_s=120)
    assert done.returncode == 0, done.stderr


def _show_programs(lab, node):
    """Shows the programs of this machine in every container, in place of layers: Docker has no setting for that. Leaves out
    the flags for a GPU and RDMA, of which a lab has names only."""
    volumes = [word for path in box_image.programs() for word in ("--volume", f"{path}:{path}:ro")]
    text = _CLIENT.format(volumes=volumes, real=_REAL)
    place = f"{_AT}/client"
    for argv in (
        ["cp", "--dereference", f"{_programs('docker')}/docker", _REAL],
        ["tee", place],
        ["chmod", "755", place],
        ["mount", "--bind", place, "/usr/bin/docker"],
    ):
        done = lab.exec(node, argv, root=True, stdin=text)
        assert done.returncode == 0, done.stderr
