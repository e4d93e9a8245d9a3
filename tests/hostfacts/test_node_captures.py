import subprocess
import sys
from pathlib import Path

import pytest

from sparkfleet.errors import FactError
from sparkfleet.hostfacts.clock import ClockOffset, ReadChrony, ReadClock, ReadTimeSync, TimeSync
from sparkfleet.hostfacts.container import ReadCdi, ReadDocker, ReadPodman, refused
from sparkfleet.hostfacts.disk import ReadDisks
from sparkfleet.hostfacts.gpu import ReadGpuProcesses, ReadGpuState
from sparkfleet.hostfacts.kernel_log import ReadKernelLog, ReadPackages
from sparkfleet.hostfacts.machine import DgxRelease, ReadHostKeys, ReadIdentity, ReadPciDevices
from sparkfleet.hostfacts.memory import ReadKernel, ReadMemoryMap
from sparkfleet.hostfacts.network.listening_sockets import ReadSockets
from sparkfleet.hostfacts.node import ReadGpu
from sparkfleet.hostfacts.privileges import (
    UNLIMITED,
    ReadLockedMemory,
    ReadLockedMemoryOfKernel,
    ReadOpenFiles,
    ReadServices,
    ReadUser,
)
from sparkfleet.hostfacts.processes import ReadHoldingProcesses
from sparkfleet.hostfacts.venv import ReadPythonEnvironment
from sparkfleet.units import GIB

CAPTURES = Path(__file__).parents[0] / "captures"


def capture(name):
    return (CAPTURES / name).read_text()


# --- identity ---------------------------------------------------------------------------------------------------------


def test_the_last_update_in_dgx_release_counts():
    found = ReadIdentity.parse(capture("identity.txt"))
    assert found.release == DgxRelease(name="DGX Spark", software="7.2.3", updated="7.6.0")
    assert found.release.version == "7.6.0"
    assert (found.kernel, found.driver_module) == ("6.17.0-1026-nvidia", "580.142")
    assert (found.machine, found.bios) == ("NVIDIA NVIDIA_DGX_Spark", "5.36_0ACUM023")
    assert found.tegra == ""


def test_an_oem_box_without_a_dgx_release():
    found = ReadIdentity.parse(capture("identity-asus.txt"))
    assert found.release is None
    assert found.machine == "ASUSTeK COMPUTER INC. Ascent GX10"


def test_a_jetson_is_recognised_by_its_release():
    assert ReadIdentity.parse(capture("identity-thor.txt")).tegra.startswith("# R38")


def test_some_files_may_be_missing_but_not_all():
    assert ReadIdentity.answer(2, "/proc/sys/kernel/osrelease:6.17\n", "").kernel == "6.17"
    with pytest.raises(FactError, match="os-release"):
        ReadIdentity.answer(2, "", "")


def test_pci_devices():
    devices = ReadPciDevices.parse(capture("lspci.txt"))
    assert len(devices) == 5
    assert (devices[-1].address, devices[-1].id) == ("000f:01:00.0", "10de:2e12")
    assert devices[0].id == "15b3:1021"


def test_fingerprints_are_those_of_ssh_keygen():
    # ssh-keygen -lf prints this for GitHub's published ed25519 key.
    assert ReadHostKeys.parse(capture("hostkeys.txt")) == (
        "SHA256:+DiY3wvvV6TuJJhbpZisF/zLDA0zPMSvHdkr4UvCOqU",
    )
    assert ReadHostKeys.answer(2, "", "") == ()


# --- GPU --------------------------------------------------------------------------------------------------------------


def test_gpu_state():
    (gpu,) = ReadGpuState.parse(capture("smi-state.csv"))
    assert (gpu.name, gpu.driver, gpu.compute_capability) == ("NVIDIA GB10", "580.142", "12.1")
    assert (gpu.power_w, gpu.sm_clock_mhz) == (5.41, 208)
    assert gpu.throttled == ("idle",)


