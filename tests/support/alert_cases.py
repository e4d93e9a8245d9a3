"""For each alert: series of fifteen seconds each that make it fire, when it does, and when it has cleared.

`A xN` is a value and N repetitions of it, as `promtool test rules` writes series.
"""

from typing import NamedTuple

GIB = 1 << 30
GROUP = 'deployment="d",group="d/g1/0"'
NODE = 'node="spark1"'
RUNNING = f"vllm:num_requests_running{{{GROUP},{NODE}}}"


class Case(NamedTuple):
    """One alert's case. Times as Prometheus writes them."""

    series: dict[str, str]
    fires: str
    cleared: str
    quiet: str = ""
    """A time before it fires, at which it must not; "" for none."""


def _gauge(name, labels, bad, good, minutes=10):
    """Bad for some minutes, then good for an hour."""
    return {f"sparkfleet_{name}{{{labels}}}": f"{bad}x{minutes * 4} {good}x240"}


def _node(name, labels, bad, good, minutes=10):
    return _gauge(name, f"{NODE}{labels}", bad, good, minutes)


def _sent(rdma):
    return f'sparkfleet_rail_rdma_bytes_total{{{NODE},rdma="{rdma}",direction="sent"}}'


SOUND = {
    "a cable that no group uses, beside a busy one": {
        _sent(rdma): values
        for values, rails in {
            "0+3e9x400": ("rocep1s0f0", "roceP2p1s0f0"),
            "0x400": ("rocep1s0f1", "roceP2p1s0f1"),
        }.items()
        for rdma in rails
    },
    "a prompt that is read for five minutes, of which vLLM counts no token meanwhile": {
        RUNNING: "0x20 1x19 0x400",
        f"vllm:generation_tokens_total{{{GROUP},{NODE}}}": "500x40 900x400",
        f"vllm:prompt_tokens_total{{{GROUP},{NODE}}}": "500x40 100500x400",
        f"vllm:kv_cache_usage_perc{{{GROUP},{NODE}}}": "0x20 0.01+0.04x19 0x400",
    },
    "prompts without answers, as of embeddings": {
        RUNNING: "3x400",
        f"vllm:generation_tokens_total{{{GROUP},{NODE}}}": "500x400",
        f"vllm:prompt_tokens_total{{{GROUP},{NODE}}}": "0+100x400",
    },
    "a cable with little traffic, all of it on one rail": {
        _sent("rocep1s0f0"): "0+1e6x400",
        _sent("roceP2p1s0f0"): "0x400",
    },
    "a GPU that waits for memory, with few watts at its full clock": {
        f'sparkfleet_node_gpu_busy_ratio{{{NODE},gpu="0"}}': "0.96x400",
        f'sparkfleet_node_gpu_power_watts{{{NODE},gpu="0"}}': "11x400",
        f'sparkfleet_node_gpu_clock_hertz{{{NODE},gpu="0"}}': "2400000000x400",
    },
    "fewer tokens than predicted, with fewer requests than slots": {
        f"vllm:generation_tokens_total{{{GROUP},{NODE}}}": "0+150x400",
        f'sparkfleet_predicted_total_tokens_per_second{{{GROUP},bound="low"}}': "40x400",
        f"sparkfleet_group_requests_running{{{GROUP}}}": "1x400",
        f"sparkfleet_group_slots{{{GROUP}}}": "4x400",
    },
    "a target of the owner's own": {'up{job="node_exporter",instance="n"}': "0x400"},
    "a node that was drained and switched off": {
        f"sparkfleet_node_joined{{{NODE}}}": "1x4 0x400",
        f"sparkfleet_node_drained{{{NODE}}}": "1x404",
    },
    "a reboot, after which the carrier's changes are counted from 0": {
        f'sparkfleet_rail_carrier_changes_total{{{NODE},netdev="r0"}}': "5x20 stale _x8 3x400",
    },
    "two failures within an hour": {
        'sparkfleet_restarts_total{deployment="d",cause="memory"}': "0x20 1x40 2x400"
    },
}
"""Series of a sound fleet that no alert may fire on."""

