"""The exact command of each rank of a group. Pure: facts of the node and the secret are arguments."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path, PurePosixPath
from typing import Any

from sparkfleet.engines.base import RankCommand, RankContext
from sparkfleet.engines.container import ContainerOptions, RankLabels, run_argv
from sparkfleet.engines.nccl_env import Pairs
from sparkfleet.engines.registry import engine_by_name
from sparkfleet.gateway.access.keys import engine_token, metrics_token
from sparkfleet.group.group_launch import ALONE, GroupLaunch, RankPlacement, launch_digest
from sparkfleet.planner.types.plan import Candidate
from sparkfleet.runtime.base import ContainerSpec, Forward, KvFiles, RankFile, RankId, RankSpec
from sparkfleet.runtime.environment import steers_tools
from sparkfleet.runtime.files.fleet_paths import FleetPaths
from sparkfleet.runtime.files.token_secrets import TokenSecrets
from sparkfleet.runtime.sealed_env import EnvSealer, is_sealed
from sparkfleet.values import Value

START_LEASE_S = 120.0
"""Lease of a rank that starts before its group's actor exists, seconds: Ray needs 5 to 60 s to come up."""


class Ports(Value):
    """TCP ports of a start, different each time."""

    http: int
    """Port of the rank's HTTP server, or of the forwarder in front of it."""
    inner: int = 0
    """Port of the HTTP server on loopback behind a forwarder."""
    rendezvous: int = 0
    """Port of the rendezvous on rank 0's node; 0 for a group of one."""


class RankNodeFacts(Value):
    """Facts of a node that a rank's command depends on; `rank_node` reads them on the node."""

    model_path: str
    """The checkpoint's directory; for a custom workload the value of its deployment."""
    draft_path: str = ""
    roots: tuple[str, ...] = ()
    """Directories of its checkpoints that a container has to see: those of the models in the Hub's cache, or their own."""
    python: str
    """Interpreter of sparkfleet's own environment."""
    has_encodings: bool = False
    """True if tiktoken's files for gpt-oss are on the node; otherwise the engine downloads them."""
    kv_mark: str = ""
    """Identity of the engine and the weights on the node, if KV of them is kept on the disk."""
    control_netdev: str = ""
    """Netdev to peers that no rail reaches."""


def rank_spec(
    paths: FleetPaths,
    launch: GroupLaunch,
    rank: int,
    ports: Ports,
    secret: str,
    *,
    facts: RankNodeFacts,
    tokens: TokenSecrets | None = None,
    container: ContainerSpec | None = None,
) -> RankSpec:
    """The command of one rank of a group.

    Args:
        paths: the fleet's directories on the rank's node.
        launch: the group's launch.
        rank: its number, from 0.
        ports: free ports on their nodes.
        secret: the fleet's engine secret: it opens sealed variables.
        facts: facts of the rank's node.
        tokens: the secrets of which the engine's token is derived; None: the engine secret.
        container: its container; None for a process.

    Raises:
        ControlError: another fleet sealed a variable of the deployment.
    """
    hidden = tuple(name for name, value in launch.candidate.env if is_sealed(value))
    tokens = tokens or TokenSecrets(current=secret)
    digest = launch_digest(launch, tokens.current)
    launch = _opened(launch, secret)
    id_ = launch.rank_id(paths.label, rank)
    inner = launch.candidate.port or ports.inner  # a custom workload may declare its port
    forward = _forward(launch, rank, inner, tokens) if is_forwarded(launch, rank) else None
    http = launch.candidate.port or ports.http
    own = (
        {"host": ALONE, "port": inner} if forward else {"host": launch.placements[rank].address, "port": http}
    )
    context = _context(paths, launch, rank, ports.rendezvous, facts).model_copy(update=own)
    command = engine_by_name(launch.candidate.engine).launch(launch.candidate, context)
    token = _tokens(command, launch, tokens)
    how = (
        _process(command, token, hidden)
        if container is None
        else _container(command, token, launch, context, id_=id_, container=container)
    )
    return RankSpec(
        id=id_,
        digest=digest,
        **how,
        files=tuple(
            RankFile(path=f"{context.files_dir}/{file.name}", text=file.text, executable=file.executable)
            for file in command.files
        ),
        kv_files=_kv_files(launch, context),
        prepare=_prepare(launch, facts.python),
        log_path=str(paths.rank_log(id_.slug)),
        port=ports.http if forward else http,
        declared_port=launch.candidate.port,
        forward=forward,
        lease_s=START_LEASE_S,
    )