def test_gpu_state_with_units_and_missing_fields():
    line = "NVIDIA GB10, 580.178.04, 0000000F:01:00.0, [N/A], [Not Supported], , 12.42 W, 3 %, [N/A], 3003 MHz, N/A\n"
    (gpu,) = ReadGpuState.parse(line)
    assert (gpu.compute_capability, gpu.temperature_c) == (None, None)
    assert (gpu.power_w, gpu.utilization_percent, gpu.sm_clock_mhz) == (12.42, 3, None)
    assert gpu.most_sm_clock_mhz == 3003
    assert gpu.throttled is None


def test_no_devices_were_found():
    assert ReadGpuState.answer(6, "No devices were found\n", "") == ()
    assert ReadGpu.parse("No devices were found\n") is None


def test_a_driver_mismatch_is_reported():
    said = "Failed to initialize NVML: Driver/library version mismatch\nNVML library version: 580.142\n"
    with pytest.raises(FactError, match="version mismatch") as caught:
        ReadGpuState.answer(18, said, "")
    assert "reboot" in caught.value.do


def test_processes_on_the_gpu():
    (one,) = ReadGpuProcesses.parse("114687, /usr/local/bin/python, 19135\n")
    assert (one.pid, one.name, one.memory) == (114687, "/usr/local/bin/python", 19135 << 20)
    (odd,) = ReadGpuProcesses.parse("7, a, b, [N/A]\n")
    assert (odd.name, odd.memory) == ("a, b", None)


def test_empty_output_means_no_gpu_process():
    assert ReadGpuProcesses.answer(0, "", "") == ()


# --- memory -----------------------------------------------------------------------------------------------------------


def test_unaccounted_memory_after_a_cuda_runner_was_stopped():
    found = ReadMemoryMap.parse(capture("meminfo-retained.txt"))
    assert 79 * GIB < found.unaccounted < 81 * GIB
    assert found.page_cache == (37694160 + 13252 - 3028) * 1024


def test_an_idle_spark_has_little_unaccounted_memory():
    found = ReadMemoryMap.parse(capture("meminfo-idle.txt"))
    assert found.unaccounted < 2 * GIB
    assert found.memory.total == 127600748 * 1024


def test_kernel_settings():
    found = ReadKernel.parse(capture("kernel.txt"))
    assert (found.swappiness, found.memory_pressure, found.firewall) == (10, 0.0, False)
    assert not found.kho_off
    assert ReadKernel.parse("/proc/cmdline:ro kho=off\n").kho_off
    assert ReadKernel.parse("").firewall is None


def test_processes_by_memory():
    (one,) = ReadHoldingProcesses.parse('[[[77, 2048, 1000, "python3 -m vllm", true]], 1000]')
    assert (one.pid, one.resident, one.ours) == (77, 2 << 20, True)


def test_processes_in_a_container_of_ours_whose_environment_is_roots(tmp_path):
    """The probe itself, with a /proc in which no environment can be read, and a `docker` that knows one container."""
    known, other = "a" * 64, "b" * 64
    for pid, container in ((77, known), (78, other), (79, "")):
        process = tmp_path / "proc" / str(pid)
        (process / "environ").mkdir(parents=True)  # not a file: reading it fails
        (process / "status").write_text("Name:\tpython3\nVmRSS:\t  2048 kB\nUid:\t0\t0\t0\t0\n")
        (process / "cmdline").write_bytes(b"VLLM::EngineCore\0")
        (process / "cgroup").write_text(f"0::/system.slice/docker-{container}.scope\n")
    docker = tmp_path / "docker"
    docker.write_text(
        f"""#!/bin/sh\n[ "$*" = "ps -q --no-trunc --filter label=sparkfleet.fleet" ] && echo {known}\n"""
    )
    docker.chmod(0o755)
    *python, probe = ReadHoldingProcesses.argv
    argv = (sys.executable, *python[1:], probe.replace("/proc", str(tmp_path / "proc")))
    environment = {"PATH": f"{tmp_path}:/usr/bin:/bin"}
    printed = subprocess.run(argv, env=environment, capture_output=True, check=True, text=True).stdout
    assert {one.pid: one.ours for one in ReadHoldingProcesses.parse(printed)} == {
        77: True,
        78: None,
        79: None,
    }


# --- disks ------------------------------------------------------------------------------------------------------------


