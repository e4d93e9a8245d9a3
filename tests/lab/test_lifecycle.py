"""Labs are made and end whole, however they end."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from lab_probes import eventually, out

from sparkfleet.lab import Lab
from sparkfleet.lab import state as states
from sparkfleet.lab.power import inits_of

pytestmark = [pytest.mark.integration, pytest.mark.usefixtures("root")]
REPOSITORY = Path(__file__).parents[2]


def traces(name: str) -> dict[str, list[str]]:
    """Traces of a lab on this machine."""
    return {
        "namespaces": [
            line.split()[0] for line in out("ip", "netns").splitlines() if line.startswith(f"sfl-{name}")
        ],
        "netdevs": [
            r["ifname"] for r in json.loads(out("ip", "-j", "link")) if r["ifname"].startswith(f"sfl-{name}")
        ],
        "mounts": [line for line in Path("/proc/mounts").read_text().splitlines() if f"sfl-{name}" in line],
        "processes": [str(process.pid) for process in inits_of(name)] + keepers(name),
        "files": [
            str(path) for path in (states.HOME / name, *states.REGISTRY.glob(f"{name}.*")) if path.exists()
        ],
    }


def keepers(name: str) -> list[str]:
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            words = path.read_bytes().split(b"\0")
        except OSError:
            continue
        if b"sparkfleet.lab.reaper" in words and name.encode() in words:
            found.append(path.parent.name)
    return found


def nothing(name: str) -> bool:
    return not any(traces(name).values())


def test_down_leaves_nothing_and_may_be_repeated() -> None:
    def hosts_own() -> list[str]:
        return [line for line in out("ip", "-br", "link").splitlines() if not line.startswith("sfl-")]

    before = hosts_own()
    lab = Lab.up(nodes=2)
    assert all(traces(lab.name).values()), traces(lab.name)
    assert hosts_own() == before
    lab.down()
    assert nothing(lab.name), traces(lab.name)
    assert hosts_own() == before
    lab.down()


def start(name: str, *more: str) -> subprocess.Popen[bytes]:
    argv = [sys.executable, "-m", "sparkfleet.lab", "up", "--nodes", "3", "--name", name, *more]
    return subprocess.Popen(argv, cwd=REPOSITORY, stdout=subprocess.DEVNULL)


@pytest.mark.parametrize("stage", ["namespaces", "processes"])
def test_a_killed_up_leaves_nothing(stage: str) -> None:
    name = f"k{os.getpid() % 10**6}{stage[0]}"
    making = start(name)
    first = len(keepers(name)) + 1 if stage == "processes" else 1
    assert eventually(lambda: len(traces(name)[stage]) >= first)
    making.send_signal(signal.SIGKILL)
    making.wait()
    assert eventually(lambda: nothing(name), 60), traces(name)


def test_the_next_down_clears_a_lab_killed_with_its_reaper() -> None:
    name = f"m{os.getpid() % 10**6}"
    making = start(name)
    assert eventually(lambda: len(traces(name)["namespaces"]) >= 1 and bool(keepers(name)))
    for pid in keepers(name):
        os.kill(int(pid), signal.SIGKILL)
    making.send_signal(signal.SIGKILL)
    making.wait()
    assert not nothing(name)
    Lab(name).down()
    assert nothing(name), traces(name)


def test_an_owner_that_does_not_exist_leaves_nothing() -> None:
    name = f"w{os.getpid() % 10**6}"
    assert start(name, "--with", "999999999").wait() == 1
    assert nothing(name), traces(name)


def test_an_interrupted_up_leaves_nothing() -> None:
    name = f"i{os.getpid() % 10**6}"
    making = start(name)
    assert eventually(lambda: len(traces(name)["namespaces"]) >= 1)
    making.send_signal(signal.SIGINT)
    assert making.wait() == 130
    assert nothing(name), traces(name)


def test_a_lab_ends_with_its_owner() -> None:
    name = f"o{os.getpid() % 10**6}"
    with subprocess.Popen(["sleep", "600"]) as owner:
        assert start(name, "--with", str(owner.pid)).wait() == 0
        assert Lab(name).powered == ("spark1", "spark2", "spark3")
        owner.kill()
    assert eventually(lambda: nothing(name), 60), traces(name)
