"""`python -m sparkfleet.lab.simulation`: runs of the simulation; exit 1 if an invariant did not hold."""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from multiprocessing import get_context

from sparkfleet.lab.simulation.run import DEMAND_EVERY_S, DRAIN_EVERY_S, FAULT_EVERY_S, RACE_EVERY_S, simulate
from sparkfleet.lab.simulation.run_report import RunReport


def main(argv: list[str]) -> int:
    """Run seeds and print what was injected, and each violation with the command that replays it."""
    parser = argparse.ArgumentParser(prog="python -m sparkfleet.lab.simulation", description=__doc__)
    parser.add_argument("--seed", type=int, default=0, help="the first seed")
    parser.add_argument("--runs", type=int, default=10, help="how many seeds, from there on")
    parser.add_argument("--hours", type=float, default=3.0, help="simulated hours with faults, per run")
    parser.add_argument("--nodes", type=int, default=3)
    parser.add_argument("--small", type=int, default=0, help="how many of the nodes have 64 GB")
    parser.add_argument(
        "--fault-every", type=float, default=FAULT_EVERY_S, help="mean seconds between faults"
    )
    parser.add_argument(
        "--drain-every", type=float, default=DRAIN_EVERY_S, help="mean seconds between drained nodes, or inf"
    )
    parser.add_argument(
        "--race-every", type=float, default=RACE_EVERY_S, help="mean seconds between races, or inf"
    )
    parser.add_argument(
        "--demand-every",
        type=float,
        default=DEMAND_EVERY_S,
        help="mean seconds between events of deployments on demand, or inf for no such deployments",
    )
    parser.add_argument(
        "--head-every",
        type=float,
        default=float("inf"),
        help="mean seconds between losses of the head, after which it is moved, or inf",
    )
    parser.add_argument(
        "--jobs", type=int, default=os.cpu_count() or 1, help="processes that run seeds side by side"
    )
    parser.add_argument("--log", action="store_true", help="print what happened in each run")
    given = parser.parse_args(argv)
    faults: Counter[str] = Counter()
    began = time.monotonic()
    hours, failed = 0.0, 0
    for report in _reports(given):
        hours += report.hours
        faults += report.faults
        if given.log:
            print("\n".join(report.log))
        if report.violations:
            failed += 1
            print("\n".join(report.violations))
            print(
                f"replay: python -m sparkfleet.lab.simulation --seed {report.seed} --runs 1 --hours {given.hours}"
                f" --nodes {given.nodes} --small {given.small} --fault-every {given.fault_every}"
                f" --drain-every {given.drain_every} --race-every {given.race_every}"
                f" --demand-every {given.demand_every} --head-every {given.head_every} --log"
            )
    minutes = (time.monotonic() - began) / 60
    print(
        f"{hours:.0f} simulated fleet-hours, {sum(faults.values())} faults, {failed} of {given.runs} runs failed;"
        f" {minutes:.1f} min, {hours / minutes:.0f} fleet-hours a minute"
    )
    return 1 if failed else 0


def _reports(given: argparse.Namespace) -> Iterator[RunReport]:
    """The report of each seed, in their order, however many processes run them."""
    run = partial(
        simulate,
        hours=given.hours,
        nodes=given.nodes,
        fault_every_s=given.fault_every,
        drain_every_s=given.drain_every,
        race_every_s=given.race_every,
        demand_every_s=given.demand_every,
        head_every_s=given.head_every,
        small=given.small,
    )
    seeds = range(given.seed, given.seed + given.runs)
    if given.jobs <= 1 or given.runs <= 1:
        yield from map(run, seeds)
        return
    with ProcessPoolExecutor(min(given.jobs, given.runs), mp_context=get_context("spawn")) as pool:
        yield from pool.map(run, seeds)


if __name__ == "__main__":  # not in the processes of the pool, which import this
    sys.exit(main(sys.argv[1:]))
