"""Two healthy Sparks have no finding; each fault has a finding with its own id and words."""

import re

import pytest
from sparks import INVENTORY, RAILS, capture, host_key, netdev

from sparkfleet.doctor import registry
from sparkfleet.doctor.collect import gather
from sparkfleet.doctor.findings import Severity
from sparkfleet.doctor.snapshot import pci_address
from sparkfleet.errors import NodeError
from sparkfleet.hostfacts.clock import ReadClock
from sparkfleet.hostfacts.disk import ReadDisks
from sparkfleet.hostfacts.gpu import ReadGpuProcesses, ReadGpuState
from sparkfleet.hostfacts.kernel_log import ReadKernelLog
from sparkfleet.hostfacts.machine import ReadHostKeys, ReadIdentity
from sparkfleet.hostfacts.memory import ReadKernel
from sparkfleet.hostfacts.network.rdma import ReadGidsOfKernel
from sparkfleet.hostfacts.privileges import ReadServices
from sparkfleet.hostfacts.processes import ReadHoldingProcesses
from sparkfleet.hostfacts.venv import ReadPythonEnvironment
from sparkfleet.remote.channel import Completed
from sparkfleet.specs.load import parse_inventory

DOCKER = ("docker", "info")
LIMITS = ("cat", "/proc/self/limits")
MEMINFO = ("cat", "/proc/meminfo")
FIRST, SECOND = (name for name, _, _ in RAILS)


async def test_two_healthy_sparks(findings):
    assert await findings() == []


async def test_every_check_is_decided_for_two_healthy_sparks(look):
    told = registry.examine(await look())
    ids = {check.id for check in registry.CHECKS}
    unknown = {one.id for one in told if one.severity is Severity.UNKNOWN}
    assert not unknown & ids
    assert ids <= {one.id for one in told}


def one_rail_down(a, b):
    b.netdevs[SECOND] = netdev(SECOND, "192.168.101.12/24", carrier=False)


def in_the_other_port(a, b):
    one_rail_down(a, b)
    b.netdevs["enp1s0f0np0"] = netdev("enp1s0f0np0", "")
    b.answers[("rdma", "link")] += (
        "link rocep1s0f0/1 state ACTIVE physical_state LINK_UP netdev enp1s0f0np0\n"
    )


async def test_a_cable_in_the_other_port_is_a_remedy(sparks, findings):
    in_the_other_port(*sparks)
    (found,) = [one for one in await findings() if one.id == "rail-down"]
    assert any(
        "enp1s0f0np0 on spark2 has a carrier. If the cable is in that port" in step for step in found.do
    )


def switched_off(a, b):
    a.netdevs[FIRST] = netdev(FIRST, "192.168.100.11/24", up=False, carrier=False)


def mtu_1500(a, b):
    for spark in (a, b):
        spark.netdevs[FIRST]["mtu"] = 1500


def mtu_at_one_end(a, b):
    b.netdevs[FIRST]["mtu"] = 1500


def one_subnet(a, b):
    for spark in (a, b):
        spark.netdevs[SECOND] = netdev(SECOND, f"192.168.100.{20 + spark.number}/24")


def no_address(a, b):
    a.netdevs[FIRST] = netdev(FIRST, "")


def bonded(a, b):
    a.netdevs[FIRST]["master"] = "bond0"


def hundred_gigabit(a, b):
    a.answers["ethtool", FIRST] = "\tSpeed: 100000Mb/s\n\tLink detected: yes\n"


def no_fec(a, b):
    a.answers["ethtool", "--show-fec", FIRST] = "Active FEC encoding: None\n"


def two_lanes(a, b):
    base = f"/sys/class/net/{SECOND}/device/current_link"
    a.answers["grep", "-sH", ".", f"{base}_speed", f"{base}_width"] = (
        f"{base}_speed:32.0 GT/s PCIe\n{base}_width:2\n"
    )


def rdma_down(a, b):
    a.change(("rdma", "link"), "link roceP2p1s0f1/1 state ACTIVE", "link roceP2p1s0f1/1 state DOWN")


def gid_missing(a, b):
    lines = a.answers[ReadGidsOfKernel.argv].splitlines(keepends=True)
    a.answers[ReadGidsOfKernel.argv] = "".join(
        line for line in lines if not ("roceP2p1s0f1" in line and "v2" in line)
    )


def rdma_mtu(a, b):
    a.change(("ibv_devinfo",), "active_mtu:\t\t4096 (5)", "active_mtu:\t\t1024 (3)")


def other_driver(a, b):
    b.change(ReadGpuState.argv, "580.142", "580.95.05")
    b.change(ReadIdentity.argv, "580.142", "580.95.05")


