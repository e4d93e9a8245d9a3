"""The catalogue of metrics: name, type, unit, labels and meaning of every series that sparkfleet exports. Pure.

The counters of the gateway and the controller (`metrics.py`), docs/metrics.md and the dashboards are made from it, so a
series that is not here cannot be exported. Labels are bounded: models, keys, groups, nodes and rails of the inventory, and
closed sets; never a prompt, a request's id or a client's address.
"""

from __future__ import annotations

from functools import partial
from typing import Literal

from sparkfleet.values import Value

Kind = Literal["counter", "gauge", "histogram"]
Unit = Literal[
    "",
    "seconds",
    "bytes",
    "tokens",
    "tokens/s",
    "requests",
    "ratio",
    "watts",
    "celsius",
    "hertz",
    "timestamp",
]
Page = Literal["gateway", "controller", "both"]

TOKEN_BUCKETS_S = (
    *(0.001, 0.002, 0.005, 0.01, 0.02, 0.03, 0.05, 0.075, 0.1),
    *(0.15, 0.2, 0.3, 0.5, 1, 2, 5, 10, 30, 120),
)
"""Buckets of the ITL: finest in the range of a Spark's decode, 5 to 100 tok/s."""
WAIT_BUCKETS_S = (
    *(0.001, 0.005, 0.01, 0.025, 0.05, 0.1, 0.2, 0.35, 0.5, 0.75),
    *(1, 1.5, 2, 3, 5, 10, 20, 40, 80, 120),
)
"""Buckets of the TTFT: from a warm prefix to the cold prefill of a long context."""
REQUEST_BUCKETS_S = (0.01, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 20, 40, 80, 160, 320, 640, 1800)
START_BUCKETS_S = (5, 10, 20, 30, 45, 60, 90, 120, 180, 300, 450, 600, 900, 1800, 3600)
"""Buckets of a group's start: from a tiny model on a CPU to the download of hundreds of gigabytes."""

BOUNDS = ("low", "mid", "high")
"""Values of `bound`: the error band of a prediction."""
PLACES = ("root", "home", "hub", "tmp", "shm")
"""Values of `place`: directories of a node (`hostfacts/disk.py`)."""
UNLOADS = ("unused", "other", "no_memory", "no_node", "person")
"""Values of `reason`: ends of deployments on demand."""
START_PHASES = ("preparing", "starting", "loading", "compiling", "warming", "up", "probing")
"""Values of `phase`: phases of a start; `starting` is the time before the engine's log shows one."""

LABELS: dict[str, str] = {
    "model": 'Public name of a deployment; "" if the request named none that exists.',
    "path": 'Path of the API if it is a known one, else "other".',
    "status": "HTTP status.",
    "kind": "Reason, direction or kind: a closed set per series.",
    "key": "Name of an API key, as its owner gave it.",
    "endpoint": "URL of a gateway. One at a time for each replica.",
    "deployment": "Public name of a deployment.",
    "group": "Group, `<deployment>/g<generation>/<index>`. Only those that exist are exported.",
    "state": "State of a group or a deployment: a closed set, of which one is 1.",
    "outcome": "Outcome of a start: ready, adopted, failed.",
    "cause": "Cause of a failure: known, memory, port, missing, flag, away, tool, transient, unknown.",
    "phase": f"Phase of a start: {', '.join(START_PHASES)}.",
    "reason": "Reason for the end of a deployment on demand: unused (its `idle` has passed), other (another one needed its"
    " memory), no_memory (its own was not free), no_node (it needs one that does not come back or is drained), person"
    " (`unload`).",
    "reading": "Reading of the canary: text_perplexity, own_perplexity, own_agreement, accepted_share.",
    "bound": "Bound of a prediction's error band: low, mid, high.",
    "provenance": "Provenance of a prediction: measured, calibrated, modelled, unknown.",
    "engine": "Engine: vllm, sglang, trtllm, llama.cpp, custom.",
    "engine_version": "Version of the engine.",
    "shape": "Nodes and parallelism of a group in words.",
    "quant": "Format of the weights.",
    "speculation": "Speculative method in words.",
    "checkpoint": "Hub id, directory, or built-in model.",
    "node": "Name of a node in the inventory.",
    "rank": "Number of a rank in its group, from 0.",
    "gpu": "Index of a GPU of the node.",
    "resource": "Resource that tasks wait for: cpu, memory, io.",
    "share": "some: at least one task waited; full: all of them did.",
    "place": f"Directory of a node: {', '.join(PLACES)}.",
    "netdev": "Network device of a rail in the inventory.",
    "rdma": "RDMA device of a rail in the inventory.",
    "direction": "received or sent.",
    "xid": "Number of an NVIDIA Xid error.",
    "version": "Version of sparkfleet.",
}
"""Meaning of each label."""


