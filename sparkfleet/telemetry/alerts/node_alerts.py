"""Alerts on nodes and their rails. Pure.

Limits of nodes are those of `doctor` and of the group's memory watch, so that alerts and checks agree.
"""

from __future__ import annotations

from sparkfleet.doctor.thresholds import (
    DISK_LOW_GB,
    HOT_GPU_C,
    HOT_ZONE_C,
    PRESSURE_PERCENT,
    WEDGED_CLOCK_MHZ,
    WEDGED_POWER_W,
    WEDGED_UTIL_PERCENT,
)
from sparkfleet.engines.failure_signatures import LOW_BYTES
from sparkfleet.telemetry.alerts.alert import alert, for_an_hour
from sparkfleet.units import GB

SHORT_BYTES = 2 * LOW_BYTES
"""MemAvailable that is worth a look before it is critical."""
DISK_SHARE = 0.05
DISK_BYTES = int(DISK_LOW_GB * GB)
THROTTLED_SHARE = 0.05
"""Share of half an hour in which heat or power holds a GPU's clock down. A Spark that decoded 56 % slower than its twin had
5.0 % of 16 hours (Avarok-Cybersecurity/atlas pull request 569), sound ones none in soaks (doctor/thresholds.py)."""
LOPSIDED = 0.2
"""Share of the busier rail's bytes below which the other one counts as idle; healthy pairs differ by a few per cent."""
BUSY_RAIL_BYTES_S = 50_000_000
"""Traffic of the busier rail from which lopsidedness means anything."""
_SENT = """label_replace(rate(sparkfleet_rail_rdma_bytes_total{direction="sent"}[5m]),
    "port", "$1", "rdma", ".*(f[0-9]+)")"""
"""RDMA that a node sends, with the QSFP port of the rail: the PCIe function that ends the name of a ConnectX' device
(rocep1s0f0 and roceP2p1s0f0 are the two rails of one cable)."""
_AVAILABLE = "last_over_time(sparkfleet_node_memory_available_bytes[1m])"
"""With the last value while a node that is short of memory answers late: an alert begins to wait again after each gap."""
_FREE = 'last_over_time(sparkfleet_node_disk_free_bytes{place=~"root|home|hub"}[2m])'
"""The same for a disk."""