def torn_driver(a, b):
    b.change(ReadIdentity.argv, "580.142", "580.95.05")


def torn_driver_that_does_not_start(a, b):
    said = "Failed to initialize NVML: Driver/library version mismatch\nNVML library version: 580.142\n"
    b.answers[ReadGpuState.argv] = Completed(argv=(), exit_code=18, stdout=said, stderr="")


def no_gpu(a, b):
    b.answers[ReadGpuState.argv] = "No devices were found\n"


def lost_gpu(a, b):
    b.answers[ReadGpuState.argv] = (
        "Unable to determine the device handle for GPU0: 000F:01:00.0: GPU is lost.  Reboot the system to recover this GPU\n"
        "No devices were found\n"
    )


def hung(a, b):
    b.answers[ReadGpuState.argv] = NodeError("killed")


def wedged(a, b):
    b.answers[ReadGpuState.argv] = (
        "NVIDIA GB10, 580.142, 0000000F:01:00.0, 12.1, P0, 41, 14.2, 96, 611, 3003, 0x0000000000000000\n"
    )


def throttled(a, b):
    b.answers[ReadGpuState.argv] = (
        "NVIDIA GB10, 580.142, 0000000F:01:00.0, 12.1, P0, 91, 61.2, 96, 1500, 3003, 0x0000000000000040\n"
    )


def leftover(a, b):
    b.answers[ReadGpuProcesses.argv] = "114687, VLLM::EngineCore, 59135\n"


def retained(a, b):
    b.answers[MEMINFO] = capture("meminfo-retained.txt")


def hog(a, b):
    b.answers[ReadHoldingProcesses.argv] = '[[[901, 40000000, 1000, "/usr/bin/blender", false]], 1000]'


def swap(a, b):
    b.change(MEMINFO, "SwapTotal:             0 kB", "SwapTotal:      16777212 kB")
    b.change(ReadKernel.argv, "swappiness:10", "swappiness:60")


def pressure(a, b):
    b.change(ReadKernel.argv, "full avg10=0.00", "full avg10=43.10")


def cached(a, b):
    b.change(MEMINFO, "Cached:         17913568 kB", "Cached:         57913568 kB")
    b.change(MEMINFO, "MemFree:        99159460 kB", "MemFree:        59159460 kB")


def out_of_gpu_memory(a, b):
    b.answers[ReadKernelLog.argv] = "NVRM: Out of memory [NV_ERR_NO_MEMORY] (0x51)\n"


def xid(a, b):
    b.answers[ReadKernelLog.argv] = "NVRM: Xid (PCI:000f:01:00): 119, pid=1, Timeout\n"


def skewed(a, b):
    def later(call):
        done = a.answers[ReadClock.argv](call)
        return done.model_copy(update={"stdout": f"{float(done.stdout) + 90:.9f}\n"})

    b.answers[ReadClock.argv] = later


def unsynchronised(a, b):
    b.answers["timedatectl",] = "NTP=no\nNTPSynchronized=no\n"


def other_ray(a, b):
    b.change(ReadPythonEnvironment.argv, "2.60.0", "2.58.1")


def other_sparkfleet(a, b):
    b.change(ReadPythonEnvironment.argv, "0.1.0", "0.0.9")


def other_python(a, b):
    b.change(ReadPythonEnvironment.argv, "3.12.3", "3.11.9")


def nothing_installed(a, b):
    b.answers[ReadPythonEnvironment.argv] = (
        '{"python": "3.12.3", "executable": "/e", "sparkfleet": "", "ray": ""}'
    )


def no_container_tool(a, b):
    del b.answers[DOCKER]


def podman_fails(a, b):
    del b.answers[DOCKER]
    b.answers["podman",] = Completed(argv=(), exit_code=125, stdout="", stderr="Error: no newuidmap")


def docker_refuses(a, b):
    b.answers[DOCKER] = Completed(argv=(), exit_code=1, stdout=capture("docker-refused.json"), stderr="")


def no_gpu_in_containers(a, b):
    b.change(DOCKER, '"nvidia":{"path":"nvidia-container-runtime"},', "")
    b.answers["ls",] = Completed(argv=(), exit_code=2, stdout="", stderr="ls: cannot access")


def small_memlock(a, b):
    b.answers["prlimit",] = "MEMLOCK 65536 65536\n"


def memlock_of_2_gib(a, b):
    b.answers["prlimit",] = "MEMLOCK 2147483648 2147483648\n"


def few_files(a, b):
    b.change(LIMITS, "1048576", "4096")


def no_linger(a, b):
    b.change(ReadServices.argv, '"linger": true', '"linger": false')


