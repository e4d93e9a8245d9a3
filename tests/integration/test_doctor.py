"""The doctor on two simulated Sparks, over SSH: well while they are, and right about each thing that is done to them."""

from __future__ import annotations

import json
import os
import resource
import subprocess
import sys

import pytest
from lab_fleet import lab_of

from sparkfleet.doctor.collect import gather, with_context
from sparkfleet.doctor.findings import Severity
from sparkfleet.doctor.measure import measure_paths
from sparkfleet.doctor.registry import examine
from sparkfleet.doctor.snapshot import Needed
from sparkfleet.remote.open_channel import open_channels
from sparkfleet.specs.load import parse_inventory

pytestmark = pytest.mark.integration

LINK = "spark1-spark2"
THE_HOSTS_OWN = {
    # A node of the lab has the limits of the machine it is on.
    *(["open-files"] if resource.getrlimit(resource.RLIMIT_NOFILE)[1] < 65_536 else []),
    "swap",
    "disk-low",
    "memory-hogs",
    "memory-free",
    "memory-pressure",
    "page-cache",
}
"""Findings about the host itself, no faults of the lab."""


@pytest.fixture(scope="module")
def pair():
    with lab_of(2, shares=()) as lab:
        yield lab


@pytest.fixture
def lab(pair):
    yield pair
    pair.mend(LINK)
    for node in pair.nodes:
        pair.boot(node.name)
        pair.heal(node.name)


async def examined(lab, *, measure=False, inventory=None, **context):
    """Findings of the doctor, without those that are fine."""
    spec = parse_inventory(inventory or lab.inventory(), "inventory.yaml")
    channels = open_channels(spec)
    try:
        fleet = await gather(spec, channels, timeout_s=30)
        paths = (await measure_paths(spec, fleet, channels)).paths if measure else None
    finally:
        for channel in channels.values():
            await channel.close()
    found = examine(with_context(fleet, paths=paths, **context))
    return [one for one in found if one.severity is not Severity.OK and one.id not in THE_HOSTS_OWN]


def bad(found):
    return [one for one in found if one.severity in (Severity.ERROR, Severity.WARNING)]


async def test_two_nodes_and_their_cable_are_well(lab):
    found = await examined(lab, measure=True)
    assert bad(found) == []


def test_the_command_line(lab, tmp_path):
    inventory = tmp_path / "inventory.yaml"
    inventory.write_text(lab.inventory())
    command = [sys.executable, "-m", "sparkfleet", "doctor", "-i", str(inventory), "--no-measure"]
    told = subprocess.run(
        [*command, "--json"],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
        env={**os.environ, "SPARKFLEET_HOME": str(tmp_path)},
    )
    report = json.loads(told.stdout)
    assert (told.returncode, report["failed"], report["version"]) == (0, False, 1), told.stdout
    assert report["counts"]["ok"] > 50


def cut_rail(lab):
    lab.cut(LINK, 1)


def mtu_1500(lab):
    lab.mtu(LINK, 0, 1500)


def one_subnet(lab):
    lab.subnet(LINK, 1, "192.168.100.0/24")


def knob(**settings):
    def turn(lab):
        lab.set("spark2", {name.replace("__", "."): value for name, value in settings.items()})

    return turn


def no_power(lab):
    lab.kill("spark2")


def ray_of_another_version(lab):
    for node, version in (("spark1", "2.60.0"), ("spark2", "2.58.1")):
        place = "/home/nvidia/.local/share/sparkfleet/env/made"
        for part in (f"ray-{version}.dist-info", "sparkfleet-0.1.0.dist-info"):
            lab.exec(node, ["mkdir", "-p", f"{place}/lib/python3.11/site-packages/{part}"])
        lab.exec(node, ["tee", f"{place}/pyvenv.cfg"], stdin="version = 3.11.9\n")
        lab.exec(node, ["touch", f"{place}/complete"])


def no_rays(lab):
    for node in ("spark1", "spark2"):
        lab.exec(node, ["rm", "-rf", "/home/nvidia/.local/share/sparkfleet/env"])