NODES = (
    alert(
        "NodeLost",
        "sparkfleet_node_joined == 0 unless on (node) sparkfleet_node_drained == 1",
        "1m",
        "critical",
        summary="{{ $labels.node }} is not part of the fleet.",
        means="After four minutes its groups go on with other nodes if their plans have a place there; else they wait.",
        look="Its power, its network, and `sparkfleet status`.",
        do="Start it; it joins by itself if `up` ran there. Otherwise `sparkfleet up`.",
    ),
    alert(
        "MemoryCritical",
        f"{_AVAILABLE} < {LOW_BYTES}",
        "10s",
        "critical",
        summary="{{ $labels.node }} has {{ $value | humanize1024 }}B of memory left.",
        means="A Spark does not run out of memory politely: the host freezes.",
        look="`sparkfleet doctor`: which processes hold memory, and how much nothing accounts for.",
        do="Stop what is not sparkfleet's, or `sparkfleet delete` a deployment. Below 3 GiB its newest group is stopped.",
    ),
    alert(
        "MemoryLow",
        f"{_AVAILABLE} < {SHORT_BYTES} and {_AVAILABLE} >= {LOW_BYTES}",
        "5m",
        "warning",
        summary="{{ $labels.node }} has {{ $value | humanize1024 }}B of memory left.",
        means="The engines' own peaks may take it below the floor, at which the newest group is stopped.",
        look="The Node dashboard: page cache, engines, or memory that nothing accounts for.",
        do="A smaller context or concurrency; a restart of the node if the driver has leaked.",
    ),
    alert(
        "MemoryPressure",
        f'avg_over_time(sparkfleet_node_pressure_ratio{{resource="memory", share="full"}}[1m]) > {PRESSURE_PERCENT / 100}',
        "1m",
        "warning",
        summary="All tasks of {{ $labels.node }} waited for memory {{ $value | humanizePercentage }} of the time.",
        means="The host swaps or reclaims pages, which comes before it freezes.",
        look="Swap and page cache on the Node dashboard.",
        do="Stop what is not needed, or `sparkfleet delete` a deployment; then `sudo swapoff -a` until the next boot.",
    ),
    alert(
        "GpuAllocationFailed",
        for_an_hour("sparkfleet_node_gpu_allocation_failure_timestamp_seconds", "node"),
        "0s",
        "critical",
        summary="{{ $labels.node }}: the driver failed to allocate memory {{ $value | humanizeDuration }} ago"
        " (NV_ERR_NO_MEMORY).",
        means="This comes before the host freezes.",
        look="`journalctl -k -b -g NV_ERR_NO_MEMORY` on the node; `-b -1` for the boot before.",
        do="Start nothing new; free memory, or `sparkfleet restart` the deployment with the most in `sparkfleet top`.",
    ),
    alert(
        "GpuXid",
        for_an_hour("sparkfleet_node_gpu_xid_timestamp_seconds", "node, xid"),
        "0s",
        "critical",
        summary="{{ $labels.node }}: the GPU reported Xid {{ $labels.xid }} {{ $value | humanizeDuration }} ago.",
        means="The driver saw an error of the GPU or of a program on it.",
        look="`journalctl -k -b -g Xid` on the node, `-b -1` for the boot before; NVIDIA's list of Xid errors.",
        do="Xid 79 and 119: power off and on. 13 and 31: a program's fault, so another image.",
    ),
    alert(
        "GpuUnread",
        "last_over_time(sparkfleet_node_gpu_readable[2m]) == 0",
        "1m",
        "critical",
        summary="{{ $labels.node }}: the GPU cannot be read.",
        means="The driver has lost it or hangs: engines on the node stop or hang, and none starts. Its heat, power and clock"
        " are not known, so GpuHot, GpuThrottled and PowerWedge cannot fire.",
        look="`sparkfleet doctor {{ $labels.node }}`: the reason.",
        do="`sudo reboot` on the node, by its power button if that hangs. If it is not found then either, shut down and"
        " unplug the power for five minutes.",
    ),
    alert(
        "KernelLogUnread",
        "last_over_time(sparkfleet_node_kernel_log_readable[2m]) == 0",
        "10m",
        "warning",
        summary="{{ $labels.node }}: the kernel's log has not been readable for ten minutes.",
        means="Xid errors and failed allocations of the GPU are not known, so GpuXid and GpuAllocationFailed cannot fire.",
        look="`sparkfleet doctor {{ $labels.node }}`: the reason.",
        do="The fleet's user needs the group: `sudo usermod -aG systemd-journal USER` on the node, then reboot it. If"
        " `journalctl -k -b` hangs or takes long: `sudo journalctl --vacuum-size=500M`.",
    ),
    alert(
        "PowerWedge",
        # Half of the time that it waits, so that a node which is switched off alerts for nothing.
        f"""(last_over_time(sparkfleet_node_gpu_busy_ratio[1m]) > {WEDGED_UTIL_PERCENT / 100}
             and last_over_time(sparkfleet_node_gpu_power_watts[1m]) < {WEDGED_POWER_W})
            and last_over_time(sparkfleet_node_gpu_clock_hertz[1m]) < {int(WEDGED_CLOCK_MHZ)}e6""",
        "2m",
        "critical",
        summary="{{ $labels.node }}: the GPU is {{ $value | humanizePercentage }} busy at a few watts and a low clock.",
        means="The power controller is wedged: everything is three times as slow. A reboot does not help.",
        look="`nvidia-smi` on the node: busy, a few watts, a clock below 900 MHz, no throttle reason.",
        do="Shut down, unplug the supply from the wall and the Spark for five minutes, boot. A reboot does not help.",
    ),
    alert(
        "GpuThrottled",
        f"avg_over_time(sparkfleet_node_gpu_throttled[30m]) > {THROTTLED_SHARE:g}",
        "5m",
        "warning",
        summary="{{ $labels.node }}: heat or the power supply held the GPU's clock down in {{ $value | humanizePercentage }}"
        " of the last half hour.",
        means="Its engines are slower than predicted, and those over several nodes as slow as their slowest.",
        look="`sparkfleet doctor`: the reason; temperature on the Node dashboard.",
        do="Airflow, and the power supply that came with the Spark.",
    ),
    alert(
        "GpuHot",
        f"last_over_time(sparkfleet_node_gpu_temperature_celsius[2m]) > {HOT_GPU_C:g}",
        "5m",
        "warning",
        summary="{{ $labels.node }}: the GPU has {{ $value }} °C.",
        means="Soaks stay below 82 °C; it will throttle.",
        look="Temperature on the Node dashboard, beside that of its neighbours.",
        do="Airflow: Sparks that stand on each other heat each other.",
    ),
    alert(
        "NodeHot",
        f"last_over_time(sparkfleet_node_temperature_celsius[2m]) >= {HOT_ZONE_C:g}",
        "5m",
        "warning",
        summary="{{ $labels.node }}: its hottest thermal zone has {{ $value }} °C.",
        means="The fans run too slowly for the load; a Spark powers off at about 105 °C, and leaves no line in its log.",
        look="`sparkfleet doctor {{ $labels.node }}`; `fwupdmgr get-devices` on the node: the firmware 0x0300… of the"
        " embedded controller (EC) is known for it.",
        do="`sudo nvidia-smi -lgc 200,2150` on the node at once; then airflow, and the EC's firmware.",
    ),
    alert(
        "DiskLow",
        f"""({_FREE} < {DISK_BYTES})
            or ({_FREE} < {DISK_SHARE} * last_over_time(sparkfleet_node_disk_total_bytes[2m]))""",
        "10m",
        "warning",
        summary="{{ $labels.node }}: {{ $value | humanize }}B are free on the disk of {{ $labels.place }}"
        " (hub: models; home: logs, and the head's store).",
        means="Weights and images cannot be staged, or logs end; on the head, nothing can be applied.",
        look="`sparkfleet models list` and `df -h` on the node.",
        do="`sparkfleet prune` removes models and images that no deployment uses, after showing them.",
    ),
)

