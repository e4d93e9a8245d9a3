"""Published costs of decode context parallelism on Sparks: `shared_kv.yaml`, checked on load."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from sparkfleet.knowledge.data_file import DataFile, Date, Sources, UniqueEntries
from sparkfleet.values import Value

Share = Annotated[float, Field(gt=0, le=2)]


class SharedKvRun(Value):
    """A run with one KV cache for several ranks, beside the same with a copy on each."""

    id: str
    model: str
    nodes: Annotated[int, Field(ge=2)]
    dcp: Annotated[int, Field(ge=2)]
    """Ranks that share one KV cache."""
    alone: Share
    """Decode rate of one request, over that without."""
    together: Share
    """The same of `requests` at once, in all."""
    requests: Annotated[int, Field(ge=2)]
    prefill: Share
    """Prefill rate of a long prompt, over that without."""
    note: str = ""
    sources: Sources
    date: Date

    def __str__(self) -> str:
        return (
            f"{self.alone:.2f}× the decode rate alone, {self.together:.2f}× that of {self.requests} requests, "
            f"{self.prefill:.2f}× the prefill rate of a long prompt ({self.model}, DCP={self.dcp} on {self.nodes} Sparks)"
        )


class SharedKvRuns(Value):
    """Contents of the file."""

    runs: UniqueEntries[SharedKvRun]


SHARED_KV = DataFile("published/shared_kv.yaml", SharedKvRuns)


def nearest_run(dcp: int) -> SharedKvRun:
    """The published run with as many ranks, or with the nearest number."""
    return min(SHARED_KV.content.runs, key=lambda run: (abs(run.dcp - dcp), run.dcp))
