"""Two healthy Sparks have no finding; each fault has a finding with its own id and words."""

import pytest
from spark_faults import (
    FIRST,
    SECOND,
    bonded,
    cached,
    cut_off,
    disk_nearly_full,
    docker_refuses,
    engine_on_every_address,
    engine_with_many_ports,
    few_files,
    firewall,
    fragmented,
    gh200,
    gid_missing,
    hog,
    hot,
    hundred_gigabit,
    hung,
    in_the_other_port,
    jetson,
    leftover,
    lost_gpu,
    memlock_of_2_gib,
    mtu_1500,
    mtu_at_one_end,
    n1x,
    no_address,
    no_card,
    no_container_tool,
    no_fec,
    no_gpu,
    no_gpu_in_containers,
    no_init,
    no_linger,
    no_refs,
    nothing_installed,
    one_rail_down,
    one_subnet,
    other_driver,
    other_kernel,
    other_python,
    other_ray,
    other_release,
    other_sparkfleet,
    out_of_gpu_memory,
    podman_fails,
    pressure,
    ray_of_ours,
    ray_of_somebody,
    rays_metrics,
    rdma_down,
    rdma_mtu,
    retained,
    same_host_keys,
    same_machine_ids,
    shm_full,
    sixty_four_gb,
    skewed,
    small_memlock,
    swap,
    switched_off,
    throttled,
    torn_driver,
    torn_driver_that_does_not_start,
    two_lanes,
    unsynchronised,
    wedged,
    xid,
)
from sparks import INVENTORY, arp, netdev

from sparkfleet.doctor import registry
from sparkfleet.doctor.collect import gather
from sparkfleet.doctor.findings import Severity
from sparkfleet.doctor.snapshot import pci_address
from sparkfleet.hostfacts.gpu import ReadGpuProcesses
from sparkfleet.hostfacts.network.arp_ndp import ReadLooseArp
from sparkfleet.hostfacts.processes import ReadHoldingProcesses
from sparkfleet.specs.load import parse_inventory


async def test_two_healthy_sparks(findings):
    assert await findings() == []


async def test_every_check_is_decided_for_two_healthy_sparks(look):
    told = registry.examine(await look())
    ids = {check.id for check in registry.CHECKS}
    unknown = {one.id for one in told if one.severity is Severity.UNKNOWN}
    assert not unknown & ids
    assert ids <= {one.id for one in told}


async def test_a_cable_in_the_other_port_is_a_remedy(sparks, findings):
    in_the_other_port(*sparks)
    (found,) = [one for one in await findings() if one.id == "rail-down"]
    assert any(
        "enp1s0f0np0 on spark2 has a carrier. If the cable is in that port" in step for step in found.do
    )


