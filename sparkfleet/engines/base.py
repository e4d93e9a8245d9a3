"""Contract between sparkfleet and an engine. Pure: values in, values out; nothing here starts anything."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple, Protocol

from sparkfleet.engines.token_api import TokenApi
from sparkfleet.knowledge.rules.rule_context import parse_flags
from sparkfleet.planner.types.plan import Candidate
from sparkfleet.values import Value

FILES_IN_CONTAINER = "/run/sparkfleet"
"""Directory inside a container with the rank's files. The same on every node, so that arguments can be equal, too."""


class RankRail(Value):
    """One end of a rail: a netdev of one node with its address."""

    netdev: str
    rdma: str | None = None
    """The RoCE device that belongs to it; None: the rail carries TCP only."""
    address: str
    """IP address, without its prefix length."""


class RankContext(Value):
    """Runtime context of one rank, known only when a group starts."""

    rank: int
    python: str
    """Interpreter of the engine's environment on that node."""
    model_path: str
    """Directory of the checkpoint on that node."""
    draft_path: str = ""
    """Directory of the draft checkpoint on that node; "" if the candidate has none."""
    roots: tuple[str, ...] = ()
    """Directories that a container needs for the links inside checkpoints, such as the cache that contains them.
    (): the checkpoints' own."""
    served_name: str
    """The public model name."""
    host: str
    """Address that the engine binds: loopback, or the node's address on a rail. Never every interface."""
    port: int
    leader: str = "127.0.0.1"
    """Address of rank 0 on the rail, for the rendezvous of a group of more than one rank."""
    leader_port: int = 0
    rails: tuple[RankRail, ...] = ()
    """This node's ends of the rails that join it to the group's other ranks; the first carries the rendezvous."""
    peers: tuple[str, ...] = ()
    """The address of every rank on the rail that carries the rendezvous, by rank. Needed by engines that use MPI."""
    control_netdev: str = ""
    """The netdev over which ranks meet, if that is none of the rails: the management network of a ring."""
    files_dir: str = ""
    """Directory on the node, of this rank alone, into which the launch's files are written."""
    cache_dir: str = ""
    """Directory on the node that keeps compiled kernels from one start to the next; "": they are compiled every time."""
    kv_dir: str = ""
    """Directory on the node for the KV cache that is kept on the disk; "" if none is."""
    keys_dir: str = ""
    """Directory on the node with the group's own SSH key pair, `id_ed25519` and `id_ed25519.pub`; only for MPI."""
    encodings_dir: str = ""
    """Directory on the node with tiktoken's encodings, which gpt-oss needs offline; "" if it is not needed."""

    @property
    def netdev(self) -> str:
        """The netdev over which ranks meet; "" for a group of one rank."""
        return self.control_netdev or (self.rails[0].netdev if self.rails else "")

    @property
    def address(self) -> str:
        """This rank's own address in the group."""
        if self.peers:
            return self.peers[self.rank]
        return self.rails[0].address if self.rails else self.host


class LaunchFile(Value):
    """A file that must be in `RankContext.files_dir` before the rank starts. Contains no secrets."""

    name: str
    """Relative to that directory; missing directories in between are created."""
    text: str
    executable: bool = False
    about: str = ""
    """Its purpose, if it is the same in every launch of this release: a dry run prints that instead of its text."""


class Mount(Value):
    """A directory of the node that a container sees."""

    source: str
    target: str
    read_only: bool = True


class RankCommand(Value):
    """Command line, environment, files and mounts of one rank."""

    argv: tuple[str, ...]
    """(): the image's own entrypoint and command."""
    env: tuple[tuple[str, str], ...]
    """Set on top of a clean environment. Variables that the deployment declares may be secret."""
    token_env: str
    """Name of the variable that carries the internal bearer token; "" if the engine checks none."""
    metrics_env: str = ""
    """Name of the variable with the token for the metrics page alone; "" if the engine checks none."""
    files: tuple[LaunchFile, ...] = ()
    mounts: tuple[Mount, ...] = ()
    """Directories that a container needs besides the files."""
    health_path: str = "/health"
    """Answers 200 when the server is up, which does not prove that it can generate. "" if nothing answers."""

    @property
    def serves(self) -> bool:
        """True for the rank that takes requests: rank 0, in every engine here."""
        return bool(self.health_path)