def is_forwarded(launch: GroupLaunch, rank: int) -> bool:
    """True if a forwarder listens on the rank's address: its engine serves there, and does not check the token itself."""
    engine = engine_by_name(launch.candidate.engine)
    reachable = engine.always_forwarded or launch.placements[rank].address != ALONE
    return rank == 0 and not engine.checks_token and reachable


def _forward(launch: GroupLaunch, rank: int, target_port: int, tokens: TokenSecrets) -> Forward:
    return Forward(
        host=launch.placements[rank].address,
        target_port=target_port,
        token=engine_token(tokens.current.encode(), launch.name),
        metrics_token=_metrics_tokens(tokens),
        metrics_path=engine_by_name(launch.candidate.engine).metrics_path,
    )


def _tokens(command: RankCommand, launch: GroupLaunch, tokens: TokenSecrets) -> Pairs:
    known = (
        (command.token_env, engine_token(tokens.current.encode(), launch.name)),
        (command.metrics_env, _metrics_tokens(tokens)),
    )
    return tuple((name, token) for name, token in known if name)


def _metrics_tokens(tokens: TokenSecrets) -> str:
    """All that are good during a change, between spaces: Prometheus has one token for all engines."""
    return " ".join(metrics_token(secret.encode()) for secret in tokens.every)


def _context(
    paths: FleetPaths, launch: GroupLaunch, rank: int, rendezvous: int, facts: RankNodeFacts
) -> RankContext:
    """The rank's context; its own host and port are still to be set."""
    candidate, placement = launch.candidate, launch.placements[rank]
    return RankContext(
        rank=rank,
        python=candidate.python,
        model_path=facts.model_path,
        draft_path=facts.draft_path,
        roots=facts.roots,
        served_name=launch.deployment,
        host=placement.address,
        port=0,
        leader_port=rendezvous,
        cache_dir=cache_dir(str(paths.kernels), launch.deployment, candidate),
        files_dir=str(paths.rank_files(launch.rank_id(paths.label, rank).slug)),
        kv_dir=kv_dir(str(paths.kv), launch.deployment, candidate, facts),
        keys_dir=str(keys_dir(paths, launch, rank) or ""),
        encodings_dir=str(paths.encodings) if facts.has_encodings else "",
        **_network(placement, facts.control_netdev),
    )


def keys_dir(paths: FleetPaths, launch: GroupLaunch, rank: int) -> Path | None:
    """Path of a rank's copy of its group's SSH key pair; None for a group that is not started by MPI."""
    if launch.candidate.engine != "trtllm" or len(launch.placements) == 1:
        return None
    return paths.rank_files(launch.rank_id(paths.label, rank).slug) / "keys"


def _network(placement: RankPlacement, control_netdev: str) -> dict[str, Any]:
    """Network of a rank. If its peers use none of its rails, they use `control_netdev`."""
    if placement.network is None:
        return {}
    found = placement.network.model_dump()
    if not any(rail.address in placement.network.peers for rail in placement.network.rails):
        found["control_netdev"] = control_netdev
    return found


def _opened(launch: GroupLaunch, secret: str) -> GroupLaunch:
    """The launch with the values of its sealed variables."""
    env = EnvSealer(secret.encode()).opened(launch.candidate.env)
    return launch.model_copy(update={"candidate": launch.candidate.model_copy(update={"env": env})})


def _process(command: RankCommand, token: Pairs, hidden: tuple[str, ...]) -> dict[str, Any]:
    return {
        "argv": command.argv,
        "env": tuple(pair for pair in command.env if pair[0] not in hidden),
        "secret_env": (*token, *(pair for pair in command.env if pair[0] in hidden)),
    }