def no_init(a, b):
    b.change(ReadServices.argv, '"systemd": true', '"systemd": false')
    b.change(ReadServices.argv, '"cron": true', '"cron": false')


def hot(a, b):
    b.change(ReadServices.argv, "51500", "97000")


def engine_on_every_address(a, b):
    b.answers["ss",] = 'LISTEN 0 4096 *:8001 *:* users:(("vllm",pid=77,fd=3))\n'


def engine_with_many_ports(a, b):
    b.answers["ss",] = "".join(
        f'LISTEN 0 4096 192.168.1.12:{port} *:* users:(("VLLM::Worker_TP",pid=77,fd=3))\n'
        for port in range(40001, 40011)
    )


def ray_of_ours(a, b):
    b.answers[ReadHoldingProcesses.argv] = '[[[78, 90000, 1000, "raylet", true]], 1000]'
    b.answers["ss",] = 'LISTEN 0 4096 *:35743 *:* users:(("raylet",pid=78,fd=3))\n'


def rays_metrics(a, b):
    b.answers["ss",] = 'LISTEN 0 5 0.0.0.0:44217 0.0.0.0:* users:(("python3.11",pid=4069,fd=21))\n'


def ray_of_somebody(a, b):
    b.answers["ss",] = "LISTEN 0 4096 192.168.1.12:8265 0.0.0.0:*\n"


def firewall(a, b):
    b.change(ReadKernel.argv, "ENABLED=no", "ENABLED=yes")


def same_host_keys(a, b):
    b.answers[ReadHostKeys.argv] = host_key(1)


def same_machine_ids(a, b):
    b.answers[ReadIdentity.argv] = a.answers[ReadIdentity.argv]


def other_release(a, b):
    b.change(ReadIdentity.argv, "7.6.0", "7.5.0")


def other_kernel(a, b):
    b.change(ReadIdentity.argv, "6.17.0-1026-nvidia", "6.14.0-1015-nvidia")


def jetson(a, b):
    b.answers[ReadIdentity.argv] = capture("identity-thor.txt")


def sixty_four_gb(a, b):
    def less(line):
        return f"{line[1]}{int(line[2]) - 65_000_000}"

    b.answers[MEMINFO] = re.sub(r"(Mem(?:Total|Free|Available): +)(\d+)", less, b.answers[MEMINFO])


def n1x(a, b):
    b.change(("lspci", "-Dnn"), "10de:2e12", "10de:2e03")


def gh200(a, b):
    b.answers[ReadIdentity.argv] = capture("identity-gh200.txt")
    b.change(("lspci", "-Dnn"), "10de:2e12", "10de:2342")
    b.change(ReadGpuState.argv, "NVIDIA GB10", "NVIDIA GH200 480GB")


def disk_nearly_full(a, b):
    b.answers[ReadDisks.argv] = b.answers[ReadDisks.argv].replace("3200000000000", "5000000000")


def no_refs(a, b):
    b.change(ReadDisks.argv, '"models": []', '"models": [["Qwen/Qwen3-8B", 16000, false]]')


def shm_full(a, b):
    b.change(ReadDisks.argv, "[60000000000, 60000000000, 2]", "[60000000000, 30000000000, 2]")


def no_card(a, b):
    b.answers["lspci", "-Dnn"] = capture("lspci.txt").splitlines()[-1]


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
    (cached, "page-cache", "info", "55 GiB of files are cached"),
    (out_of_gpu_memory, "gpu-log", "warning", "ran out of memory 1 times"),
    (xid, "gpu-log", "warning", "Xid 119"),
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
    (ray_of_ours, "exposed-ports", "warning", "Ray listens on every address, port 35743"),
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


def _failed(*argv):
    return Completed(argv=argv, exit_code=1, stdout="", stderr="a failure")


def without_time(a, b):
    b.answers["timedatectl",] = "NTP=\nNTPSynchronized=\n"


def without_pressure(a, b):
    b.answers[ReadKernel.argv] = re.sub(r"/proc/pressure/memory:.*\n", "", b.answers[ReadKernel.argv])


def without_throttling(a, b):
    line = b.answers[ReadGpuState.argv].strip()
    b.answers[ReadGpuState.argv] = ", ".join((*line.split(",")[:-1], "[N/A]"))


def without_power(a, b):
    fields = b.answers[ReadGpuState.argv].strip().split(",")
    fields[6] = "[N/A]"
    b.answers[ReadGpuState.argv] = ",".join(fields)


def without_zones(a, b):
    b.change(ReadServices.argv, "51500", "null")


def without_processes(a, b):
    leftover(a, b)
    b.answers[ReadHoldingProcesses.argv] = "no JSON"


