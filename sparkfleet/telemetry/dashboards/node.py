"""The dashboard Node. Pure."""

from __future__ import annotations

from sparkfleet.engines.failure_signatures import LOW_BYTES
from sparkfleet.telemetry.alerts.node_alerts import SHORT_BYTES
from sparkfleet.telemetry.dashboards.panels import (
    BAD,
    GOOD,
    IS_OFF,
    IS_ON,
    NO_GPU,
    NO_RAIL,
    WARN,
    GrafanaDashboard,
    Variable,
    one,
    panel,
    row,
)

_N = 'node=~"$node"'
NODE = GrafanaDashboard(
    uid="sparkfleet-node",
    title="sparkfleet: Node",
    description="One node: its memory, its GPU, its disks, its rails.",
    variables=(Variable(name="node", label="Node", series="sparkfleet_node_joined"),),
    rows=(
        row(
            "Memory",
            panel(
                "Memory is available",
                "MemAvailable: engines and the host share it; below 3 GiB a Spark is about to freeze.",
                "bytes",
                one(f"sparkfleet_node_memory_available_bytes{{{_N}}}", "{{node}}"),
                limits=((BAD, None), (WARN, LOW_BYTES), (GOOD, SHORT_BYTES)),
            ),
            panel(
                "Memory is used for this",
                "Memory that nothing accounts for (on a Spark the GPU driver's), files in memory, swap.",
                "bytes",
                one(f"sparkfleet_node_memory_unaccounted_bytes{{{_N}}}", "{{node}} unaccounted"),
                one(f"sparkfleet_node_memory_page_cache_bytes{{{_N}}}", "{{node}} page cache"),
                one(f"sparkfleet_node_swap_used_bytes{{{_N}}}", "{{node}} swap"),
            ),
            panel(
                "Tasks wait for a resource",
                "Share of the last ten seconds in which tasks waited (PSI); memory comes before a freeze.",
                "percentunit",
                one(f"sparkfleet_node_pressure_ratio{{{_N}}}", "{{node}} {{resource}} {{share}}"),
                may_be_empty="a kernel without PSI",
            ),
        ),
        row(
            "GPU",
            panel(
                "The GPU draws power",
                "35 to 45 W while it decodes, up to 90 W in prefill; a few watts while busy is a wedge.",
                "watt",
                one(f"sparkfleet_node_gpu_power_watts{{{_N}}}", "{{node}}"),
                may_be_empty=NO_GPU,
            ),
            panel(
                "The GPU runs at this clock",
                "2.35 to 2.45 GHz under load; pinned below 0.9 GHz while busy is a wedge.",
                "hertz",
                one(f"sparkfleet_node_gpu_clock_hertz{{{_N}}}", "{{node}}"),
                one(f"sparkfleet_node_gpu_clock_max_hertz{{{_N}}}", "{{node}} highest"),
                may_be_empty=NO_GPU,
            ),
            panel(
                "The GPU is busy",
                "Share of time in which a kernel ran.",
                "percentunit",
                one(f"sparkfleet_node_gpu_busy_ratio{{{_N}}}", "{{node}}"),
                may_be_empty=NO_GPU,
            ),
            panel(
                "It is this warm",
                "GPU, and the highest thermal zone; soaks stay at 65 to 82 °C.",
                "celsius",
                one(f"sparkfleet_node_gpu_temperature_celsius{{{_N}}}", "{{node}} GPU"),
                one(f"sparkfleet_node_temperature_celsius{{{_N}}}", "{{node}} hottest zone"),
                may_be_empty=NO_GPU,
            ),
            panel(
                "Heat or power holds the clock down",
                "1 while the driver or the hardware limits the clock for heat or the power supply.",
                "short",
                one(f"sparkfleet_node_gpu_throttled{{{_N}}}", "{{node}}"),
                limits=IS_OFF,
                may_be_empty=NO_GPU,
            ),
            panel(
                "The kernel's log has errors of the GPU",
                "Xid errors, and allocations that the driver failed (NV_ERR_NO_MEMORY), of this boot.",
                "short",
                one(f"sum by (node, xid) (sparkfleet_node_gpu_xids{{{_N}}})", "{{node}} Xid {{xid}}"),
                one(f"sparkfleet_node_gpu_allocation_failures{{{_N}}}", "{{node}} no memory"),
                limits=IS_OFF,
                may_be_empty="a kernel log that the fleet's user may not read",
            ),
        ),
        row(
            "Rails and disks",
            panel(
                "Rails carry RDMA",
                "Bytes per second by RDMA, both directions. Both rails of a cable should carry the same.",
                "Bps",
                one(f"sparkfleet:rail_rdma_bytes:rate1m{{{_N}}}", "{{node}} {{rdma}} {{direction}}"),
                may_be_empty=NO_RAIL,
            ),
            panel(
                "Rails carry packets",
                "Bytes per second through the network stack: weights, Gloo, TCP.",
                "Bps",
                one(f"sparkfleet:rail_bytes:rate1m{{{_N}}}", "{{node}} {{netdev}} {{direction}}"),
                may_be_empty=NO_RAIL,
            ),
            panel(
                "Rails are up",
                "1 if the netdev has a carrier.",
                "short",
                one(f"sparkfleet_rail_up{{{_N}}}", "{{node}} {{netdev}}"),
                limits=IS_ON,
                may_be_empty=NO_RAIL,
            ),
            panel(
                "Rails count errors",
                "Errors per second of netdevs and of RDMA, by kind.",
                "short",
                one(
                    f"sum by (node, netdev, kind) (rate(sparkfleet_rail_errors_total{{{_N}}}[5m]))",
                    "{{node}} {{netdev}} {{kind}}",
                ),
                one(
                    f"sum by (node, rdma, kind) (rate(sparkfleet_rail_rdma_errors_total{{{_N}}}[5m]))",
                    "{{node}} {{rdma}} {{kind}}",
                ),
                span=12,
                may_be_empty=NO_RAIL,
            ),
            panel(
                "Disks have room",
                "Free space for the fleet's user, by directory; two directories may be on one disk.",
                "bytes",
                one(f"sparkfleet_node_disk_free_bytes{{{_N}}}", "{{node}} {{place}}"),
                span=12,
            ),
        ),
    ),
)
