"""The engines by the name that a deployment sets."""

from __future__ import annotations

from sparkfleet.engines.base import Engine
from sparkfleet.engines.custom import Custom
from sparkfleet.engines.llamacpp import LlamaCpp
from sparkfleet.engines.sglang import Sglang
from sparkfleet.engines.trtllm import Trtllm
from sparkfleet.engines.vllm import Vllm
from sparkfleet.errors import EngineError
from sparkfleet.specs.fields import quote

ENGINES: dict[str, Engine] = {
    engine.name: engine for engine in (Vllm(), Sglang(), Trtllm(), LlamaCpp(), Custom())
}


def engine_by_name(name: str) -> Engine:
    """The engine of that name. Raises EngineError if this version cannot launch it."""
    try:
        return ENGINES[name]
    except KeyError:
        raise EngineError(
            f"Engine {quote(name)} cannot be launched by this version of sparkfleet.",
            means=f"It can launch: {', '.join(sorted(ENGINES))}.",
            do="Set `engine: auto` in the deployment, or name one of these.",
        ) from None