class MetricSpec(Value):
    """One metric of the catalogue."""

    name: str
    """Name of its series as Prometheus stores it; a histogram's without `_bucket`, `_sum` and `_count`."""
    kind: Kind
    unit: Unit
    labels: tuple[str, ...]
    page: Page
    meaning: str
    buckets: tuple[float, ...] = ()

    @property
    def family(self) -> str:
        """Name of the metric family, as the exposition format and `prometheus_client` give it."""
        return self.name.removesuffix("_total") if self.kind == "counter" else self.name


def _metric(page: Page, name: str, unit: Unit, labels: str, meaning: str) -> MetricSpec:
    kind: Kind = "counter" if name.endswith("_total") else "gauge"
    return MetricSpec(
        name=f"sparkfleet_{name}",
        kind=kind,
        unit=unit,
        labels=tuple(labels.split()),
        page=page,
        meaning=meaning,
    )


def _histogram(page: Page, name: str, labels: str, buckets: tuple[float, ...], meaning: str) -> MetricSpec:
    found = _metric(page, name, "seconds", labels, meaning)
    return found.model_copy(update={"kind": "histogram", "buckets": buckets})


_gateway = partial(_metric, "gateway")
_controller = partial(_metric, "controller")

BUILD_INFO = _metric("both", "build_info", "", "version", "1, with the version.")

# The gateway's page.
REQUESTS = _gateway(
    "requests_total",
    "requests",
    "model path status",
    "Requests answered, by the status the client saw (499: it disconnected before).",
)
IN_FLIGHT = _gateway("requests_in_flight", "requests", "model", "Requests in flight.")
WAITING = _gateway(
    "requests_waiting",
    "requests",
    "model",
    "Requests in flight that wait until a group has a free slot, or their model on demand has started.",
)
START_WAIT = _histogram(
    "gateway",
    "start_wait_seconds",
    "model",
    START_BUCKETS_S,
    "Time that a request waited for the start of its model on demand, also if it was refused in the end.",
)
TTFT = _histogram(
    "gateway",
    "ttft_seconds",
    "model",
    WAIT_BUCKETS_S,
    "TTFT: time from a complete request to the first chunk of a streamed answer.",
)
ITL = _histogram(
    "gateway", "itl_seconds", "model", TOKEN_BUCKETS_S, "ITL: time between two chunks of a streamed answer."
)
DURATION = _histogram(
    "gateway",
    "request_seconds",
    "model",
    REQUEST_BUCKETS_S,
    "Time from the request's headers to the end of its answer.",
)
TOKENS = _gateway("tokens_total", "tokens", "model kind", "Tokens as the engines report them: input, output.")
KEY_TOKENS = _gateway(
    "key_tokens_total",
    "tokens",
    "key model kind",
    "Tokens by API key: input, output. As many series as keys × models that they use × 2.",
)
KEY_REQUESTS = _gateway("key_requests_total", "requests", "key model", "Requests by API key.")
CHUNKS = _gateway("stream_chunks_total", "", "model", "Chunks of streamed answers.")
ERRORS = _gateway(
    "errors_total", "requests", "model kind", "Requests that failed or were refused, by reason."
)
RETRIES = _gateway("retries_total", "requests", "model", "Requests sent again to another engine.")
EXTERNAL = _gateway(
    "external_requests_total",
    "requests",
    "model status",
    "Requests that endpoints outside the fleet answered.",
)
REPLAYS = _gateway(
    "replays_total",
    "requests",
    "model outcome",
    "Greedy streams whose group was lost (`replay: true`): continued on another group, or failed.",
)
CERTIFICATE_EXPIRY = _gateway(
    "certificate_expiry_timestamp_seconds",
    "",
    "endpoint",
    "Unix seconds at which the endpoint's certificate expires; missing without TLS.",
)

