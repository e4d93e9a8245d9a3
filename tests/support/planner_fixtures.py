from pathlib import Path

import pytest

from sparkfleet.hostfacts.network.link import LinkFacts
from sparkfleet.hostfacts.node import Gpu, InstalledEngine, NodeFacts, Processors, UnifiedMemory
from sparkfleet.knowledge.models.known_models import known_checkpoint
from sparkfleet.planner.packing.fleet_planner import plan_fleet
from sparkfleet.planner.place.fleet_map import Fleet
from sparkfleet.specs.deployment import Deployment

ROOT = Path(__file__).parents[2]
SPARK_TOTAL, SPARK_IDLE = 130_600_000_000, 115_200_000_000


def _spark(name, total=SPARK_TOTAL, available=None, driver="580.142"):
    return NodeFacts(
        name=name,
        memory=UnifiedMemory(
            total=total, available=total - (SPARK_TOTAL - SPARK_IDLE) if available is None else available
        ),
        processors=Processors(count=20, machine="aarch64"),
        gpu=Gpu(name="NVIDIA GB10", driver=driver),
        engines={},
    )


def _cpu(name="this", available=16 << 30, engines=None):
    home = {"vllm": InstalledEngine(python="/venv/bin/python", version="0.32.0+cpu")}
    return NodeFacts(
        name=name,
        memory=UnifiedMemory(total=32 << 30, available=available),
        processors=Processors(count=2, machine="x86_64"),
        gpu=None,
        engines=home if engines is None else engines,
    )


def _link(*nodes, switch=None, latency_us=24.0, gb_per_s=22.1, kind="roce", rails=2):
    return LinkFacts(
        nodes=nodes, switch=switch, rails=rails, kind=kind, latency_us=latency_us, gb_per_s=gb_per_s
    )


def _sparks(count, total=SPARK_TOTAL, switch=False, assumed=True, **link):
    names = tuple(f"spark{n}" for n in range(1, count + 1))
    if switch:
        links = tuple(_link(name, switch="sw", **link) for name in names)
    else:
        links = (_link(*names, **link),) if count == 2 else ()
    return Fleet(
        name="home",
        nodes=tuple(_spark(name, total) for name in names),
        links=links,
        assumed=names if assumed else (),
    )


def _checkpoints(specs):
    models = {variant.model for spec in specs for variant in spec.resolved() if variant.engine != "custom"}
    found = {model: known_checkpoint(model) for model in models if not model.startswith(("builtin:", "/"))}
    return {model: checkpoint for model, checkpoint in found.items() if checkpoint is not None}


def _plan(fleet, *specs, running=None, **more):
    return plan_fleet(specs, fleet, _checkpoints(specs), running, **more)


def _ask(model="Qwen/Qwen3.6-27B-FP8", name="m", **fields):
    return Deployment.model_validate({"name": name, "model": model, **fields}, strict=False)


@pytest.fixture
def root():
    return ROOT


@pytest.fixture
def spark():
    return _spark


@pytest.fixture
def cpu_node():
    return _cpu


@pytest.fixture
def link():
    return _link


@pytest.fixture
def sparks():
    return _sparks


@pytest.fixture
def plan():
    """plan(fleet, *specs): with the checkpoints that are known by name."""
    return _plan


@pytest.fixture
def ask():
    """ask(model, **fields): a deployment."""
    return _ask
