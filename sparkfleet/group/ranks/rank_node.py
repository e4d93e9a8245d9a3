"""Reads the facts of a node that a rank's command depends on, and makes the command on that node."""

from __future__ import annotations

import asyncio
import hashlib
import os
import shutil
import sys
from pathlib import Path

from sparkfleet.checkpoints.io.hub_cache import directory_of_path, hub_cache, resolve
from sparkfleet.engines.harmony import ENCODINGS, is_harmony
from sparkfleet.errors import Cause, NodeError
from sparkfleet.group.group_launch import GroupLaunch, RankPlacement
from sparkfleet.group.ranks.rank_spec import Ports, RankNodeFacts, cache_dir, rank_spec, root_of
from sparkfleet.hostfacts.node import ReadMemory
from sparkfleet.planner.types.plan import Candidate
from sparkfleet.remote import page_cache
from sparkfleet.remote.local import LocalChannel
from sparkfleet.remote.netdev import netdev_of
from sparkfleet.runtime.base import ContainerSpec, RankSpec
from sparkfleet.runtime.containers.container_tools import tool_for
from sparkfleet.runtime.files.builtin_models import builtin_path
from sparkfleet.runtime.files.cached_files import give_back
from sparkfleet.runtime.files.fleet_paths import FleetPaths
from sparkfleet.runtime.files.token_secrets import TokenSecrets
from sparkfleet.specs.model_name import MAIN, base_name, model_name
from sparkfleet.staging.agent.images import staged_name

KEPT_CACHES = 4
"""Caches of compiled kernels that a deployment keeps: of this image, and of others that it may return to."""


def spec_here(
    paths: FleetPaths,
    launch: GroupLaunch,
    rank: int,
    ports: Ports,
    secret: str,
    *,
    tokens: TokenSecrets | None = None,
    container: ContainerSpec | None = None,
) -> RankSpec:
    """The command of one rank on this node (`rank_spec.rank_spec`).

    Raises:
        FactError: its checkpoint is a model of the Hub and is not in this node's cache.
        NodeError: the directory that a container is to see has no files.
    """
    if container is not None:
        _require_files(launch, launch.placements[rank].node)
    facts = node_facts(paths, launch, rank)
    return rank_spec(paths, launch, rank, ports, secret, facts=facts, tokens=tokens, container=container)


def node_facts(paths: FleetPaths, launch: GroupLaunch, rank: int) -> RankNodeFacts:
    """Facts of this node that a rank's command depends on.

    Raises:
        FactError: its checkpoint is a model of the Hub and is not in this node's cache.
    """
    candidate = launch.candidate
    draft = candidate.speculation.draft
    model = str(model_path(candidate.model)) if candidate.is_staged else candidate.model
    return RankNodeFacts(
        model_path=model,
        draft_path=str(model_path(draft)) if draft else "",
        roots=_roots(model, str(model_path(draft)) if draft else ""),
        python=sys.executable,
        has_encodings=_has_encodings(paths, candidate),
        kv_mark="" if candidate.kv_disk_bytes is None else _kv_mark(candidate, model),
        control_netdev=_control_netdev(launch.placements[rank]),
    )


def _kv_mark(candidate: Candidate, model: str) -> str:
    """Identity of what computes a block of KV, as far as paths and plans do not have it: files of a checkpoint that is no
    snapshot of a commit, and the vLLM that is installed beside the interpreter of a process."""
    seen: list[str] = []
    path = Path(model)
    if path.parent.name != "snapshots":
        seen += sorted(_file_mark(one) for one in path.iterdir()) if path.is_dir() else [_file_mark(path)]
    if candidate.runtime == "process":
        homes = Path(candidate.python).parent.parent.glob("lib/python*/site-packages/vllm-*.dist-info")
        seen += sorted(_file_mark(one) for one in homes)
    return hashlib.sha256("\n".join(seen).encode()).hexdigest()


def _file_mark(path: Path) -> str:
    found = path.stat()
    return f"{path.name} {found.st_size} {found.st_mtime_ns}"


def _require_files(launch: GroupLaunch, node: str) -> None:
    """Raises NodeError for a checkpoint's directory that is missing or empty, as that of a disk which is not mounted: docker
    would make it, as root's."""
    for model in (launch.candidate.model, launch.candidate.speculation.draft or ""):
        if model.startswith("/") and (lack := _lack(model)):
            raise NodeError(
                f"{node}: {model} is {lack}.",
                means="The checkpoint was moved, or its disk is not mounted. No container was started.",
                do=f"Mount it or copy it there, then `sparkfleet apply` {launch.deployment} again.",
                because=Cause.MISSING,
            )