# The controller's page: counters and histograms.
STARTS = _controller("starts_total", "", "deployment outcome", "Starts of groups, by outcome.")
START = _histogram(
    "controller",
    "start_seconds",
    "deployment",
    START_BUCKETS_S,
    "Time from the decision to start a group to its first token.",
)
START_PHASE = _histogram(
    "controller",
    "start_phase_seconds",
    "deployment phase",
    START_BUCKETS_S,
    "Duration of each phase of a start, as the controller saw it.",
)
RESTARTS = _controller(
    "restarts_total", "", "deployment cause", "Groups that failed and were replaced, by cause."
)
UNLOADED = _controller("unloads_total", "", "deployment reason", "Ends of deployments on demand, by reason.")
CANARY_FAILURES = _controller(
    "canary_failures_total",
    "",
    "deployment",
    "Engines that were up and stopped because their output was wrong.",
)
CANARY_FAILED = _controller(
    "canary_failure_timestamp_seconds",
    "timestamp",
    "deployment",
    "Time of the last such stop, if it was within the last hour.",
)

# The controller's page: deployments and groups as they are now.
DEPLOYMENT_STATE = _controller(
    "deployment_state", "", "deployment state", "1 for the state a deployment is in, 0 for the others."
)
DEPLOYMENT_GROUPS = _controller(
    "deployment_groups", "", "deployment", "Groups that the deployment's plan has."
)
DEPLOYMENT_GENERATION = _controller("deployment_generation", "", "deployment", "Generation that is applied.")
GROUP_INFO = _controller(
    "group_info",
    "",
    "deployment group engine engine_version shape quant speculation checkpoint node",
    "1, with the candidate that a group runs; `node` is rank 0's.",
)
GROUP_STATE = _controller(
    "group_state", "", "deployment group state", "1 for the state a group is in, 0 for the others."
)
GROUP_SINCE = _controller(
    "group_state_since_seconds",
    "timestamp",
    "deployment group",
    "When the group's state began, Unix seconds.",
)
GROUP_SILENT = _controller(
    "group_silent_seconds",
    "seconds",
    "deployment group",
    "Seconds since the group's last report, if that is long; else 0.",
)
GROUP_START_PHASE = _controller(
    "group_start_phase",
    "",
    "deployment group phase",
    "1 for the phase of its start that a group is in, 0 for the others; absent once it is ready.",
)
GROUP_START_SHARE = _controller(
    "group_start_share",
    "ratio",
    "deployment group",
    "Share of the present phase that is done; absent if the engine's log does not show one.",
)
GROUP_RUNG = _controller(
    "group_rung", "", "deployment group", "Rung of its ladder that a group runs; 1 is the plan's choice."
)
GROUP_RUNGS = _controller("group_rungs", "", "deployment group", "Rungs of a group's ladder.")
GROUP_GIVEN_UP = _controller(
    "group_given_up",
    "",
    "deployment group",
    "1 if a group is not started again until its deployment is applied again.",
)
GROUP_RUNNING = _controller(
    "group_requests_running",
    "requests",
    "deployment group",
    "Requests that its engine works on; of a custom workload the open connections to its port.",
)
GROUP_WAITING = _controller(
    "group_requests_waiting",
    "requests",
    "deployment group",
    "Requests in its engine's queue; 0 for a custom workload, whose queue is not known.",
)
GROUP_SLOTS = _controller(
    "group_slots", "requests", "deployment group", "Requests that it is planned to decode together."
)
DRAFTS = _controller(
    "draft_tokens",
    "tokens",
    "deployment group kind",
    "Draft tokens since the engine started: proposed, and accepted.",
)
CANARY = _controller(
    "canary_reading",
    "",
    "deployment group reading",
    "Readings of the canary after the last start; a reading that the engine cannot give is absent.",
)

