"""Faults of two Sparks: each function changes what their channels answer."""

import re
import time

from sparks import RAILS, buddies, capture, host_key, netdev

from sparkfleet.errors import NodeError
from sparkfleet.hostfacts.clock import ReadClock
from sparkfleet.hostfacts.disk import ReadDisks
from sparkfleet.hostfacts.gpu import ReadGpuProcesses, ReadGpuState
from sparkfleet.hostfacts.kernel_log import ReadKernelLog
from sparkfleet.hostfacts.last_boot import ReadLastBoot
from sparkfleet.hostfacts.machine import ReadHostKeys, ReadIdentity
from sparkfleet.hostfacts.memory import ReadFreeBlocks, ReadKernel
from sparkfleet.hostfacts.network.rdma import ReadGidsOfKernel
from sparkfleet.hostfacts.privileges import ReadServices
from sparkfleet.hostfacts.processes import ReadHoldingProcesses
from sparkfleet.hostfacts.venv import ReadPythonEnvironment
from sparkfleet.remote.channel import Completed

DOCKER = ("docker", "info")
LIMITS = ("cat", "/proc/self/limits")
MEMINFO = ("cat", "/proc/meminfo")
FIRST, SECOND = (name for name, _, _ in RAILS)


def one_rail_down(a, b):
    b.netdevs[SECOND] = netdev(SECOND, "192.168.101.12/24", carrier=False)


def in_the_other_port(a, b):
    one_rail_down(a, b)
    b.netdevs["enp1s0f0np0"] = netdev("enp1s0f0np0", "")
    b.answers[("rdma", "link")] += (
        "link rocep1s0f0/1 state ACTIVE physical_state LINK_UP netdev enp1s0f0np0\n"
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


def fragmented(a, b):
    """As of a rank after seven days: five blocks of 16 MiB, none of 32."""
    b.answers[ReadFreeBlocks.argv] = buddies(
        90000, 80000, 700000, 600000, 400000, 200000, 40000, 9000, 900, 300, 60, 9, 5, 0
    )


def out_of_gpu_memory(a, b):
    b.answers[ReadKernelLog.argv] = "NVRM: Out of memory [NV_ERR_NO_MEMORY] (0x51)\n"


def xid(a, b):
    b.answers[ReadKernelLog.argv] = "NVRM: Xid (PCI:000f:01:00): 119, pid=1, Timeout\n"


def cut_off(a, b):
    """The power went off an hour ago: the last line is one of anything."""
    at = time.time() - 3600
    lines = (
        "kernel: pcieport 0000:00:00.0: AER: Multiple Uncorrectable (Fatal) error message received",
        "CRON[1]: hourly",
    )
    b.answers[ReadLastBoot.argv] = "".join(f"{at + count:.6f} {line}\n" for count, line in enumerate(lines))


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