FAULTS = [
    (one_rail_down, "rail-down", "error", "rail 2 of spark1–spark2 is down: enP2p1s0f1np1 on spark2 has no carrier"),
    (switched_off, "rail-down", "error", "enp1s0f1np1 on spark1 is switched off"),
    (mtu_1500, "rail-mtu", "error", "enp1s0f1np1 on spark1 has 1500, enp1s0f1np1 on spark2 has 1500"),
    (mtu_at_one_end, "rail-mtu", "error", "MTU is not 9000: enp1s0f1np1 on spark2 has 1500"),
    (one_subnet, "rails-share-subnet", "error", "in one subnet, 192.168.100.0/24"),
    (no_address, "rail-address", "error", "has no address, not 192.168.100.11/24"),
    (bonded, "rails-bonded", "error", "belongs to bond0"),
    (hundred_gigabit, "rail-speed", "warning", "runs at 100 Gb/s, not 200"),
    (no_fec, "rail-fec", "warning", "no error correction"),
    (two_lanes, "rail-pcie", "error", "PCIe 32 GT/s x2, not 32 GT/s x4"),
    (rdma_down, "rail-rdma", "error", "RoCE device roceP2p1s0f1 on spark1 is DOWN"),
    (gid_missing, "rail-gid", "error", "no RoCE v2 GID for 192.168.101.11"),
    (rdma_mtu, "rail-rdma-mtu", "warning", "packets of 1024 bytes"),
    (other_driver, "driver-same", "error", "580.142 on spark1, 580.95.05 on spark2"),
    (torn_driver, "driver-torn", "error", "module 580.95.05, libraries 580.142"),
    (torn_driver_that_does_not_start, "driver-torn", "error", "module 580.142, libraries another"),
    (no_gpu, "gpu-there", "error", "finds no GPU on spark2"),
    (lost_gpu, "gpu-there", "error", "000F:01:00.0: GPU is lost. Reboot the system to recover this GPU"),
    (hung, "gpu-there", "error", "nvidia-smi did not end within 20 s: the GPU's driver hangs"),
    (wedged, "power-wedge", "error", "96 % busy at 14.2 W and 611 MHz"),
    (throttled, "gpu-throttled", "warning", "hardware thermal, 91 °C"),
    (leftover, "memory-leftover", "error", "process 114687 (VLLM::EngineCore) holds 57.7 GiB"),
    (retained, "memory-retained", "error", "80.0 GiB of unified memory belong to no process"),
    (hog, "memory-hogs", "warning", "process 901 holds 38.1 GiB"),
    (swap, "swap", "warning", "16 GiB of swap with vm.swappiness 60"),
    (pressure, "memory-pressure", "error", "waited for memory 43 %"),
    (fragmented, "memory-fragmented", "warning", "of it in blocks of 16 MiB or more"),
    (cached, "page-cache", "info", "55 GiB of files are cached"),
    (out_of_gpu_memory, "gpu-log", "warning", "ran out of memory 1 times"),
    (xid, "gpu-log", "warning", "Xid 119"),
    (cut_off, "boot-before", "warning", "ended without a shutdown at 20"),
    (cut_off, "boot-before", "warning", ", and before that had a fatal error of PCIe"),
    (skewed, "clock-skew", "error", "the clock is 90.0 s ahead of"),
    (unsynchronised, "clock-synchronised", "warning", "is not synchronised"),
    (other_ray, "ray-same", "error", "2.58.1 on spark2, 2.60.0 on spark1"),
    (other_sparkfleet, "sparkfleet-same", "error", "0.0.9 on spark2, 0.1.0 on spark1 and this machine"),
    (other_python, "python-same", "error", "3.11 on spark2, 3.12 on spark1"),
    (nothing_installed, "sparkfleet-installed", "info", "sparkfleet and Ray not installed yet"),
    (no_container_tool, "container-tool", "error", "neither docker nor podman is installed"),
    (podman_fails, "container-tool", "error", "podman does not answer: no newuidmap"),
    (docker_refuses, "container-tool", "error", "this user may not use docker"),
    (no_gpu_in_containers, "container-gpu", "error", "docker cannot pass the GPU to a container"),
    (small_memlock, "memlock", "error", "at most 0.0625 MiB may be pinned"),
    (memlock_of_2_gib, "memlock", "error", "at most 2,048 MiB may be pinned"),
    (few_files, "open-files", "warning", "at most 4096 files"),
    (no_linger, "linger", "warning", "stops all processes of nvidia"),
    (no_init, "starts-at-boot", "warning", "neither systemd nor cron"),
    (hot, "zones-cool", "warning", "97 °C"),
    (engine_on_every_address, "exposed-ports", "error", "vllm listens on every address, port 8001"),
    (engine_with_many_ports, "exposed-ports", "error", "192.168.1.12, ports 40001, 40002, 40003, 40004, 40005, 40006 …"),
    (ray_of_ours, "exposed-ports", "warning", "Ray listens on every address"),
    (rays_metrics, "exposed-ports", "warning", "44217 (metrics of Ray's autoscaler) is open on every address"),
    (ray_of_somebody, "exposed-ports", "warning", "port 8265 (Ray's dashboard) is open on 192.168.1.12"),
    (firewall, "firewall", "info", "ufw is on"),
    (same_host_keys, "host-keys-differ", "error", "spark1 and spark2 have one SSH host key"),
    (same_machine_ids, "machine-ids-differ", "warning", "spark1 and spark2 have one machine-id"),
    (other_release, "release-same", "warning", "7.5.0 on spark2, 7.6.0 on spark1"),
    (other_kernel, "kernel-same", "warning", "kernels differ"),
    (jetson, "machine-is-a-spark", "error", "spark2 is not a DGX Spark but an NVIDIA Jetson: it has /etc/nv_tegra_release"),
    (n1x, "machine-is-a-spark", "error", "RTX Spark N1X: its GPU is 10de:2e03"),
    (gh200, "machine-is-a-spark", "error", "NVIDIA GH200 480GB"),
    (disk_nearly_full, "disk-low", "warning", "5 GB of 3.7 TB are free"),
    (no_refs, "hub-refs", "info", "no refs/main in the cache of Qwen/Qwen3-8B"),
    (shm_full, "shm-size", "warning", "30 GB are used in /dev/shm"),
    (no_card, "cx7-present", "info", "no ConnectX-7"),
    (sixty_four_gb, "memory-equal", "info", "joins nodes of unequal memory: 128 GB on spark1, 64 GB on spark2"),
]  # fmt: skip

