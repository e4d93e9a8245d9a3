"""Setups and their predicted rates, which tests of `perf.latency` share."""

from __future__ import annotations

from sparkfleet.accuracy.models import Stored, find_shape
from sparkfleet.knowledge.ceilings import physics
from sparkfleet.knowledge.measurements import architectures
from sparkfleet.knowledge.published.factors import factors
from sparkfleet.perf.latency.latency_model import model_of
from sparkfleet.perf.latency.rates import Rates, rates
from sparkfleet.perf.latency.step_costs import SpeedConfig
from sparkfleet.perf.workload import Workload


def setup(name: str, format_: str, **more: object) -> SpeedConfig:
    shape = find_shape(name, architectures(), Stored(format_))
    tp = more.get("tp", 1)
    link = more.pop("link", physics().links["qsfp200"] if tp != 1 else None)
    return SpeedConfig(shape=shape, format=format_, link=link, **{"engine": "vllm", **more})


def predict(name: str, format_: str, work: Workload, **more: object) -> Rates:
    return rates(model_of(setup(name, format_, **more), factors()), work)