XID = f'sparkfleet_node_gpu_xid_timestamp_seconds{{{NODE},xid="79"}}'
FAILED_ALLOCATION = f"sparkfleet_node_gpu_allocation_failure_timestamp_seconds{{{NODE}}}"
OLD = {
    name: {FAILED_ALLOCATION: values, XID: values}
    for name, values in {
        "a short gap": "-900x279 stale _x1 -900x400",
        "half an hour without readings": "-900x279 stale _x119 -900x400",
        "a clock that is set by seconds": "-900x279 -897x400",
    }.items()
}
"""Old errors of a GPU, and what makes none of them new."""
NEW = {
    "a minute after a reboot, and the one before it was known for an hour": (
        "_x39 600x440 stale _x15 7440x400",
        "125m",
    ),
    "hours after a reboot": ("_x39 600x120 stale _x358 7800x400", "131m"),
    "while nothing was read for two hours": ("_x10 stale _x480 5400x300", "124m"),
    "while nothing was read for two hours, after another": ("-900x10 stale _x480 5400x300", "124m"),
    "on a node that is lost right after it": ("_x39 600x4 stale _x400", "40m"),
    "on a node whose clock is hours behind": ("_x39 -9000x400", "40m"),
    "again and again": ("_x39 600+15x800", "190m"),
}
"""Times of errors as they are read, and a time at which the last one is new."""