FOLLOWING = {
    "one_subnet": {"rail-address", "rail-gid"},
    "nothing_installed": set(),
    "no_address": set(),
    "jetson": {"kernel-same", "driver-torn"},
    "gh200": {"kernel-same"},
    "retained": {"memory-free", "page-cache"},
    "torn_driver": set(),
}
"""Further findings that are right."""


async def test_a_tool_without_a_daemon_is_not_to_be_restarted(sparks, findings):
    podman_fails(*sparks)
    (found,) = [one for one in await findings() if one.id == "container-tool"]
    assert not any("systemctl" in step for step in found.do)


@pytest.mark.parametrize(
    ("harm", "known_as", "severity", "words"), FAULTS, ids=[fault[0].__name__ for fault in FAULTS]
)
async def test_a_fault_is_reported_by_its_name(sparks, findings, harm, known_as, severity, words):
    harm(*sparks)
    found = await findings()
    told = [one for one in found if one.id == known_as]
    assert any(words in one.what for one in told), found
    assert {one.severity for one in told} == {severity}
    assert all(one.means or known_as == "sparkfleet-installed" for one in told)
    assert all(one.do or known_as == "firewall" for one in told)
    assert {one.id for one in found} - {known_as} <= FOLLOWING.get(harm.__name__, set())


async def test_an_ipv6_address_of_a_router_is_no_dhcp(sparks, findings):
    """A switch with router advertisements gives every rail one, whatever its IPv4 address is."""
    advertised = {
        "family": "inet6",
        "local": "2001:db8::7",
        "prefixlen": 64,
        "scope": "global",
        "dynamic": True,
    }
    sparks[1].netdevs[FIRST]["addr_info"].append(advertised)
    assert await findings() == []


@pytest.mark.parametrize(
    ("netdev", "address"),
    [
        ("enp1s0f0np0", "0000:01:00.0"),
        ("enP2p1s0f1np1", "0002:01:00.1"),
        ("enP7s7", ""),
        ("enP7p1s0", "0007:01:00.0"),
        ("wlP9s9", ""),
        ("eth0", ""),
    ],
)
def test_addresses_of_netdevs(netdev, address):
    assert pci_address(netdev) == address


async def test_lanes_by_lspci_if_sysfs_has_none(sparks, findings):
    base = f"/sys/class/net/{SECOND}/device/current_link"
    sparks[0].answers["grep", "-sH", ".", f"{base}_speed", f"{base}_width"] = ""
    sparks[0].answers["lspci", "-D", "-vv"] = (
        "0002:01:00.1 Ethernet controller: Mellanox Technologies MT2910 Family [ConnectX-7]\n"
        "\t\tLnkSta:\tSpeed 32GT/s, Width x2 (downgraded)\n"
    )
    (told,) = await findings()
    assert told.id == "rail-pcie"


async def test_our_own_engine_on_the_gpu_is_no_leftover(sparks, findings):
    leftover(*sparks)
    sparks[1].answers[ReadHoldingProcesses.argv] = '[[[114687, 900000, 1000, "vllm", true]], 1000]'
    assert await findings() == []


async def test_the_memlock_limit_of_a_login_is_enough(sparks, findings):
    """systemd 255 gives it an eighth of the memory: of the 127,600,524 KiB of a Spark."""
    for spark in sparks:
        spark.answers["prlimit",] = f"MEMLOCK {127_600_524 * 128} {127_600_524 * 128}\n"
    assert await findings() == []