def test_disks():
    found = ReadDisks.parse(
        '{"hub": "/home/n/.cache/huggingface/hub", "models": [["Qwen/Qwen3-8B", 16000, true], ["a/b", null, false]],'
        ' "places": {"hub": ["/home/n/.cache/huggingface/hub", [4000, 3000, 66306]], "shm": ["/dev/shm", null]}}'
    )
    assert [model.id for model in found.models] == ["Qwen/Qwen3-8B", "a/b"]
    assert found.models[1].size is None
    assert set(found.places) == {"hub"}
    assert found.places["hub"].free == 3000


# --- container tools --------------------------------------------------------------------------------------------------


def test_docker():
    docker = ReadDocker.answer(0, capture("docker-info.json"), "")
    assert (docker.version, docker.usable, docker.nvidia_runtime) == ("29.2.1", True, True)
    assert docker.root == "/var/lib/docker"


def test_docker_that_this_user_may_not_use():
    docker = ReadDocker.answer(1, capture("docker-refused.json"), "errors pretty printing info\n")
    assert not docker.usable
    assert refused(docker)


def test_no_container_tool():
    assert ReadDocker.answer(127, "", "docker: not found") is None
    assert ReadPodman.answer(127, "", "podman: not found") is None


def test_podman():
    said = '{"host": {"ociRuntime": {"name": "crun"}}, "store": {"graphRoot": "/s"}, "version": {"Version": "5.4.0"}}'
    podman = ReadPodman.answer(0, said, "")
    assert (podman.version, podman.runtimes, podman.root) == ("5.4.0", ("crun",), "/s")
    assert ReadPodman.answer(125, "", "cannot clone").why_not == "cannot clone"
    warned = 'time="2026-11-28T09:14:07+01:00" level=warning msg="\\"/\\" is not a shared mount"\nError: no newuidmap\n'
    assert ReadPodman.answer(125, "", warned).why_not == "no newuidmap"


def test_cdi():
    assert ReadCdi.answer(2, "/etc/cdi:\nnvidia.yaml\n", "ls: /var/run/cdi: No such file") == ("nvidia.yaml",)


# --- the rest of the host ---------------------------------------------------------------------------------------------


def test_clock():
    assert ReadClock.parse("1784102400.250000000\n") == 1784102400.25
    offset = ClockOffset.of(read=112.0, asked=100.0, answered=101.0)
    assert (offset.ahead_s, offset.uncertainty_s) == (11.5, 0.5)


def test_time_synchronisation():
    assert ReadTimeSync.parse("NTP=yes\nNTPSynchronized=no\n") == TimeSync(synchronised=False, enabled=True)
    assert ReadChrony.parse("Stratum : 3\nLeap status     : Normal\n").synchronised
    assert not ReadChrony.parse("Leap status     : Not synchronised\n").synchronised


def test_limits():
    assert ReadOpenFiles.parse(capture("limits.txt")).most == 1048576
    assert ReadLockedMemoryOfKernel.parse(capture("limits.txt")).is_unlimited
    assert ReadLockedMemory.parse("MEMLOCK unlimited unlimited\n").most == UNLIMITED
    assert ReadLockedMemory.parse("MEMLOCK 65536 unlimited\n").most == 65536


def test_user():
    found = ReadUser.parse("uid=1000(nvidia) gid=1000(nvidia) groups=1000(nvidia),27(sudo),999(docker)\n")
    assert (found.name, found.groups) == ("nvidia", ("nvidia", "sudo", "docker"))


def test_services():
    found = ReadServices.parse(
        '{"systemd": true, "user_manager": false, "linger": false, "cron": true, "hottest": 51500,'
        ' "remove_ipc": true, "tools": ["rsync"]}'
    )
    assert (found.systemd, found.linger, found.hottest_c, found.tools) == (True, False, 51.5, ("rsync",))


def test_sockets():
    found = ReadSockets.parse(capture("ss.txt"))
    assert [(one.address, one.port) for one in found] == [
        ("127.0.0.53", 53), ("127.0.0.1", 11000), ("*", 22), ("*", 8000), ("*", 22), ("192.168.100.10", 6379),
    ]  # fmt: skip
    assert [one.local for one in found] == [True, True, False, False, False, False]
    assert (found[3].process, found[3].pid, found[3].pids) == ("python3", 4211, (4211,))