# Predicted next to measured.
PREDICTED_TTFT = _controller(
    "predicted_ttft_seconds",
    "seconds",
    "deployment group bound",
    "Predicted TTFT of the planned prompt length.",
)
PREDICTED_DECODE = _controller(
    "predicted_decode_tokens_per_second",
    "tokens/s",
    "deployment group bound",
    "Predicted output of one request alone.",
)
PREDICTED_TOTAL = _controller(
    "predicted_total_tokens_per_second",
    "tokens/s",
    "deployment group bound",
    "Predicted output of all requests together at the planned concurrency.",
)
PREDICTED_PREFILL = _controller(
    "predicted_prefill_tokens_per_second", "tokens/s", "deployment group bound", "Predicted rate of prefill."
)
PREDICTED_MEMORY = _controller(
    "predicted_memory_bytes", "bytes", "deployment group bound", "Predicted memory of one rank."
)
RANK_MEMORY = _controller(
    "rank_memory_bytes",
    "bytes",
    "deployment group rank node",
    "Memory that a rank takes on its node: that of its processes, and what the GPU's driver holds for them.",
)
PREDICTED_STEP = _controller(
    "predicted_tokens_per_step",
    "tokens",
    "deployment group",
    "Predicted tokens per step of speculative decoding; absent without speculation.",
)
CHECK_TTFT = _controller(
    "predicted_check_ttft_seconds",
    "seconds",
    "deployment group bound",
    "Predicted TTFT of the short request that measures a group after its start.",
)
CHECK_DECODE = _controller(
    "predicted_check_decode_tokens_per_second",
    "tokens/s",
    "deployment group bound",
    "Predicted output of that request.",
)
MEASURED_TTFT = _controller(
    "measured_ttft_seconds",
    "seconds",
    "deployment group",
    "Measured TTFT of that request, alone on the engine.",
)
MEASURED_DECODE = _controller(
    "measured_decode_tokens_per_second", "tokens/s", "deployment group", "Measured output of that request."
)
PROVENANCE = _controller(
    "prediction_info",
    "",
    "deployment group provenance",
    "1, with the provenance of the group's predicted output.",
)

