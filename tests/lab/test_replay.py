"""A lab shows what its owner saw: a bundle of a fleet, and the lab that is made of it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from sparkfleet.fleet.bundle.archive import write_bundle
from sparkfleet.fleet.bundle.collect import collect
from sparkfleet.fleet.session import Session
from sparkfleet.hostfacts.gpu import ReadGpuState
from sparkfleet.lab import Lab
from sparkfleet.lab.cli import main

pytestmark = [pytest.mark.integration, pytest.mark.usefixtures("root")]
LINK = "spark1-spark2"
HOSTS_OWN = {"memory-free", "memory-pressure", "page-cache", "memory-hogs"}
"""Findings about this machine, which change from one second to the next."""


@pytest.fixture(autouse=True)
def _home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SPARKFLEET_HOME", str(tmp_path / "home"))


def doctor(lab: Lab, place: Path) -> dict[tuple[str, str], str]:
    """Findings of the doctor's command line, by id and subject, with their severity."""
    inventory = place / f"{lab.name}.yaml"
    inventory.write_text(lab.inventory())
    command = [
        sys.executable,
        "-m",
        "sparkfleet",
        "doctor",
        "-i",
        str(inventory),
        "--no-measure",
        "--json",
    ]
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=120, check=False, env={**os.environ}
    )
    report = json.loads(done.stdout)
    return {
        (one["id"], str(one["subject"])): one["severity"]
        for one in report["findings"]
        if one["id"] not in HOSTS_OWN
    }


async def bundle_of(lab: Lab, place: Path) -> Path:
    inventory, bundle = place / "inventory.yaml", place / "bundle.tar.gz"
    inventory.write_text(lab.inventory())
    async with Session(inventory) as session:
        write_bundle(bundle, await collect(session))
    return bundle


@pytest.mark.timeout(120)
async def test_the_doctor_finds_in_the_replay_what_it_found_on_the_fleet(tmp_path: Path) -> None:
    with Lab.up(nodes=2) as lab:
        lab.set("spark2", {"driver": "570.12.03", "gid.rocep1s0f1": "missing", "dgx_os": "7.4.0"})
        lab.cut(LINK, 1)
        lab.mtu(LINK, 0, 1500, node="spark1")
        before = doctor(lab, tmp_path)
        bundle = await bundle_of(lab, tmp_path)
        network = lab.layout.network
    assert before["rail-down", f"{LINK.replace('-', '–')}"] == "error"
    with Lab.replay(bundle) as lab:
        after = doctor(lab, tmp_path)
        assert after == before

        def out(*argv: str, node: str = "spark2") -> str:
            return lab.exec(node, argv).stdout

        assert ", 570.12.03, " in out(*ReadGpuState.argv), "from the bundle"
        assert "Driver Version: 570.12.03" in out("nvidia-smi"), "from the lab, with the bundle's driver"
        assert "580.159.03" in out(*ReadGpuState.argv, node="spark1")
        assert lab.layout.node("spark2").address in out("ip", "-j", "-d", "addr", "show")
        assert network not in bundle.read_bytes().decode(errors="ignore")
        assert out("cat", "/sys/class/net/enP2p1s0f1np1/carrier") == "0\n", (
            "the rail is really without a carrier"
        )
        assert out("cat", "/sys/class/net/enp1s0f1np1/mtu", node="spark1") == "1500\n"
        assert out("python3", "-c", "import sys; print(sys.prefix)") == "/usr\n", (
            "everything else is the node's own"
        )
        assert lab.exec("spark1", ["grep", "x"], stdin="axb\nc\n").stdout == "axb\n"
        gone = lab.exec("spark1", ["chronyc", "-n", "tracking"])
        assert (gone.returncode, gone.stderr) == (127, "chronyc: command not found\n")
        lab.reboot("spark2")
        assert ", 570.12.03, " in out(*ReadGpuState.argv)


def test_a_file_that_is_no_bundle_makes_no_lab(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    bundle = tmp_path / "x.tar.gz"
    bundle.write_text("x")
    assert main(["up", "--name", "nolab", "--from", str(bundle)]) == 1
    assert f"{bundle} is no bundle of sparkfleet" in capsys.readouterr().err
    assert main(["up", "--name", "nolab", "--from", str(bundle), "--nodes", "2"]) == 1
    assert "--from decides the number of nodes" in capsys.readouterr().err
    assert main(["status"]) == 0
    assert "nolab" not in capsys.readouterr().out
