"""The metrics of the gateway and of the controller. Times in seconds, sizes in tokens.

Each object registers its metrics in a registry of its own, so that one process can have two of them.
"""

from __future__ import annotations

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

from sparkfleet import __version__

PATHS = frozenset(
    {
        "/v1/audio/speech",
        "/v1/audio/transcriptions",
        "/v1/audio/translations",
        "/v1/chat/completions",
        "/v1/completions",
        "/v1/embeddings",
        "/v1/images/generations",
        "/v1/messages",
        "/v1/messages/count_tokens",
        "/v1/models",
        "/v1/rerank",
        "/v1/responses",
        "/v1/score",
    }
)
"""Paths with a label value of their own; a client cannot create new ones."""

TOKEN_BUCKETS_S = (
    0.001,
    0.002,
    0.005,
    0.01,
    0.02,
    0.03,
    0.05,
    0.075,
    0.1,
    0.15,
    0.2,
    0.3,
    0.5,
    1,
    2,
    5,
    10,
    30,
    120,
)
"""Buckets of the ITL: finest in the range of a Spark's decode, 5 to 100 tok/s."""
WAIT_BUCKETS_S = (
    0.001,
    0.005,
    0.01,
    0.025,
    0.05,
    0.1,
    0.2,
    0.35,
    0.5,
    0.75,
    1,
    1.5,
    2,
    3,
    5,
    10,
    20,
    40,
    80,
    120,
)
"""Buckets of the TTFT: from a warm prefix to the cold prefill of a long context."""
REQUEST_BUCKETS_S = (0.01, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 20, 40, 80, 160, 320, 640, 1800)
START_BUCKETS_S = (5, 10, 20, 30, 45, 60, 90, 120, 180, 300, 450, 600, 900, 1800, 3600)
"""Buckets of a group's start: from a tiny model on a CPU to the download of hundreds of gigabytes."""


class GatewayMetrics:
    """Counters of one gateway replica."""

    def __init__(self, registry: CollectorRegistry | None = None) -> None:
        self.registry = registry = registry or CollectorRegistry()
        self.requests = Counter(
            "sparkfleet_requests",
            "Requests answered, by the status the client saw (499: it disconnected before).",
            ["model", "path", "status"],
            registry=registry,
        )
        self.in_flight = Gauge(
            "sparkfleet_requests_in_flight", "Requests in flight.", ["model"], registry=registry
        )
        self.ttft = Histogram(
            "sparkfleet_ttft_seconds",
            "TTFT: time from a complete request to the first chunk of a streamed answer.",
            ["model"],
            buckets=WAIT_BUCKETS_S,
            registry=registry,
        )
        self.itl = Histogram(
            "sparkfleet_itl_seconds",
            "ITL: time between two chunks of a streamed answer.",
            ["model"],
            buckets=TOKEN_BUCKETS_S,
            registry=registry,
        )
        self.duration = Histogram(
            "sparkfleet_request_seconds",
            "Time from the request's headers to the end of its answer.",
            ["model"],
            buckets=REQUEST_BUCKETS_S,
            registry=registry,
        )
        self.tokens = Counter(
            "sparkfleet_tokens", "Tokens as the engines report them.", ["model", "kind"], registry=registry
        )
        self.chunks = Counter(
            "sparkfleet_stream_chunks", "Chunks of streamed answers.", ["model"], registry=registry
        )
        self.errors = Counter(
            "sparkfleet_errors",
            "Requests that failed or were refused, by reason.",
            ["model", "kind"],
            registry=registry,
        )
        self.retries = Counter(
            "sparkfleet_retries", "Requests sent again to another engine.", ["model"], registry=registry
        )
        build_info(registry)


class ControlMetrics:
    """Metrics of the controller."""

    def __init__(self, registry: CollectorRegistry | None = None) -> None:
        self.registry = registry = registry or CollectorRegistry()
        self.group_state = Gauge(
            "sparkfleet_group_state",
            "1 for the state a group is in, 0 for the others.",
            ["deployment", "group", "state"],
            registry=registry,
        )
        self.starts = Counter(
            "sparkfleet_starts", "Starts of groups, by outcome.", ["deployment", "outcome"], registry=registry
        )
        self.start = Histogram(
            "sparkfleet_start_seconds",
            "Time from the decision to start a group to its first token.",
            ["deployment"],
            buckets=START_BUCKETS_S,
            registry=registry,
        )
        self.restarts = Counter(
            "sparkfleet_restarts", "Groups replaced after they failed.", ["deployment"], registry=registry
        )
        self.drafts = Gauge(
            "sparkfleet_draft_tokens",
            "Draft tokens since the engine started: proposed, and accepted.",
            ["deployment", "group", "kind"],
            registry=registry,
        )
        self.memory = Gauge(
            "sparkfleet_node_memory_available_bytes",
            "MemAvailable of a node. On a Spark, engines and the host share it.",
            ["node"],
            registry=registry,
        )
        self.joined = Gauge(
            "sparkfleet_node_joined",
            "1 if Ray on a node is part of the fleet.",
            ["node"],
            registry=registry,
        )
        build_info(registry)

    def show_state(self, deployment: str, group: str, state: str, known: tuple[str, ...]) -> None:
        """Sets a group's state to `state`, and the others in `known` to 0."""
        for name in known:
            self.group_state.labels(deployment, group, name).set(name == state)


def path_label(path: str) -> str:
    """The path as a label: itself if it is a known one, else "other"."""
    return path if path in PATHS else "other"


def build_info(registry: CollectorRegistry) -> None:
    """Add `sparkfleet_build_info{version}`."""
    Gauge("sparkfleet_build_info", "1, with the version.", ["version"], registry=registry).labels(
        __version__
    ).set(1)
