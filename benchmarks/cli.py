"""Time to the first output of each verb: medians of ten runs with a warm page cache, on a fleet that is down.

    python benchmarks/cli.py [VERB…] [--rounds 10] [--limit 0.3] [--json] [--against DIR]

Each run is a process of its own. `terminal`: seconds until its first byte on a terminal, which may be the line that it is
being loaded. `pipe`: seconds until the first byte on standard output or standard error if both are a pipe, which is the
answer. `cpu`: seconds of processor time until then, which other work on the machine changes less. Exit code 1 if a median
of `terminal` is above the limit. Verbs that need a controller end with the line that the fleet is down; those that would
start, install or remove something are measured by their `--help`, which imports the same module.

`--against DIR`: another checkout, run in turns with this one. `cpu` has the ratio, this one's by the other's.
"""

from __future__ import annotations

import argparse
import json
import os
import pty
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from sparkfleet.cli.verbs import VERBS

SPARKFLEET = Path(sys.executable).parent / "sparkfleet"
INVENTORY = "fleet: benchmark\nhead: a\nnodes:\n  a: {address: local}\n"
DEPLOYMENT = "name: tiny\nmodel: builtin:tiny\n"
REQUEST = '{"model": "tiny", "messages": [{"role": "user", "content": "hello"}]}'
RULE = "tp2-slower-27b"
RUNS = {
    "--version": ["--version"],
    "--help": ["--help"],
    "plan": ["plan", "tiny.yaml", "--offline"],
    "apply": ["apply", "tiny.yaml", "--offline"],
    "explain": ["explain", RULE],
    "explain (list)": ["explain"],
    "status": ["status"],
    "describe": ["describe", "tiny"],
    "logs": ["logs", "tiny"],
    "events": ["events"],
    "history": ["history", "tiny"],
    "rollback": ["rollback", "tiny"],
    "scale": ["scale", "tiny", "2"],
    "restart": ["restart", "tiny"],
    "drain": ["drain", "a"],
    "ask": ["ask", "tiny", "hello"],
    "delete": ["delete", "tiny"],
    "keys list": ["keys", "list"],
    "help": ["help", "apply"],
    "version": ["version"],
    "fabric": ["fabric", "--help"],
    "doctor": ["doctor"],
    "inspect": ["inspect", "builtin:tiny"],
    "accuracy": ["accuracy", "none.csv"],
    "knowledge": ["knowledge", "--help"],
    "usage": ["usage"],
    "connect": ["connect", "openai", "tiny"],
    "route": ["route", "request.json"],
    "undrain": ["undrain", "a"],
    "restore": ["restore"],
    "models": ["models", "--help"],
    "observe": ["observe", "--help"],
    **{
        verb: [verb, "--help"]
        for verb in (
            *("demo", "init", "selftest", "top", "up", "down", "upgrade", "move-head"),
            *("prune", "backup", "bundle", "uninstall"),
        )
    },
}
"""Every verb, so that nothing changes on a fleet that is down."""


def first_output_s(
    argv: list[str], where: Path, *, terminal: bool, checkout: Path | None = None
) -> tuple[float, float]:
    """Seconds until the first byte of output, and seconds of processor time of the process until then."""
    of_checkout = {"PYTHONPATH": str(checkout)} if checkout else {}
    reads, writes = pty.openpty() if terminal else os.pipe()
    began = time.perf_counter()
    with subprocess.Popen(
        [SPARKFLEET, *argv],
        cwd=where,
        env=environment(where) | of_checkout,
        stdin=subprocess.DEVNULL,
        stdout=writes,
        stderr=writes,
        start_new_session=True,
    ) as running:
        os.close(writes)
        read(reads, 1)
        wall = time.perf_counter() - began
        cpu = processor_s(running.pid)
        while read(reads, 1 << 16):
            pass
    os.close(reads)
    return wall, cpu


def environment(where: Path) -> dict[str, str]:
    """As a person has it, with a state directory of its own."""
    inherited = {name: text for name, text in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    home = {"SPARKFLEET_HOME": str(where / "state"), "SPARKFLEET_API_KEY": "sk-sf-none"}
    return {**inherited, **home, "TERM": "xterm-256color"}


def read(file: int, size: int) -> bytes:
    """Up to `size` bytes; none at the end, which a terminal reports as an error."""
    try:
        return os.read(file, size)
    except OSError:
        return b""


def processor_s(pid: int) -> float:
    """Processor time of a process so far, of ended threads as well."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return sum(map(int, fields[11:13])) / os.sysconf("SC_CLK_TCK")


def measured(name: str, rounds: int, where: Path) -> dict[str, float]:
    """Medians of a verb, after one run that is not counted."""
    first_output_s(RUNS[name], where, terminal=False)
    seen, _ = zip(*(first_output_s(RUNS[name], where, terminal=True) for _ in range(rounds)), strict=True)
    walls, cpus = zip(
        *(first_output_s(RUNS[name], where, terminal=False) for _ in range(rounds)), strict=True
    )
    return {
        "terminal": statistics.median(seen),
        "pipe": statistics.median(walls),
        "cpu": statistics.median(cpus),
    }


def compared(name: str, rounds: int, where: Path, others: Path) -> str:
    """Line with the processor time of another checkout and of this one, after one run of each that is not counted."""
    checkouts = others.resolve(), Path(__file__).resolve().parents[1]
    rows = [
        [first_output_s(RUNS[name], where, terminal=False, checkout=one)[1] for one in checkouts]
        for _ in range(rounds + 1)
    ]
    theirs, ours = map(statistics.median, zip(*rows[1:], strict=True))
    return f"{name:<16} cpu {theirs:.3f} s → {ours:.3f} s, ratio {ours / theirs:.2f}"


def main() -> int:
    """Run it."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("verbs", nargs="*", metavar="VERB", help=f"of {', '.join(RUNS)}; none: all")
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--limit", type=float, default=0.3, help="seconds")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--against", type=Path, metavar="DIR", help="another checkout of sparkfleet")
    options = parser.parse_args()
    if missing := set(VERBS) - {argv[0] for argv in RUNS.values()}:
        parser.error(f"verbs without a run here: {', '.join(sorted(missing))}")
    if unknown := set(options.verbs) - set(RUNS):
        parser.error(f"no such verb here: {', '.join(sorted(unknown))}")
    with tempfile.TemporaryDirectory() as directory:
        where = Path(directory)
        (where / "inventory.yaml").write_text(INVENTORY)
        (where / "tiny.yaml").write_text(DEPLOYMENT)
        (where / "request.json").write_text(REQUEST)
        if options.against:
            for name in options.verbs or RUNS:
                print(compared(name, options.rounds, where, options.against))
            return 0
        found = {name: measured(name, options.rounds, where) for name in options.verbs or RUNS}
    if options.json:
        print(json.dumps(found, indent=2))
    else:
        for name, one in sorted(found.items(), key=lambda item: -item[1]["pipe"]):
            late = "  above the limit" if one["terminal"] > options.limit else ""
            print(
                f"{name:<16} terminal {one['terminal']:.2f} s  pipe {one['pipe']:.2f} s  cpu {one['cpu']:.2f} s{late}"
            )
    return int(any(one["terminal"] > options.limit for one in found.values()))


if __name__ == "__main__":
    sys.exit(main())
