"""`sparkfleet apply --dry-run`: the exact command of every rank, as it would be run. Changes nothing, asks no node for more
than a plan does.

What is only known at a start stands for itself: ports, the commit of a checkpoint, the digest of an image. Secrets are
named and never shown: the engine's token, and every variable that the deployment itself sets.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Sequence
from pathlib import Path, PurePosixPath
from typing import Annotated, Any

import typer

from sparkfleet.builtin import cache as builtin_cache
from sparkfleet.cli.exits import Exit
from sparkfleet.cli.output import OUTPUT_VERSION, console, print_json
from sparkfleet.cli.plan import checkpoints_for, fleet_of, refusal_lines
from sparkfleet.cli.session import Session
from sparkfleet.control.cluster import seats
from sparkfleet.engines.base import RankLaunch, RankSite
from sparkfleet.engines.container import Box, Identity, run_argv
from sparkfleet.engines.harmony import ENCODINGS, needs_encodings
from sparkfleet.engines.rails import Meeting, meetings
from sparkfleet.engines.registry import engine_by_name
from sparkfleet.planning.choose import plan_fleet
from sparkfleet.planning.fleet import Fleet
from sparkfleet.planning.plan import Candidate, DeploymentPlan, GroupPlan, Plan
from sparkfleet.planning.tags import image_of, tag_words
from sparkfleet.spec.deployment import Deployment
from sparkfleet.spec.inventory import Inventory, Node
from sparkfleet.spec.load import load_deployments
from sparkfleet.values import Value

DryRunOption = Annotated[
    bool, typer.Option("--dry-run", help="Show the command of every rank instead of running it.")
]

PORT, RENDEZVOUS = 30000, 29500
"""Stand for ports that are free when it starts; the second is PyTorch's own."""
COMMIT = "COMMIT"
"""Stands for the commit of a checkpoint, where the deployment gives no revision."""
GENERATION = 1
HIDDEN = "***"
CACHE = ".cache/huggingface/hub"
"""Under the home of the node's user: where weights are staged unless the node's environment says otherwise."""


class RankRun(Value):
    """One rank, as it would be run."""

    node: str
    rank: int
    argv: tuple[str, ...]
    env: tuple[tuple[str, str], ...]
    """Of the process itself; a container has its own among `argv`."""
    launch: RankLaunch
    files_dir: str
    image: str = ""


async def dry_run(files: list[Path], inventory: Path, assumed: str | None, json: bool) -> int:
    """Plan, and print what applying would run on which node."""
    specs = load_deployments(files)
    session = Session(inventory)
    fleet = await fleet_of(session, assumed)
    plan = plan_fleet(specs, fleet, await checkpoints_for(session, specs, fleet), {})
    if json:
        print_json(told(specs, plan, session.inventory, fleet))
    else:
        for line in shown(specs, plan, session.inventory, fleet):
            console.print(line, markup=False)
    return Exit.INFEASIBLE if plan.refused else Exit.DONE


def told(specs: Sequence[Deployment], plan: Plan, inventory: Inventory, fleet: Fleet) -> dict[str, Any]:
    """The same for programs: argument lists in place of shell commands, and what is refused as `plan --json` has it."""
    planned = [(spec, one) for spec in specs if (one := plan.of(spec.name)) is not None]
    return {
        "version": OUTPUT_VERSION,
        "deployments": [
            {
                "name": spec.name,
                "groups": [_told_group(spec, at, group, inventory) for at, group in enumerate(one.groups)],
            }
            for spec, one in planned
        ],
        "refused": [one.model_dump(mode="json") for one in plan.refused],
        "assumed": list(fleet.assumed),
    }


def _told_group(spec: Deployment, number: int, group: GroupPlan, inventory: Inventory) -> dict[str, Any]:
    private = _private(spec, group)
    return {
        "group": number,
        "runs": str(group.choice.candidate),
        "image": image_of(group.choice.candidate) or None,
        "then": [rung.candidate.how for rung in group.ladder[1:]],
        "ranks": [
            {
                "rank": run.rank,
                "node": run.node,
                "argv": list(run.argv),
                "env": dict(_variables(run, private)),
                "files": [
                    {"path": f"{run.files_dir}/{file.name}", "text": file.text} for file in run.launch.files
                ],
            }
            for run in rank_runs(spec.name, number, group.choice.candidate, inventory, private)
        ],
    }


def shown(specs: Sequence[Deployment], plan: Plan, inventory: Inventory, fleet: Fleet) -> Iterator[str]:
    """Everything that is printed: every rank of the first rung of every group, and what would be tried after it."""
    refusals = {one.name: one for one in plan.refused}
    for spec in specs:
        planned = plan.of(spec.name)
        if planned is None:
            yield from refusal_lines(spec, refusals[spec.name], fleet)
            yield ""
            continue
        for number, group in enumerate(planned.groups):
            yield from _shown_group(spec, planned, number, group, inventory)


def _shown_group(
    spec: Deployment, plan: DeploymentPlan, number: int, group: GroupPlan, inventory: Inventory
) -> Iterator[str]:
    yield f"# {plan.name}, group {number}: {group.choice.candidate}"
    for rung in group.ladder[1:]:
        yield f"#   then {rung.candidate.how}"
    if image := image_of(group.choice.candidate):
        yield f"#   in {tag_words(image)}"
    if needs_encodings(group.choice.candidate.model):
        yield f"#   the encodings are named where {' and '.join(ENCODINGS)} lie there; the engine fetches them otherwise"
    private = _private(spec, group)
    for run in rank_runs(spec.name, number, group.choice.candidate, inventory, private):
        yield f"\n# rank {run.rank} on {run.node}"
        yield from _shown_files(run)
        yield from command_lines(run, private)
    yield ""