# Nodes and rails, read by the node actor: no port of ours on a node.
NODE_DRAINED = _controller("node_drained", "", "node", "1 if a node is drained: nothing is started on it.")
NODE_JOINED = _controller("node_joined", "", "node", "1 if Ray on a node is part of the fleet.")
NODE_AVAILABLE = _controller(
    "node_memory_available_bytes",
    "bytes",
    "node",
    "MemAvailable of a node. On a Spark, engines and the host share it.",
)
NODE_TOTAL = _controller("node_memory_total_bytes", "bytes", "node", "MemTotal of a node.")
NODE_UNACCOUNTED = _controller(
    "node_memory_unaccounted_bytes",
    "bytes",
    "node",
    "Memory that the kernel attributes to no use: on a Spark the GPU driver's, for running processes or leaked.",
)
NODE_PAGE_CACHE = _controller(
    "node_memory_page_cache_bytes", "bytes", "node", "Files in memory; CUDA counts them as used."
)
NODE_SWAP = _controller("node_swap_used_bytes", "bytes", "node", "Swap in use.")
NODE_PRESSURE = _controller(
    "node_pressure_ratio",
    "ratio",
    "node resource share",
    "Share of the last ten seconds in which tasks waited for a resource (PSI avg10).",
)
GPU_POWER = _controller("node_gpu_power_watts", "watts", "node gpu", "Power draw of the GPU.")
GPU_TEMPERATURE = _controller(
    "node_gpu_temperature_celsius", "celsius", "node gpu", "Temperature of the GPU."
)
GPU_CLOCK = _controller("node_gpu_clock_hertz", "hertz", "node gpu", "SM clock of the GPU.")
GPU_MAX_CLOCK = _controller("node_gpu_clock_max_hertz", "hertz", "node gpu", "Highest SM clock of the GPU.")
GPU_BUSY = _controller(
    "node_gpu_busy_ratio", "ratio", "node gpu", "Share of time in which a kernel ran on the GPU."
)
GPU_THROTTLED = _controller(
    "node_gpu_throttled",
    "",
    "node gpu",
    "1 if heat or the power supply holds the clock down: a slowdown by the driver or the hardware, or the power brake.",
)
NODE_TEMPERATURE = _controller(
    "node_temperature_celsius", "celsius", "node", "Highest of the node's thermal zones."
)
NODE_XIDS = _controller(
    "node_gpu_xids",
    "",
    "node xid",
    "Xid errors of the GPU in the kernel's log of this boot (its last 5,000 relevant lines).",
)
NODE_NO_MEMORY = _controller(
    "node_gpu_allocation_failures",
    "",
    "node",
    "NV_ERR_NO_MEMORY lines in the kernel's log of this boot: failed allocations, which come before the host freezes.",
)
NODE_XID_LAST = _controller(
    "node_gpu_xid_timestamp_seconds", "timestamp", "node xid", "Time of the last Xid error of this number."
)
NODE_NO_MEMORY_LAST = _controller(
    "node_gpu_allocation_failure_timestamp_seconds",
    "timestamp",
    "node",
    "Time of the last NV_ERR_NO_MEMORY line.",
)
GPU_READABLE = _controller(
    "node_gpu_readable",
    "",
    "node",
    "0 if the node's GPU cannot be read: lost, or its driver hangs; absent on a node without a GPU.",
)
NODE_LOG_READABLE = _controller(
    "node_kernel_log_readable",
    "",
    "node",
    "0 if the last reading of the kernel's log failed: Xid errors and failed allocations since are not known.",
)
NODE_DISK_FREE = _controller(
    "node_disk_free_bytes", "bytes", "node place", "Free space for the fleet's user."
)
NODE_DISK_TOTAL = _controller("node_disk_total_bytes", "bytes", "node place", "Size of the disk.")
RAIL_UP = _controller("rail_up", "", "node netdev", "1 if the rail's netdev has a carrier.")
RAIL_LOST = _controller(
    "rail_lost",
    "",
    "node netdev",
    "1 if the rail's netdev has no carrier although the nodes at its ends are on and neither is drained.",
)
RAIL_CARRIER = _controller(
    "rail_carrier_changes_total",
    "",
    "node netdev",
    "Changes of the rail's carrier since its driver was loaded.",
)
RAIL_BYTES = _controller(
    "rail_bytes_total",
    "bytes",
    "node netdev direction",
    "Bytes through the kernel's network stack. RDMA bypasses it and is not included.",
)
RAIL_ERRORS = _controller(
    "rail_errors_total",
    "",
    "node netdev kind",
    "Errors and drops of the rail's netdev: rx_errors, tx_errors, rx_dropped.",
)
RDMA_BYTES = _controller("rail_rdma_bytes_total", "bytes", "node rdma direction", "Bytes of RDMA on a rail.")
RDMA_ERRORS = _controller(
    "rail_rdma_errors_total", "", "node rdma kind", "Errors and retries of RDMA, by the driver's names."
)

# The controller itself.
CONTROLLER_TROUBLE = _controller(
    "controller_trouble",
    "",
    "",
    "1 if the controller's own work fails or does not end; `sparkfleet status` has the reason.",
)
CONTROLLER_WARNINGS = _controller(
    "controller_warnings", "", "", "Troubles in which the controller works on, such as a full disk."
)
EVENTS = _controller("events_total", "", "", "Events recorded since the fleet's store was made.")

KEY_EXPIRES = _controller(
    "key_expires_seconds",
    "timestamp",
    "key",
    "When an API key expires, Unix seconds; absent for a key that does not, and for that of one command (`ask`, `bench`).",
)
CATALOGUE: tuple[MetricSpec, ...] = tuple(one for one in list(vars().values()) if isinstance(one, MetricSpec))
"""Every metric, in the order of this file."""