FAULTS = [
    (
        cut_rail,
        "rail-down",
        "enP2p1s0f1np1 on spark1 has no carrier and enP2p1s0f1np1 on spark2 has no carrier",
    ),
    (mtu_1500, "rail-mtu", "enp1s0f1np1 on spark1 has 1500"),
    (one_subnet, "rails-share-subnet", "in one subnet, 192.168.100.0/24"),
    (knob(driver="580.95.05"), "driver-same", "580.95.05 on spark2"),
    (knob(clock_skew="90.5"), "clock-skew", "spark2: the clock is 90."),
    (knob(ntp="no"), "clock-synchronised", "not synchronised"),
    (knob(holder_mib="59135"), "memory-leftover", "holds 57.7 GiB"),
    (knob(meminfo="leaked"), "memory-retained", "of unified memory belong to no process"),
    (knob(clock="wedged"), "power-wedge", "MHz"),
    (knob(machine="jetson-thor"), "machine-is-a-spark", "Jetson"),
    (knob(machine="gh200"), "machine-is-a-spark", "GH200"),
    (knob(machine="rtx-spark"), "machine-is-a-spark", "N1X"),
    (knob(container="none"), "container-tool", "neither docker nor podman"),
    (knob(memlock="64"), "memlock", "at most 0.0625 MiB may be pinned"),
    (knob(gid__roceP2p1s0f1="missing"), "rail-gid", "roceP2p1s0f1 on spark2 has no RoCE v2 GID"),
    (knob(pcie_width__rocep1s0f1="2"), "rail-pcie", "x2, not 32 GT/s x4"),
    (knob(speed__enp1s0f1np1="100000"), "rail-speed", "runs at 100 Gb/s, not 200"),
    (knob(machine_id="spark1"), "machine-ids-differ", "spark1 and spark2 have one machine-id"),
    (knob(host_key="spark1"), "host-keys-differ", "spark1 and spark2 have one SSH host key"),
    (knob(gpu="missing"), "gpu-there", "finds no GPU on spark2"),
    (no_power, "node-silent", "spark2"),
    (ray_of_another_version, "ray-same", "2.58.1 on spark2, 2.60.0 on spark1"),
]


@pytest.mark.parametrize(
    ("harm", "known_as", "words"),
    FAULTS,
    ids=[f"{known_as}-{index}" for index, (_, known_as, _) in enumerate(FAULTS)],
)
async def test_a_fault_is_reported_by_its_name(lab, request, harm, known_as, words):
    request.addfinalizer(lambda: no_rays(lab) if harm is ray_of_another_version else None)
    harm(lab)
    found = await examined(lab)
    told = [one for one in bad(found) if one.id == known_as]
    assert any(words in one.what for one in told), found  # with what was not read, as under load
    assert all(one.means and one.do for one in told)


@pytest.mark.parametrize("machine", ["gx10", "pgx"])
async def test_other_makers_boxes_are_sparks(lab, machine):
    lab.set("spark2", machine=machine)
    assert not {"machine-is-a-spark"} & {one.id for one in await examined(lab)}


async def test_another_host_key_than_the_pinned_one(lab):
    pinned = lab.inventory()
    lab.set("spark2", host_key="new")
    found = await examined(lab, inventory=pinned)
    assert [one.id for one in bad(found)] == ["host-key-changed"]


async def test_a_degraded_rail(lab):
    lab.set("spark1", {"rdma_gbit": "13.2"})
    lab.set("spark2", {"rdma_gbit": "13.2"})
    found = await examined(lab, measure=True)
    assert {one.id for one in bad(found)} == {"rail-bandwidth"}
    assert "the ConnectX-7 came up degraded" in bad(found)[0].what


async def test_less_disk_than_weights(lab):
    lab.set("spark2", disk="100M")
    needed = Needed(deployment="big", model="Qwen/Big", weights_bytes=10**9, nodes=("spark2",))
    found = await examined(lab, needed=[needed])
    assert "disk-for-weights" in {one.id for one in bad(found)}


@pytest.fixture
def rays_dashboard(lab):
    """Something that listens on every address of spark2, on the port of Ray's dashboard."""
    program = "import socket, sys; s = socket.create_server(('0.0.0.0', 8265)); print('up', flush=True); sys.stdin.read()"
    argv = lab.argv("spark2", ["python3", "-c", program])
    with subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as server:
        assert server.stdout.readline() == "up\n"
        yield
        server.communicate("")


@pytest.mark.usefixtures("rays_dashboard")
async def test_a_port_of_ray_that_everybody_reaches(lab):
    (told,) = bad(await examined(lab))
    assert told.id == "exposed-ports"
    assert "port 8265" in told.what