def _private(spec: Deployment, group: GroupPlan) -> tuple[str, ...]:
    """Variables that the deployment itself sets."""
    return tuple(spec.resolved()[group.variant].env)


# --- what would be run ------------------------------------------------------------------------------------------------


def rank_runs(
    name: str, number: int, candidate: Candidate, inventory: Inventory, private: tuple[str, ...] = ()
) -> tuple[RankRun, ...]:
    """The ranks of one group.

    Args:
        name: the public model name.
        number: which of the deployment's groups, from 0.
        candidate: what is run.
        inventory: its nodes and links.
        private: variables whose values are not shown.

    Raises:
        EngineError: the engine cannot do it, or the nodes are not joined.
    """
    met = meetings(inventory.links, candidate.shape.nodes)
    sites = [_site(name, rank, candidate, inventory, met) for rank in range(candidate.shape.ranks)]
    return tuple(_run(name, number, candidate, site, private) for site in sites)


def _run(name: str, number: int, candidate: Candidate, site: RankSite, private: tuple[str, ...]) -> RankRun:
    node = candidate.shape.nodes[site.rank]
    launch = engine_by_name(candidate.engine).launch(candidate, site)
    if candidate.runtime == "process":
        return RankRun(
            node=node,
            rank=site.rank,
            argv=launch.argv,
            env=launch.env,
            launch=launch,
            files_dir=site.files_dir,
        )
    box = Box(
        tool="docker",
        image=candidate.image or "",
        identity=Identity(
            fleet="FLEET", deployment=name, generation=GENERATION, group=number, rank=site.rank
        ),
        gpu=candidate.device == "cuda",
        rdma=candidate.shape.ranks > 1 and any(rail.rdma for rail in site.rails),
        files_dir=site.files_dir,
        private=private,
    )
    argv = run_argv(launch, box)
    return RankRun(
        node=node,
        rank=site.rank,
        argv=argv,
        env=(),
        launch=launch,
        files_dir=site.files_dir,
        image=box.image,
    )


def _site(
    name: str, rank: int, candidate: Candidate, inventory: Inventory, met: tuple[Meeting, ...]
) -> RankSite:
    node = inventory.nodes[candidate.shape.nodes[rank]]
    home = _home(node)
    state = f"{home}/.local/state/sparkfleet/{inventory.fleet}"
    model, draft = _lies(candidate.model, home), _lies(candidate.speculation.draft or "", home)
    found = {} if not met else dict(met[rank])
    return RankSite(
        rank=rank,
        python=candidate.python,
        model_path=model,
        draft_path=draft,
        roots=tuple(_root(path) for path in (model, draft) if path),
        served_name=name,
        host=seats(inventory)[candidate.shape.nodes[rank]].address,
        port=PORT,
        leader_port=RENDEZVOUS if met else 0,
        files_dir=f"{state}/ranks/{name}_g{GENERATION}_{rank}",
        cache_dir=f"{state}/kernels" if candidate.device == "cuda" else "",
        encodings_dir=f"{state}/encodings" if needs_encodings(candidate.model) else "",
        keys_dir=f"{state}/ranks/{name}_g{GENERATION}_{rank}/keys" if met else "",
        **found,
    )


def _home(node: Node) -> str:
    if node.is_local:
        return str(Path.home())
    return "/root" if node.user == "root" else f"/home/{node.user}"


def _lies(model: str, home: str) -> str:
    """Where a checkpoint lies once it is staged."""
    if not model or model.startswith("/"):
        return model
    if model.startswith("builtin:"):
        return str(builtin_cache.path(model.removeprefix("builtin:")))
    name, _, revision = model.partition("@")
    return f"{home}/{CACHE}/models--{name.replace('/', '--')}/snapshots/{revision or COMMIT}"


def _root(path: str) -> str:
    """A snapshot of the Hub's cache is links to what lies beside it."""
    parent = PurePosixPath(path).parent
    return str(parent.parent) if parent.name == "snapshots" else path


# --- how it is printed ------------------------------------------------------------------------------------------------


def command_lines(run: RankRun, private: tuple[str, ...]) -> Iterator[str]:
    """The command as a shell takes it, one flag per line; values of `private` variables are not in it."""
    variables = [
        f"{name}={value if value == HIDDEN else shlex.quote(value)}"
        for name, value in _variables(run, private)
    ]
    head = " \\\n  ".join(("env", *variables)) + " \\\n" if variables else ""
    yield head + " \\\n  ".join(_by_flags(run.argv, run.image))


def _variables(run: RankRun, private: tuple[str, ...]) -> Iterator[tuple[str, str]]:
    """Of the process itself, secrets not shown."""
    for name, value in run.env:
        yield name, HIDDEN if name in private else value
    if run.launch.token_env and run.env:
        yield run.launch.token_env, HIDDEN


def _by_flags(argv: Sequence[str], image: str) -> list[str]:
    """One line per flag with its value, and one for the image with the program in it."""
    lines: list[list[str]] = [[]]
    for word in argv:
        if (word.startswith("--") or word == image) and lines[-1]:
            lines.append([])
        lines[-1].append(shlex.quote(word))
    return [" ".join(line) for line in lines]


def _shown_files(run: RankRun) -> Iterator[str]:
    for file in run.launch.files:
        yield f"# file {run.files_dir}/{file.name}"
        yield from (f"#   {line}" for line in file.text.splitlines())
