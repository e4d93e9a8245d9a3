"""Values that the tests of `gateway` share."""

from typing import Any

from sparkfleet.engines.fake import Pace
from sparkfleet.gateway.routing_table import ModelEntry

PACED = Pace(ttft_s=0.02, itl_s=0.002, tokens=10)
ENDLESS = Pace(itl_s=0.002, tokens=1_000_000)
CHAT = "/v1/chat/completions"


def model(name: str, **more: Any) -> ModelEntry:
    """A model that is ready."""
    return ModelEntry.model_validate({"name": name, "deployment": "engine", "state": "ready", **more})