def _lack(model: str) -> str:
    """The lack of a directory, "missing" or "empty"; "" for one file, and for a directory that docker, as root, may read."""
    try:
        return "" if os.listdir(model) else "empty"
    except FileNotFoundError:
        return "missing"
    except OSError:
        return ""


def model_path(model: str) -> Path:
    """The directory of a checkpoint on this node.

    Raises:
        FactError: it is a model of the Hub and is not in this node's cache.
    """
    if model.startswith("builtin:"):
        return builtin_path(model)
    if model.startswith("/"):
        return directory_of_path(model)
    name = model_name(model)
    found = resolve(name.base, revision=name.revision or MAIN, tag=name.tag, cache=_hub_cache())
    assert isinstance(found, Path), "nothing is fetched here"
    return found


def _roots(*models: str) -> tuple[str, ...]:
    """Directories of checkpoints; of a custom workload's model by its name in the Hub, if it is on this node."""
    found = [root_of(model) if model.startswith("/") else _in_cache(model) for model in models if model]
    return tuple(dict.fromkeys(path for path in found if path))


def _in_cache(model: str) -> str:
    path = _hub_cache() / f"models--{base_name(model).replace('/', '--')}"
    return str(path) if path.is_dir() else ""


async def drop_page_cache(node: str, model: str) -> None:
    """Drops this node's page cache before an engine starts: the whole if root permits it, else the files of models.

    Args:
        node: this node's name.
        model: the model's name, or its directory.
    """
    if not await page_cache.drop(LocalChannel(node)):
        own = (Path(model),) if model.startswith("/") else ()
        await asyncio.to_thread(give_back, _hub_cache(), *own)


def prepare_cache(paths: FleetPaths, launch: GroupLaunch) -> None:
    """Makes the directory of a container's compiled kernels, and removes those of its deployment's older images.

    Raises:
        NodeError: it cannot be made.
    """
    found = cache_dir(str(paths.kernels), launch.deployment, launch.candidate)
    if not found:
        return
    mine = Path(found)
    try:
        mine.mkdir(parents=True, exist_ok=True, mode=0o700)
        os.utime(mine)
    except OSError as error:
        raise NodeError(f"the directory {mine} for compiled kernels cannot be made: {error}") from error
    for old in sorted(mine.parent.iterdir(), key=_changed_at, reverse=True)[KEPT_CACHES:]:
        shutil.rmtree(old, ignore_errors=True)


def _changed_at(path: Path) -> float:
    """Time of a directory's last change; 0 for one that another group's start has just removed."""
    try:
        return path.stat().st_mtime
    except OSError:
        return 0.0


def _hub_cache() -> Path:
    return hub_cache(os.environ, Path.home())


def _has_encodings(paths: FleetPaths, candidate: Candidate) -> bool:
    """True if all of tiktoken's files for gpt-oss are on this node; otherwise the engine downloads them."""
    return is_harmony(candidate.model) and all((paths.encodings / name).is_file() for name in ENCODINGS)


def _control_netdev(placement: RankPlacement) -> str:
    """The netdev to peers that none of the rank's rails reaches; "" if a rail does."""
    network = placement.network
    if network is None or any(rail.address in network.peers for rail in network.rails):
        return ""
    return netdev_of(placement.address)


async def container_of(launch: GroupLaunch) -> ContainerSpec | None:
    """Container tool and local image name of a group; None for a process.

    Raises:
        NodeError: the node has no container tool, or none that has the image.
    """
    if launch.candidate.runtime != "container" or launch.candidate.image is None:
        return None
    image = launch.candidate.image
    if "@" in image:  # an image that was copied from another node has no registry name
        staged = staged_name(image)
        try:
            return ContainerSpec(tool=await tool_for(staged), image=staged)
        except NodeError as error:
            if error.because is not Cause.MISSING:
                raise
    return ContainerSpec(tool=await tool_for(image), image=image)


def available_memory() -> int:
    """MemAvailable of this node, bytes. Reads a pseudo-file: it takes microseconds."""
    return ReadMemory.parse(Path(ReadMemory.argv[1]).read_text()).available
