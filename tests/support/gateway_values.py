"""Values that the tests of `gateway` share."""

from typing import Any

from sparkfleet.engines.fake import FakeEngine, InjectedFault, Pace
from sparkfleet.gateway.routing_table import GroupEntry, ModelEntry

PACED = Pace(ttft_s=0.02, itl_s=0.002, tokens=10)
ENDLESS = Pace(itl_s=0.002, tokens=1_000_000)
SLOW = Pace(ttft_s=0.02, itl_s=0.002, tokens=8)
CHAT = "/v1/chat/completions"
LOADING = ModelEntry(
    name="qwen",
    groups=(GroupEntry(app="a"),),
    deployment="d",
    state="starting",
    detail="loading weights, 40 of 100 GiB",
    retry_after_s=30,
)
"""A model whose only group loads its weights."""


def model(name: str, **more: Any) -> ModelEntry:
    """A model that is ready."""
    return ModelEntry.model_validate({"name": name, "deployment": "engine", "state": "ready", **more})


def paced_engine(fault: InjectedFault | None = None, pace: Pace = SLOW) -> FakeEngine:
    """A fake engine of `tiny` that requires the internal token."""
    return FakeEngine(model="tiny", pace=pace, fault=fault, token="internal-token")
