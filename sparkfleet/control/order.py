"""From a planned candidate to the exact command of a rank. Pure, but for the secret that is handed in."""

from __future__ import annotations

from pathlib import Path

from sparkfleet.builtin import cache as builtin_cache
from sparkfleet.control.paths import FleetPaths
from sparkfleet.control.store import Desired
from sparkfleet.engines.base import RankSite
from sparkfleet.engines.registry import engine_by_name
from sparkfleet.gateway.keys import engine_token
from sparkfleet.nodes.runtime.base import RankId, RankSpec
from sparkfleet.planning.plan import Candidate
from sparkfleet.values import Value

START_LEASE_S = 120.0
"""A rank that is started before its group's actor exists waits this long for it: Ray needs 5 to 60 s to come up."""


class GroupOrder(Value):
    """Everything a group's actor needs to start its engine, whichever replica of the deployment it is."""

    fleet: str
    """Label of the fleet on this machine."""
    state_dir: str
    run_dir: str
    deployment: str
    generation: int
    replicas: int
    candidate: Candidate
    drain_s: float = 30.0

    def rank_id(self, replica: int, rank: int = 0) -> RankId:
        """Who a rank is."""
        return RankId(
            fleet=self.fleet,
            deployment=self.deployment,
            generation=self.generation,
            replica=replica,
            rank=rank,
        )


def rank_spec(order: GroupOrder, replica: int, port: int, secret: str) -> RankSpec:
    """The command of rank 0 of one replica.

    Args:
        order: what to run.
        replica: which of the deployment's replicas, from 0.
        port: a free TCP port on the node.
        secret: the fleet's engine secret; only a token derived from it reaches the engine.
    """
    id_ = order.rank_id(replica)
    site = RankSite(
        rank=0,
        python=order.candidate.python,
        model_path=str(model_path(order.candidate.model)),
        served_name=order.deployment,
        host="127.0.0.1",
        port=port,
    )
    launch = engine_by_name(order.candidate.engine).launch(order.candidate, site)
    return RankSpec(
        id=id_,
        argv=launch.argv,
        env=launch.env,
        secret_env=((launch.token_env, engine_token(secret.encode(), str(id_))),),
        prepare=_prepare(order),
        log_path=str(Path(order.state_dir) / "logs" / f"{id_.slug}.log"),
        port=port,
        lease_s=START_LEASE_S,
    )


def model_path(model: str) -> Path:
    """Where a checkpoint lies on its node."""
    if model.startswith("builtin:"):
        return builtin_cache.path(model.removeprefix("builtin:"))
    return Path(model)


def _prepare(order: GroupOrder) -> tuple[str, ...]:
    if not order.candidate.model.startswith("builtin:"):
        return ()
    return (
        order.candidate.python,
        "-m",
        "sparkfleet.builtin",
        "build",
        order.candidate.model.removeprefix("builtin:"),
    )


def order_for(paths: FleetPaths, desired: Desired) -> GroupOrder:
    """What the groups of a wanted deployment are told. Reads nothing."""
    group = desired.plan.groups[0]
    return GroupOrder(
        fleet=paths.label,
        state_dir=str(paths.root),
        run_dir=str(paths.run),
        deployment=desired.name,
        generation=desired.generation,
        replicas=len(desired.plan.groups),
        candidate=group.choice.candidate,
    )