CASES = {
    "DeploymentFailed": Case(
        _gauge("deployment_state", 'deployment="d",state="failed"', 1, 0, 5), "2m", "10m"
    ),
    "GroupDown": Case(
        {
            'sparkfleet_deployment_groups{deployment="d"}': "2x400",
            f'sparkfleet_group_state{{{GROUP},state="ready"}}': "1x400",
            'sparkfleet_group_state{deployment="d",group="d/g1/1",state="ready"}': "0x100 1x300",
        },
        "20m",
        "40m",
        quiet="10m",
    ),
    "GroupSilent": Case(_gauge("group_silent_seconds", GROUP, 30, 0, 5), "3m", "10m"),
    "NoTokenProgress": Case(
        {
            RUNNING: "3x400",
            f"vllm:generation_tokens_total{{{GROUP},{NODE}}}": "0+10x20 200x40 200+10x200",
            f"vllm:prompt_tokens_total{{{GROUP},{NODE}}}": "0+10x20 200x40 200+10x200",
        },
        "11m",
        "30m",
        quiet="5m",
    ),
    "RestartBreakerOpen": Case(_gauge("group_given_up", GROUP, 1, 0, 5), "1m", "10m"),
    "RestartingOften": Case(
        {'sparkfleet_restarts_total{deployment="d",cause="memory"}': "0x4 0+1x3 3x600"},
        "10m",
        "100m",
        quiet="1m",
    ),
    "LowerRung": Case(_gauge("group_rung", GROUP, 2, 1, 10), "7m", "15m", quiet="4m"),
    "WrongOutput": Case(
        {'sparkfleet_canary_failure_timestamp_seconds{deployment="d"}': "_x4 60x240 stale"},
        "10m",
        "100m",
    ),
    "SlowerThanPredicted": Case(
        {
            f"sparkfleet_measured_decode_tokens_per_second{{{GROUP}}}": "10x40 20x200",
            f'sparkfleet_predicted_check_decode_tokens_per_second{{{GROUP},bound="low"}}': "15x300",
            f'sparkfleet_predicted_check_decode_tokens_per_second{{{GROUP},bound="mid"}}': "20x300",
            f'sparkfleet_group_state{{{GROUP},state="ready"}}': "1x300",
        },
        "5m",
        "20m",
    ),
    "SlowUnderLoad": Case(
        {
            f"vllm:generation_tokens_total{{{GROUP},{NODE}}}": "0+150x80 12000+1500x200",
            f'sparkfleet_predicted_total_tokens_per_second{{{GROUP},bound="low"}}': "40x300",
            f"sparkfleet_group_requests_running{{{GROUP}}}": "4x300",
            f"sparkfleet_group_slots{{{GROUP}}}": "4x300",
        },
        "15m",
        "30m",
        quiet="8m",
    ),
    "AcceptanceCollapsed": Case(
        {
            f'sparkfleet_draft_tokens{{{GROUP},kind="proposed"}}': "0+100x900",
            f'sparkfleet_draft_tokens{{{GROUP},kind="accepted"}}': "0+60x400 24000+10x200 26000+60x300",
        },
        "125m",
        "190m",
        quiet="90m",
    ),
    "QueueLong": Case(
        {
            f"sparkfleet_group_requests_waiting{{{GROUP}}}": "1x300",
            'sparkfleet_requests_waiting{model="d"}': "4x40 0x200",
            f"sparkfleet_group_slots{{{GROUP}}}": "4x300",
        },
        "8m",
        "15m",
    ),
    "RequestsFail": Case(
        {
            'sparkfleet_requests_total{model="d",path="p",status="200"}': "0+10x400",
            'sparkfleet_requests_total{model="d",path="p",status="503"}': "0+2x60 120x400",
        },
        "12m",
        "40m",
    ),
    "NodeLost": Case(
        _node("node_joined", "", 0, 1, 5) | {f"sparkfleet_node_drained{{{NODE}}}": "0x300"}, "3m", "10m"
    ),
    "MemoryCritical": Case(_node("node_memory_available_bytes", "", 2 * GIB, 20 * GIB), "8m", "20m"),
    "MemoryLow": Case(_node("node_memory_available_bytes", "", 5 * GIB, 20 * GIB), "8m", "20m", quiet="3m"),
    "MemoryPressure": Case(
        {
            f'sparkfleet_node_pressure_ratio{{{NODE},resource="memory",share="full"}}': " ".join(
                ["0.3x2 stale"] * 10 + ["0x240"]
            ),
        },  # the node answers late now and then
        "5m",
        "15m",
    ),
    "GpuAllocationFailed": Case({FAILED_ALLOCATION: "-900x300 4500x600"}, "80m", "150m", quiet="70m"),
    "GpuXid": Case({XID: "_x20 300x600"}, "10m", "90m", quiet="3m"),
    "GpuUnread": Case(_node("node_gpu_readable", "", 0, 1), "3m", "12m", quiet="30s"),
    "KernelLogUnread": Case(_node("node_kernel_log_readable", "", 0, 1, 15), "13m", "25m", quiet="8m"),
    "PowerWedge": Case(
        {
            f'sparkfleet_node_gpu_busy_ratio{{{NODE},gpu="0"}}': "0.96x300",
            f'sparkfleet_node_gpu_power_watts{{{NODE},gpu="0"}}': "11x40 45x200",
            f'sparkfleet_node_gpu_clock_hertz{{{NODE},gpu="0"}}': "611000000x40 2400000000x200",
        },
        "5m",
        "20m",
    ),
    # Held down in two minutes of ten, as heat does: the flag comes and goes with the load.
    "GpuThrottled": Case(
        {f'sparkfleet_node_gpu_throttled{{{NODE},gpu="0"}}': "0x80 " + "1x8 0x32 " * 3 + "0x240"},
        "45m",
        "90m",
        quiet="19m",
    ),
    "NodeHot": Case(_node("node_temperature_celsius", "", 97, 80), "8m", "20m", quiet="3m"),
    "GpuHot": Case(_node("node_gpu_temperature_celsius", ',gpu="0"', 88, 70), "8m", "20m", quiet="3m"),
    "DiskLow": Case(
        {
            f'sparkfleet_node_disk_free_bytes{{{NODE},place="root"}}': "15e9x40 100e9x40 500e9x200",
            f'sparkfleet_node_disk_total_bytes{{{NODE},place="root"}}': "200e9x40 4e12x300",
        },  # by its bytes, then by its share
        "15m",
        "30m",
        quiet="5m",
    ),
    "RailDown": Case(_node("rail_lost", ',netdev="r0"', 1, 0, 5), "2m", "10m"),
    "RailFlaps": Case(
        {f'sparkfleet_rail_carrier_changes_total{{{NODE},netdev="r0"}}': "0x8 0+1x4 4x200"},
        "5m",
        "30m",
        quiet="1m",
    ),
    "RailLopsided": Case(
        {
            _sent("rocep1s0f0"): "0+3e9x400",
            _sent("roceP2p1s0f0"): "0+1e8x80 8e9+3e9x300",
        },
        "15m",
        "40m",
        quiet="3m",
    ),
    "RailErrors": Case(
        {f'sparkfleet_rail_errors_total{{{NODE},netdev="r0",kind="rx_errors"}}': "0+60x60 3600x200"},
        "12m",
        "30m",
    ),
    "CertificateExpires": Case(
        {
            'sparkfleet_certificate_expiry_timestamp_seconds{endpoint="https://10.0.0.1:8000"}': "1e6x400 9e9x400"
        },
        "90m",
        "140m",
        quiet="30m",
    ),
    "ControllerGone": Case({'up{job="controller",instance="c"}': "1x8 0x40 1x200"}, "8m", "20m", quiet="1m"),
    "TargetMissing": Case({'up{job="vllm",instance="e"}': "1x8 0x40 1x200"}, "8m", "20m", quiet="1m"),
    "ControllerTrouble": Case({"sparkfleet_controller_trouble": "1x20 0x200"}, "3m", "10m"),
    "ControllerWarning": Case({"sparkfleet_controller_warnings": "2x20 0x200"}, "4m", "10m"),
    "KeyExpires": Case(
        {'sparkfleet_key_expires_seconds{key="k"}': "700000x20 600000x20 900000x200"}, "8m", "15m", "4m"
    ),
}