class DraftTokenCounts(NamedTuple):
    """Draft tokens since an engine started."""

    proposed: float = 0.0
    accepted: float = 0.0
    steps: float = 0.0
    """Verifications of one request's draft each; 0 if the engine does not count them."""


class PositionCounter(NamedTuple):
    """Counter of an engine, and the label that has the position in a draft."""

    name: str
    label: str


class Engine(Protocol):
    """One engine: argv and environment per rank, and its HTTP interface."""

    name: str
    health_path: str
    """Answers 200 when the server is up, which does not prove that it can generate."""
    metrics_path: str
    """Prometheus text; "" if there are none."""
    running_metric: str
    """Gauge: requests being decoded."""
    waiting_metric: str
    """Gauge: requests queued in the engine."""
    tokens_metric: str
    """Counter: tokens generated."""
    step_metrics: tuple[str, ...]
    """Further series, of which one moves with every step of a prefill; () if none does before a request is finished."""
    draft_metrics: tuple[str, ...]
    """Counters that `drafts` reads; () if the engine exports none."""
    draft_positions: PositionCounter | None
    """Counter of accepted draft tokens by their position in the draft, from 0; None if the engine exports none."""
    token_api: TokenApi
    """Requests and readers for the ids and probabilities of tokens."""
    checks_token: bool
    """True if it refuses requests without its token itself, on every path, and opens its metrics with the metrics token.
    Otherwise it listens on loopback, and on any other address a forwarder of ours refuses them."""
    always_forwarded: bool
    """True if that forwarder is in front of it on loopback, too: it has a key of its own, which not all paths require and
    which Prometheus does not have."""

    def drafts(self, sums: Mapping[str, float], tokens: int) -> DraftTokenCounts:
        """Draft tokens since it started, from the sums of `draft_metrics` and the draft tokens of one step."""
        ...

    def launch(self, candidate: Candidate, context: RankContext) -> RankCommand:
        """The command line and environment of one rank.

        Raises:
            EngineError: the engine does not support something that the candidate needs.
        """
        ...


def with_users(ours: tuple[str, ...], users: tuple[str, ...]) -> tuple[str, ...]:
    """Our arguments, then the deployment's; of a flag that both set, only the deployment's.

    A flag and its opposite (`--enforce-eager`, `--no-enforce-eager`) are one. Words that belong to no flag stay.
    """
    theirs = {_positive(name) for name in parse_flags(users)}
    kept: list[str] = []
    dropping = False
    for word in ours:
        if named := parse_flags((word,)):
            dropping = _positive(next(iter(named))) in theirs
        if not dropping:
            kept.append(word)
    return (*kept, *users)


def _positive(flag: str) -> str:
    return f"--{flag.removeprefix('--no-')}" if flag.startswith("--no-") else flag


def files_at(candidate: Candidate, context: RankContext) -> str:
    """Directory of the rank's own files; in a container always the same."""
    return FILES_IN_CONTAINER if candidate.runtime == "container" else context.files_dir


def checkpoint_mounts(context: RankContext) -> tuple[Mount, ...]:
    """The checkpoints, read-only, at the same path inside as outside, so that argv equals a process's.

    A custom workload's model may be a name in the Hub that is not on this node: the image brings it along, or fetches it.
    """
    seen = context.roots or (context.model_path, context.draft_path)
    return tuple(Mount(source=path, target=path) for path in dict.fromkeys(seen) if path.startswith("/"))


def cache_mounts(context: RankContext) -> tuple[Mount, ...]:
    """The directories of compiled kernels and of KV on the disk, writable."""
    return tuple(
        Mount(source=found, target=found, read_only=False)
        for found in (context.cache_dir, context.kv_dir)
        if found
    )
