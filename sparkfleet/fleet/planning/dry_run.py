"""Commands of every rank as `apply` would run them. Changes nothing, and contacts nodes only as a plan does.

Values that are known only at a start have a placeholder: ports, the commit of a checkpoint, the digest of an image. Secrets
are hidden: the engine's token, and every variable that the deployment itself sets.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from sparkfleet.checkpoints.io.hub_cache import directory_of_path
from sparkfleet.engines.base import RankCommand, RankContext
from sparkfleet.engines.container import ContainerOptions, RankLabels, run_argv
from sparkfleet.engines.harmony import is_harmony
from sparkfleet.engines.registry import engine_by_name
from sparkfleet.engines.rendezvous import RankNetwork, rank_networks
from sparkfleet.fabric.node_addresses import node_addresses
from sparkfleet.fleet.planning.checkpoints import builtin_models_of
from sparkfleet.fleet.planning.plan import checkpoints_for, fleet_of
from sparkfleet.fleet.session import Session
from sparkfleet.group.group_launch import ALONE
from sparkfleet.group.ranks.rank_spec import cache_dir, root_of
from sparkfleet.planner.packing.fleet_planner import plan_fleet
from sparkfleet.planner.place.fleet_map import Fleet
from sparkfleet.planner.types.image_refs import image_of
from sparkfleet.planner.types.plan import Candidate, GroupPlan, Plan
from sparkfleet.runtime.files.builtin_models import builtin_path
from sparkfleet.specs.deployment import Deployment
from sparkfleet.specs.inventory import Inventory, Node
from sparkfleet.specs.model_name import model_name
from sparkfleet.values import Value

PORT, RENDEZVOUS = 30000, 29500
"""Placeholders for ports that are free at the start; the second is PyTorch's default."""
COMMIT = "COMMIT"
"""Placeholder for the commit of a checkpoint if the deployment gives no revision."""
GENERATION = 1
HIDDEN = "***"
CACHE = ".cache/huggingface/hub"
"""Directory of staged weights in the home of the node's user, unless the node's environment sets another."""


class RankRun(Value):
    """One rank, as it would be run."""

    node: str
    rank: int
    argv: tuple[str, ...]
    env: tuple[tuple[str, str], ...]
    """Environment of the process itself; that of a container is in `argv`."""
    command: RankCommand
    files_dir: str
    image: str = ""


class DryRun(NamedTuple):
    """A plan whose commands are shown."""

    specs: tuple[Deployment, ...]
    plan: Plan
    inventory: Inventory
    fleet: Fleet

    def document(self) -> dict[str, Any]:
        """The same for programs: argument lists instead of shell commands, and refusals as in `plan --json`."""
        planned = [(spec, one) for spec in self.specs if (one := self.plan.of(spec.name)) is not None]
        return {
            "deployments": [
                {
                    "name": spec.name,
                    "groups": [
                        _group_document(spec, at, group, self.inventory)
                        for at, group in enumerate(one.groups)
                    ],
                }
                for spec, one in planned
            ],
            "refused": [one.model_dump(mode="json") for one in self.plan.refused],
            "assumed": list(self.fleet.assumed),
        }


async def dry_run(session: Session, specs: Sequence[Deployment], assumed: str | None = None) -> DryRun:
    """Plan deployments as if nothing ran. Raises as `plan_deployments` does."""
    fleet = await fleet_of(session, assumed)
    plan = plan_fleet(
        specs,
        fleet,
        await checkpoints_for(session, specs, fleet),
        {},
        builtin_models=builtin_models_of(specs),
    )
    return DryRun(tuple(specs), plan, session.inventory, fleet)


def _group_document(spec: Deployment, number: int, group: GroupPlan, inventory: Inventory) -> dict[str, Any]:
    private = private_variables(spec, group)
    return {
        "group": number,
        "runs": str(group.choice.candidate),
        "image": image_of(group.choice.candidate) or None,
        "then": [
            str(rung.candidate) if group.is_elsewhere(rung) else rung.candidate.how
            for rung in group.ladder[1:]
        ],
        "ranks": [
            {
                "rank": run.rank,
                "node": run.node,
                "argv": list(run.argv),
                "env": dict(shown_variables(run, private)),
                "files": [
                    {"path": f"{run.files_dir}/{file.name}", "text": file.text} for file in run.command.files
                ],
            }
            for run in rank_runs(spec.name, number, group.choice.candidate, inventory, private)
        ],
    }