def without_ethtool(a, b):
    for name in (FIRST, SECOND):
        b.answers["ethtool", name] = _failed("ethtool")


def without_fec(a, b):
    for name in (FIRST, SECOND):
        b.answers["ethtool", "--show-fec", name] = _failed("ethtool")


def without_lanes(a, b):
    for name in (FIRST, SECOND):
        base = f"/sys/class/net/{name}/device/current_link"
        b.answers["grep", "-sH", ".", f"{base}_speed", f"{base}_width"] = ""


def without_gids(a, b):
    b.answers[ReadGidsOfKernel.argv] = _failed("sh")


def without_ibv(a, b):
    b.answers["ibv_devinfo",] = _failed("ibv_devinfo")


def with_a_hanging_docker(a, b):
    b.answers["docker", "info"] = NodeError("docker info did not end within 20 s.")


UNREAD = [
    (without_time, "clock-synchronised"),
    (without_pressure, "memory-pressure"),
    (without_throttling, "gpu-throttled"),
    (without_power, "power-wedge"),
    (without_zones, "zones-cool"),
    (without_processes, "memory-leftover"),
    (without_ethtool, "rail-speed"),
    (without_fec, "rail-fec"),
    (without_lanes, "rail-pcie"),
    (without_gids, "rail-gid"),
    (without_ibv, "rail-rdma-mtu"),
    (with_a_hanging_docker, "container-tool"),
]


@pytest.mark.parametrize(("harm", "check"), UNREAD, ids=[harm.__name__ for harm, _ in UNREAD])
async def test_what_was_not_read_is_neither_fine_nor_a_fault(sparks, look, harm, check):
    harm(*sparks)
    told = [one for one in registry.examine(await look()) if one.id == check and "spark2" in one.subject]
    assert {one.severity for one in told} == {Severity.UNKNOWN}
    assert all("because " in one.what for one in told)


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
        "docker ps   # a container's: `docker stop NAME` ends it",
        "sudo kill 114687   # if it is not needed, and in no container",
    )


async def test_without_a_common_rail_ray_uses_the_lan(sparks):
    spec = parse_inventory(INVENTORY.partition("links:")[0], "inventory.yaml")
    sparks[1].answers["ss",] = 'LISTEN 0 9 192.168.1.12:6379 *:* users:(("gcs_server",pid=7,fd=3))\n'
    fleet = await gather(spec, {spark.name: spark.channel() for spark in sparks})
    (told,) = [one for one in registry.examine(fleet) if one.id == "exposed-ports" and one.severity != "ok"]
    assert told.severity == "warning"
    assert "No rail joins all nodes" in told.means


async def test_the_rendezvous_of_ranks_needs_a_firewall(sparks):
    engine_on_every_address(*sparks)
    fleet = await gather(
        parse_inventory(INVENTORY, "inventory.yaml"), {one.name: one.channel() for one in sparks}
    )
    (told,) = [
        one for one in registry.examine(fleet) if one.id == "exposed-ports" and one.severity == "error"
    ]
    assert "PyTorch listens on every address" in told.means
    assert "sudo ufw allow in on enp1s0f1np1" in str(told.do)


async def test_ports_behind_the_fleets_firewall_are_a_note(sparks):
    """Of the others nothing changes: the rules close the fleet's own range alone."""
    engine_with_many_ports(*sparks)
    sparks[1].answers["ss",] += 'LISTEN 0 4096 *:8001 *:* users:(("vllm",pid=77,fd=3))\n'
    rules = "/etc/sparkfleet/firewall.nft:    tcp dport 10002-60999 counter drop\n"
    sparks[1].change(ReadKernel.argv, "/etc/ufw/ufw.conf", f"{rules}/etc/ufw/ufw.conf")
    fleet = await gather(
        parse_inventory(INVENTORY, "inventory.yaml"), {one.name: one.channel() for one in sparks}
    )
    told = {
        one.severity: one.what
        for one in registry.examine(fleet)
        if one.id == "exposed-ports" and one.severity != "ok"
    }
    assert "close 10 listening ports to other machines" in told["info"]
    assert "8001" in told["error"]


async def test_rails_loopback_and_the_gateway_are_no_exposure(sparks, findings):
    sparks[0].answers["ss",] = "".join(
        f'LISTEN 0 9 {address} *:* users:(("raylet",pid=7,fd=3))\n'
        for address in (
            "192.168.100.11:6379",
            "127.0.0.1:8265",
            "[::1]:9000",
            "0.0.0.0:8000",
            "127.0.1.1:40001",
        )
    )
    assert await findings() == []


NO_LINKS = INVENTORY.partition("links:")[0]


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
