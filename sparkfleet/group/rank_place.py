"""Reads the facts of a node that a rank's command depends on, and makes the command on that node."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from sparkfleet.checkpoints.io.hub_cache import hub_cache, resolve
from sparkfleet.engines.harmony import ENCODINGS, needs_encodings
from sparkfleet.group.launch_plan import GroupLaunch, Ports, RankPlace, RankPlacement, rank_spec
from sparkfleet.planner.types.plan import Candidate
from sparkfleet.remote.netdev import netdev_of
from sparkfleet.runtime.base import ContainerSpec, RankSpec
from sparkfleet.runtime.builtin_models import builtin_path
from sparkfleet.runtime.fleet_paths import FleetPaths


def spec_here(
    paths: FleetPaths,
    launch: GroupLaunch,
    rank: int,
    ports: Ports,
    secret: str,
    *,
    box: ContainerSpec | None = None,
) -> RankSpec:
    """The command of one rank on this node (`launch_plan.rank_spec`).

    Raises:
        FactError: its checkpoint is a model of the Hub and is not in this node's cache.
    """
    return rank_spec(paths, launch, rank, ports, secret, place=place_of(paths, launch, rank), box=box)


def place_of(paths: FleetPaths, launch: GroupLaunch, rank: int) -> RankPlace:
    """Facts of this node that a rank's command depends on.

    Raises:
        FactError: its checkpoint is a model of the Hub and is not in this node's cache.
    """
    candidate = launch.candidate
    draft = candidate.speculation.draft
    return RankPlace(
        model_path=candidate.model if candidate.engine == "custom" else str(model_path(candidate.model)),
        draft_path=str(model_path(draft)) if draft else "",
        hub_cache=str(_hub_cache()),
        python=sys.executable,
        has_encodings=_has_encodings(paths, candidate),
        control_netdev=_control_netdev(launch.seats[rank]),
    )


def model_path(model: str) -> Path:
    """The directory of a checkpoint on this node.

    Raises:
        FactError: it is a model of the Hub and is not in this node's cache.
    """
    if model.startswith("builtin:"):
        return builtin_path(model)
    if model.startswith("/"):
        return Path(model)
    name, _, revision = model.partition("@")
    found = resolve(name, revision=revision or "main", cache=_hub_cache())
    assert isinstance(found, Path), "nothing is fetched here"
    return found


def _hub_cache() -> Path:
    return hub_cache(os.environ, Path.home())


def _has_encodings(paths: FleetPaths, candidate: Candidate) -> bool:
    """True if all of tiktoken's files for gpt-oss are on this node; otherwise the engine downloads them."""
    return needs_encodings(candidate.model) and all((paths.encodings / name).is_file() for name in ENCODINGS)


def _control_netdev(seat: RankPlacement) -> str:
    """The netdev to peers that none of the rank's rails reaches; "" if a rail does."""
    meeting = seat.meeting
    if meeting is None or any(rail.address in meeting.peers for rail in meeting.rails):
        return ""
    return netdev_of(seat.address)
