"""Settings of an engine as plans name them; `predictor.py` makes an `EngineConfig` of them, with sizes in place of names."""

from __future__ import annotations

from typing import NamedTuple

from sparkfleet.knowledge.ceilings import LinkSpeed
from sparkfleet.knowledge.engines.images import RequantizedBits
from sparkfleet.perf.prediction import Speculation


class EngineSettings(NamedTuple):
    """Settings of an engine, beside the checkpoint and the split, that memory and speed depend on.

    They name the speculative method and its draft model; the `EngineConfig` that is made of them has its shapes.
    """

    engine: str
    release: str
    speculation: Speculation
    eager: bool
    kv_dtype: str
    batch_tokens: int
    link: LinkSpeed | None
    marlin: bool = False
    disk_tables: bool = False
    kv_disk: bool = False
    requantized: RequantizedBits = ()
    """Parts that the build stores in other bits than the checkpoint."""