async def test_a_leftover_of_root_is_a_containers(sparks, findings):
    """The vLLM of a playbook: `kill` of a process of root is refused, and docker may start it again."""
    sparks[1].answers[ReadGpuProcesses.argv] = "114687, /usr/local/bin/python, 19135\n"
    sparks[1].answers[ReadHoldingProcesses.argv] = (
        '[[[114687, 300000, 0, "/usr/bin/python3 -m vllm", null]], 1000]'
    )
    (told,) = await findings()
    assert told.do[1:] == (
        "docker ps   # a container's: `docker stop NAME` ends it, and `docker inspect NAME | sparkfleet convert -` makes a"
        " deployment of it before",
        "sudo kill 114687   # if it is not needed, and in no container",
    )


NO_LINKS = INVENTORY.partition("links:")[0]
AT_SWITCH = NO_LINKS + "links:\n" + "".join(
    f"""  - nodes: [{name}]
    switch: sw
    rails:
      - - {{netdev: {FIRST}, rdma: rocep1s0f1, address: 192.168.100.{10 + number}/24}}
      - - {{netdev: {SECOND}, rdma: roceP2p1s0f1, address: 192.168.101.{10 + number}/24}}
"""
    for number, name in enumerate(("spark1", "spark2"), start=1)
)  # fmt: skip


@pytest.mark.parametrize(
    ("settings", "found"),
    [
        ({"all": 0, FIRST: 0, SECOND: 1, "enP7s7": 0}, f"{FIRST} answers ARP"),
        ({"all": 0, FIRST: 0, SECOND: 0, "enP7s7": 0}, f"{SECOND} and {FIRST} answer ARP"),
        ({"all": 1, FIRST: 0, SECOND: 0, "enP7s7": 0}, ""),
    ],
    ids=["a rail", "both rails", "all netdevs are strict"],
)
async def test_at_a_switch_a_rail_that_answers_arp_for_the_other_one_is_named(sparks, settings, found):
    sparks[1].answers[ReadLooseArp.argv] = arp(**settings)
    channels = {spark.name: spark.channel() for spark in sparks}
    at_switch = await gather(parse_inventory(AT_SWITCH, "inventory.yaml"), channels, timeout_s=5)
    with_cable = await gather(parse_inventory(INVENTORY, "inventory.yaml"), channels, timeout_s=5)
    told = [one for one in registry.examine(at_switch) if one.id == "rail-arp"]
    assert [one.severity for one in told] == [Severity.WARNING if found else Severity.OK, Severity.OK]
    assert told[0].what.startswith(f"spark2: {found}") or not found
    assert [one.severity for one in registry.examine(with_cable) if one.id == "rail-arp"] == [Severity.OK]


async def test_settings_of_arp_that_are_not_read_are_not_known(sparks):
    sparks[1].answers[ReadLooseArp.argv] = ""
    channels = {spark.name: spark.channel() for spark in sparks}
    fleet = await gather(parse_inventory(AT_SWITCH, "inventory.yaml"), channels, timeout_s=5)
    told = [one for one in registry.examine(fleet) if one.id == "rail-arp"]
    assert [one.severity for one in told] == [Severity.UNKNOWN, Severity.OK]


@pytest.mark.parametrize(
    ("up", "carrier", "present", "found"),
    [
        (True, False, True, True),
        (True, True, True, False),
        (False, False, True, False),
        (True, False, False, False),
    ],
    ids=["no cable", "a cable", "switched off by hand", "off"],
)
async def test_a_connectx_7_without_a_cable_takes_power(sparks, up, carrier, present, found):
    for spark in sparks:
        for name in (FIRST, SECOND):
            spark.netdevs[name] = netdev(name, "", up=up, carrier=carrier)
        if not present:
            no_card(None, spark)
    inventory = parse_inventory(NO_LINKS, "inventory.yaml")
    fleet = await gather(inventory, {spark.name: spark.channel() for spark in sparks}, timeout_s=5)
    told = [one for one in registry.examine(fleet) if one.id in ("cx7-idle", "cx7-present")]
    notes = [one.what for one in told if one.severity is Severity.INFO]
    assert notes == [
        f"{spark.name}: the ConnectX-7 is on, and none of its 2 ports has a cable"
        for spark in sparks
        if found
    ]


async def test_rays_ports_are_evidence_and_the_sentence_is_the_same_on_every_node(sparks, findings):
    """On eight nodes it was eight times eight lines, which differed by the ports."""
    ray_of_ours(*sparks)
    (told,) = [one for one in await findings() if one.id == "exposed-ports"]
    assert (told.what, told.evidence) == (f"{told.subject}: Ray listens on every address", {"ports": "35743"})