def private_variables(spec: Deployment, group: GroupPlan) -> tuple[str, ...]:
    """Names of the variables that the deployment itself sets; their values are hidden."""
    return tuple(spec.resolved()[group.variant].env)


# --- ranks ------------------------------------------------------------------------------------------------------------


def rank_runs(
    name: str, number: int, candidate: Candidate, inventory: Inventory, private: tuple[str, ...]
) -> tuple[RankRun, ...]:
    """The ranks of one group.

    Args:
        name: the public model name.
        number: of the group in its deployment, from 0.
        candidate: of the group's rung.
        inventory: its nodes and links.
        private: variables whose values are hidden.

    Raises:
        EngineError: the engine cannot run the candidate, or no rails join the nodes.
    """
    networks = rank_networks(inventory.links, candidate.shape.nodes)
    sites = [_context(name, rank, candidate, inventory, networks) for rank in range(candidate.shape.ranks)]
    return tuple(_run(name, number, candidate, context, private) for context in sites)


def _run(
    name: str, number: int, candidate: Candidate, context: RankContext, private: tuple[str, ...]
) -> RankRun:
    node = candidate.shape.nodes[context.rank]
    command = engine_by_name(candidate.engine).launch(candidate, context)
    if candidate.runtime == "process":
        return RankRun(
            node=node,
            rank=context.rank,
            argv=command.argv,
            env=command.env,
            command=command,
            files_dir=context.files_dir,
        )
    options = ContainerOptions(
        tool="docker",
        image=candidate.image or "",
        labels=RankLabels(
            fleet="FLEET", deployment=name, generation=GENERATION, group=number, rank=context.rank
        ),
        gpu=candidate.device == "cuda",
        rdma=candidate.shape.ranks > 1 and any(rail.rdma for rail in context.rails),
        logs_in=candidate.engine == "trtllm" and candidate.shape.ranks > 1,
        files_dir=context.files_dir,
        kv_staging_bytes=candidate.kv_staging_bytes or 0,
        private=private,
    )
    argv = run_argv(command, options)
    return RankRun(
        node=node,
        rank=context.rank,
        argv=argv,
        env=(),
        command=command,
        files_dir=context.files_dir,
        image=options.image,
    )


def _context(
    name: str, rank: int, candidate: Candidate, inventory: Inventory, networks: tuple[RankNetwork, ...]
) -> RankContext:
    node_name = candidate.shape.nodes[rank]
    node = inventory.nodes[node_name]
    home = _home(node)
    state = f"{home}/.local/state/sparkfleet/{inventory.fleet}"
    model, draft = _staged_path(candidate.model, home), _staged_path(candidate.speculation.draft or "", home)
    found = {} if not networks else dict(networks[rank])
    return RankContext(
        rank=rank,
        python=candidate.python,
        model_path=model,
        draft_path=draft,
        roots=tuple(root_of(path) for path in (model, draft) if path),
        served_name=name,
        # Without a check of its own an engine is on loopback, and a forwarder on its node's address checks the token.
        host=node_addresses(inventory)[node_name].address
        if engine_by_name(candidate.engine).checks_token
        else ALONE,
        port=PORT,
        leader_port=RENDEZVOUS if networks else 0,
        files_dir=f"{state}/ranks/{name}_g{GENERATION}_{rank}",
        cache_dir=cache_dir(f"{state}/kernels", name, candidate),
        kv_dir=f"{state}/kv/{name}/KEY" if candidate.kv_disk_bytes is not None else "",
        encodings_dir=f"{state}/encodings" if is_harmony(candidate.model) else "",
        keys_dir=f"{state}/ranks/{name}_g{GENERATION}_{rank}/keys" if networks else "",
        **found,
    )


def _home(node: Node) -> str:
    if node.is_local:
        return str(Path.home())
    return "/root" if node.user == "root" else f"/home/{node.user}"


def _staged_path(model: str, home: str) -> str:
    """Path of a staged checkpoint."""
    if not model or model.startswith("/"):
        return model and str(directory_of_path(model))
    if model.startswith("builtin:"):
        return str(builtin_path(model))
    name, revision, _ = model_name(model)
    return f"{home}/{CACHE}/models--{name.replace('/', '--')}/snapshots/{revision or COMMIT}"


def shown_variables(run: RankRun, private: tuple[str, ...]) -> Iterator[tuple[str, str]]:
    """Variables of the process itself; secrets are hidden."""
    for name, value in run.env:
        yield name, HIDDEN if name in private else value
    if run.command.token_env and run.env:
        yield run.command.token_env, HIDDEN
