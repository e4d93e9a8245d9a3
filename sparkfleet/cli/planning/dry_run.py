"""`sparkfleet apply --dry-run`: prints the exact command of every rank, for a shell."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Sequence
from pathlib import Path

from sparkfleet.cli.exit_codes import Exit
from sparkfleet.cli.options import open_session
from sparkfleet.cli.output import OUTPUT_VERSION, console, print_json
from sparkfleet.cli.planning.plan_output import refusal_lines
from sparkfleet.engines.harmony import ENCODINGS, is_harmony
from sparkfleet.fleet.planning.dry_run import (
    HIDDEN,
    RankRun,
    dry_run,
    private_variables,
    rank_runs,
    shown_variables,
)
from sparkfleet.planner.place.fleet_map import Fleet
from sparkfleet.planner.types.image_refs import image_of, tag_words
from sparkfleet.planner.types.plan import DeploymentPlan, GroupPlan, Plan
from sparkfleet.specs.deployment import Deployment
from sparkfleet.specs.inventory import Inventory


async def show_dry_run(
    specs: Sequence[Deployment], inventory: Path | Inventory, assumed: str | None, json: bool
) -> int:
    """Plan, and print the commands that `apply` would run on each node."""
    found = await dry_run(open_session(inventory), specs, assumed)
    if json:
        print_json({"version": OUTPUT_VERSION} | found.document())
    else:
        for line in shown(found.specs, found.plan, found.inventory, found.fleet):
            console.print(line, markup=False)
    return Exit.INFEASIBLE if found.plan.refused else Exit.DONE


def shown(specs: Sequence[Deployment], plan: Plan, inventory: Inventory, fleet: Fleet) -> Iterator[str]:
    """Lines of a dry run: every rank of the first rung of every group, and the names of the rungs below it."""
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
        yield f"#   then {rung.candidate if group.is_elsewhere(rung) else rung.candidate.how}"
    if image := image_of(group.choice.candidate):
        yield f"#   in {tag_words(image)}"
    if is_harmony(group.choice.candidate.model):
        yield f"#   TIKTOKEN_ENCODINGS_BASE: only if {' and '.join(ENCODINGS)} are there; else the engine downloads them"
    private = private_variables(spec, group)
    for run in rank_runs(spec.name, number, group.choice.candidate, inventory, private):
        yield f"\n# rank {run.rank} on {run.node}"
        yield from _shown_files(run)
        yield from command_lines(run, private)
    yield ""


# --- shell commands ---------------------------------------------------------------------------------------------------


def command_lines(run: RankRun, private: tuple[str, ...]) -> Iterator[str]:
    """The command for a shell, one flag per line, without the values of `private` variables."""
    variables = [
        f"{name}={value if value == HIDDEN else shlex.quote(value)}"
        for name, value in shown_variables(run, private)
    ]
    head = " \\\n  ".join(("env", *variables)) + " \\\n" if variables else ""
    yield head + " \\\n  ".join(_by_flags(run.argv, run.image))


def _by_flags(argv: Sequence[str], image: str) -> list[str]:
    """One line per flag with its value, and one for the image with the program in it."""
    lines: list[list[str]] = [[]]
    for word in argv:
        if (word.startswith("--") or word == image) and lines[-1]:
            lines.append([])
        lines[-1].append(shlex.quote(word))
    return [" ".join(line) for line in lines]


def _shown_files(run: RankRun) -> Iterator[str]:
    for file in run.command.files:
        yield f"# file {run.files_dir}/{file.name}"
        yield from (f"#   {line}" for line in (file.about or file.text).splitlines())
