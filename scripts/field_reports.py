"""Plans every system of the field reports: published → planned → predicted, in docs/field-reports.md.

    python scripts/field_reports.py [--check]

`--check` writes nothing and ends with 1 if the file is not what would be written. Predictions change whenever factors are
fitted again, so run it after scripts/fit.py.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import yaml

from sparkfleet.fleet.nodes.assumed import assume
from sparkfleet.knowledge.models.known_models import known_checkpoint
from sparkfleet.planner.packing.fleet_planner import plan_fleet
from sparkfleet.planner.place.fleet_map import Fleet, links_of
from sparkfleet.planner.types.plan import DeploymentPlan, Plan
from sparkfleet.specs.load import load_deployment, load_inventory

ROOT = Path(__file__).resolve().parent.parent
TABLE = ROOT / "docs" / "field-reports.md"

HEAD = """# The systems of the field reports

Made by `scripts/field_reports.py` from `docs/field-reports.yaml`; every row is planned with the file of that name in
`deployments/` and checked by a test. tok/s are those of one request alone unless noted; several requests arrive
together with prompts of 2048 tokens, and TTFT is that of such a prompt. Ranges of predictions contain 80 % of the
measurements that they were not fitted on.

"""
COLUMNS = """| system | published | planned | predicted | report |
|---|---|---|---|---|
"""


def main() -> int:
    """Write the table, or check it."""
    rows = yaml.safe_load((ROOT / "docs" / "field-reports.yaml").read_text())["systems"]
    table = COLUMNS + "".join(_row(row) for row in rows)
    page = HEAD + table
    if "--check" in sys.argv:
        return int(not TABLE.exists() or TABLE.read_text() != page)
    TABLE.write_text(page)
    return 0


def plan_row(row: dict[str, Any]) -> Plan:
    """The plan of one system."""
    spec = load_deployment(ROOT / "deployments" / f"{row['deployment']}.yaml")
    inventory = load_inventory(ROOT / "docs" / "examples" / f"inventory-{row['inventory']}.yaml")
    facts = assume("dgx-spark", inventory)
    names = tuple(node.name for node in facts)
    fleet = Fleet(name=inventory.fleet, nodes=facts, links=links_of(inventory), assumed=names)
    # By name alone, so that the table does not depend on what this machine has downloaded.
    found = {
        variant.model: known_checkpoint(variant.model)
        for variant in spec.resolved()
        if variant.engine != "custom"
    }
    return plan_fleet([spec], fleet, {model: facts_ for model, facts_ in found.items() if facts_ is not None})


def _row(row: dict[str, Any]) -> str:
    plan = plan_row(row)
    told = [_planned(one) for one in plan.deployments] or [_refused(plan)]
    predicted = [_predicted(one) for one in plan.deployments] or ["–"]
    cells = (row["system"], _published(row["published"]), told[0], predicted[0], row["report"])
    note = f"<br>apart: {row['apart']}" if "apart" in row else ""
    return "| " + " | ".join((*cells[:3], cells[3] + note, cells[4])) + " |\n"


def _published(published: dict[str, Any]) -> str:
    if "refused" in published:
        return str(published["refused"])
    alone = published.get("alone")
    band = f" ({published['low']:g} to {published['high']:g})" if "low" in published else ""
    parts = [f"{alone:g} tok/s{band}"] if alone else []
    parts += [f"TP=2: {published['tp2_alone']:g} tok/s"] if "tp2_alone" in published else []
    parts += [f"{tps:g} at {n}" for n, tps in published.get("aggregate", {}).items()]
    parts += [f"TTFT {published['ttft_ms'] / 1000:.1f} s"] if "ttft_ms" in published else []
    return ", ".join(parts) or "runs"


def _planned(plan: DeploymentPlan) -> str:
    return "<br>".join(str(group.choice.candidate) for group in plan.groups)


def _predicted(plan: DeploymentPlan) -> str:
    told: list[str] = []
    for group in plan.groups:
        found = group.choice.prediction
        parts = [
            f"{found.memory_bytes_per_rank.mid / 2**30:.0f} GiB{', tight' if found.verdict == 'tight' else ''}"
        ]
        alone, many, ttft = found.decode_tps_per_request, found.decode_tps_aggregate, found.ttft_ms
        if alone is not None:
            parts.append(f"{alone.mid:.1f} tok/s ({alone.low:.0f} to {alone.high:.0f})")
        if many is not None and (found.concurrency or 1) > 1:
            parts.append(f"{many.mid:.0f} at {found.concurrency}")
        if ttft is not None:
            parts.append(f"TTFT {ttft.mid / 1000:.1f} s")
        told.append(", ".join(parts))
    alone = plan.groups[0].choice.candidate.shape.ranks == 1
    slower = [one for one in plan.rejected if alone and one.why == "slower" and one.what.startswith("TP=2 ")]
    told += (
        [f"TP=2 not taken: {slower[0].tps:.1f} tok/s ({slower[0].rule or 'too little faster for two nodes'})"]
        if slower
        else []
    )
    return "<br>".join(told)


def _refused(plan: Plan) -> str:
    first = plan.refused[0].rejected[0]
    return f"refused: {first.reason} ({first.rule})" if first.rule else f"refused: {first.reason}"


if __name__ == "__main__":
    from arguments import check_arguments  # beside this script

    check_arguments(__doc__, "--check")
    sys.exit(main())