def _container(
    command: RankCommand,
    token: Pairs,
    launch: GroupLaunch,
    context: RankContext,
    *,
    id_: RankId,
    container: ContainerSpec,
) -> dict[str, Any]:
    """The same in a container. The deployment's variables may be secret: the tool's arguments only name them."""
    private = tuple(name for name, _ in launch.candidate.env if not steers_tools(name))
    what = ContainerOptions(
        tool=container.tool,
        image=container.image,
        origin=launch.candidate.image or "",
        gpu=launch.candidate.device == "cuda",
        labels=RankLabels(**id_.model_dump(exclude={"replica"}), group=id_.replica),
        rdma=_rdma(launch, context),
        logs_in=launch.candidate.engine == "trtllm" and len(launch.placements) > 1,
        files_dir=context.files_dir,
        kv_staging_bytes=launch.candidate.kv_staging_bytes or 0,
        private=private,
    )
    return {
        "argv": run_argv(command, what),
        "secret_env": (*token, *((name, value) for name, value in command.env if name in private)),
        "container": container,
    }


def _rdma(launch: GroupLaunch, context: RankContext) -> bool:
    """True if ranks communicate by RDMA. Those on CPUs use TCP (gloo)."""
    gpus = launch.candidate.device == "cuda"
    return gpus and len(context.peers) > 1 and any(rail.rdma for rail in context.rails)


def cache_dir(kernels: str, deployment: str, candidate: Candidate) -> str:
    """Directory of a container's compiled kernels; "" for a process.

    One per deployment and image: what one image compiles is code that another would run.
    """
    if candidate.runtime != "container":
        return ""
    image = hashlib.sha256((candidate.image or "").encode()).hexdigest()[:16]
    return f"{kernels}/{deployment}/{image}"


NO_KV_KEY = (
    *("shape", "context", "concurrency", "batch_tokens", "memory_fraction", "memory_fractions"),
    *("kv_cache_bytes", "kv_disk_bytes", "kv_staging_bytes"),
    *("mmap", "media_domains", "health", "port", "command"),
)
"""Fields of a candidate that change no byte of a block of KV."""


def kv_dir(kv: str, deployment: str, candidate: Candidate, facts: RankNodeFacts) -> str:
    """Directory of the KV that a rank keeps on the disk; "" if it keeps none.

    Its key is everything else that a block may depend on: vLLM's own names know the model's name, the data type, the split
    and the groups of layers, and neither the weights' revision nor their quantisation, its release, or its settings. A
    block of another one would be taken without an error, and the answer would be garbage. A field that a later release of
    sparkfleet adds does not count as long as it has its default.
    """
    if candidate.kv_disk_bytes is None:
        return ""
    told = candidate.model_dump(mode="json", exclude=set(NO_KV_KEY), exclude_defaults=True)
    content = [told, facts.model_path, facts.draft_path, facts.kv_mark]
    key = hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()[:16]
    return f"{kv}/{deployment}/{key}"


def _kv_files(launch: GroupLaunch, context: RankContext) -> KvFiles | None:
    limit = launch.candidate.kv_disk_bytes
    return None if limit is None else KvFiles(path=context.kv_dir, limit_bytes=limit)


def root_of(path: str) -> str:
    """The directory of a checkpoint. Files of a Hub snapshot are links to blobs beside it, in the model's own directory."""
    parent = PurePosixPath(path).parent
    return str(parent.parent) if parent.name == "snapshots" else path


def _prepare(launch: GroupLaunch, python: str) -> tuple[str, ...]:
    models = (launch.candidate.model, launch.candidate.speculation.draft or "")
    names = [model.removeprefix("builtin:") for model in models if model.startswith("builtin:")]
    if not names:
        return ()
    # In sparkfleet's own environment on the node: an engine's environment or image may lack sparkfleet.
    return (python, "-P", "-m", "sparkfleet.tiny_models", "build", *names)
