"""`python -m sparkfleet.lab.simulation`: runs of the simulation; exit 1 if an invariant did not hold."""

from __future__ import annotations

import argparse
import sys
from collections import Counter

from sparkfleet.lab.simulation.run import DRAIN_EVERY_S, FAULT_EVERY_S, simulate


def main(argv: list[str]) -> int:
    """Run seeds one after another and print what was injected, and each violation with the command that replays it."""
    parser = argparse.ArgumentParser(prog="python -m sparkfleet.lab.simulation", description=__doc__)
    parser.add_argument("--seed", type=int, default=0, help="the first seed")
    parser.add_argument("--runs", type=int, default=10, help="how many seeds, one after another")
    parser.add_argument("--hours", type=float, default=3.0, help="simulated hours with faults, per run")
    parser.add_argument("--nodes", type=int, default=3)
    parser.add_argument(
        "--fault-every", type=float, default=FAULT_EVERY_S, help="mean seconds between faults"
    )
    parser.add_argument(
        "--drain-every", type=float, default=DRAIN_EVERY_S, help="mean seconds between drained nodes, or inf"
    )
    parser.add_argument("--log", action="store_true", help="print what happened in each run")
    given = parser.parse_args(argv)
    faults: Counter[str] = Counter()
    hours, failed = 0.0, 0
    for seed in range(given.seed, given.seed + given.runs):
        report = simulate(seed, given.hours, given.nodes, given.fault_every, given.drain_every)
        hours += report.hours
        faults += report.faults
        if given.log:
            print("\n".join(report.log))
        if report.violations:
            failed += 1
            print("\n".join(report.violations))
            print(
                f"replay: python -m sparkfleet.lab.simulation --seed {seed} --runs 1 --hours {given.hours:g}"
                f" --nodes {given.nodes} --fault-every {given.fault_every:g}"
                f" --drain-every {given.drain_every:g} --log"
            )
    print(
        f"{hours:.0f} simulated fleet-hours, {sum(faults.values())} faults, {failed} of {given.runs} runs failed"
    )
    return 1 if failed else 0


sys.exit(main(sys.argv[1:]))