def test_a_socket_that_workers_share_has_all_of_them():
    """As of `uvicorn --workers 2`."""
    holders = 'users:(("python3",pid=11,fd=3),("python3",pid=12,fd=3),("python3",pid=13,fd=3))'
    (found,) = ReadSockets.parse(f"LISTEN 0 2048 127.0.0.1:5005 0.0.0.0:* {holders}\n")
    assert (found.pid, found.pids) == (11, (11, 12, 13))


def test_a_socket_with_a_scope():
    """As iproute2 6.1 prints them, the one of Ubuntu 24.04."""
    output = "LISTEN 0 32 [fe80::6cbc:9aff:fed7:b421]%lxdbr0:53 [::]:*\nLISTEN 0 128 0.0.0.0%virbr0:5355 0.0.0.0:*\n"
    found = ReadSockets.parse(output)
    assert [(one.address, one.port) for one in found] == [("fe80::6cbc:9aff:fed7:b421", 53), ("*", 5355)]


def test_a_nodes_own_reading_counts_more_lines_than_a_batch_has_room_for():
    assert ReadKernelLog.argv[6:8] == ("-n", "200")
    assert ReadKernelLog.argv_here[7:9] == ("-n", "5000")
    assert ReadKernelLog.argv_here[9:] == ReadKernelLog.argv[8:]
    lines = ["NVRM: Xid (PCI:000f:01:00): 13, pid=1"] * 250 + ["NVRM: Xid (PCI:000f:01:00): 79, pid=1"]
    found = ReadKernelLog.parse("\n".join(lines))
    assert (found.xids.count(13), found.xids[-1]) == (250, 79), "the newest, too"


def test_kernel_log():
    said = (
        "NVRM: Xid (PCI:000f:01:00): 119, pid=1, Timeout\n"
        "NVRM: nvCheckOkFailedNoLog: Check failed: Out of memory [NV_ERR_NO_MEMORY] (0x00000051)\n"
        "mlx5_core 0002:01:00.0: Detected insufficient power on the PCIe slot (27W).\n"
    )
    found = ReadKernelLog.answer(0, said, "")
    assert (found.out_of_gpu_memory, found.xids, found.slot_power) == (1, (119,), True)
    assert ReadKernelLog.answer(1, "", "").xids == ()


def test_the_last_errors_of_a_node_have_their_times():
    """As journalctl 252 prints them with `-o short-monotonic --no-hostname`, the newest first."""
    said = (
        "[83791.270819] kernel: NVRM: nvCheckOkFailedNoLog: Check failed: Out of memory [NV_ERR_NO_MEMORY] (0x51)\n"
        "[83790.000001] kernel: NVRM: Xid (PCI:000f:01:00): 79, pid=4321\n"
        "[   12.500000] kernel: NVRM: Xid (PCI:000f:01:00): 13, pid=17\n"
        "[    9.000000] kernel: NVRM: Xid (PCI:000f:01:00): 79, pid=16\n"
    )
    found = ReadKernelLog.answer(0, said, "")
    assert (found.out_of_gpu_memory, found.xids) == (1, (79, 13, 79))
    assert found.out_of_gpu_memory_at == 83791.270819
    assert found.xids_at == {"79": 83790.000001, "13": 12.5}


@pytest.mark.parametrize(
    "said", ["Hint: You are currently not seeing messages from other users", "No journal files"]
)
def test_an_unreadable_kernel_log_is_an_error(said):
    with pytest.raises(FactError, match="may not be read"):
        ReadKernelLog.answer(1, "", said)


def test_only_installed_packages_are_listed():
    assert ReadPackages.parse("ii |docker-ce|5:29.2.1-1\nrc |mlnx-fw-updater|1\n") == {
        "docker-ce": "5:29.2.1-1"
    }


def test_python():
    found = ReadPythonEnvironment.parse(
        '{"python": "3.12.3", "executable": "/p", "sparkfleet": "0.1", "ray": ""}'
    )
    assert (found.python, found.sparkfleet, found.ray) == ("3.12.3", "0.1", "")
