"""From `apply` to the first token, next to the engine's own start; and what the fleet costs while idle.

    python benchmarks/start.py [--rounds 3] [--json]

Each round measures, one after the other: the bare engine (the same command, started by hand, until its first token), a
cold apply (fleet down, until the first token through the gateway) and a warm apply (fleet up). Ratios are of medians
within one run; on a busy machine only they mean something. Uses a state directory of its own and leaves nothing running.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import aiohttp

from sparkfleet.controlplane.ray.ray_process import LABEL
from sparkfleet.controlplane.state.desired import Desired
from sparkfleet.controlplane.state.launches import launch_for
from sparkfleet.errors import EngineError
from sparkfleet.fleet.nodes.collect_facts import collect_facts
from sparkfleet.group.probe import Probe, wait_healthy
from sparkfleet.group.ranks.rank_node import spec_here
from sparkfleet.group.ranks.rank_spec import Ports
from sparkfleet.planner.packing.fleet_planner import plan_fleet
from sparkfleet.planner.place.fleet_map import Fleet
from sparkfleet.remote.local import LocalChannel
from sparkfleet.runtime import processes
from sparkfleet.runtime.environment import FLEET_LABEL
from sparkfleet.runtime.files.fleet_paths import FleetPaths
from sparkfleet.runtime.ports import free_port
from sparkfleet.specs.load import parse_deployment, parse_inventory

SPARKFLEET = str(Path(sys.executable).parent / "sparkfleet")
INVENTORY = "fleet: start\nhead: this\nnodes:\n  this: {address: local}\ngateway: {port: 0}\n"
DEPLOYMENT = "name: tiny\nmodel: builtin:tiny\ncontext: 512\nconcurrency: 16\n"
IDLE_S = 15.0


class Bench:
    """A fleet in a directory of its own."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.paths = FleetPaths(directory / "state" / "start")
        (directory / "inventory.yaml").write_text(INVENTORY)
        (directory / "tiny.yaml").write_text(DEPLOYMENT)
        self.key = ""

    def sparkfleet(self, *args: str) -> str:
        """Run a verb to its end."""
        return self.spawn(*args).communicate()[0]

    def spawn(self, *args: str) -> subprocess.Popen[str]:
        """Start a verb."""
        return subprocess.Popen(
            [SPARKFLEET, *args],
            cwd=self.directory,
            env={**os.environ, "SPARKFLEET_HOME": str(self.directory / "state")},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )

    async def bare(self) -> float:
        """Seconds from starting the engine by hand to its first token."""
        inventory = parse_inventory(INVENTORY, "inventory")
        (facts,) = await collect_facts(inventory, {"this": LocalChannel("this")})
        spec = parse_deployment(DEPLOYMENT, "deployment")
        (plan,) = plan_fleet([spec], Fleet(nodes=(facts,))).deployments
        desired = Desired(spec=spec, plan=plan, generation=1, who="bench", since=0)
        launch = launch_for(inventory, desired, desired.groups[0], 0)
        rank = spec_here(self.paths, launch, 0, Ports(http=free_port("127.0.0.1")), "secret")
        env = {**os.environ, **dict(rank.env), **dict(rank.secret_env)}
        began = time.perf_counter()
        engine = subprocess.Popen(
            rank.argv, env=env, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True
        )
        try:
            async with aiohttp.ClientSession() as session:
                token = rank.secret_env[0][1]
                probe = Probe(session, f"http://127.0.0.1:{rank.port}", "tiny", token)
                await wait_healthy(probe, "/health")
                await probe.one_token()
            return time.perf_counter() - began
        finally:
            os.killpg(engine.pid, 9)
            engine.wait()

    async def applied(self) -> float:
        """Seconds from `sparkfleet apply` to the first token through the gateway."""
        began = time.perf_counter()
        apply = self.spawn("apply", "--yes", "tiny.yaml")
        async with aiohttp.ClientSession() as session:
            while True:
                try:
                    address = json.loads(self.paths.address.read_text())
                    url = f"http://127.0.0.1:{address['gateway_port']}"
                    await Probe(session, url, "tiny", self.key).one_token()
                    break
                except (EngineError, FileNotFoundError):
                    await asyncio.sleep(0.1)
        took = time.perf_counter() - began
        await asyncio.to_thread(apply.communicate)
        return took

    def footprint(self) -> dict[str, float]:
        """Memory and processor time of everything but the engine, without requests."""
        ours = processes.labelled({LABEL: self.paths.label})
        supervisors = [p for p in processes.labelled({FLEET_LABEL: self.paths.label}) if p not in ours]
        before, began = _cpu_s(ours), time.perf_counter()
        time.sleep(IDLE_S)
        return {
            "processes": len(ours),
            "memory_mib": round(processes.memory_bytes(ours) / 2**20, 1),
            "engine_memory_mib": round(processes.memory_bytes(supervisors) / 2**20, 1),
            "cpu_cores": round((_cpu_s(ours) - before) / (time.perf_counter() - began), 4),
        }


def _cpu_s(among: list[processes.Process]) -> float:
    ticks = 0
    for process in among:
        try:
            fields = Path(f"/proc/{process.pid}/stat").read_text().rpartition(")")[2].split()
        except FileNotFoundError:
            continue
        ticks += int(fields[11]) + int(fields[12])
    return ticks / os.sysconf("SC_CLK_TCK")


def main() -> None:
    """Run the rounds and print what came of them."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    subprocess.run(
        [sys.executable, "-m", "sparkfleet.tiny_models", "build", "tiny"],
        check=True,
        stdout=subprocess.DEVNULL,
    )
    times: dict[str, list[float]] = {"bare": [], "cold": [], "warm": []}
    with tempfile.TemporaryDirectory() as directory:
        bench = Bench(Path(directory))
        try:
            bench.sparkfleet("up")
            bench.key = json.loads(bench.sparkfleet("keys", "create", "bench", "--json"))["key"]
            for _ in range(arguments.rounds):
                bench.sparkfleet("down")
                times["bare"].append(asyncio.run(bench.bare()))
                times["cold"].append(asyncio.run(bench.applied()))
                bench.sparkfleet("delete", "--yes", "tiny")
                times["warm"].append(asyncio.run(bench.applied()))
                idle = bench.footprint()
                bench.sparkfleet("delete", "--yes", "tiny")
        finally:
            bench.sparkfleet("down")
    medians = {name: statistics.median(values) for name, values in times.items()}
    result = {
        "seconds": times,
        "cold_over_bare": round(medians["cold"] / medians["bare"], 3),
        "warm_over_bare": round(medians["warm"] / medians["bare"], 3),
        "idle": idle,
    }
    print(json.dumps(result, indent=2) if arguments.json else _words(medians, result))


def _words(medians: dict[str, float], result: dict[str, object]) -> str:
    lines = [f"{name:5} {seconds:6.1f} s to the first token (median)" for name, seconds in medians.items()]
    lines += [f"{name}: {result[name]}" for name in ("cold_over_bare", "warm_over_bare", "idle")]
    return "\n".join(lines)


if __name__ == "__main__":
    main()
