"""The benchmark runs, and prints all of its results."""

from __future__ import annotations

import asyncio
import json
import math
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[2] / "benchmarks" / "gateway.py"
QUICK = ("--streams", "1", "3", "--rounds", "1", "--tokens", "4", "--small-s", "0.2", "--idle-s", "0.2")


async def run(*arguments: str) -> tuple[int | None, str, str]:
    child = await asyncio.create_subprocess_exec(
        sys.executable,
        str(SCRIPT),
        *QUICK,
        *arguments,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    out, trouble = await child.communicate()
    return child.returncode, out.decode(), trouble.decode()


@pytest.mark.full  # a Ray and a Serve of its own
async def test_it_measures_the_gateway_against_the_bare_engine() -> None:
    status, out, trouble = await run("--json", "--only", "sparkfleet")
    assert status == 0, trouble
    report = json.loads(out)
    assert report["version"] == 3
    at = [(line["contender"], line["streams"]) for line in report["lines"]]
    assert at == [("direct", 1), ("sparkfleet", 1), ("direct", 3), ("sparkfleet", 3)]
    for line in report["lines"]:
        assert line["failed"] == 0
        assert line["answers"] >= 8
        # It is a difference of two measurements: on a busy machine it may be below 0.
        assert math.isfinite(line["added_ttft_p50_ms"])
    assert report["idle_cpu_ms_per_s"]["direct"] == 0
    assert set(report["small"]) == {"direct", "sparkfleet"}
    assert min(one["per_s"] for one in report["small"].values()) > 0
    assert report["small"]["sparkfleet"]["cpu_s_per_1000"] > 0


@pytest.mark.parametrize(
    ("script", "arguments", "names"),
    [
        ("chunk.py", ("--tokens", "64", "--rounds", "3"), ("count", "failure", "usage", "loops", "record")),
        ("policy.py", ("--groups", "2", "--rounds", "3"), ("decide_us", "record_us", "parse_us", "wait_us")),
    ],
)
async def test_the_steps_of_a_stream_and_of_a_decision_are_measured(
    script: str, arguments: tuple[str, ...], names: tuple[str, ...]
) -> None:
    child = await asyncio.create_subprocess_exec(
        sys.executable, str(SCRIPT.with_name(script)), "--json", *arguments, stdout=asyncio.subprocess.PIPE
    )
    out, _ = await child.communicate()
    report = json.loads(out)
    (found,) = report.get("lines", [report])
    assert child.returncode == 0
    assert all(0 < found[name] < 10_000 for name in names)


async def test_the_cost_of_one_request_is_measured() -> None:
    script = str(SCRIPT.with_name("request.py"))
    arguments = ("--json", "--each", "12", "--rounds", "1")
    child = await asyncio.create_subprocess_exec(
        sys.executable, script, *arguments, stdout=asyncio.subprocess.PIPE
    )
    out, _ = await child.communicate()
    report = json.loads(out)
    assert child.returncode == 0
    for kind in ("small", "stream"):
        assert 10 < report[kind]["us"] < 100_000
        assert report[kind]["python_calls"] > 100
    assert report["stream"]["python_calls"] > report["small"]["python_calls"]


async def test_the_benchmark_of_long_bodies_can_be_started() -> None:
    child = await asyncio.create_subprocess_exec(
        sys.executable, str(SCRIPT.with_name("abuse.py")), "--help", stdout=asyncio.subprocess.PIPE
    )
    out, _ = await child.communicate()
    assert (child.returncode, b"--body" in out) == (0, True)


async def test_a_contender_that_is_not_installed_is_reported() -> None:
    status, out, trouble = await run("--only", "nginx", "--nginx", "no-such-program")
    assert status == 0
    assert "nginx is left out: no program no-such-program" in trouble
    assert "direct" in out
    assert "sparkfleet" not in out


@pytest.mark.full  # 480 requests of simulated engines by a real clock
async def test_it_compares_the_choice_of_an_engine_with_that_of_other_routers() -> None:
    script = SCRIPT.parent / "routing.py"
    quick = ("--json", "--loads", "unlike", "agents", "--requests", "24", "--scale", "100")
    child = await asyncio.create_subprocess_exec(
        sys.executable,
        str(script),
        *quick,
        "--only",
        "sparkfleet",
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    out, trouble = await child.communicate()
    assert child.returncode == 0, trouble.decode()
    unlike, alone, agents = json.loads(out)["lines"]
    assert (unlike["load"], unlike["contender"], alone["contender"]) == ("unlike", "sparkfleet", "one engine")
    assert (unlike["answered"], unlike["refused"]) == (24, 0), "long prompts and images, too"
    assert set(unlike["by_kind"]) >= {"short", "vision"}
    assert agents["hit_rate"] > 0
    assert agents["hit_rate"] >= alone["hit_rate"] - 0.3
