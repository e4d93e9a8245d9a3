"""Time of planning against the number of nodes, and for 64 nodes with 20 deployments.

    python benchmarks/plan.py [--nodes 1 2 4 8 16 32 64 128] [--deployments 20] [--rounds 3] [--json]

Nodes hang on switches of eight. Planning is pure, so the time is the planner's own; the first round also reads the data
files, and is shown apart. The processor's time is the planner's even on a busy machine.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time

from sparkfleet.hostfacts.network.link import LinkFacts
from sparkfleet.hostfacts.node import Gpu, NodeFacts, Processors, UnifiedMemory
from sparkfleet.knowledge.models.known_models import known_checkpoint
from sparkfleet.planner.packing.fleet_planner import plan_fleet
from sparkfleet.planner.place.fleet_map import Fleet
from sparkfleet.specs.deployment import Deployment

MODELS = (
    "Qwen/Qwen3.6-27B-FP8",
    "nvidia/Qwen3.6-27B-NVFP4",
    "Qwen/Qwen3.6-35B-A3B-FP8",
    "Intel/Qwen3.6-35B-A3B-int4-mixed-AutoRound",
    "openai/gpt-oss-120b",
    "bjk110/SPARK_Qwen3.5-122B-A10B-NVFP4",
    "Qwen/Qwen3-235B-A22B-GPTQ-Int4",
    "Qwen/Qwen3-30B-A3B-FP8",
    "nvidia/NVIDIA-Nemotron-3-Super-120B-A12B-NVFP4",
    "nvidia/Llama-3.3-70B-Instruct-FP4",
)
OBJECTIVES = ("interactive", "throughput", "context")
ON_A_SWITCH = 8


def fleet(nodes: int) -> Fleet:
    """That many idle Sparks, eight on a switch."""
    names = [f"spark{number}" for number in range(1, nodes + 1)]
    facts = tuple(
        NodeFacts(
            name=name,
            memory=UnifiedMemory(total=130_600_000_000, available=115_200_000_000),
            processors=Processors(count=20, machine="aarch64"),
            gpu=Gpu(name="NVIDIA GB10", driver="580.142"),
            engines={},
        )
        for name in names
    )
    links = tuple(
        LinkFacts(nodes=(name,), switch=f"switch{at // ON_A_SWITCH}", rails=2, latency_us=28.0, gb_per_s=23.1)
        for at, name in enumerate(names)
    )
    return Fleet(name="rack", nodes=facts, links=links, assumed=tuple(names))


def deployments(count: int) -> list[Deployment]:
    """That many deployments: ten models, three objectives."""
    return [
        Deployment(name=f"m{n}", model=MODELS[n % len(MODELS)], objective=OBJECTIVES[n % len(OBJECTIVES)])
        for n in range(count)
    ]


def measure(nodes: int, count: int, rounds: int) -> dict[str, float]:
    """Seconds of one plan: the first and the median of the others, and what came of it."""
    specs, where = deployments(count), fleet(nodes)
    known = {model: known_checkpoint(model) for model in MODELS}
    checkpoints = {model: checkpoint for model, checkpoint in known.items() if checkpoint is not None}
    times: list[float] = []
    busy: list[float] = []
    for _ in range(rounds + 1):
        began, spent = time.perf_counter(), time.process_time()
        plan = plan_fleet(specs, where, checkpoints)
        times.append(time.perf_counter() - began)
        busy.append(time.process_time() - spent)
    return {
        "nodes": nodes,
        "deployments": count,
        "first_s": times[0],
        "median_s": statistics.median(times[1:]),
        "processor_s": statistics.median(busy[1:]),
        "served": len(plan.deployments),
        "groups": sum(len(one.groups) for one in plan.deployments),
    }


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--nodes", type=int, nargs="+", default=[1, 2, 4, 8, 16, 32, 64, 128])
    parser.add_argument("--deployments", type=int, default=20)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    rows = [measure(nodes, args.deployments, args.rounds) for nodes in args.nodes]
    if args.json:
        print(json.dumps({"version": 1, "rows": rows}, indent=2))
        return
    print(
        f"{'nodes':>6}{'deployments':>13}{'first s':>9}{'median s':>10}{'processor s':>13}{'served':>8}{'groups':>8}"
    )
    for row in rows:
        times = f"{row['first_s']:9.2f}{row['median_s']:10.2f}{row['processor_s']:13.2f}"
        print(f"{row['nodes']:6.0f}{row['deployments']:13.0f}{times}{row['served']:8.0f}{row['groups']:8.0f}")


if __name__ == "__main__":
    main()
