"""Speeds of setups that owners have measured over the endpoint (`sparkfleet bench`), in the store."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, ValidationError

from sparkfleet.controlplane.state.tables.database import Database
from sparkfleet.perf.prediction import Speculation
from sparkfleet.planner.types.plan import Candidate
from sparkfleet.specs.deployment import EngineName
from sparkfleet.values import Value

MOST_RESULTS = 200
"""Results that are kept, the newest: more setups and loads than an owner compares."""
Rate = Annotated[float, Field(gt=0, allow_inf_nan=False)]


class BenchSetup(Value):
    """Everything of a candidate on which its speed depends; its nodes are equal, and not part of it."""

    model: str
    engine: EngineName
    engine_version: str
    image: str | None = None
    tp: int
    pp: int
    dcp: int = 1
    speculation: Speculation
    device: Literal["cuda", "cpu"]


class BenchLoad(Value):
    """Requests of a measurement: all of a round are sent at once. Numbers are tokens unless noted."""

    content: str
    """Kind of their text, as in a deployment's `content`."""
    prompt: int
    answer: int
    concurrency: int
    """Requests at once on one group."""


class LoadSpeeds(Value):
    """Speeds of one group under one load: means of a round's requests, the median of the rounds."""

    load: BenchLoad
    ttft_ms: Rate
    request_tps: Rate
    """Tokens per second of one request, from its first token to its last."""
    group_tps: Rate
    """Of all requests at once on one group, from the first token of any to the last one of all."""


class BenchResult(LoadSpeeds):
    """Speeds of a setup under one load, as they are kept."""

    setup: BenchSetup
    at: float = 0.0
    """Unix seconds, by the clock of the head."""


class BenchTable:
    """The newest result of each setup and load."""

    def __init__(self, database: Database) -> None:
        self._db = database

    def keep(self, result: BenchResult) -> None:
        """Stores a result in place of a former one of the same setup and load; the oldest are dropped."""
        now = self._db.now()
        kept = result.model_copy(update={"at": now})
        with self._db.transaction():
            self._db.execute(
                "INSERT OR REPLACE INTO bench_results VALUES (?, ?, ?, ?)",
                (result.setup.for_disk(), result.load.for_disk(), kept.for_disk(), now),
            )
            self._db.execute(
                "DELETE FROM bench_results WHERE rowid NOT IN (SELECT rowid FROM bench_results ORDER BY at DESC LIMIT ?)",
                (MOST_RESULTS,),
            )

    def all(self) -> tuple[BenchResult, ...]:
        """All results, the newest first. Those that a newer release wrote are left out."""
        return self._db.read("bench results", self._read)

    def _read(self) -> tuple[BenchResult, ...]:
        rows = self._db.execute("SELECT result FROM bench_results ORDER BY at DESC")
        return tuple(found for (text,) in rows if (found := _result(text)) is not None)


def bench_setup_of(candidate: Candidate) -> BenchSetup:
    """The setup of a candidate."""
    return BenchSetup(
        model=candidate.model,
        engine=candidate.engine,
        engine_version=candidate.engine_version,
        image=candidate.image,
        tp=candidate.shape.tp,
        pp=candidate.shape.pp,
        dcp=candidate.shape.dcp,
        speculation=candidate.speculation,
        device=candidate.device,
    )


def _result(text: str) -> BenchResult | None:
    try:
        return BenchResult.model_validate_json(text)
    except ValidationError:
        return None