RAILS = (
    alert(
        "RailDown",
        # Not by the carrier alone: a neighbour's reboot takes it away as well, and NodeLost names that.
        "sparkfleet_rail_lost == 1",
        "30s",
        "critical",
        summary="{{ $labels.node }}: {{ $labels.netdev }} has no carrier, and the nodes at its ends are up.",
        means="Groups over this link have half of its bandwidth, or none.",
        look="`sparkfleet fabric plan` and the cable.",
        do="Plug it in again; try another cable.",
    ),
    alert(
        "RailFlaps",
        # A cable that is plugged in again, or a neighbour's reboot, is two changes, of which Prometheus extrapolates a
        # little more. The node's own reboot begins the count again.
        """increase(sparkfleet_rail_carrier_changes_total[10m]) > 2.5
            unless resets(sparkfleet_rail_carrier_changes_total[10m]) > 0""",
        "0s",
        "warning",
        summary="{{ $labels.node }}: the carrier of {{ $labels.netdev }} changed {{ $value | humanize }} times"
        " in 10 minutes.",
        means="A cable or a port is failing.",
        look="`dmesg` on both ends for mlx5 lines.",
        do="Plug it in again; try another cable.",
    ),
    alert(
        "RailLopsided",
        f"""(min by (node, port) ({_SENT}) < {LOPSIDED} * max by (node, port) ({_SENT}))
            and max by (node, port) ({_SENT}) > {BUSY_RAIL_BYTES_S}""",
        "5m",
        "warning",
        summary="{{ $labels.node }}: one rail of a cable carries nearly everything, the other {{ $value | humanize }}B/s.",
        means="The other half of the cable's bandwidth is unused: NCCL was given one device, or a rail fails.",
        look="Both rails on the Node dashboard; NCCL's variables in `sparkfleet describe NAME` of what runs there.",
        do="`sparkfleet doctor`; a group whose own `env` sets NCCL_IB_HCA to one device uses one.",
    ),
    alert(
        "RailErrors",
        """sum by (node, netdev) (rate(sparkfleet_rail_errors_total{kind!="rx_dropped"}[5m])) > 1""",
        "5m",
        "warning",
        summary="{{ $labels.node }}: {{ $labels.netdev }} counts {{ $value | humanize }} errors per second.",
        means="A cable or a transceiver is failing; collectives wait for retransmissions.",
        look="Errors by kind on the Node dashboard.",
        do="Plug it in again, then `sparkfleet fabric measure`.",
    ),
)
